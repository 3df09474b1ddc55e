// Runs inside a report: measures its boxes and leaves what it found in the page, for check.py to read from the dumped DOM.
const box = (element) => {
  const { left, top, right, bottom } = element.getBoundingClientRect();
  return [left, top, right, bottom];
};
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const named = (element) => element.getAttribute("aria-label") || element.textContent.trim().slice(0, 60) || element.tagName;
// Lengths of the common part; above these it is an overlap and not a touch.
const overlaps = (a, b, by) => Math.min(a[2], b[2]) - Math.max(a[0], b[0]) > by && Math.min(a[3], b[3]) - Math.max(a[1], b[1]) > by;
const leaves = (inner, outer, by) => inner[0] < outer[0] - by || inner[1] < outer[1] - by || inner[2] > outer[2] + by || inner[3] > outer[3] + by;

const faults = [];
const charts = all("svg").map((svg) => ({ name: named(svg), box: box(svg), texts: all("text", svg).map((text) => ({ words: named(text), box: box(text) })) }));
for (const chart of charts) {
  for (const [at, text] of chart.texts.entries()) {
    if (leaves(text.box, chart.box, 1)) faults.push(`${chart.name}: "${text.words}" is cut off`);
    for (const other of chart.texts.slice(0, at))
      if (overlaps(text.box, other.box, 2)) faults.push(`${chart.name}: "${text.words}" overlaps "${other.words}"`);
  }
}
// What stands on its own: charts, captions, headings, tables. None may lie on another.
const blocks = all("svg, figcaption, h1, h2, h3, p, .legend, .scroll, dl, ul, pre").map((block) => ({ name: named(block), box: box(block) }));
for (const [at, block] of blocks.entries())
  for (const other of blocks.slice(0, at))
    if (overlaps(block.box, other.box, 1)) faults.push(`"${block.name}" overlaps "${other.name}"`);
// Tables scroll in a box of their own; nothing else may be wider than its place.
for (const element of all("h1, h2, h3, p, figcaption, dl, ul, pre, .legend"))
  if (element.scrollWidth > element.clientWidth + 1) faults.push(`"${named(element)}" is cut off`);
const page = document.documentElement;
if (page.scrollWidth > window.innerWidth + 1) faults.push(`the page is ${page.scrollWidth} pixels wide in a window of ${window.innerWidth}`);

const found = document.createElement("pre");
found.id = "found";
found.textContent = JSON.stringify({ faults, height: Math.ceil(page.scrollHeight), charts: charts.map(({ name, box }) => ({ name, box })) });
document.body.append(found);
