// Line charts over the last five minutes.

const SMOOTHED_STEPS = 5;

/** Lines of percentiles, each over ten seconds. */
function percentiles(key, share) {
  return state.steps.map((step, at) => [step.from, percentile(recent(key, SMOOTHED_STEPS, at + 1), share)]);
}

/** Requests routed per second, over ten seconds too. */
function rates() {
  return state.steps.map((step, at) => {
    const first = state.steps[Math.max(0, at - SMOOTHED_STEPS)];
    const seconds = (step.to - first.from) / 1000;
    // A restarted gateway counts from zero.
    return [step.from, seconds >= 1 && step.decisions >= first.before ? (step.decisions - first.before) / seconds : null];
  });
}

/** A round number at or above the highest value. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-3)));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((top) => top >= value);
}

function path(points, x, y) {
  let text = "";
  let isDrawing = false;
  for (const [at, value] of points) {
    if (value === null) { isDrawing = false; continue; }
    text += `${isDrawing ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    isDrawing = true;
  }
  return text;
}

/** Draws series of {kind, name, points} into a box. */
function draw(box, series, format) {
  const [w, h, left, bottom, top] = [box.clientWidth || 400, box.clientHeight || 150, 46, 16, 18];
  const values = series.flatMap((one) => one.points.map(([, value]) => value)).filter((value) => value !== null);
  const now = state.frame?.at ?? Date.now();
  const from = Math.max(now - CHART_STEPS * STEP_MS, Math.min(state.steps[0]?.from ?? now, now - 60000));
  const highest = ceiling(Math.max(...values, 0) || 1);
  const x = (at) => left + ((at - from) / (now - from)) * (w - left);
  const y = (value) => h - bottom - (Math.min(value, highest) / highest) * (h - bottom - top);
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const at = y(highest * share);
    parts.push(svg("line", { class: "grid", x1: left, x2: w, y1: at, y2: at }));
    parts.push(svg("text", { x: left - 6, y: at + 3, "text-anchor": "end" }, format(highest * share)));
  }
  for (const seconds of now - from > 150000 ? [240, 180, 120, 60] : [120, 90, 60, 30]) {
    const at = x(now - seconds * 1000);
    const text = seconds % 60 ? `−${seconds} s` : `−${seconds / 60} min`;
    if (at > left + 16) parts.push(svg("text", { x: at, y: h - 2, "text-anchor": "middle" }, text));
  }
  for (const one of series) {
    const d = path(one.points, x, y);
    if (!d) continue;
    if (one.isFilled && !d.slice(1).includes("M")) {
      const drawn = one.points.filter(([, value]) => value !== null);
      parts.push(svg("path", { class: "area", d: `${d}L${x(drawn.at(-1)[0])} ${y(0)}L${x(drawn[0][0])} ${y(0)}Z` }));
    }
    parts.push(svg("path", { class: one.kind, d }));
  }
  parts.push(...keys(series, w, format));
  box.replaceChildren(svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": describe(series, format) }, ...parts));
}

const lastOf = (one) => one.points.findLast(([, value]) => value !== null)?.[1] ?? null;

/** The names of the lines with their last values, at the top right. */
function keys(series, w, format) {
  const texts = series.map((one) => `${one.name} ${lastOf(one) === null ? "–" : format(lastOf(one))}`);
  let right = w;
  const parts = [];
  for (let at = series.length - 1; at >= 0; at -= 1) {
    const wide = texts[at].length * 6.1 + 24;
    right -= wide;
    parts.push(svg("path", { class: series[at].kind, d: `M${right + 4} 6h12` }));
    parts.push(svg("text", { class: "key", x: right + 20, y: 10 }, texts[at]));
  }
  return parts;
}

const describe = (series, format) => series.map((one) => `${one.name} ${lastOf(one) === null ? "none" : format(lastOf(one))}`).join(", ");

function showCharts() {
  draw($("chart-ttft"), [
    { kind: "c", name: "expected p50", points: percentiles("expected", 0.5) },
    { kind: "b", name: "p95", points: percentiles("ttft", 0.95) },
    { kind: "a", name: "p50", points: percentiles("ttft", 0.5) },
  ], ms);
  draw($("chart-took"), [
    { kind: "b", name: "p95", points: percentiles("took", 0.95) },
    { kind: "a", name: "p50", points: percentiles("took", 0.5) },
  ], ms);
  draw($("chart-rate"), [{ kind: "a", name: "routed", points: rates(), isFilled: true }], rate);
}
