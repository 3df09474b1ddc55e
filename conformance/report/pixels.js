// Runs beside a screenshot: counts the colours within each chart's box, and the page's mean brightness.
const { charts, scale } = JSON.parse(document.getElementById("charts").textContent);
const image = document.querySelector("img");
// The DOM is dumped after this event, and drawing an image that has been loaded decodes it.
window.addEventListener("load", () => {
  const canvas = Object.assign(document.createElement("canvas"), { width: image.naturalWidth, height: image.naturalHeight });
  const paper = canvas.getContext("2d", { willReadFrequently: true });
  paper.drawImage(image, 0, 0);
  const count = ([left, top, right, bottom]) => {
    const pixels = new Uint32Array(paper.getImageData(left * scale, top * scale, (right - left) * scale, (bottom - top) * scale).data.buffer);
    const colours = new Map();
    for (const pixel of pixels) colours.set(pixel, (colours.get(pixel) || 0) + 1);
    return { colours: colours.size, most: Math.max(...colours.values()) / pixels.length };
  };
  const counted = charts.map((chart) => ({ name: chart.name, ...count(chart.box) }));
  const corner = paper.getImageData(2, 2, 1, 1).data;
  const found = document.createElement("pre");
  found.id = "found";
  found.textContent = JSON.stringify({ charts: counted, paper: (corner[0] + corner[1] + corner[2]) / 3 });
  document.body.append(found);
});
