// What the pages' own markup does by itself: the line between two pictures, the difference, and videos that play together.
// Values are kept on the root element, so that they hold for whatever is drawn next.

(() => {
  const root = document.documentElement, state = { split: 50, frame: 0, timer: null, differing: false };
  const stageOf = (event) => (event.target.closest ? event.target.closest(".studio .stage") : null);

  const slide = (share) => {
    state.split = Math.round(Math.min(100, Math.max(0, share)));
    root.style.setProperty("--split", `${state.split}%`);
    sync();
  };
  const frame = (number) => {
    state.frame = number;
    root.style.setProperty("--frame", number);
    sync();
  };
  const play = (on) => {
    const stage = document.querySelector(".studio .stage[data-frames]");
    clearInterval(state.timer);
    state.timer = on && stage ? setInterval(() => {
      const now = document.querySelector(".studio .stage[data-frames]");
      if (now) frame((state.frame + 1) % Number(now.dataset.frames));
    }, Number(stage.dataset.pace)) : null;
    sync();
  };
  // What is drawn anew takes over the state; only what differs is touched, for a touch is a change, too.
  const sync = () => {
    const set = (element, name, value) => { if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value); };
    for (const split of document.querySelectorAll(".studio .split")) {
      if (Number(split.value) !== state.split) split.value = state.split;
      set(split, "aria-valuetext", `${state.split} % full run`);
    }
    for (const button of document.querySelectorAll(".studio .show-difference")) set(button, "aria-pressed", state.differing);
    for (const button of document.querySelectorAll(".studio .play")) {
      const name = state.timer ? "Pause" : "Play";
      if (button.textContent !== name) button.textContent = name;
    }
    for (const at of document.querySelectorAll(".studio .at")) {
      if (Number(at.value) !== state.frame) at.value = state.frame;
      set(at, "aria-valuetext", `frame ${state.frame + 1} of ${Number(at.max) + 1}`);
    }
  };
  let dragged = null;
  const drag = (event) => {
    const box = dragged.getBoundingClientRect();
    slide((100 * (event.clientX - box.left)) / box.width);
  };
  document.addEventListener("pointerdown", (event) => {
    const stage = stageOf(event);
    if (event.button || !stage || !stage.querySelector(".split")) return;
    dragged = stage;
    stage.setPointerCapture(event.pointerId);
  });
  document.addEventListener("pointermove", (event) => { if (dragged) drag(event); });
  for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => { dragged = null; });
  document.addEventListener("input", (event) => {
    if (event.target.matches(".studio .split")) slide(Number(event.target.value));
    if (event.target.matches(".studio .at")) {
      const wanted = Number(event.target.value); // before playing ends, which puts the slider where the video stands
      play(false);
      frame(wanted);
    }
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest ? event.target.closest(".studio button") : null;
    if (!button) return;
    if (button.matches(".show-difference")) {
      state.differing = !state.differing;
      root.classList.toggle("differing-now", state.differing);
      sync();
    }
    if (button.matches(".play")) play(!state.timer);
    if (button.matches(".copy")) {
      navigator.clipboard.writeText(button.closest("figure").querySelector("code").textContent);
      button.textContent = "Copied";
    }
  });
  new MutationObserver(sync).observe(document, { childList: true, subtree: true });
  root.style.setProperty("--split", "50%");
})();
