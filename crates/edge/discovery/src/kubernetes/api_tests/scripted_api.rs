//! An API server that does what a script says: it lists, watches from any version, and fails on command.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use std::sync::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use warmroute_wire::Acceptor;

/// Longest wait for something that must happen.
pub const SOON: Duration = Duration::from_secs(10);

pub struct ScriptedApi {
    pub port: u16,
    state: Arc<Mutex<State>>,
    requests: mpsc::UnboundedReceiver<String>,
    _serving: JoinSet<()>,
}

#[derive(Default)]
struct State {
    version: u64,
    /// Watches from before this version get 410.
    oldest: u64,
    objects: BTreeMap<(String, String), Value>,
    /// Version, kind of object and line.
    events: Vec<(u64, String, String)>,
    watchers: Vec<(String, mpsc::UnboundedSender<WatchCommand>)>,
    /// Accepted tokens; empty: all.
    tokens: Vec<String>,
    /// Answers to the next requests, whatever they ask.
    answers: VecDeque<String>,
    is_down: bool,
    watches: WatchBehaviour,
    refuses_lists: bool,
    page_len: Option<usize>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum WatchBehaviour {
    #[default]
    Open,
    /// A bookmark, and then the end.
    Cut,
    Forbidden,
}

enum WatchCommand {
    Line(String),
    Sever,
}

impl ScriptedApi {
    pub async fn start() -> ScriptedApi {
        ScriptedApi::start_with(Acceptor::default()).await
    }

    pub async fn start_with(acceptor: Acceptor) -> ScriptedApi {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (log, requests) = mpsc::unbounded_channel();
        let state = Arc::new(Mutex::new(State { version: 100, ..State::default() }));
        let mut serving = JoinSet::new();
        let shared = Arc::clone(&state);
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (state, log, acceptor) = (Arc::clone(&shared), log.clone(), acceptor.clone());
                connections.spawn(async move {
                    // A handshake that fails is the client's matter.
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve(stream, state, log).await;
                    }
                });
            }
        });
        ScriptedApi { port, state, requests, _serving: serving }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    /// Creates or replaces an object, and tells the watches.
    pub fn put(&self, plural: &str, object: Value) {
        self.change(|state| state.put(plural, object));
    }

    /// Deletes an object, and tells the watches.
    pub fn delete(&self, plural: &str, name: &str) {
        self.change(|state| {
            let object = state.objects.remove(&(plural.to_owned(), name.to_owned())).unwrap();
            state.announce(plural, "DELETED", object);
        });
    }

    /// Deletes an object without an event.
    pub fn delete_silently(&self, plural: &str, name: &str) {
        self.change(|state| state.objects.remove(&(plural.to_owned(), name.to_owned())).unwrap());
    }

    /// Cuts all watches.
    pub fn sever(&self) {
        self.change(|state| state.command(|| WatchCommand::Sever));
    }

    /// Forgets all versions: open watches end with 410, and later ones from old versions too.
    pub fn expire(&self) {
        self.change(|state| {
            state.version += 1;
            state.oldest = state.version;
            let line = gone(0);
            state.command(|| WatchCommand::Line(line.clone()));
        });
    }

    /// Forgets all versions without telling open watches.
    pub fn compact(&self) {
        self.change(|state| {
            state.version += 1;
            state.oldest = state.version;
        });
    }

    /// Every later watch gets 410, from whatever version.
    pub fn expire_all_watches(&self) {
        self.change(|state| state.oldest = u64::MAX);
    }

    /// Whether lists get 429.
    pub fn refuse_lists(&self, refuses: bool) {
        self.change(|state| state.refuses_lists = refuses);
    }

    /// Every later watch ends after one event.
    pub fn cut_all_watches(&self) {
        self.change(|state| state.watches = WatchBehaviour::Cut);
    }

    /// The role allows to list, not to watch.
    pub fn forbid_watches(&self) {
        self.change(|state| state.watches = WatchBehaviour::Forbidden);
    }

    pub fn bookmark(&self, plural: &str) {
        self.change(|state| {
            state.version += 1;
            let (version, line) = (state.version, bookmark(state.version));
            state.events.push((version, plural.to_owned(), line.clone()));
            state.command(|| WatchCommand::Line(line.clone()));
        });
    }

    pub fn set_down(&self, is_down: bool) {
        self.change(|state| {
            state.is_down = is_down;
            state.command(|| WatchCommand::Sever);
        });
    }

    pub fn accept_tokens(&self, tokens: &[&str]) {
        self.change(|state| state.tokens = tokens.iter().map(|token| (*token).to_owned()).collect());
    }

    pub fn page_len(&self, len: usize) {
        self.change(|state| state.page_len = Some(len));
    }

    /// Gives this answer to one request.
    pub fn answer_once(&self, status: &str, headers: &str, message: &str) {
        let body = json!({ "kind": "Status", "message": message }).to_string();
        self.change(|state| state.answers.push_back(answer(status, headers, &body)));
    }

    /// Begins an answer to one request and falls silent.
    pub fn stall_once(&self) {
        let begun = "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{\"items\":[";
        self.change(|state| state.answers.push_back(begun.to_owned()));
    }

    /// Waits for a request whose path and query contain all of this, and returns it.
    pub async fn request(&mut self, parts: &[&str]) -> String {
        let find = async {
            loop {
                let request = self.requests.recv().await.unwrap();
                if parts.iter().all(|part| request.contains(part)) {
                    return request;
                }
            }
        };
        timeout(SOON, find).await.unwrap_or_else(|_| panic!("no request with {parts:?}"))
    }

    /// The requests since the last call.
    pub fn take_requests(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.requests.try_recv().ok()).collect()
    }
}

