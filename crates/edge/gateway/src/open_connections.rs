//! The open connections of a listener, and which of them gives way when it is full.
//!
//! Opening a connection needs no key, so one that has not sent an accepted request must not keep others out: it has a
//! short time for its first request. When the listener is full, these give way, in this order:
//!
//! 1. connections that were silent for a second, then for 100 ms: a client that has a request sends it by then;
//! 2. idle connections (between two requests) of an owner that has a quarter of all connections idle;
//! 3. other idle connections, unless one has just come that may turn out to be silent: their clients open others when
//!    they need them;
//! 4. bodies that have been arriving for a second, of an owner with a quarter of all connections in that state.
//!
//! A connection that has just come never gives way: the next one waits until it has sent its request or is silent.
//! An owner is a tenant once its key is known, and an address before. Of each kind, the oldest one gives way of the owner
//! with the most, or of the one whose silent connections have waited longest in total. Silent connections from many
//! addresses thus push out neither idle connections of tenants nor new ones whose request is on its way. A drain closes
//! connections without an accepted request at once.

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

/// The first request of a connection that is younger may be on its way, over a slow line.
const YOUTH: Duration = Duration::from_secs(1);

/// The same over a fast line.
const GRACE: Duration = Duration::from_millis(100);

/// A body that takes longer counts as slow.
const SLOW_BODY: Duration = Duration::from_secs(1);

/// An owner with more than one part in this many has a large share of the connections.
const LARGE_SHARE: usize = 4;

/// Of silent connections, one part in this many gives way at once, so that a flood costs one look at all connections for
/// many new ones.
const BATCH: usize = 64;

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
    /// Its request was refused, and the rest of the body is being read for the client's sake only.
    is_refused: AtomicBool,
    /// When the body of its request began to arrive, in microseconds after it was opened; 0 while none does.
    body_since_us: AtomicU64,
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

    fn is_past_grace(&self) -> bool {
        self.is_silent() && self.opened.elapsed() >= GRACE
    }

    /// Whether it may still turn out to be silent.
    fn is_new(&self) -> bool {
        self.is_silent() && self.opened.elapsed() < GRACE
    }

    /// Whether it has no accepted request in progress, and had one before.
    fn is_idle(&self) -> bool {
        !self.is_silent() && (self.requests.is_zero() || self.is_refused.load(Relaxed))
    }

    fn has_slow_body(&self) -> bool {
        let since = Duration::from_micros(self.body_since_us.load(Relaxed));
        !since.is_zero() && self.opened.elapsed().saturating_sub(since) >= SLOW_BODY
    }

    /// What it counts among its owner's: silent connections by the time that they waited.
    fn weight(&self) -> u128 {
        if self.is_silent() { self.opened.elapsed().as_micros().max(1) } else { 1 }
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
            is_refused: AtomicBool::new(false),
            body_since_us: AtomicU64::new(0),
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

    /// Ends connections that are not needed. Returns whether there were any.
    pub(crate) fn evict(&self) -> bool {
        let registry = self.0.lock();
        let leaving = registry.leaving();
        for state in &leaving {
            state.is_leaving.store(true, Relaxed);
            state.leave.notify_one();
        }
        !leaving.is_empty()
    }
}

/// The address, or the network of an IPv6 address: one client has all addresses of its /64.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

/// Connections of one kind that give way.
struct Kind {
    is_one: fn(&State) -> bool,
    /// Only an owner with more than this many gives way.
    spared: usize,
    /// How many give way at once.
    at_once: usize,
}

impl Registry {
    /// The connections that give way next.
    fn leaving(&self) -> Vec<&Arc<State>> {
        let (share, batch) = (self.by_id.len() / LARGE_SHARE, self.by_id.len() / BATCH + 1);
        let first_of = |kinds: &[Kind]| {
            let mut chosen = kinds.iter().map(|kind| self.oldest_of_most(kind));
            chosen.find(|chosen| !chosen.is_empty())
        };
        let unused = [
            Kind { is_one: State::is_long_silent, spared: 0, at_once: batch },
            Kind { is_one: State::is_past_grace, spared: 0, at_once: batch },
            Kind { is_one: State::is_idle, spared: share, at_once: 1 },
        ];
        let others = [
            Kind { is_one: State::is_idle, spared: 0, at_once: 1 },
            Kind { is_one: State::has_slow_body, spared: share, at_once: 1 },
        ];
        let has_new = || self.by_id.values().any(|state| state.is_new());
        first_of(&unused).or_else(|| if has_new() { None } else { first_of(&others) }).unwrap_or_default()
    }

    /// The oldest connections of this kind of the owner with the most, and if these are few, the oldest of all.
    fn oldest_of_most(&self, kind: &Kind) -> Vec<&Arc<State>> {
        let is_one = |state: &State| (kind.is_one)(state) && !state.is_leaving.load(Relaxed);
        let all = || self.by_id.values().filter(|state| is_one(state));
        let mut owners: HashMap<Owner, (u128, usize)> = HashMap::new();
        for state in all() {
            let (weight, count) = owners.entry(state.owner()).or_default();
            *weight += state.weight();
            *count += 1;
        }
        owners.retain(|_, (_, count)| *count > kind.spared);
        let most = owners.into_iter().max_by_key(|(_, (weight, _))| *weight).map(|(owner, _)| owner);
        let Some(most) = most else { return Vec::new() };
        let (of_most, others): (Vec<_>, Vec<_>) = all().partition(|state| state.owner() == most);
        of_most.into_iter().chain(others).take(kind.at_once).collect()
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
        if self.state.is_refused.load(Relaxed) {
            self.state.is_refused.store(false, Relaxed);
        }
    }

