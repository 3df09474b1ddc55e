// Requests as they are routed, the reasons of the choices, and one request with all its candidates.

const ROWS_SHOWN = 120;

const WARM = new Set(["soonest_warmest", "match", "hit", "prefix", "session", "warmer_home", "other_home"]);

/** Reasons that follow a cached prefix are warm, those that follow load are cool, chance is neither. */
function tone(reason) {
  if (WARM.has(reason)) return "r-warm";
  return /^(turn|chance)$/.test(reason) ? "r-other" : "r-cool";
}

const words = (reason) => reason.replaceAll("_", " ");

function shownRows() {
  const rows = [...state.rows.values()];
  const wanted = state.worker ? rows.filter((row) => row.candidates[0]?.worker === state.worker) : rows;
  return wanted.sort((a, b) => b.number - a.number).slice(0, ROWS_SHOWN);
}

const rowNodes = new Map();

function showRequests() {
  showWhy();
  showFilter();
  if (state.isPaused) return;
  const [list, rows] = [$("rows"), shownRows()];
  const numbers = new Set(rows.map((row) => row.number));
  for (const [number, node] of rowNodes) if (!numbers.has(number)) { node.root.remove(); rowNodes.delete(number); }
  rows.forEach((row, place) => {
    const node = rowNodes.get(row.number) ?? newRow(row);
    rowNodes.set(row.number, node);
    node.show(row);
    if (list.children[place] !== node.root) list.insertBefore(node.root, list.children[place] ?? null);
  });
  $("rows-empty").hidden = rows.length > 0;
  const perSecond = fleetTotals.delta("decisions") / Math.max(1, fleetTotals.seconds());
  write($("requests-note"), perSecond > 45 ? `a sample of about 40 a second from ${rate(perSecond)}` : "newest first");
}

function showFilter() {
  $("filter").hidden = state.worker === null;
  write($("filter"), state.worker ? `${shortName(state.worker)} ×` : "");
}

/** The reasons of the last requests as one bar. */
function showWhy() {
  const tally = new Map();
  for (const row of [...state.rows.values()].slice(-200)) tally.set(row.reason, (tally.get(row.reason) ?? 0) + 1);
  const all = [...tally].sort((a, b) => b[1] - a[1]);
  const total = all.reduce((sum, [, n]) => sum + n, 0);
  const parts = all.map(([reason, n]) => {
    const text = `${words(reason)} ${percent(n / total)}`;
    // A part too narrow for its words has them in the title only.
    const part = el("span", { class: tone(reason), title: text }, n / total < 0.1 ? "" : text);
    part.style.flexGrow = String(n);
    return part;
  });
  $("why").replaceChildren(...parts);
}

/** A new row is marked only where single rows can be told apart. */
const isFresh = (row) => Date.now() - row.at < 3000 && fleetTotals.delta("decisions") < 15 * fleetTotals.seconds();

function newRow(row) {
  const cells = { time: el("span", { class: "t" }, clock(row.at)), why: el("span", { class: `chip ${tone(row.reason)}` }, words(row.reason)),
    worker: el("span", { class: "w" }), prompt: el("span", { class: "n" }, count(row.prompt)),
    hit: el("i", { class: "warm" }), reach: el("i", { class: "reach" }), expected: el("span", { class: "n muted" }), ttft: el("span", { class: "n" }) };
  const track = el("div", { class: "track" }, cells.reach, cells.hit);
  const root = el("li", { tabindex: "0", "aria-selected": "false", class: isFresh(row) ? "fresh" : "" },
    cells.time, cells.why, cells.worker, cells.prompt, track, cells.expected, cells.ttft);
  let latest = row;
  const open = () => openRequest(latest);
  root.addEventListener("click", open);
  root.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
  const show = (now) => {
    latest = now;
    const chosen = now.candidates[0];
    const found = now.cached ?? chosen?.overlap ?? 0;
    write(cells.worker, chosen ? shortName(chosen.worker) : "–");
    width(cells.hit, found / Math.max(1, now.prompt));
    width(cells.reach, (now.reachable ?? 0) / Math.max(1, now.prompt));
    track.title = `${now.cached === null ? "expected" : "found"} ${found} of ${now.prompt} tokens cached; at most ${now.reachable ?? 0} could be reached`;
    write(cells.expected, ms(chosen?.ttft));
    const isOver = now.outcome !== null;
    const text = now.ttft !== null ? ms(now.ttft) : isOver ? (now.outcome === "ok" ? ms(now.took) : words(now.outcome)) : "…";
    write(cells.ttft, text);
    const isLate = now.ttft !== null && chosen && now.ttft > 2 * chosen.ttft + 20;
    cells.ttft.className = `n${isLate || (isOver && now.outcome !== "ok" && now.outcome !== "unobserved") ? " later" : ""}${!isOver && now.ttft === null ? " open" : ""}`;
    cells.ttft.title = now.ttft === null && isOver ? "whole request: it was not streamed" : "";
    set(root, { "aria-selected": String(state.selected === now.number) });
  };
  return { root, show };
}

