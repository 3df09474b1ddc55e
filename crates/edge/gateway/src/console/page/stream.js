// The stream of events: read with fetch, because EventSource cannot send a token.

const RETRY_MS = [500, 1000, 2000, 4000];
const SILENT_MS = 25000;

let token = sessionStorage.getItem("warmroute-token");
let tries = 0;

function ask(path, options) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  return fetch(path, { headers, cache: "no-store", ...options });
}

function link(kind, text) {
  $("link").className = `link ${kind}`;
  write($("link"), text);
  document.body.classList.toggle("stale", kind === "lost");
}

/** Calls `take` with each event of a response, until it ends. */
async function events(response, take, stop) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const timer = setTimeout(() => stop.abort(), SILENT_MS);
    const { done, value } = await reader.read();
    clearTimeout(timer);
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [, name, data] = /^event: (\w+)\ndata: (.*)$/s.exec(part) ?? [];
      if (name) take(name, JSON.parse(data));
    }
  }
}

function take(name, data) {
  tries = 0;
  if (name === "hello") return takeHello(data);
  takeFrame(data);
  link("live", "live");
  showSoon();
}

async function connect() {
  for (;;) {
    const stop = new AbortController();
    try {
      const response = await ask("/ui/stream", { signal: stop.signal });
      if (response.status === 401) await askForToken();
      else if (!response.ok) throw new Error(`status ${response.status}`);
      else await events(response, take, stop);
    } catch (error) {
      stop.abort();
    }
    if (state.frame) link("lost", `no answer since ${clock(state.frame.at)}, trying again`);
    await new Promise((resume) => setTimeout(resume, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]));
    tries += 1;
  }
}

/** Asks for the token, and returns when one was given. */
function askForToken() {
  const dialog = $("ask");
  link("", "token needed");
  write($("ask-error"), token ? "This token is not accepted." : "");
  $("token").value = "";
  if (!dialog.open) dialog.showModal();
  return new Promise((given) => {
    dialog.addEventListener("close", () => {
      token = $("token").value.trim();
      sessionStorage.setItem("warmroute-token", token);
      tries = 0;
      given();
    }, { once: true });
  });
}

$("pause").addEventListener("click", () => {
  state.isPaused = !state.isPaused;
  set($("pause"), { "aria-pressed": String(state.isPaused) });
  write($("pause"), state.isPaused ? "Paused" : "Pause");
  showAll();
});
$("filter").addEventListener("click", () => { state.worker = null; showAll(); });
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || $("ask").open) return;
  if (!$("drawer").hidden) closeDrawer();
  else if (state.worker) { state.worker = null; showAll(); }
});
document.addEventListener("visibilitychange", showAll);
addEventListener("resize", showSoon);
connect();
