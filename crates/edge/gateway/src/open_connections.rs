//! The open connections of a listener, and which of them gives way when it is full.
//!
//! Opening a connection needs no key, so one that has not sent an accepted request must not keep others out: it has a
//! short time for its first request, and when the listener is full it gives way after a second. If there is none, a
//! connection gives way that has just come, or is between two requests: its client opens another one when it needs it.
//! In both cases it is the oldest one of the owner with the most: the client's address, or the tenant once its key is
//! known. A drain closes connections without an accepted request at once.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::busy_body::RequestCount;
use crate::drain::Drain;

/// Longest time from the connection to the first accepted request. The head timeout may be shorter.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The first request of a connection that is younger may be on its way.
const YOUTH: Duration = Duration::from_secs(1);

/// All open connections of a listener.
#[derive(Clone, Default)]
pub(crate) struct OpenConnections(Arc<Mutex<Registry>>);

#[derive(Default)]
struct Registry {
    next_id: u64,
    /// In the order in which they connected.
    by_id: BTreeMap<u64, Arc<State>>,
}

/// One open connection.
pub(crate) struct OpenConnection {
    id: u64,
    registry: OpenConnections,
    state: Arc<State>,
    deadline: Instant,
}

struct State {
    address: IpAddr,
    opened: Instant,
    /// A hash of the tenant's name; 0 if none is known.
    tenant: AtomicU64,
    is_silent: AtomicBool,
    /// It was told to give way.
    is_leaving: AtomicBool,
    leave: Notify,
    requests: RequestCount,
}

/// Who has a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    Address(IpAddr),
    Tenant(u64),
}

impl State {
    fn owner(&self) -> Owner {
        match self.tenant.load(Relaxed) {
            0 => Owner::Address(self.address),
            tenant => Owner::Tenant(tenant),
        }
    }

    fn is_silent(&self) -> bool {
        self.is_silent.load(Relaxed)
    }

    fn is_long_silent(&self) -> bool {
        self.is_silent() && self.opened.elapsed() >= YOUTH
    }

    /// Whether it has no accepted request in progress.
    fn is_unused(&self) -> bool {
        self.is_silent() || self.requests.is_zero()
    }
}

impl OpenConnections {
    /// Adds a connection that has just been accepted.
    pub(crate) fn add(&self, address: IpAddr, head_timeout: Duration) -> Arc<OpenConnection> {
        self.add_opened(Instant::now(), address, head_timeout)
    }

    fn add_opened(&self, opened: Instant, address: IpAddr, head_timeout: Duration) -> Arc<OpenConnection> {
        let state = Arc::new(State {
            address: network_of(address),
            opened,
            tenant: AtomicU64::new(0),
            is_silent: AtomicBool::new(true),
            is_leaving: AtomicBool::new(false),
            leave: Notify::new(),
            requests: RequestCount::default(),
        });
        let mut registry = self.0.lock();
        let id = registry.next_id;
        registry.next_id += 1;
        registry.by_id.insert(id, Arc::clone(&state));
        drop(registry);
        let deadline = opened + head_timeout.min(SILENCE_MAX);
        Arc::new(OpenConnection { id, registry: self.clone(), state, deadline })
    }

    /// Ends one connection that is not needed. Returns whether there was one.
    pub(crate) fn evict_one(&self) -> bool {
        let registry = self.0.lock();
        let chosen = registry.oldest_of_most(State::is_long_silent);
        let Some(state) = chosen.or_else(|| registry.oldest_of_most(State::is_unused)) else {
            return false;
        };
        state.is_leaving.store(true, Relaxed);
        state.leave.notify_one();
        true
    }
}

/// The address, or the network of an IPv6 address: one client has all addresses of its /64.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

