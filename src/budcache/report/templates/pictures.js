// Saving as PNG: of a chart its SVG, of rows of bars and names one SVG with all that is seen of them.

const SVG = "http://www.w3.org/2000/svg";
const SCALE = 2; // pixels of the picture for one of the page

for (const button of all(".png")) {
  const figure = button.parentElement;
  button.hidden = false;
  button.addEventListener("click", async () => {
    const svg = figure.matches(".sheet") ? collected(figure) : carried(all(".chart", figure).find(isSeen));
    const card = getComputedStyle(figure.closest("article")).backgroundColor;
    save(`${figure.dataset.file.replace(/\W+/g, "-").toLowerCase()}.png`, await picture(svg, card));
  });
}

// Whether it is on the page now: in an open tab, and not just there to be read aloud.
function isSeen(element) {
  const isClipped = (each) => each !== null && (getComputedStyle(each).clipPath !== "none" || isClipped(each.parentElement));
  return element.getClientRects().length > 0 && !isClipped(element);
}

// A copy of an SVG that carries its styles with it. They are read from the copy, of a chart outside of it: whatever is
// being read out there, or fades at this moment, does not show.
function carried(svg, among = svg.closest("article")) {
  const copy = svg.cloneNode(true), { width, height } = svg.viewBox.baseVal;
  const kept = [
    "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "opacity",
    // One by one: Chromium has no `font` to copy where figures are told to be of one width.
    "font-family", "font-size", "font-weight", "font-variant-numeric", "text-anchor", "paint-order", "vector-effect",
  ];
  all(".on", copy).forEach((each) => each.classList.remove("on"));
  copy.style.cssText = "position: absolute; visibility: hidden";
  among.append(copy);
  const styles = all("*", copy).map((each) => [each, getComputedStyle(each)]);
  const values = styles.map(([each, style]) => [each, kept.map((name) => [name, style.getPropertyValue(name)])]);
  copy.remove();
  values.forEach(([each, those]) => those.forEach(([name, value]) => each.style.setProperty(name, value)));
  copy.removeAttribute("style");
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  return copy;
}

// One SVG of the bars and the words in an element, each where it is seen.
function collected(element, margin = 12) {
  const box = element.getBoundingClientRect(), sheet = drawn("svg", { xmlns: SVG });
  const place = (rect) => ({ x: rect.x - box.x + margin, y: rect.y - box.y + margin, width: rect.width, height: rect.height });
  let bottom = 0; // of what is seen: the button below it is left out
  for (const svg of all("svg", element).filter(isSeen)) {
    const { backgroundColor, borderRadius } = getComputedStyle(svg), at = place(svg.getBoundingClientRect());
    const inner = carried(svg, svg.parentElement);
    // A line that keeps its width however its bar is stretched would also keep it where the picture is enlarged.
    for (const { style } of all("*", inner)) if (style.vectorEffect !== "none") style.strokeWidth = `${SCALE * parseFloat(style.strokeWidth)}px`;
    Object.entries({ ...at, preserveAspectRatio: "none" }).forEach(([name, value]) => inner.setAttribute(name, value));
    sheet.append(drawn("rect", { ...at, rx: parseFloat(borderRadius) || 0, fill: backgroundColor }), inner);
    bottom = Math.max(bottom, at.y + at.height);
  }
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode, parent = node.parentElement;
    if (parent.closest("svg, button") || !isSeen(parent)) continue;
    const { color, fontFamily, fontSize, fontWeight } = getComputedStyle(parent);
    for (const { index, 0: word } of node.data.matchAll(/\S+/g)) { // word by word, for lines may break
      const range = document.createRange();
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      const at = place(range.getBoundingClientRect());
      const text = drawn("text", { x: at.x, y: at.y + at.height / 2, textLength: at.width, "dominant-baseline": "central", fill: color });
      Object.assign(text.style, { fontFamily, fontSize, fontWeight });
      text.textContent = word;
      sheet.append(text);
      bottom = Math.max(bottom, at.y + at.height);
    }
  }
  const [width, height] = [box.width + 2 * margin, bottom + margin];
  Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` }).forEach(([name, value]) => sheet.setAttribute(name, value));
  return sheet;
}

function drawn(name, attributes) {
  const element = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  return element;
}

// An SVG that carries its styles as PNG: drawn on a canvas, on the colour of its card.
async function picture(svg, card) {
  const { width, height } = svg.viewBox.baseVal, image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(svg))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width * SCALE, height * SCALE];
  const context = canvas.getContext("2d");
  context.fillStyle = card;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => { canvas.toBlob(done, "image/png"); });
}
