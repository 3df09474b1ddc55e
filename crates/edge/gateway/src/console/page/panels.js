// The figures at the top, the hottest prefixes, shadow policies and routers that share.

function figure(id, text) {
  const [value, ...unit] = text.split(" ");
  const node = $(id);
  if (node.dataset.text === text) return;
  node.dataset.text = text;
  node.replaceChildren(value, ...(unit.length ? [el("em", {}, unit.join(" "))] : []));
}

function showFigures() {
  const { frame } = state;
  const seconds = fleetTotals.seconds();
  const ttft = recent("ttft", 30);
  const [hit, reach] = [fleetTotals.ratio("cached", "prompt"), fleetTotals.ratio("reachable", "prompt")];
  const ready = frame.workers.filter((worker) => TAKES_REQUESTS.has(worker.state)).length;
  const queued = frame.queued.reduce((sum, [, n]) => sum + n, 0) + frame.awaiting_worker;
  figure("f-rate", seconds > 0 ? rate(fleetTotals.delta("decisions") / seconds) : "–");
  figure("f-flight", count(frame.workers.reduce((sum, worker) => sum + worker.in_flight, 0)));
  figure("f-queued", count(queued));
  figure("f-ttft", ms(percentile(ttft, 0.5)));
  figure("f-ttft95", ms(percentile(ttft, 0.95)));
  figure("f-hit", Number.isFinite(reach) ? `${percent(hit)} of ${percent(reach)} reachable` : percent(hit));
  figure("f-failed", String(fleetTotals.delta("failed")));
  figure("f-ready", `${ready} of ${frame.workers.length}`);
  $("f-failed").className = fleetTotals.delta("failed") > 0 ? "bad" : "";
  $("f-ready").className = ready < frame.workers.length ? "bad" : "";
  showMeter(hit, reach);
  write($("policy"), `policy ${frame.policy}`);
  write($("uptime"), `up ${age((frame.at - state.hello.started) / 1000)}`);
  write($("version"), `version ${state.hello.version}`);
}

function showMeter(hit, reach) {
  const meter = $("f-hit-meter");
  if (!meter.children.length) meter.append(el("s", { class: "reach" }), el("s"));
  width(meter.children[0], reach || 0);
  width(meter.children[1], hit || 0);
}

function table(heads, rows) {
  const header = heads.map(([text, kind]) => el("span", { class: `h ${kind ?? ""}` }, text));
  return el("div", { class: "table" }, ...header, ...rows.flat());
}

const cell = (text, kind, title) => el("span", { class: kind ?? "", title: title ?? null }, text);

function showPrefixes() {
  const index = state.prefixes;
  if (!index || index === showPrefixes.shown) return;
  showPrefixes.shown = index;
  write($("index-note"), `index ${bytes(index.bytes)} of ${bytes(index.budget_bytes)} · ${count(index.spans)} spans`);
  if (!index.heads.length) return $("prefixes").replaceChildren(el("p", { class: "empty" }, "The index is empty."));
  const largest = index.heads[0].tokens;
  const size = Math.max(1, state.workers.size);
  const rows = index.heads.slice(0, 10).map((head) => {
    const bar = el("i");
    width(bar, head.tokens / largest);
    const held = el("div", { class: "share", title: head.workers.map(shortName).join(", ") });
    const cells = Math.min(size, 20);
    for (let at = 0; at < cells; at += 1) held.append(el("i", { class: at < Math.round((head.holders / size) * cells) ? "on" : "" }));
    return [cell(head.hash.slice(0, 12), "mono", head.hash), el("div", { class: "bar2" }, bar), cell(`${count(head.tokens)} tok`, "n"),
      cell(count(head.branches), "n opt"), cell(`${head.holders} of ${size}`, "n"), el("div", { class: "opt" }, held)];
  });
  $("prefixes").replaceChildren(table([["hash of the head"], ["tokens below it"], ["", "n"], ["branches", "n opt"], ["holders", "n"], ["", "opt"]], rows));
}