async function openRequest(row) {
  state.selected = row.number;
  showRequests();
  const answer = await ask(`/ui/request?number=${row.number}`).catch(() => null);
  if (state.selected !== row.number) return;
  const full = answer?.ok ? await answer.json() : null;
  showDrawer(row, full);
}

/** The candidates of a row whose full list the gateway no longer keeps. */
function briefOf(row) {
  return row.candidates.map((one, place) => ({ worker: one.worker, rank: null, chosen: place === 0, overlap_tokens: one.overlap,
    queue_ms: null, prefill_ms: null, step_ms: null, expected_ttft_ms: one.ttft }));
}

function showDrawer(row, full) {
  const drawer = $("drawer");
  const candidates = (full?.candidates ?? briefOf(row)).sort((a, b) => b.chosen - a.chosen || a.expected_ttft_ms - b.expected_ttft_ms);
  const close = el("button", { class: "x", type: "button" }, "Close");
  close.addEventListener("click", closeDrawer);
  const fact = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
  const pairs = facts(row).map(([name, value]) => el("div", {}, ...fact(name, value)));
  drawer.replaceChildren(
    el("h2", { id: "d-title" }, `Request ${row.number}`, el("small", {}, clock(row.at)), close),
    el("dl", {}, ...pairs),
    el("h2", {}, `Candidates in milliseconds`, el("small", {}, note(candidates, full))),
    el("div", { class: "legend" }, ...[["k-queue", "work ahead"], ["k-prefill", "prefill of what is not cached"], ["k-step", "step in progress"]]
      .map(([kind, text]) => el("span", {}, el("i", { class: kind }), text))),
    el("div", { class: "cand h" }, el("span", {}, "worker"), el("span", {}, ""), el("span", { class: "n" }, "expected"), el("span", { class: "n" }, "cached")),
    ...candidateRows(candidates));
  drawer.hidden = false;
}

function note(candidates, full) {
  if (!full) return "no longer kept whole; the best are shown";
  return candidates.length === 1 ? "the only candidate" : `${candidates.length} candidates, the chosen one first, then by expected time`;
}

function facts(row) {
  const tokens = (value, none) => (value === null ? none : `${value} tokens`);
  return [
    ["chosen because", words(row.reason)], ["policy", row.policy], ["model", row.model ?? "any"],
    ["prompt", `${row.prompt} tokens`], ["cached, found", tokens(row.cached, "not reported")], ["cached, reachable", tokens(row.reachable, "–")],
    ["TTFT, expected", ms(row.candidates[0]?.ttft)], ["TTFT, observed", ms(row.ttft)], ["whole request", ms(row.took)],
    ["outcome", row.outcome ? words(row.outcome) : "in progress"], ["request id", row.id ?? "–"],
  ];
}

function candidateRows(candidates) {
  const longest = Math.max(1e-6, ...candidates.map((one) => one.expected_ttft_ms));
  return candidates.map((one) => {
    const parts = one.queue_ms === null ? [["k-step", one.expected_ttft_ms]] :
      [["k-queue", one.queue_ms], ["k-prefill", one.prefill_ms], ["k-step", Math.max(0, one.expected_ttft_ms - one.queue_ms - one.prefill_ms)]];
    const bars = parts.map(([kind, value]) => {
      const bar = el("i", { class: kind, title: ms(value) });
      width(bar, value / longest);
      return bar;
    });
    const name = one.rank === null ? one.worker : `${one.worker}@${one.rank}`;
    return el("div", { class: one.chosen ? "cand chosen" : "cand" }, el("span", { class: "w", title: name }, shortName(name)),
      el("div", { class: "stack" }, ...bars), el("span", { class: "n" }, ms(one.expected_ttft_ms)), el("span", { class: "n muted" }, count(one.overlap_tokens)));
  });
}

function closeDrawer() {
  state.selected = null;
  $("drawer").hidden = true;
  showRequests();
}
