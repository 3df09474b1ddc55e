//! Keeps a set of objects the same as the API server's: lists, watches, and starts again after every failure.
//!
//! ```text
//! list ──▶ watch ──▶ ended, cut off or silent ──▶ watch from the last version
//!   ▲        │
//!   └────────┴── 410 Gone, or a list is due
//! ```
//!
//! Watches end silently: load balancers drop connections that were idle for minutes, and an API server may vanish without
//! closing them. So a watch is asked to end after two minutes, bookmarks are requested, and a watch without a byte for
//! longer than [`WatchTimings::idle_max`] is opened again, which costs nothing when no event was lost. A list every few
//! minutes replaces the set, so that no lost event has a lasting effect; while such a list fails, watching goes on. While
//! watches are refused or break at once, the set is listed every [`WatchTimings::poll`] instead. While the API server is
//! away the last set stands.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use tokio::time::{Instant, sleep, timeout};
use warmroute_types::{MAX_WORKERS, backoff};
use warmroute_wire::{HttpClient, retry_after};

use super::access::KubernetesAccess;
use super::object_cache::{Event, ObjectCache, Page, TooMany};
use super::objects::{ApiObject, Status};

/// Objects in a page of a list. With their managed fields, 100 pods take a few megabytes.
const PAGE_OBJECTS: usize = 100;

/// Most objects of one source: several for each worker that a router can have.
const OBJECTS_MAX: usize = 8 * MAX_WORKERS;

/// Largest page, and largest line of a watch: an object has at most 1.5 MB in etcd.
const PAGE_BYTES_MAX: usize = 64 << 20;
const LINE_BYTES_MAX: usize = 8 << 20;
const ERROR_BYTES_MAX: usize = 64 << 10;

/// Events that follow each other within this pause are a burst, and the longest burst that is one change. A rollout of many pods is
/// hundreds of events, each of which would otherwise list all workers again.
const BURST_PAUSE: Duration = Duration::from_millis(10);
const BURST_MAX: Duration = Duration::from_millis(100);

/// When watches end and lists are due.
#[derive(Clone, Copy, Debug)]
pub(super) struct WatchTimings {
    /// How long the API server keeps a watch open.
    pub watch: Duration,
    /// Longest time of a watch without a byte, and longest time of a list's page. Bookmarks come about once a minute.
    pub idle_max: Duration,
    /// Time after which the set is listed again.
    pub relist: Duration,
    /// Time after which the set is listed again while no watch can be kept open.
    pub poll: Duration,
    /// Longest pause between attempts.
    pub pause_max: Duration,
    /// A watch that ends sooner counts as a failure, also if events came before.
    pub short: Duration,
}

impl Default for WatchTimings {
    fn default() -> WatchTimings {
        WatchTimings {
            // Azure's load balancers drop connections after 240 s of silence.
            watch: Duration::from_secs(120),
            idle_max: Duration::from_secs(90),
            relist: Duration::from_secs(300),
            poll: Duration::from_secs(10),
            pause_max: Duration::from_secs(10),
            short: Duration::from_secs(10),
        }
    }
}

