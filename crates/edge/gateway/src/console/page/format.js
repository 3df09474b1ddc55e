// Elements and numbers as text.

const $ = (id) => document.getElementById(id);

/** An element with attributes and children. Text is always text: nothing here is parsed as HTML. */
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  set(node, attributes);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else node.setAttribute(name, value === true ? "" : value);
  }
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http:" + "//www.w3.org/2000/svg", tag);
  set(node, attributes);
  node.append(...children);
  return node;
}

/** Changes text only where it differs, so that an idle page causes no layout. */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const width = (node, share) => { node.style.width = `${Math.min(100, Math.max(0, share * 100)).toFixed(1)}%`; };

function ms(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value >= 100000) return `${(value / 1000).toFixed(0)} s`;
  if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  if (value === 0 || value >= 100) return `${value.toFixed(0)} ms`;
  return value >= 10 ? `${value.toFixed(1)} ms` : `${value.toFixed(2)} ms`;
}

const percent = (share) => (Number.isFinite(share) ? `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %` : "–");

function count(value) {
  if (value >= 1e9) return `${(value / 1e9).toFixed(1)} G`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(0)} k`;
  return value >= 1e3 ? `${(value / 1e3).toFixed(1)} k` : `${Math.round(value)}`;
}

const rate = (value) => (value === 0 ? "0" : value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

function age(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"]];
  const [size, name] = units.find(([unit]) => seconds >= unit * 2) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${name}`;
}

const clock = (at) => new Date(at).toLocaleTimeString("en-GB");

const bytes = (value) => (value >= 1 << 30 ? `${(value / (1 << 30)).toFixed(1)} GiB` : `${(value / (1 << 20)).toFixed(1)} MiB`);

/** A worker's address without what all workers share: scheme, and the port or the host. */
function shortName(worker) {
  return worker.replace(/^https?:\/\//, "");
}
