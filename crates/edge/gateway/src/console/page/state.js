// What the page knows. Counters from the gateway are totals; windows are cut here.

const WINDOW_MS = 60000;
const STEP_MS = 2000;
const CHART_STEPS = 150;
const ROWS_KEPT = 400;

const state = {
  hello: null,
  frame: null,
  workers: new Map(),
  rows: new Map(),
  steps: [],
  selected: null,
  worker: null,
  isPaused: false,
  prefixes: null,
};

/** The middle of a latency bucket: four buckets an octave, the first ends at 0.1 ms. */
const bucketMs = (bucket) => 0.1 * 2 ** ((bucket - 0.5) / 4);

function percentile(counts, share) {
  const all = [...counts].sort((a, b) => a[0] - b[0]);
  const total = all.reduce((sum, [, n]) => sum + n, 0);
  let rest = total * share;
  for (const [bucket, n] of all) {
    rest -= n;
    if (rest <= 0) return bucketMs(bucket);
  }
  return null;
}

function merge(into, counts) {
  for (const [bucket, n] of counts) into.set(bucket, (into.get(bucket) ?? 0) + n);
}

/** A reading of counters that only grow, with its differences over the window. */
class Totals {
  constructor() { this.readings = []; }
  add(at, values) {
    const last = this.readings.at(-1);
    // A restarted gateway counts from zero.
    if (last && Object.keys(values).some((key) => values[key] < last.values[key])) this.readings = [];
    if (this.readings.length > 1 && at - this.readings.at(-2).at < STEP_MS) this.readings.pop();
    this.readings.push({ at, values });
    while (this.readings.length > 2 && this.readings[1].at <= at - WINDOW_MS) this.readings.shift();
  }
  delta(key) {
    const [first, last] = [this.readings[0], this.readings.at(-1)];
    return first && last ? last.values[key] - first.values[key] : 0;
  }
  total(key) { return this.readings.at(-1)?.values[key] ?? 0; }
  seconds() { return this.readings.length > 1 ? (this.readings.at(-1).at - this.readings[0].at) / 1000 : 0; }
  /** Over the window, or since the start while the window has nothing to divide by. */
  ratio(part, whole) {
    const inWindow = this.delta(whole);
    return inWindow > 0 ? this.delta(part) / inWindow : this.total(part) / this.total(whole);
  }
}

const fleetTotals = new Totals();

function takeHello(hello) {
  const isRestarted = state.hello && state.hello.started !== hello.started;
  if (isRestarted) {
    state.rows.clear();
    for (const worker of state.workers.values()) worker.totals = new Totals();
    fleetTotals.readings = [];
  }
  state.hello = hello;
  if (hello.prefixes) state.prefixes = hello.prefixes;
  hello.requests.forEach(takeRow);
}

function takeRow(row) {
  if (state.rows.has(row.number)) return;
  state.rows.set(row.number, row);
  while (state.rows.size > ROWS_KEPT) state.rows.delete(state.rows.keys().next().value);
}

function takeFrame(frame) {
  state.frame = frame;
  if (frame.prefixes) state.prefixes = frame.prefixes;
  frame.requests.forEach(takeRow);
  for (const update of frame.updates) Object.assign(state.rows.get(update.number) ?? {}, update);
  takeWorkers(frame);
  takeStep(frame);
}

const COUNTED = ["sent", "failed", "prompt", "cached", "predicted", "reachable"];

function takeWorkers(frame) {
  const sums = Object.fromEntries(COUNTED.map((key) => [key, 0]));
  const present = new Set();
  for (const now of frame.workers) {
    present.add(now.worker);
    const known = state.workers.get(now.worker) ?? { totals: new Totals(), queue: [] };
    known.now = now;
    known.totals.add(frame.at, Object.fromEntries(COUNTED.map((key) => [key, now[key]])));
    known.queue.push(now.queue_ms);
    if (known.queue.length > 60) known.queue.shift();
    state.workers.set(now.worker, known);
    for (const key of COUNTED) sums[key] += now[key];
  }
  for (const name of state.workers.keys()) if (!present.has(name)) state.workers.delete(name);
  fleetTotals.add(frame.at, { ...sums, decisions: frame.decisions });
}

/** Adds a frame to the chart's newest step. */
function takeStep(frame) {
  let step = state.steps.at(-1);
  if (!step || frame.at - step.from >= STEP_MS) {
    step = { from: frame.at, ttft: new Map(), expected: new Map(), took: new Map(), decisions: frame.decisions, to: frame.at };
    step.before = frame.decisions;
    state.steps.push(step);
    if (state.steps.length > CHART_STEPS) state.steps.shift();
  }
  merge(step.ttft, frame.ttft);
  merge(step.expected, frame.expected);
  merge(step.took, frame.durations);
  [step.decisions, step.to] = [frame.decisions, frame.at];
}

/** Latency counts of the last steps together. */
function recent(key, steps, end = state.steps.length) {
  const all = new Map();
  state.steps.slice(Math.max(0, end - steps), end).forEach((step) => merge(all, step[key]));
  return all;
}