/// Why a list or a watch ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    Unusable(String),
    #[error("the API server refuses the credentials (401): {0}")]
    Unauthorized(String),
    #[error("a right is missing (403): {message}; a role needs list and watch on {plural}")]
    Forbidden { message: String, plural: &'static str },
    #[error("the API server has no {plural} (404): {message}")]
    Missing { message: String, plural: &'static str },
    #[error("the API server is busy ({status})")]
    Busy { status: StatusCode, retry_after: Option<Duration> },
    #[error("more than {OBJECTS_MAX} {0} match")]
    TooMany(&'static str),
    #[error("the API server answers {status}: {message}")]
    Other { status: StatusCode, message: String },
    #[error("the API server no longer has this version (410)")]
    Expired,
    #[error("the watch ended with an error: {0}")]
    Watch(String),
    #[error("the watch was silent for {0:?}")]
    Silent(Duration),
    #[error("the watch ended after less than {0:?}")]
    TooShort(Duration),
}

impl Failure {
    /// How long the API server asks to be left alone.
    fn retry_after(&self) -> Duration {
        match self {
            Failure::Busy { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Failure::Unauthorized(_) => {
                "renew the token or the certificate; in a pod, see its service account"
            }
            Failure::Forbidden { .. } => {
                "give the service account a Role with these verbs; docs/kubernetes.md lists the rights"
            }
            Failure::Missing { .. } => {
                "check the namespace, and that the resource's CRD is installed in version v1"
            }
            Failure::Unusable(_) => {
                "check that the API server can be reached from here, at the address of the kubeconfig"
            }
            Failure::TooMany(_) => "select fewer: add labels to the selector, or list namespaces",
            _ => "the API server fails: try again, and see its log",
        }
    }
}

/// What is watched.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    /// `None`: all namespaces.
    pub namespace: Option<String>,
    /// Such as `labelSelector=app%3Dvllm`; may be empty.
    pub filter: String,
}

/// The objects that match, kept up to date.
pub(super) struct Reflector<T> {
    access: KubernetesAccess,
    watched: Watched,
    timings: WatchTimings,
    cache: ObjectCache<T>,
    listed: Option<Instant>,
    /// Not listed again before, while the watch goes on: the last try failed.
    postponed: Option<Instant>,
    stream: Option<WatchStream>,
    /// The set has changed since it was last returned.
    is_changed: bool,
    failures: u32,
    /// The last watch failed, and none has worked since.
    is_unwatched: bool,
    last_problem: String,
    /// Why the list that is due failed.
    list_problem: String,
}

/// An open watch.
struct WatchStream {
    body: Incoming,
    opened: Instant,
    /// When the last bytes came.
    heard: Instant,
    /// The start of a line whose end has not arrived.
    partial: BytesMut,
    /// Keeps the connection open.
    _client: HttpClient,
}

impl<T: ApiObject> Reflector<T> {
    pub fn new(access: KubernetesAccess, watched: Watched, timings: WatchTimings) -> Reflector<T> {
        Reflector {
            access,
            watched,
            timings,
            cache: ObjectCache::new(OBJECTS_MAX),
            listed: None,
            postponed: None,
            stream: None,
            is_changed: false,
            failures: 0,
            is_unwatched: false,
            last_problem: String::new(),
            list_problem: String::new(),
        }
    }

    /// Waits until the set has changed or has been listed, and returns it.
    pub async fn changed(&mut self) -> impl Iterator<Item = &T> {
        while !self.is_changed {
            if let Err(failure) = self.step().await {
                self.recover(&failure).await;
            }
        }
        self.is_changed = false;
        self.cache.objects()
    }

    /// Lists, opens a watch, or reads from the open one.
    pub(super) async fn step(&mut self) -> Result<(), Failure> {
        let is_polled = self.is_unwatched && self.stream.is_none();
        let every = if is_polled { self.timings.poll } else { self.timings.relist };
        let Some(version) = self.cache.version().map(str::to_owned) else {
            self.stream = None;
            return self.list().await;
        };
        if self.until_list(every) == Duration::ZERO {
            return self.list_again().await;
        }
        let watched = match self.stream.take() {
            Some(stream) => self.read(stream).await,
            None => self.open(&version).await,
        };
        self.is_unwatched |= watched.is_err();
        watched
    }

    /// Time until the set is listed again, if it is listed so often.
    fn until_list(&self, every: Duration) -> Duration {
        let due = self.listed.map_or(Duration::ZERO, |listed| every.saturating_sub(listed.elapsed()));
        self.postponed.map_or(due, |until| due.max(until.saturating_duration_since(Instant::now())))
    }

    /// Lists the set again. An API server that is too busy for it may still send events, so watching goes on if it fails.
    async fn list_again(&mut self) -> Result<(), Failure> {
        let stream = self.stream.take();
        let failure = match self.list().await {
            // The next watch begins where the list ends.
            Ok(()) => return Ok(()),
            Err(failure) if self.cache.version().is_none() => return Err(failure),
            Err(failure) => failure,
        };
        let problem = failure.to_string();
        if self.list_problem != problem {
            tracing::warn!(kind = T::PLURAL, problem, "the list that is due failed; watching goes on");
            self.list_problem = problem;
        }
        let pause = self.timings.poll.max(failure.retry_after().min(self.timings.relist));
        self.postponed = Some(Instant::now() + pause);
        self.stream = stream;
        Ok(())
    }

    async fn list(&mut self) -> Result<(), Failure> {
        let mut client = self.access.client().await.map_err(Failure::Unusable)?;
        self.cache.begin_list();
        let mut next: Option<String> = None;
        loop {
            let mut query = format!("limit={PAGE_OBJECTS}");
            if let Some(token) = &next {
                query = format!("{query}&continue={}", encoded(token));
            }
            let body = self.get(&mut client, &query).await?;
            let page: Page<T> = serde_json::from_slice(&self.collect(body, PAGE_BYTES_MAX).await?)
                .map_err(|error| Failure::Unusable(format!("the list cannot be read: {error}")))?;
            next = self.cache.add_page(page).map_err(|TooMany| Failure::TooMany(T::PLURAL))?;
            if next.is_none() {
                break;
            }
        }
        (self.listed, self.postponed) = (Some(Instant::now()), None);
        self.list_problem.clear();
        self.is_changed = true;
        // A list without a watch is half of the work: an API server whose watches always fail is asked ever less often.
        if !self.is_unwatched {
            self.note_success();
        }
        tracing::debug!(kind = T::PLURAL, objects = self.cache.len(), "listed");
        Ok(())
    }

    async fn open(&mut self, version: &str) -> Result<(), Failure> {
        let mut client = self.access.client().await.map_err(Failure::Unusable)?;
        let query = format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={}",
            self.timings.watch.as_secs().max(1),
            encoded(version)
        );
        let body = self.get(&mut client, &query).await?;
        let (opened, partial) = (Instant::now(), BytesMut::new());
        self.stream = Some(WatchStream { body, opened, heard: opened, partial, _client: client });
        Ok(())
    }

    /// Reads what arrives next, and what follows without a pause: a burst of events is one change.
    async fn read(&mut self, mut stream: WatchStream) -> Result<(), Failure> {
        let idle_max = self.timings.idle_max;
        let until_list = self.until_list(self.timings.relist);
        let until_silent = idle_max.saturating_sub(stream.heard.elapsed());
        let frame = match timeout(until_silent.min(until_list), stream.body.frame()).await {
            Ok(frame) => frame,
            Err(_) if until_list < until_silent => {
                self.stream = Some(stream);
                return Ok(());
            }
            Err(_) => return Err(Failure::Silent(idle_max)),
        };
        stream.heard = Instant::now();
        let is_short = stream.opened.elapsed() < self.timings.short;
        let Some(frame) = frame else {
            // The API server ends each watch after the time that was asked for.
            if is_short {
                return Err(Failure::TooShort(self.timings.short));
            }
            self.note_success();
            return Ok(());
        };
        let frame = frame.map_err(|error| Failure::Watch(error.to_string()))?;
        self.apply(&mut stream.partial, &frame.into_data().unwrap_or_default())?;
        let burst_end = Instant::now() + BURST_MAX;
        while Instant::now() < burst_end {
            // The end of the stream, or its failure, is there again in the next step.
            let Ok(Some(Ok(frame))) = timeout(BURST_PAUSE, stream.body.frame()).await else { break };
            self.apply(&mut stream.partial, &frame.into_data().unwrap_or_default())?;
        }
        // Some bytes are no success yet: a watch that always ends after its first event would be opened without a pause.
        // Nor is the start of a line, which may be an error.
        if !is_short && stream.partial.is_empty() {
            self.note_success();
        }
        self.stream = Some(stream);
        Ok(())
    }

    /// Applies the complete lines.
    fn apply(&mut self, partial: &mut BytesMut, bytes: &[u8]) -> Result<(), Failure> {
        partial.extend_from_slice(bytes);
        while let Some(end) = partial.iter().position(|&byte| byte == b'\n') {
            let line = partial.split_to(end + 1);
            if line.trim_ascii().is_empty() {
                continue;
            }
            match self.cache.apply(&line) {
                Ok(Event::Changed) => self.is_changed = true,
                Ok(Event::Unchanged) => {}
                Ok(Event::Expired) => return Err(Failure::Expired),
                Ok(Event::Failed(why)) => return Err(Failure::Watch(why)),
                Ok(Event::TooMany) => return Err(Failure::TooMany(T::PLURAL)),
                Err(error) => {
                    // A list will tell what the line meant.
                    self.cache.expire();
                    return Err(Failure::Watch(format!("an event cannot be read: {error}")));
                }
            }
        }
        if partial.len() > LINE_BYTES_MAX {
            self.cache.expire();
            return Err(Failure::Watch(format!("an event is longer than {LINE_BYTES_MAX} bytes")));
        }
        Ok(())
    }

    /// Gets the collection, and turns error answers into failures.
    async fn get(&mut self, client: &mut HttpClient, query: &str) -> Result<Incoming, Failure> {
        let Watched { namespace, filter } = &self.watched;
        let separator = if filter.is_empty() { "" } else { "&" };
        let path = format!("{}?{filter}{separator}{query}", T::collection(namespace.as_deref()));
        let response = client.get_streaming(&path).await;
        let response = response.map_err(|error| Failure::Unusable(error.to_string()))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response.into_body());
        }
        let retry_after = retry_after(response.headers(), Duration::ZERO);
        // The status says enough where the text does not arrive.
        let body = self.collect(response.into_body(), ERROR_BYTES_MAX).await.unwrap_or_default();
        let Status { message, .. } = serde_json::from_slice(&body).unwrap_or_default();
        Err(match status {
            StatusCode::UNAUTHORIZED => Failure::Unauthorized(message),
            StatusCode::FORBIDDEN => Failure::Forbidden { message, plural: T::PLURAL },
            StatusCode::NOT_FOUND => Failure::Missing { message, plural: T::PLURAL },
            StatusCode::GONE => {
                self.cache.expire();
                Failure::Expired
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Failure::Busy { status, retry_after }
            }
            status => Failure::Other { status, message },
        })
    }

    /// Reads an answer that is not a watch. One that falls silent before its end would be waited for without end.
    async fn collect(&self, body: Incoming, bytes_max: usize) -> Result<Bytes, Failure> {
        let idle_max = self.timings.idle_max;
        let collected = timeout(idle_max, Limited::new(body, bytes_max).collect()).await;
        let broken = |why: String| Failure::Unusable(format!("the list broke off: {why}"));
        let collected = collected.map_err(|_| broken(format!("it is not complete after {idle_max:?}")))?;
        Ok(collected.map_err(|error| broken(error.to_string()))?.to_bytes())
    }

    fn note_success(&mut self) {
        (self.failures, self.is_unwatched) = (0, false);
        if !self.last_problem.is_empty() {
            tracing::info!(kind = T::PLURAL, "the Kubernetes API server can be followed again");
            self.last_problem.clear();
        }
    }

    /// Logs a new problem and pauses. A watch that was silent or has expired is opened again at once.
    async fn recover(&mut self, failure: &Failure) {
        match failure {
            Failure::Silent(_) => {
                // It was open for a while.
                (self.failures, self.is_unwatched) = (0, false);
                tracing::debug!(kind = T::PLURAL, %failure, "watching again");
                return;
            }
            // Routine once, but not in a row: an API server that always answers 410 must not be asked in a loop.
            Failure::Expired if self.failures == 0 => {
                tracing::debug!(kind = T::PLURAL, %failure, "listing again");
                self.failures = 1;
                return;
            }
            _ => {}
        }
        self.failures = self.failures.saturating_add(1);
        let problem = failure.to_string();
        // One watch that breaks is routine: an API server restarts, a load balancer closes connections.
        let is_routine = self.failures == 1 && matches!(failure, Failure::Watch(_) | Failure::TooShort(_));
        if self.last_problem != problem && !is_routine {
            let server = &self.access.url;
            tracing::warn!(kind = T::PLURAL, server, problem, "keeping the workers known before");
            self.last_problem = problem;
        }
        let random = RandomState::new().hash_one(self.failures);
        let pause = backoff::pause(self.failures, self.timings.pause_max, random);
        sleep(pause.max(failure.retry_after().min(self.timings.pause_max))).await;
    }
}

/// Percent-encodes a value of a query.
pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte))
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}
