//! Picks whose stream is over and whose request is not: they count as load until their end is seen or estimated.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use warmroute_gateway::Pick;
use warmroute_types::RouterId;

/// How long an observer may take to name a pick. Its stream may come to another picker, which reports from there.
const CLAIM_TIME_MIN: Duration = Duration::from_secs(5);

/// How often the worker's reports are looked at while a request counts as load.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Picks that wait for an observer, by number.
pub(crate) struct ParkedPicks {
    next: AtomicU64,
    entries: Mutex<HashMap<u64, Entry>>,
}

/// What is known about a number that an observer may name.
enum Entry {
    /// The proxy has the number, and the pick will be parked. An observer that is early waits here.
    Promised(Option<oneshot::Sender<Box<Pick>>>),
    Parked(Box<Pick>),
}

/// A pick as the proxy's metadata names it: its number, and the picker that holds it if several share state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PickName {
    pub router: Option<RouterId>,
    pub number: u64,
}

impl fmt::Display for PickName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.router {
            Some(router) => write!(f, "{router}-{:x}", self.number),
            None => write!(f, "{:x}", self.number),
        }
    }
}

impl FromStr for PickName {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<PickName, ParseIntError> {
        let hex = |digits| u64::from_str_radix(digits, 16);
        Ok(match text.split_once('-') {
            Some((router, number)) => PickName { router: Some(RouterId(hex(router)?)), number: hex(number)? },
            None => PickName { router: None, number: hex(text)? },
        })
    }
}

/// A pick that will be parked under a number. Dropped, the number is unknown again.
pub(crate) struct Promise {
    parked: Arc<ParkedPicks>,
    number: u64,
}

impl Default for ParkedPicks {
    /// Numbers start at random, so that the picks of two processes have different ones.
    fn default() -> ParkedPicks {
        let start = RandomState::new().hash_one(0_u8);
        ParkedPicks { next: AtomicU64::new(start), entries: Mutex::default() }
    }
}

impl ParkedPicks {
    /// A number for a pick, before the proxy gets it: an observer may name it while the pick is still being sent.
    pub(crate) fn promise(self: &Arc<Self>) -> Promise {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.entries.lock().insert(number, Entry::Promised(None));
        Promise { parked: Arc::clone(self), number }
    }

    /// The pick of a number. The observer that takes it ends it. `None` if it is unknown here, or has ended.
    pub(crate) async fn claim(&self, number: u64) -> Option<Box<Pick>> {
        let awaited = {
            let mut entries = self.entries.lock();
            match entries.remove(&number)? {
                Entry::Parked(pick) => return Some(pick),
                Entry::Promised(_) => {
                    let (sender, awaited) = oneshot::channel();
                    entries.insert(number, Entry::Promised(Some(sender)));
                    awaited
                }
            }
        };
        awaited.await.ok()
    }

    fn end_unclaimed(&self, number: u64) {
        let entry = self.entries.lock().remove(&number);
        if let Some(Entry::Parked(pick)) = entry {
            pick.end_unseen();
        }
    }

    /// Whether the pick is gone, or its worker has reported that it has no request.
    fn is_over(&self, number: u64) -> bool {
        match self.entries.lock().get(&number) {
            Some(Entry::Parked(pick)) => pick.is_reported_over(),
            _ => true,
        }
    }
}

impl Promise {
    /// The pick's number, which the proxy's metadata gets.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Keeps a pick until an observer claims it, at most for its estimated time or `CLAIM_TIME_MIN`.
    pub(crate) fn park(self, pick: Box<Pick>) {
        let time = pick.unseen_time().max(CLAIM_TIME_MIN);
        {
            let mut entries = self.parked.entries.lock();
            let pick = match entries.remove(&self.number) {
                Some(Entry::Promised(Some(waiting))) => match waiting.send(pick) {
                    Ok(()) => return,
                    // The observer has gone.
                    Err(pick) => pick,
                },
                _ => pick,
            };
            entries.insert(self.number, Entry::Parked(pick));
        }
        let (parked, number) = (Arc::clone(&self.parked), self.number);
        tokio::spawn(async move {
            // An observer may still come within that time, whatever the worker reports.
            sleep(CLAIM_TIME_MIN).await;
            wait(time - CLAIM_TIME_MIN, || parked.is_over(number)).await;
            parked.end_unclaimed(number);
        });
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let mut entries = self.parked.entries.lock();
        if matches!(entries.get(&self.number), Some(Entry::Promised(_))) {
            entries.remove(&self.number);
        }
    }
}

/// Keeps a pick that no observer will claim, for its estimated time.
pub(crate) fn hold(pick: Box<Pick>) {
    tokio::spawn(async move {
        wait(pick.unseen_time(), || pick.is_reported_over()).await;
        pick.end_unseen();
    });
}

/// Waits for so long, or until the request is known to be over.
async fn wait(time: Duration, is_over: impl Fn() -> bool) {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || is_over() {
            return;
        }
        sleep(left.min(REPORT_INTERVAL)).await;
    }
}
