// The stage: the full run and one method's picture on top of each other, with a line to drag between them.

if (one("#pictures")) {
  const home = one("#pictures"), show = one(".show", home), stage = one(".stage", home), dialog = one("#zoomed");
  const split = one(".split", home), prompts = all(".prompts input", home), panels = all(".tabs > section", home);
  const budgets = all(".tabs > input", home), shots = all(".shots", home);
  const state = { prompt: Math.floor((prompts.length - 1) / 2), method: one(".card", home).dataset.method, difference: false };

  const panel = () => panels[Math.max(0, budgets.findIndex((input) => input.checked))];
  const cards = () => all(`.shots[data-prompt="${state.prompt}"] .card`, panel());
  const draw = () => {
    const card = cards().find((each) => each.dataset.method === state.method) ?? cards()[0];
    const { title, note, calls, difference } = card.dataset, original = one("img", prompts[state.prompt].parentElement);
    prompts[state.prompt].checked = true;
    shots.forEach((each) => { each.hidden = Number(each.dataset.prompt) !== state.prompt; });
    all(".card", home).forEach((each) => each.setAttribute("aria-pressed", each === card));
    one(".before img", stage).src = original.src;
    one(".before img", stage).alt = original.alt;
    one(".after img", stage).src = one("img", card).src;
    one(".after img", stage).alt = one("img", card).alt;
    one(".difference img", stage).src = difference;
    one(".difference img", stage).alt = `difference of ${one("img", card).alt} from the full run`;
    one(".difference", stage).hidden = !state.difference;
    stage.classList.toggle("differing", state.difference);
    one(".show-difference", home).setAttribute("aria-pressed", state.difference);
    const shown = state.difference ? `difference × ${home.dataset.amplified}` : `${calls} calls`;
    one(".tag.right", stage).textContent = `${title}, ${shown}`;
    one(".caption", home).textContent = `${prompts[state.prompt].parentElement.textContent.trim()}: ${title}, ${note}`;
  };
  const move = (share) => {
    split.value = Math.round(100 * Math.min(1, Math.max(0, share)));
    slide();
  };
  const slide = () => {
    stage.style.setProperty("--split", `${split.value}%`);
    split.setAttribute("aria-valuetext", `${split.value} % full run`);
  };
  const choose = (change) => { Object.assign(state, change); draw(); };

  // Choosing a prompt, a budget, a method.
  prompts.forEach((input, prompt) => input.addEventListener("change", () => choose({ prompt })));
  budgets.forEach((input) => input.addEventListener("change", draw));
  all(".card", home).forEach((card) => card.addEventListener("click", () => choose({ method: card.dataset.method })));
  one(".show-difference", home).addEventListener("click", () => choose({ difference: !state.difference }));
  all(".look").forEach((button) => button.addEventListener("click", () => {
    const input = prompts.find((each) => each.dataset.sample === button.dataset.sample);
    choose({ prompt: prompts.indexOf(input) });
    home.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    input.focus({ preventScroll: true });
  }));

  // Dragging moves the line; a tap that does not move enlarges. Fingers that go up or down scroll the page as usual.
  let start = null, moved = false;
  stage.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    [start, moved] = [event.clientX, false];
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => {
    if (start === null) return;
    moved ||= Math.abs(event.clientX - start) > 5;
    if (moved) move((event.clientX - stage.getBoundingClientRect().left) / stage.clientWidth);
  });
  stage.addEventListener("click", () => { if (!moved) zoom(); });
  for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, () => { start = null; });
  split.addEventListener("input", slide);

  // Enlarged, it is the same stage with the same tools, in a dialog.
  const place = show.nextElementSibling;
  const zoom = () => {
    if (dialog.open) return dialog.close();
    dialog.append(show);
    return dialog.showModal();
  };
  dialog.addEventListener("close", () => {
    place.before(show);
    one(".zoom", show).focus({ preventScroll: true });
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (step) {
      event.preventDefault();
      choose({ prompt: (state.prompt + step + prompts.length) % prompts.length });
    }
  });
  one(".close", dialog).addEventListener("click", () => dialog.close());
  one(".zoom", home).addEventListener("click", zoom);

  // A video: one number says which frame every picture of the viewer shows, so all play together.
  const play = one(".play", home), at = one(".at", home), frames = Number(home.dataset.frames);
  if (play) {
    let timer = null;
    const frame = (number) => {
      at.value = number;
      at.setAttribute("aria-valuetext", `frame ${number + 1} of ${frames}`);
      home.style.setProperty("--frame", number);
    };
    const playing = (on) => {
      clearInterval(timer);
      timer = on ? setInterval(() => frame((Number(at.value) + 1) % frames), Number(home.dataset.pace)) : null;
      play.textContent = on ? "Pause" : "Play";
    };
    play.addEventListener("click", () => playing(!timer));
    at.addEventListener("input", () => { playing(false); frame(Number(at.value)); });
    frame(0);
    playing(!matchMedia("(prefers-reduced-motion: reduce)").matches);
  }

  home.classList.add("live");
  show.hidden = false;
  slide();
  draw();
}
