// Charts: a point that is tapped or pointed at is read out below, its line stands out; every chart can be saved as PNG.

for (const plot of all(".plot")) {
  const readout = one(".readout", plot), points = all(".point", plot);
  let held = null; // a tapped point stays, one that is pointed at goes
  const read = (point) => {
    const series = point?.closest(".series");
    plot.classList.toggle("reading", Boolean(series));
    all(".series", plot).forEach((each) => each.classList.toggle("on", each.dataset.title === series?.dataset.title));
    points.forEach((each) => each.classList.toggle("on", each === point));
    readout.textContent = point?.dataset.note ?? "";
  };
  const near = ({ target }) => target.closest(".point") ?? target.closest(".series")?.querySelector(".point") ?? null;
  for (const svg of all(".chart", plot)) {
    svg.addEventListener("click", (event) => { const hit = near(event); held = hit === held ? null : hit; read(held); });
    svg.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") read(near(event) ?? held); });
    svg.addEventListener("pointerleave", () => read(held));
  }
  const button = one(".png", plot);
  button.hidden = false;
  button.addEventListener("click", async () => {
    held = null;
    read(null);
    const shown = all(".chart", plot).find((svg) => svg.getClientRects().length);
    save(`${plot.dataset.file.replace(/\W+/g, "-").toLowerCase()}.png`, await picture(shown));
  });
}

// An SVG as PNG: a copy that carries its styles with it is drawn on a canvas, on the colour of its card.
async function picture(svg, scale = 2) {
  const copy = svg.cloneNode(true), { width, height } = svg.viewBox.baseVal;
  const kept = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "opacity", "font", "text-anchor", "paint-order"];
  const theirs = all("*", svg), ours = all("*", copy);
  theirs.forEach((element, i) => {
    const style = getComputedStyle(element);
    kept.forEach((name) => ours[i].style.setProperty(name, style.getPropertyValue(name)));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width * scale, height * scale];
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(svg.closest("article")).backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => { canvas.toBlob(done, "image/png"); });
}