/** Where successive prompts part, asked for as long as the page is seen. No text of a prompt is in it. */
async function loadBreaks() {
  if (document.hidden || !state.frame) return;
  const response = await ask("/prefixes").catch(() => null);
  if (response?.ok) showBreaks(await response.json());
}

function showBreaks(page) {
  const all = page.models.flatMap((model) => model.breaks.map((one) => ({ model: model.model, ...one })));
  all.sort((one, other) => (other.lost_tokens_per_day ?? other.lost_tokens) - (one.lost_tokens_per_day ?? one.lost_tokens));
  write($("breaks-note"), page.observed ? `${count(page.observed)} prompts compared${page.skipped ? `, ${count(page.skipped)} left out` : ""}` : "");
  if (!all.length) return $("breaks").replaceChildren(el("p", { class: "empty" }, "Nothing yet: successive prompts share their beginnings."));
  const rows = all.slice(0, 8).map((one) => [
    cell(one.byte === null ? one.field : `${one.field} byte ${count(one.byte)}`, "mono", `${one.model}: ${one.advice}`),
    cell(one.typical_of, "", one.advice), cell(percent(one.share), "n"), cell(one.lost_tokens_per_day === null ? `${count(one.lost_tokens)} tok` : `${count(one.lost_tokens_per_day)} tok a day`, "n")]);
  $("breaks").replaceChildren(table([["where"], ["typical of"], ["prompts", "n"], ["lost", "n"]], rows));
}

setInterval(loadBreaks, 10000);
setTimeout(loadBreaks, 1500);

/** What each shadow would have done, over all requests since the policies were set. */
function showShadows() {
  const { shadows } = state.frame;
  if (!shadows.length) {
    if (!showShadows.isEmpty) {
      $("shadows").replaceChildren(el("p", { class: "empty" }, "None is set. ", el("code", {}, "--shadow"), " evaluates other policies on this traffic."));
    }
    showShadows.isEmpty = true;
    return;
  }
  showShadows.isEmpty = false;
  const mean = (one) => one.ttft_ms / Math.max(1, one.decisions);
  const rows = shadows.map((one, place) => [
    cell(one.policy, place === 0 ? "" : "muted", place === 0 ? "the acting policy" : `${count(one.decisions)} requests`),
    cell(place === 0 ? "acts" : percent(one.agreed / one.decisions), "n"), cell(percent(one.cached / one.prompt), "n"), cell(ms(mean(one)), "n")]);
  $("shadows").replaceChildren(table([["policy"], ["agrees", "n"], ["cached", "n"], ["exp. TTFT", "n"]], rows));
}

function showPeers() {
  const { peers } = state.frame;
  write($("peers-note"), peers.sharing ? `this is ${peers.router}` : "");
  if (!peers.sharing || !peers.peers.length) {
    const text = peers.sharing ? "No other router has been heard yet." : "This router shares nothing. docs/many-routers.md says how.";
    if (showPeers.shown !== text) $("peers").replaceChildren(el("p", { class: "empty" }, text));
    showPeers.shown = text;
    return;
  }
  showPeers.shown = null;
  const rows = peers.peers.map((peer) => [cell(peer.address ?? peer.router, "mono", peer.router), cell(count(peer.open_requests), "n"),
    cell(`${peer.silent_for_s.toFixed(1)} s`, peer.silent_for_s > 5 ? "n bad" : "n"), cell(peer.round_trip_ms === null ? "–" : ms(peer.round_trip_ms), "n")]);
  $("peers").replaceChildren(table([["router"], ["open", "n"], ["silent", "n"], ["round trip", "n"]], rows));
}

/** Shows the state with the next picture of the screen, however many frames arrive before it. */
function showSoon() {
  if (showSoon.isDue) return;
  showSoon.isDue = true;
  requestAnimationFrame(() => { showSoon.isDue = false; showAll(); });
}

function showAll() {
  if (!state.frame || document.hidden) return;
  showFigures();
  showFleet();
  showRequests();
  showCharts();
  showPrefixes();
  showShadows();
  showPeers();
}
