//! The open connections of a listener, and which of them gives way when it is full.
//!
//! Opening a connection needs no key, so one that has not sent an accepted request must not keep others out: it has a
//! short time for its first request. When the listener is full, these give way, in this order:
//!
//! 1. connections that have sent no byte for 100 ms: a client sends the first bytes of its request, or of its TLS
//!    handshake, as soon as it is connected, over a slow line too;
//! 2. connections without an accepted request after a second;
//! 3. idle connections (between two requests) of an owner that has a quarter of all connections idle;
//! 4. other idle connections, while those without an accepted request are less than a quarter of all: a flood must leave
//!    room for new clients too;
//! 5. connections that have sent a part of their first request, after 100 ms, unless one has just come that may turn out
//!    to be silent;
//! 6. other idle connections, and bodies that have been arriving for a second, of an owner with a quarter of all
//!    connections in that state. Neither gives way while a new connection may turn out to be silent.
//!
//! A connection that has just come never gives way: the next one waits until it has sent its request or is silent.
//! An owner is a tenant once its key is known, and an address before. Of each kind, the oldest one gives way of the owner
//! with the most, or of the one whose silent connections have waited longest in total. Silent connections from many
//! addresses thus take at most a quarter of all connections from idle clients, and push out no client whose request is on
//! its way. A drain closes connections without an accepted request at once.

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

/// A connection that has sent some bytes may need this long for its first request: TLS takes round trips.
const YOUTH: Duration = Duration::from_secs(1);

/// A connection that has sent nothing for longer is not about to send a request.
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
    /// It has sent no request that was accepted.
    is_silent: AtomicBool,
    /// It has sent some bytes.
    is_heard: AtomicBool,
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

    /// Whether it has sent nothing for a while.
    fn is_unheard(&self) -> bool {
        self.is_silent() && !self.is_heard.load(Relaxed) && self.opened.elapsed() >= GRACE
    }

    fn is_past_grace(&self) -> bool {
        self.is_silent() && self.opened.elapsed() >= GRACE
    }

    fn is_past_youth(&self) -> bool {
        self.is_silent() && self.opened.elapsed() >= YOUTH
    }

    /// Whether it may still turn out to be silent.
    fn is_new(&self) -> bool {
        self.is_silent() && self.opened.elapsed() < GRACE
    }

    fn is_new_and_unheard(&self) -> bool {
        self.is_new() && !self.is_heard.load(Relaxed)
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
            is_heard: AtomicBool::new(false),
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

#[cfg(test)]
impl OpenConnections {
    /// Connections without an accepted request that have sent some bytes.
    pub(crate) fn heard(&self) -> usize {
        let is_heard = |state: &&Arc<State>| state.is_silent() && state.is_heard.load(Relaxed);
        self.0.lock().by_id.values().filter(is_heard).count()
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
        let one = |is_one| Kind { is_one, spared: 0, at_once: 1 };
        let one_of_many = |is_one| Kind { is_one, spared: share, at_once: 1 };
        let several = |is_one| Kind { is_one, spared: 0, at_once: batch };
        let first_of = |kinds: &[Kind]| {
            let mut chosen = kinds.iter().map(|kind| self.oldest_of_most(kind));
            chosen.find(|chosen| !chosen.is_empty())
        };
        let has_any = |is_one: fn(&State) -> bool| self.by_id.values().any(|state| is_one(state));
        let unused = [several(State::is_unheard), several(State::is_past_youth), one_of_many(State::is_idle)];
        let slow = [several(State::is_past_grace)];
        let others = [one(State::is_idle), one_of_many(State::has_slow_body)];
        first_of(&unused)
            .or_else(|| if self.silent() < share { first_of(&[one(State::is_idle)]) } else { None })
            .or_else(|| if has_any(State::is_new_and_unheard) { None } else { first_of(&slow) })
            .or_else(|| if has_any(State::is_new) { None } else { first_of(&others) })
            .unwrap_or_default()
    }

    /// Connections without an accepted request, also those that were told to leave: others will take their places.
    fn silent(&self) -> usize {
        self.by_id.values().filter(|state| state.is_silent()).count()
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
    /// Notes that some bytes have come.
    pub(crate) fn hear(&self) {
        self.state.is_heard.store(true, Relaxed);
    }

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
    fn a_client_whose_request_takes_long_gets_in_during_a_silent_flood() {
        let open = OpenConnections::default();
        let earlier = Instant::now() - GRACE * 2;
        // Its opening is not a second ago however long the test takes.
        let slow = add_new(&open, 1);
        slow.hear();
        let flood: Vec<_> =
            (2..18).map(|last| open.add_opened(earlier, address(last), Duration::from_secs(60))).collect();
        (0..16).for_each(|_| assert!(open.evict()));
        assert!(flood.iter().all(|silent| has_left(silent)) && !has_left(&slow));
        drop(flood);
        let heard = open.add_opened(earlier, address(2), Duration::from_secs(60));
        heard.hear();
        let new = add_new(&open, 3);
        let old = heard.state.opened.elapsed() >= YOUTH;
        assert!(
            old || !open.evict(),
            "a connection that may be silent pushes out none with a part of its head"
        );
        new.hear();
        assert!(open.evict() && has_left(&heard) && !has_left(&slow), "parts of heads from many addresses");
    }

    #[test]
    fn idle_connections_of_small_tenants_leave_a_quarter_of_the_places_to_new_ones() {
        let open = OpenConnections::default();
        let idle: Vec<_> = (0..16)
            .map(|tenant| {
                let connection = open.add(address(1), Duration::from_secs(60));
                connection.accept(tenant + 1);
                connection
            })
            .collect();
        let count_left = || idle.iter().filter(|idle| has_left(idle)).count();
        // Each one that gives way is followed by one that may turn out to be silent.
        let flood: Vec<_> = (0..8).map(|last| (open.evict(), add_new(&open, last + 2))).collect();
        assert_eq!((flood.iter().filter(|(gave_way, _)| *gave_way).count(), count_left()), (5, 5));
        assert!(!open.evict() && !flood.iter().any(|(_, new)| has_left(new)));
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
