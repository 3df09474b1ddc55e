//! Hands prompts to a thread that finds out what breaks their prefixes.
//!
//! A request only passes on its body, which is shared and not copied. The thread outlines it and keeps digests. What
//! it takes is bounded: bodies that wait, their bytes, and bytes a second. Beyond that a part of the requests is
//! observed, which shows the same places.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use warmroute_prefixes::{PrefixReport, PrefixWatch, WatchedPrompt, outline};
use warmroute_prompt::{Api, Attribution, Body};
use warmroute_types::Micros;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::random::random;
use crate::upstream_body::BufferedBody;

/// Bodies that wait for the thread, and their bytes.
const WAITING_MAX: usize = 256;
const WAITING_BYTES_MAX: usize = 32 << 20;

/// Bytes observed in a second: at 10 ns a byte about one hundredth of a core. A body also costs the time of this many
/// bytes to hand over and to compare, however short it is.
const BYTES_PER_S_MAX: u64 = 1 << 20;
const BODY_OVERHEAD_BYTES: u64 = 1 << 10;

/// Larger bodies are not observed.
const BODY_BYTES_MAX: usize = 4 << 20;

/// Where a prompt comes from. Prompts of one model, session and salt are compared.
#[derive(Clone, Copy)]
pub(crate) struct PromptSource<'a> {
    pub(crate) api: Api,
    pub(crate) model: Option<&'a str>,
    pub(crate) session: Option<u64>,
    pub(crate) cache_salt: Option<&'a str>,
    pub(crate) attribution: Attribution,
}

/// Observes the prefixes of prompts.
pub(crate) struct PrefixObserver {
    watch: Arc<Mutex<PrefixWatch>>,
    /// The watch's.
    seed: u64,
    /// Started with the first request.
    thread: OnceLock<SyncSender<ObservedPrompt>>,
    waiting_bytes: Arc<AtomicUsize>,
    second: Mutex<ObservedSecond>,
    skipped: AtomicU64,
}

/// Bytes that were observed in a second.
#[derive(Default)]
struct ObservedSecond {
    second: u64,
    bytes: u64,
}

/// A request on its way to the thread.
struct ObservedPrompt {
    body: BufferedBody,
    model: Box<str>,
    api: Api,
    session: Option<u64>,
    salt: u64,
    attribution: Attribution,
    at: Micros,
}

impl Default for PrefixObserver {
    fn default() -> PrefixObserver {
        let seed = random();
        PrefixObserver {
            watch: Arc::new(Mutex::new(PrefixWatch::new(seed))),
            seed,
            thread: OnceLock::new(),
            waiting_bytes: Arc::default(),
            second: Mutex::default(),
            skipped: AtomicU64::new(0),
        }
    }
}

impl PrefixObserver {
    /// Passes the prompt of a request on. Never waits.
    pub(crate) fn observe(&self, body: &BufferedBody, prompt: PromptSource<'_>, now: Micros) {
        let len = body.len();
        if len > BODY_BYTES_MAX || !self.has_room(len, now) {
            self.skipped.fetch_add(1, Relaxed);
            return;
        }
        let observed = ObservedPrompt {
            body: body.clone(),
            model: prompt.model.unwrap_or("-").into(),
            api: prompt.api,
            session: prompt.session,
            salt: prompt.cache_salt.map_or(0, |salt| xxh3_64(salt.as_bytes())),
            attribution: prompt.attribution,
            at: now,
        };
        let thread = self.thread.get_or_init(|| self.start());
        self.waiting_bytes.fetch_add(len, Relaxed);
        if thread.try_send(observed).is_err() {
            self.waiting_bytes.fetch_sub(len, Relaxed);
            self.skipped.fetch_add(1, Relaxed);
        }
    }