impl State {
    fn put(&mut self, plural: &str, mut object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let key = (plural.to_owned(), name);
        let kind = if self.objects.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        object["metadata"]["resourceVersion"] = json!((self.version + 1).to_string());
        self.objects.insert(key, object.clone());
        self.announce(plural, kind, object);
    }

    fn announce(&mut self, plural: &str, kind: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let line = format!("{}\n", json!({ "type": kind, "object": object }));
        self.events.push((self.version, plural.to_owned(), line.clone()));
        self.watchers.retain(|(watched, watcher)| {
            watched != plural || watcher.send(WatchCommand::Line(line.clone())).is_ok()
        });
    }

    fn command(&mut self, command: impl Fn() -> WatchCommand) {
        self.watchers.retain(|(_, watcher)| watcher.send(command()).is_ok());
    }

    fn list(&self, plural: &str, query: &str) -> String {
        let from: usize = value_in(query, "continue").map_or(0, |token| token.parse().unwrap());
        let of_kind = self.objects.iter().filter(|((kind, _), _)| kind == plural).map(|(_, object)| object);
        let all: Vec<&Value> = of_kind.collect();
        let end = self.page_len.map_or(all.len(), |len| (from + len).min(all.len()));
        let next = if end < all.len() { end.to_string() } else { String::new() };
        json!({
            "kind": "List",
            "metadata": { "resourceVersion": self.version.to_string(), "continue": next },
            "items": if all.is_empty() { Value::Null } else { json!(all[from..end]) },
        })
        .to_string()
    }

    fn watch(&mut self, plural: &str, query: &str) -> mpsc::UnboundedReceiver<WatchCommand> {
        let (watcher, commands) = mpsc::unbounded_channel();
        let from: u64 = value_in(query, "resourceVersion").unwrap().parse().unwrap();
        if from < self.oldest {
            _ = watcher.send(WatchCommand::Line(gone(from)));
            _ = watcher.send(WatchCommand::Sever);
        } else if self.watches == WatchBehaviour::Cut {
            _ = watcher.send(WatchCommand::Line(bookmark(self.version)));
            _ = watcher.send(WatchCommand::Sever);
        } else {
            for (_, _, line) in self.events.iter().filter(|(at, kind, _)| *at > from && kind == plural) {
                _ = watcher.send(WatchCommand::Line(line.clone()));
            }
            self.watchers.push((plural.to_owned(), watcher));
        }
        commands
    }
}

fn gone(version: u64) -> String {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Expired", "code": 410,
        "message": format!("too old resource version: {version}"),
    });
    format!("{}\n", json!({ "type": "ERROR", "object": status }))
}

fn bookmark(version: u64) -> String {
    let object = json!({ "metadata": { "resourceVersion": version.to_string() } });
    format!("{}\n", json!({ "type": "BOOKMARK", "object": object }))
}

fn value_in<'a>(query: &'a str, key: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

/// What to do with a request.
enum Reply {
    Answer(String),
    Watch(mpsc::UnboundedReceiver<WatchCommand>),
    Close,
}

async fn serve<S>(mut stream: S, state: Arc<Mutex<State>>, log: mpsc::UnboundedSender<String>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(head) = read_head(&mut stream).await {
        let target = head.split(' ').nth(1).unwrap().to_owned();
        let reply = reply(&state, &head, &target);
        // Afterwards: a watch that a test has heard of is open.
        _ = log.send(target);
        match reply {
            Reply::Answer(answer) => {
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
            Reply::Watch(commands) => return watch(stream, commands).await,
            Reply::Close => return,
        }
    }
}

fn reply(state: &Mutex<State>, head: &str, target: &str) -> Reply {
    let mut state = state.lock().unwrap();
    if state.is_down {
        return Reply::Close;
    }
    if let Some(answer) = state.answers.pop_front() {
        return Reply::Answer(answer);
    }
    let token = head.lines().find_map(|line| line.strip_prefix("authorization: Bearer "));
    if !state.tokens.is_empty() && !state.tokens.iter().any(|known| Some(known.as_str()) == token) {
        return Reply::Answer(answer("401 Unauthorized", "", r#"{"message":"Unauthorized"}"#));
    }
    let (path, query) = target.split_once('?').unwrap();
    let plural = path.rsplit('/').next().unwrap();
    let is_watch = query.contains("watch=true");
    if is_watch && state.watches == WatchBehaviour::Forbidden {
        let message = format!(r#"{{"message":"User \"x\" cannot watch resource \"{plural}\""}}"#);
        return Reply::Answer(answer("403 Forbidden", "", &message));
    }
    if !is_watch && state.refuses_lists {
        return Reply::Answer(answer("429 Too Many Requests", "", ""));
    }
    match is_watch {
        true => Reply::Watch(state.watch(plural, query)),
        false => Reply::Answer(answer("200 OK", "", &state.list(plural, query))),
    }
}

async fn watch<S: AsyncWrite + Unpin>(mut stream: S, mut commands: mpsc::UnboundedReceiver<WatchCommand>) {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    if stream.write_all(head.as_bytes()).await.is_err() {
        return;
    }
    while let Some(WatchCommand::Line(line)) = commands.recv().await {
        // Two chunks a line: events need not arrive whole.
        let (first, second) = line.split_at(line.len() / 2);
        let chunks = format!("{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n", first.len(), second.len());
        if stream.write_all(chunks.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read_head<S: AsyncRead + Unpin>(stream: &mut S) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = stream.read_u8().await.ok()?;
        head.push(byte);
    }
    Some(String::from_utf8(head).unwrap())
}
