// The fleet as a picture: cards for a few workers, tiles for many.

const CARDS_MAX = 24;
const MICRO_FROM = 96;
const TAKES_REQUESTS = new Set(["ready", "recovering"]);

const fleetNodes = new Map();
let fleetShape = "";

/** What a worker's picture shows. */
function reading(worker) {
  const { now, totals } = worker;
  const all = fleetTotals.delta("sent");
  const isIdle = all <= 0;
  return {
    now,
    share: isIdle ? now.sent / Math.max(1, fleetTotals.total("sent")) : totals.delta("sent") / all,
    hit: totals.ratio("cached", "prompt"),
    reachable: totals.ratio("reachable", "prompt"),
    failed: totals.delta("failed"),
    isOff: !TAKES_REQUESTS.has(now.state),
  };
}

function showFleet() {
  const workers = [...state.workers.values()].sort((a, b) => a.now.id - b.now.id);
  const size = workers.length;
  const shape = size <= CARDS_MAX ? "cards" : size < MICRO_FROM ? "cards tiles" : "cards tiles micro";
  const box = $("fleet");
  if (shape !== fleetShape) {
    [fleetShape, box.className] = [shape, shape];
    fleetNodes.clear();
    box.replaceChildren();
    showLegend(shape);
  }
  if (shape !== "cards") fitTiles(box, size);
  const queueMax = Math.max(50, ...workers.map((worker) => worker.now.queue_ms));
  const shareMax = Math.max(1 / Math.max(1, size), ...workers.map((worker) => reading(worker).share));
  const names = new Set(workers.map((worker) => worker.now.worker));
  for (const [name, node] of fleetNodes) if (!names.has(name)) { node.root.remove(); fleetNodes.delete(name); }
  workers.forEach((worker, place) => {
    const name = worker.now.worker;
    const node = fleetNodes.get(name) ?? newWorker(name, shape);
    fleetNodes.set(name, node);
    node.show(worker, reading(worker), { queueMax, shareMax });
    set(node.root, { "aria-pressed": String(state.worker === name) });
    if (box.children[place] !== node.root) box.insertBefore(node.root, box.children[place] ?? null);
  });
  const models = new Set(workers.map((worker) => worker.now.model).filter(Boolean));
  const busy = workers.reduce((sum, worker) => sum + worker.now.queue_ms, 0) / Math.max(1, size);
  write($("fleet-note"), size === 0 ? "no worker" :
    `${size} ${size === 1 ? "worker" : "workers"} · ${models.size === 1 ? [...models][0] : `${models.size} models`} · ${ms(busy)} of work ahead on average`);
}

/** Sizes tiles so that all of them are seen at once, as far as that is legible. */
function fitTiles(box, size) {
  const side = Math.sqrt((box.clientWidth * box.clientHeight) / size);
  const [wide, high] = [Math.max(16, Math.floor(side * 1.2 - 5)), Math.max(14, Math.floor(side / 1.2 - 5))];
  box.style.setProperty("--tile", `${Math.min(72, wide)}px`);
  box.style.setProperty("--tile-h", `${Math.min(48, high)}px`);
  for (const part of [box, $("fleet-legend")]) part.classList.toggle("blank", wide < 34);
}

function showLegend(shape) {
  const item = (className, text) => el("span", {}, el("i", { class: className }), text);
  const states = [item("s-ready", "ready"), item("s-starting", "starting or recovering"), item("s-unhealthy", "unhealthy"), item("s-draining", "draining or asleep")];
  const tiles = [item("r-warm", "height: KV use"), item("r-cool", "colour: queue"), el("span", { class: "number" }, "number: share of traffic")];
  // Tiles show only states that need attention, as their border.
  const borders = [item("b-wait", "border: not ready yet or draining"), item("b-off", "border: unhealthy")];
  $("fleet-legend").replaceChildren(...(shape === "cards" ? states : [...tiles, ...borders]), el("span", {}, "click: only its requests"));
}

function newWorker(name, shape) {
  const node = shape === "cards" ? newCard() : newTile();
  node.root.addEventListener("click", () => {
    state.worker = state.worker === name ? null : name;
    showAll();
  });
  node.root.addEventListener("pointerenter", () => showTip(node.root, name));
  node.root.addEventListener("focus", () => showTip(node.root, name));
  for (const end of ["pointerleave", "blur"]) node.root.addEventListener(end, () => { $("tip").hidden = true; });
  return node;
}

function gauge(label, ...bars) {
  const output = el("output");
  const root = el("div", { class: "gauge" }, el("label", {}, label), el("div", { class: "track" }, ...bars), output);
  return { root, output };
}

