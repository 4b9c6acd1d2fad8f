// Charts: a point that is tapped, pointed at or reached by the arrow keys is read out below, its line stands out.

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
  const hold = (point) => { held = point; read(held); };
  addEventListener("beforeprint", () => read(null)); // on paper no line stands out
  addEventListener("afterprint", () => read(held));
  // Where points lie close together, the nearest is meant, not the one on top; on a line or its name, its last point.
  const near = ({ target, clientX, clientY }) => {
    if (!target.closest(".point")) return target.closest(".series")?.querySelector(".point") ?? null;
    const off = (point) => {
      const { x, y, width, height } = one(".touch", point).getBoundingClientRect();
      return Math.hypot(x + width / 2 - clientX, y + height / 2 - clientY);
    };
    return all(".point", target.closest(".chart")).reduce((best, point) => (off(point) < off(best) ? point : best));
  };
  for (const svg of all(".chart", plot)) {
    svg.addEventListener("click", (event) => { const hit = near(event); hold(hit === held ? null : hit); });
    svg.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") read(near(event) ?? held); });
    svg.addEventListener("pointerleave", () => read(held));
    svg.tabIndex = 0;
    svg.addEventListener("keydown", (event) => {
      const next = event.key === "Escape" ? null : beside(svg, held, event.key);
      if (next === undefined) return;
      event.preventDefault();
      hold(next);
    });
  }
}

// The point that an arrow key leads to: left and right along a line, up and down to the next line. Undefined for other keys.
function beside(svg, from, key) {
  const [along, step] = { ArrowLeft: [true, -1], ArrowRight: [true, 1], ArrowUp: [false, -1], ArrowDown: [false, 1] }[key] ?? [];
  if (!step) return undefined;
  if (!svg.contains(from)) return one(".strong .point", svg) ?? one(".point", svg);
  const at = (point, name) => Number(one(".touch", point).getAttribute(name));
  const off = (point) => Math.abs(at(point, "cx") - at(from, "cx"));
  const nearest = (series) => all(".point", series).reduce((best, point) => (off(point) < off(best) ? point : best));
  const lines = all(".series", svg), own = from.closest(".series");
  const row = along ? all(".point", own) : lines.map((series) => (series === own ? from : nearest(series)));
  row.sort((one, other) => at(one, along ? "cx" : "cy") - at(other, along ? "cx" : "cy"));
  return row[row.indexOf(from) + step] ?? from;
}