    fn has_room(&self, len: usize, now: Micros) -> bool {
        if self.waiting_bytes.load(Relaxed) + len > WAITING_BYTES_MAX {
            return false;
        }
        let (mut observed, second) = (self.second.lock(), now.0 / 1_000_000);
        if observed.second != second {
            *observed = ObservedSecond { second, bytes: 0 };
        }
        let has_room = observed.bytes < BYTES_PER_S_MAX;
        observed.bytes += if has_room { len as u64 + BODY_OVERHEAD_BYTES } else { 0 };
        has_room
    }

    /// Starts the thread, which ends with this observer. Without a thread all requests are skipped.
    fn start(&self) -> SyncSender<ObservedPrompt> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let (watch, waiting, seed) = (Arc::clone(&self.watch), Arc::clone(&self.waiting_bytes), self.seed);
        let started = std::thread::Builder::new()
            .name("prefixes".to_owned())
            .spawn(move || compare_all(&receiver, &watch, seed, &waiting));
        if let Err(error) = started {
            tracing::warn!(%error, "cannot start the thread that compares prompts");
        }
        sender
    }

    /// What was found out.
    pub(crate) fn report(&self, now: Micros) -> PrefixReport {
        self.watch.lock().report(now)
    }

    /// The watch, for metrics.
    pub(crate) fn watch(&self) -> &Mutex<PrefixWatch> {
        &self.watch
    }

    /// Requests that were not observed, to bound the cost.
    pub(crate) fn skipped(&self) -> u64 {
        self.skipped.load(Relaxed)
    }
}

fn compare_all(
    prompts: &Receiver<ObservedPrompt>,
    watch: &Mutex<PrefixWatch>,
    seed: u64,
    waiting: &AtomicUsize,
) {
    for observed in prompts {
        let len = observed.body.len();
        let bytes = observed.body.joined();
        compare(&observed, &bytes, watch, seed);
        waiting.fetch_sub(len, Relaxed);
    }
}

fn compare(observed: &ObservedPrompt, bytes: &Bytes, watch: &Mutex<PrefixWatch>, seed: u64) {
    // The body was read before it was sent.
    let Ok(body) = Body::read(bytes) else { return };
    let ObservedPrompt { model, api, session, salt, attribution, at, .. } = observed;
    let body = body.of_api(*api);
    let salt = body.salt().map_or(*salt, |own| xxh3_64_with_seed(&own, *salt));
    let (api, session, attribution) = (*api, *session, *attribution);
    let prompt = WatchedPrompt { model, api, body: &body, session, salt, attribution };
    // Before the lock, for which `GET /metrics` waits.
    let outline = outline(seed, prompt, xxh3_64_with_seed);
    watch.lock().see_outlined(prompt, outline, xxh3_64_with_seed, *at);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> BufferedBody {
        BufferedBody::spliced(&Bytes::copy_from_slice(text.as_bytes()), [None, None, None])
    }

    #[test]
    fn what_is_observed_in_a_second_is_bounded() {
        let observer = PrefixObserver::default();
        let (api, attribution) = (Api::Completions, Attribution::Dropped);
        let source = PromptSource { api, model: None, session: None, cache_salt: None, attribution };
        let body = body(&format!("{{\"prompt\":\"{}\"}}", "word ".repeat(200_000)));
        let enough = BYTES_PER_S_MAX as usize / body.len() + 1;
        (0..enough + 5).for_each(|_| observer.observe(&body, source, Micros::from_secs(9)));
        assert_eq!(observer.skipped(), 5);
        assert!(observer.has_room(body.len(), Micros::from_secs(10)), "the next second");
    }

    #[test]
    fn short_bodies_are_bounded_by_their_number() {
        let observer = PrefixObserver::default();
        let room_in_second =
            |second| (0..20_000).filter(|_| observer.has_room(100, Micros::from_secs(second))).count();
        let most = (BYTES_PER_S_MAX / (100 + BODY_OVERHEAD_BYTES)) as usize + 1;
        assert_eq!((room_in_second(9), room_in_second(10)), (most, most));
    }
}