function newCard() {
  const bars = { queue: el("i"), kv: el("i"), reach: el("i", { class: "reach" }), hit: el("i", { class: "warm" }), share: el("i") };
  const [queue, kv] = [gauge("queue", bars.queue), gauge("KV", bars.kv)];
  const [hit, share] = [gauge("hits", bars.reach, bars.hit), gauge("traffic", bars.share)];
  const parts = { dot: el("span", { class: "dot" }), name: el("span", { class: "who" }), note: el("em") };
  const line = svg("path");
  const spark = svg("svg", { class: "spark", viewBox: "0 0 59 1", preserveAspectRatio: "none", "aria-hidden": "true" }, line);
  const root = el("button", { class: "card", type: "button" },
    el("div", { class: "name" }, parts.dot, parts.name, parts.note), queue.root, kv.root, hit.root, share.root, spark);
  const show = (worker, read, { queueMax, shareMax }) => {
    const { now } = read;
    parts.dot.className = `dot s-${now.state}`;
    root.className = read.isOff ? "card off" : "card";
    write(parts.name, shortName(now.worker));
    write(parts.note, read.isOff ? now.state : now.rests_ms > 0 ? `rests ${ms(now.rests_ms)}` : `${now.in_flight} in flight`);
    width(bars.queue, now.queue_ms / queueMax);
    write(queue.output, ms(now.queue_ms));
    width(bars.kv, now.kv ?? 0);
    bars.kv.className = now.kv > 0.95 ? "bad" : "";
    write(kv.output, now.kv === null ? "–" : percent(now.kv));
    width(bars.hit, read.hit || 0);
    width(bars.reach, read.reachable || 0);
    write(hit.output, percent(read.hit));
    width(bars.share, read.share / shareMax);
    write(share.output, percent(read.share));
    line.setAttribute("d", sparkline(worker.queue, queueMax));
    set(root, { "aria-label": `${now.worker}: ${now.state}, queue ${ms(now.queue_ms)}, hits ${percent(read.hit)}, traffic ${percent(read.share)}` });
  };
  return { root, show };
}

/** The queue of the last half minute as an area from the right. */
function sparkline(values, highest) {
  const from = 60 - values.length;
  const points = values.map((value, at) => `L${from + at} ${(1 - 0.9 * Math.min(1, value / highest)).toFixed(3)}`);
  return `M${from} 1.1${points.join("")}L59 1.1Z`;
}

function newTile() {
  const [kv, heat, share, queue] = [el("i"), el("u"), el("b"), el("em")];
  const root = el("button", { class: "tile", type: "button" }, heat, kv, share, queue);
  const show = (worker, read, { queueMax }) => {
    const { now } = read;
    root.className = `tile${now.state === "unhealthy" ? " off" : read.isOff || now.rests_ms > 0 ? " wait" : ""}`;
    kv.style.height = `${Math.min(100, (now.kv ?? 0) * 100).toFixed(0)}%`;
    heat.style.opacity = (0.55 * Math.min(1, now.queue_ms / queueMax)).toFixed(2);
    write(share, percent(read.share));
    write(queue, ms(now.queue_ms));
    set(root, { "aria-label": `${now.worker}: ${now.state}, queue ${ms(now.queue_ms)}, traffic ${percent(read.share)}` });
  };
  return { root, show };
}

function showTip(anchor, name) {
  const worker = state.workers.get(name);
  if (!worker) return;
  const read = reading(worker);
  const { now } = read;
  const line = (label, value) => el("div", {}, el("span", {}, label), el("span", {}, value));
  const tip = $("tip");
  tip.replaceChildren(el("b", {}, now.worker), line("state", now.state), now.model && line("model", now.model),
    line("queue", ms(now.queue_ms)), line("in flight", String(now.in_flight)),
    line("engine runs / waits", now.running === null ? "not reported" : `${now.running} / ${now.waiting}`),
    line("KV use", now.kv === null ? "not reported" : percent(now.kv)),
    line("hits found", percent(read.hit)), line("hits reachable", percent(read.reachable)),
    line("traffic", percent(read.share)), line("failed in 60 s", String(read.failed)), line("cache view", now.view),
    now.trouble && el("div", { class: "bad" }, now.trouble));
  tip.hidden = false;
  const [at, own] = [anchor.getBoundingClientRect(), tip.getBoundingClientRect()];
  const below = at.bottom + 6 + own.height < innerHeight;
  tip.style.left = `${Math.max(6, Math.min(at.left, innerWidth - own.width - 6))}px`;
  tip.style.top = `${Math.max(6, below ? at.bottom + 6 : at.top - own.height - 6)}px`;
}