    /// Notes that the request in progress was refused before its body was read.
    pub(crate) fn refuse(&self) {
        self.state.is_refused.store(true, Relaxed);
    }

    /// Notes that the body of a request begins to arrive, until the result is dropped.
    pub(crate) fn begin_body(self: &Arc<OpenConnection>) -> ArrivingBody {
        let since = self.state.opened.elapsed().as_micros() as u64;
        self.state.body_since_us.store(since.max(1), Relaxed);
        ArrivingBody(Arc::clone(self))
    }

    /// Whether it can be closed at once: it has no request whose answer is computed.
    pub(crate) fn may_be_cut(&self) -> bool {
        let state = &self.state;
        state.is_silent() || state.is_refused.load(Relaxed) || state.has_slow_body()
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

/// A body that arrives on a connection.
pub(crate) struct ArrivingBody(Arc<OpenConnection>);

impl Drop for ArrivingBody {
    fn drop(&mut self) {
        self.0.state.body_since_us.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    /// A connection that counts as new however long the test takes.
    fn add_new(open: &OpenConnections, last: u8) -> Arc<OpenConnection> {
        open.add_opened(Instant::now() + Duration::from_secs(600), address(last), Duration::from_secs(60))
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
        let young = add_new(&open, 3);
        assert!(open.evict());
        flood[0].wait_leave().await;
        flood[1].accept(0);
        let request = flood[1].requests().begin();
        assert!(open.evict() && open.evict());
        assert!(has_left(&lone) && has_left(&flood[2]) && !has_left(&young));
        assert!(!open.evict(), "its request may be on its way");
        drop(request);
        assert!(!open.evict(), "it may be silent");
        young.accept(9);
        let _busy = young.requests().begin();
        assert!(open.evict() && has_left(&flood[1]), "it has no request any more");
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
        let new = |last| add_new(&open, last);
        let (greedy, newcomers) = ([1, 2, 3].map(|last| idle(last, 7)), [4, 4].map(new));
        assert!(open.evict() && has_left(&greedy[0]), "three idle ones against two newcomers");
        drop((greedy, newcomers));
        let earlier = Instant::now() - GRACE;
        let silent = |last| open.add_opened(earlier, address(last), Duration::from_secs(60));
        let (honest, flood) = (idle(1, 8), [4, 4, 4].map(silent));
        assert!(open.evict() && has_left(&flood[0]), "a flood does not push out a tenant");
        let requests = honest.requests().begin();
        (0..2).for_each(|_| assert!(open.evict()));
        assert!(!open.evict() && !has_left(&honest));
        drop(requests);
    }

    #[tokio::test]
    async fn silent_connections_from_many_addresses_push_out_neither_idle_nor_new_ones() {
        let open = OpenConnections::default();
        let honest: Vec<_> = (0..3).map(|_| open.add(address(1), Duration::from_secs(60))).collect();
        honest.iter().for_each(|connection| connection.accept(8));
        let earlier = Instant::now() - GRACE;
        let flood: Vec<_> =
            (2..18).map(|last| open.add_opened(earlier, address(last), Duration::from_secs(60))).collect();
        let new = add_new(&open, 1);
        (0..16).for_each(|_| assert!(open.evict()));
        assert!(flood.iter().all(|silent| has_left(silent)));
        assert!(!open.evict() && !honest.iter().any(|idle| has_left(idle)) && !has_left(&new));
    }

    #[test]
    fn slow_bodies_of_one_tenant_give_way_and_those_of_small_tenants_do_not() {
        let open = OpenConnections::default();
        let earlier = Instant::now() - SLOW_BODY * 2;
        let busy = |opened: Instant, tenant| {
            let connection = open.add_opened(opened, address(1), Duration::from_secs(60));
            connection.accept(tenant);
            let request = connection.requests().begin();
            (connection, request)
        };
        let connections: Vec<_> = [7, 7, 7, 7, 8, 9, 9, 9].map(|tenant| busy(earlier, tenant)).into();
        let begin_long_ago = |connection: &Arc<OpenConnection>| {
            let body = connection.begin_body();
            connection.state.body_since_us.store(1, Relaxed);
            body
        };
        let bodies: Vec<_> = connections[..5].iter().map(|(one, _)| begin_long_ago(one)).collect();
        let new_body = connections[7].0.begin_body();
        assert!(open.evict() && has_left(&connections[0].0) && connections[0].0.may_be_cut());
        assert!(open.evict() && has_left(&connections[1].0));
        assert!(!open.evict(), "two of eight are not many");
        drop((bodies, new_body));
        assert!(!connections[0].0.may_be_cut(), "its body has arrived");
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