impl Registry {
    /// The oldest of these connections of the owner with the most of them.
    fn oldest_of_most(&self, is_one: impl Fn(&State) -> bool) -> Option<&Arc<State>> {
        let all = || self.by_id.values().filter(|state| is_one(state) && !state.is_leaving.load(Relaxed));
        let mut counts: HashMap<Owner, usize> = HashMap::new();
        all().for_each(|state| *counts.entry(state.owner()).or_default() += 1);
        let (most, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        all().find(|state| state.owner() == most)
    }
}

impl OpenConnection {
    /// Notes that a request of this tenant was accepted. `tenant`: a hash of its name, 0 without keys.
    pub(crate) fn accept(&self, tenant: u64) {
        if self.state.is_silent() {
            self.state.is_silent.store(false, Relaxed);
        }
        if self.state.tenant.load(Relaxed) != tenant {
            self.state.tenant.store(tenant, Relaxed);
        }
    }

    /// Whether no request has been accepted yet.
    pub(crate) fn is_silent(&self) -> bool {
        self.state.is_silent()
    }

    /// The requests in progress.
    pub(crate) fn requests(&self) -> &RequestCount {
        &self.state.requests
    }

    /// Returns when the connection is to be closed because it is still silent: after its time, or in a drain.
    pub(crate) async fn wait_expired(&self, drain: &Drain) {
        tokio::select! {
            () = tokio::time::sleep_until(self.deadline) => {}
            () = drain.wait_close_idle() => {}
        }
        if !self.state.is_silent() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns when the connection is to give way to another one.
    pub(crate) async fn wait_leave(&self) {
        self.state.leave.notified().await;
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.registry.0.lock().by_id.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn has_left(connection: &OpenConnection) -> bool {
        connection.state.is_leaving.load(Relaxed)
    }

    #[tokio::test]
    async fn the_oldest_of_the_owner_with_the_most_gives_way() {
        let open = OpenConnections::default();
        let earlier = Instant::now() - YOUTH;
        let add = |last| open.add_opened(earlier, address(last), Duration::from_secs(60));
        let (lone, flood) = (add(1), [2; 3].map(add));
        let young = open.add(address(3), Duration::from_secs(60));
        assert!(open.evict_one());
        flood[0].wait_leave().await;
        flood[1].accept(0);
        let request = flood[1].requests().begin();
        assert!(open.evict_one() && open.evict_one());
        assert!(has_left(&lone) && has_left(&flood[2]) && !has_left(&young));
        assert!(open.evict_one() && has_left(&young), "without others, one that has just come");
        assert!(!open.evict_one());
        drop(request);
        assert!(open.evict_one() && has_left(&flood[1]), "it has no request any more");
        drop((lone, flood, young));
        assert!(open.0.lock().by_id.is_empty());
    }

    #[test]
    fn idle_ones_of_a_tenant_and_newcomers_of_an_address_give_way_to_the_others() {
        let open = OpenConnections::default();
        let add = |last| open.add(address(last), Duration::from_secs(60));
        let idle = |last, tenant| {
            let connection = add(last);
            connection.accept(tenant);
            connection
        };
        let (greedy, newcomers) = ([1, 2, 3].map(|last| idle(last, 7)), [4, 4].map(add));
        assert!(open.evict_one() && has_left(&greedy[0]), "three idle ones against two newcomers");
        drop((greedy, newcomers));
        let (honest, flood) = (idle(1, 8), [4, 4, 4].map(add));
        assert!(open.evict_one() && has_left(&flood[0]), "a flood does not push out a tenant");
        let requests = honest.requests().begin();
        (0..2).for_each(|_| assert!(open.evict_one()));
        assert!(!open.evict_one() && !has_left(&honest));
        drop(requests);
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let network = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
    }

    #[tokio::test]
    async fn an_accepted_connection_does_not_expire() {
        let open = OpenConnections::default();
        let [first, second] = [1, 2].map(|last| open.add(address(last), Duration::ZERO));
        first.accept(0);
        let drain = Drain::default();
        second.wait_expired(&drain).await;
        let within = Duration::from_millis(50);
        assert!(tokio::time::timeout(within, first.wait_expired(&drain)).await.is_err());
    }
}
