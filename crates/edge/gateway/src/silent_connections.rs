//! Connections that have not sent an accepted request yet.
//!
//! Opening a connection needs no key, so silent ones must not keep others out. They have a short time for their first
//! request, and when the listener is full the oldest one of the address with the most gives way to a new connection.
//! A drain closes them at once.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::drain::Drain;

/// Longest time from the connection to the first accepted request. The head timeout may be shorter.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// All silent connections of a listener.
#[derive(Clone, Default)]
pub(crate) struct SilentConnections(Arc<Mutex<Registry>>);

#[derive(Default)]
struct Registry {
    next_id: u64,
    /// In the order in which they connected.
    by_id: BTreeMap<u64, (IpAddr, Arc<Notify>)>,
    counts: HashMap<IpAddr, usize>,
}

/// One connection until its first accepted request.
pub(crate) struct SilentConnection {
    id: u64,
    registry: SilentConnections,
    evicted: Arc<Notify>,
    is_silent: AtomicBool,
    deadline: Instant,
}

impl SilentConnections {
    /// Adds a connection that has just been accepted.
    pub(crate) fn add(&self, address: IpAddr, head_timeout: Duration) -> Arc<SilentConnection> {
        let evicted = Arc::new(Notify::new());
        let mut registry = self.0.lock();
        let id = registry.next_id;
        registry.next_id += 1;
        registry.by_id.insert(id, (address, Arc::clone(&evicted)));
        *registry.counts.entry(address).or_default() += 1;
        drop(registry);
        let (registry, is_silent) = (self.clone(), AtomicBool::new(true));
        let deadline = Instant::now() + head_timeout.min(SILENCE_MAX);
        Arc::new(SilentConnection { id, registry, evicted, is_silent, deadline })
    }

    /// Ends one silent connection, if there is any.
    pub(crate) fn evict_one(&self) {
        let mut registry = self.0.lock();
        let busiest = registry.counts.iter().max_by_key(|(_, count)| **count).map(|(address, _)| *address);
        let oldest =
            registry.by_id.iter().find(|(_, (address, _))| Some(*address) == busiest).map(|(id, _)| *id);
        if let Some(evicted) = oldest.and_then(|id| registry.remove(id)) {
            evicted.notify_one();
        }
    }
}

impl Registry {
    fn remove(&mut self, id: u64) -> Option<Arc<Notify>> {
        let (address, evicted) = self.by_id.remove(&id)?;
        if let Some(count) = self.counts.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&address);
            }
        }
        Some(evicted)
    }
}

impl SilentConnection {
    /// Notes that a request was accepted: the connection is an ordinary one from now on.
    pub(crate) fn accept(&self) {
        if self.is_silent.load(Ordering::Relaxed) && self.is_silent.swap(false, Ordering::Relaxed) {
            self.registry.0.lock().remove(self.id);
        }
    }

    /// Returns when the connection is to be closed because it is still silent: after its time, when it gives way to
    /// another one, or in a drain.
    pub(crate) async fn wait_expired(&self, drain: &Drain) {
        tokio::select! {
            () = self.evicted.notified() => {}
            () = tokio::time::sleep_until(self.deadline) => {}
            () = drain.wait_close_idle() => {}
        }
        if !self.is_silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for SilentConnection {
    fn drop(&mut self) {
        self.accept();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[tokio::test]
    async fn the_oldest_of_the_address_with_the_most_gives_way() {
        let silent = SilentConnections::default();
        let add = |last| silent.add(address(last), Duration::from_secs(60));
        let (lone, flood) = (add(1), [2; 3].map(add));
        silent.evict_one();
        flood[0].wait_expired(&Drain::default()).await;
        flood[1].accept();
        assert_eq!(silent.0.lock().by_id.len(), 2);
        drop((lone, flood));
        let registry = silent.0.lock();
        assert!(registry.by_id.is_empty() && registry.counts.is_empty());
    }

    #[tokio::test]
    async fn an_accepted_connection_does_not_expire() {
        let silent = SilentConnections::default();
        let [first, second] = [1, 2].map(|last| silent.add(address(last), Duration::ZERO));
        first.accept();
        let drain = Drain::default();
        second.wait_expired(&drain).await;
        let within = Duration::from_millis(50);
        assert!(tokio::time::timeout(within, first.wait_expired(&drain)).await.is_err());
    }
}
