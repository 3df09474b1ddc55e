//! Who belongs to the mesh: SWIM, as `foca` does it, without sockets and clocks.
//!
//! Routers ask each other in turn whether they are there, ask others about one that does not answer, and pass on what they find. From this a
//! router learns of those that nobody told it of, and that one is gone although nothing says so. It does not decide to whom messages
//! go: whoever is connected gets them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::{Duration, Instant};

use foca::{
    AccumulatingRuntime, Foca, Identity, Member, NoCustomBroadcast, OwnedNotification, PeriodicParams,
    PostcardCodec, Timer,
};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use warmroute_types::RouterId;

use crate::mesh::MeshPace;
use crate::seal;

/// A router as gossip knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Node {
    router: u64,
    /// Counts how often it was believed to be gone and came back.
    comeback: u32,
    address: String,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Bytes for a router, if it is connected; nothing is lost if not.
    Send(RouterId, Vec<u8>),
    /// A router is there, and where.
    Joined(RouterId, String),
    /// It is not there any more.
    Left(RouterId),
    /// We were believed to be gone: tell everybody connected that we are not.
    Announce,
}

/// The mesh as we know it.
pub(crate) struct Members {
    foca: Foca<Node, PostcardCodec, SmallRng, NoCustomBroadcast>,
    runtime: AccumulatingRuntime<Node>,
    timers: BinaryHeap<Reverse<Alarm>>,
}

/// Soonest first, and `foca`'s own order where two are due at once.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Alarm(Instant, Timer<Node>);

impl Node {
    pub(crate) fn new(router: RouterId, address: String) -> Node {
        Node { router: router.0, comeback: 0, address }
    }

    fn id(&self) -> RouterId {
        RouterId(self.router)
    }
}

/// The address is what is said of a router, not who it is.
impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        (self.router, self.comeback) == (other.router, other.comeback)
    }
}

impl Eq for Node {}

impl Identity for Node {
    type Addr = u64;

    fn renew(&self) -> Option<Node> {
        Some(Node { comeback: self.comeback.wrapping_add(1), ..self.clone() })
    }

    fn addr(&self) -> u64 {
        self.router
    }

    fn win_addr_conflict(&self, adversary: &Node) -> bool {
        self.comeback > adversary.comeback
    }
}

fn config(pace: &MeshPace) -> foca::Config {
    let few = NonZeroUsize::new(3).expect("not zero");
    foca::Config {
        probe_period: pace.probe_every,
        probe_rtt: pace.probe_every / 3,
        num_indirect_probes: few,
        max_transmissions: NonZeroU8::new(10).expect("not zero"),
        suspect_to_down_after: pace.gone_after,
        remove_down_after: Some(Duration::from_secs(3_600)),
        // Not datagrams: all members fit into one frame.
        max_packet_size: NonZeroUsize::new(64 << 10).expect("not zero"),
        notify_down_members: true,
        periodic_announce: Some(PeriodicParams {
            frequency: pace.probe_every * 10,
            num_members: NonZeroUsize::MIN,
        }),
        // Those who left are dialed, and announced to when they answer.
        periodic_announce_to_down_members: None,
        periodic_gossip: Some(PeriodicParams { frequency: pace.probe_every / 5, num_members: few }),
    }
}

impl Members {
    pub(crate) fn new(me: Node, pace: &MeshPace) -> Members {
        let rng = SmallRng::from_seed(seal::random());
        let foca = Foca::new(me, config(pace), rng, PostcardCodec);
        Members { foca, runtime: AccumulatingRuntime::new(), timers: BinaryHeap::new() }
    }

    /// A router is connected: we introduce ourselves, and are told of the others.
    pub(crate) fn connected(&mut self, router: RouterId, address: String, now: Instant) -> Vec<Order> {
        let outcome = self.foca.announce(Node::new(router, address), &mut self.runtime);
        self.orders(outcome, now)
    }

    /// A router said something.
    pub(crate) fn heard(&mut self, bytes: &[u8], now: Instant) -> Vec<Order> {
        let outcome = self.foca.handle_data(bytes, &mut self.runtime);
        self.orders(outcome, now)
    }

    /// A router has left of itself: nobody need suspect it, or ask after it.
    pub(crate) fn goodbye(&mut self, router: RouterId, now: Instant) -> Vec<Order> {
        let of_it = self.foca.iter_members().filter(|member| member.id().id() == router);
        let gone: Vec<_> = of_it.map(|member| Member::down(member.id().clone())).collect();
        let outcome = self.foca.apply_many(gone.into_iter(), true, &mut self.runtime);
        self.orders(outcome, now)
    }

    /// Everybody who is there, ourselves among them, and where each says that it is.
    pub(crate) fn places(&self) -> impl Iterator<Item = (RouterId, String)> {
        let others = self.foca.iter_members().map(Member::id);
        others.chain([self.foca.identity()]).map(|node| (node.id(), node.address.clone()))
    }

    /// When [`Members::tick`] has something to do next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse(Alarm(due, _))| *due)
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Order> {
        let mut orders = Vec::new();
        while self.next_due().is_some_and(|due| due <= now) {
            let Some(Reverse(Alarm(_, timer))) = self.timers.pop() else { break };
            let outcome = self.foca.handle_timer(timer, &mut self.runtime);
            orders.extend(self.orders(outcome, now));
        }
        orders
    }

    /// An error means that something odd was said, or that timers came late; `foca` goes on by itself.
    fn orders(&mut self, outcome: Result<(), foca::Error>, now: Instant) -> Vec<Order> {
        if let Err(error) = outcome {
            tracing::debug!(%error, "gossip");
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.timers.push(Reverse(Alarm(now + after, timer)));
        }
        let mut orders = Vec::new();
        while let Some(news) = self.runtime.to_notify() {
            orders.extend(order(news));
        }
        while let Some((to, bytes)) = self.runtime.to_send() {
            orders.push(Order::Send(to.id(), bytes.to_vec()));
        }
        orders
    }
}

fn order(news: OwnedNotification<Node>) -> Option<Order> {
    match news {
        OwnedNotification::MemberUp(node) | OwnedNotification::Rename(_, node) => {
            Some(Order::Joined(node.id(), node.address))
        }
        OwnedNotification::MemberDown(node) => Some(Order::Left(node.id())),
        OwnedNotification::Rejoin(_) => Some(Order::Announce),
        OwnedNotification::Active | OwnedNotification::Idle | OwnedNotification::Defunct => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Routers, the connections between them, and a clock that is turned by hand.
    struct Network {
        members: BTreeMap<u64, Members>,
        known: BTreeMap<u64, BTreeSet<u64>>,
        connections: BTreeSet<(u64, u64)>,
        now: Instant,
    }

    impl Network {
        fn of(routers: u64) -> Network {
            let pace = MeshPace::default();
            let member = |me| (me, Members::new(Node::new(RouterId(me), format!("host-{me}:1")), &pace));
            let members: BTreeMap<u64, Members> = (1..=routers).map(member).collect();
            let known = members.keys().map(|me| (*me, BTreeSet::new())).collect();
            Network { members, known, connections: BTreeSet::new(), now: Instant::now() }
        }

        fn connect(&mut self, a: u64, b: u64) {
            self.connections.extend([(a, b), (b, a)]);
            for (me, other) in [(a, b), (b, a)] {
                let now = self.now;
                let orders =
                    self.members.get_mut(&me).unwrap().connected(RouterId(other), String::new(), now);
                self.obey(me, orders);
            }
        }

        fn cut(&mut self, a: u64, b: u64) {
            self.connections.retain(|pair| *pair != (a, b) && *pair != (b, a));
        }

        fn obey(&mut self, me: u64, orders: Vec<Order>) {
            for order in orders {
                match order {
                    Order::Joined(router, _) => _ = self.known.get_mut(&me).unwrap().insert(router.0),
                    Order::Left(router) => _ = self.known.get_mut(&me).unwrap().remove(&router.0),
                    Order::Send(to, bytes) if self.connections.contains(&(me, to.0)) => {
                        let now = self.now;
                        let orders = self.members.get_mut(&to.0).unwrap().heard(&bytes, now);
                        self.obey(to.0, orders);
                    }
                    Order::Send(..) => {}
                    Order::Announce => {
                        let mine = self.connections.iter().filter(|(from, _)| *from == me);
                        for other in mine.map(|(_, other)| *other).collect::<Vec<_>>() {
                            let now = self.now;
                            let orders = self.members.get_mut(&me).unwrap().connected(
                                RouterId(other),
                                String::new(),
                                now,
                            );
                            self.obey(me, orders);
                        }
                    }
                }
            }
        }

        fn pass(&mut self, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                self.now += Duration::from_millis(50);
                for me in self.members.keys().copied().collect::<Vec<_>>() {
                    let now = self.now;
                    let orders = self.members.get_mut(&me).unwrap().tick(now);
                    self.obey(me, orders);
                }
            }
        }
    }

    #[test]
    fn one_connection_to_one_of_them_is_enough_to_hear_of_all() {
        let mut network = Network::of(4);
        (2..=4).for_each(|other| network.connect(1, other));
        network.pass(Duration::from_secs(5));
        for (me, known) in &network.known {
            assert_eq!(known.len(), 3, "{me} knows {known:?}");
        }
    }

    #[test]
    fn one_that_others_still_reach_is_not_given_up_and_one_that_nobody_reaches_is() {
        let mut network = Network::of(3);
        [(1, 2), (1, 3), (2, 3)].into_iter().for_each(|(a, b)| network.connect(a, b));
        network.pass(Duration::from_secs(5));
        network.cut(1, 2);
        network.pass(Duration::from_secs(60));
        assert!(
            network.known[&1].contains(&2) && network.known[&2].contains(&1),
            "the third speaks for them"
        );
        network.cut(2, 3);
        network.pass(Duration::from_secs(60));
        assert!(!network.known[&1].contains(&2) && !network.known[&3].contains(&2));
    }

    #[test]
    fn those_who_took_each_other_for_dead_know_each_other_again_at_once() {
        let mut network = Network::of(2);
        network.connect(1, 2);
        network.pass(Duration::from_secs(5));
        for _ in 0..3 {
            network.cut(1, 2);
            network.pass(Duration::from_secs(60));
            assert!(network.known.values().all(BTreeSet::is_empty), "{:?}", network.known);
            network.connect(1, 2);
            network.pass(Duration::from_secs(2));
            assert!(network.known.values().all(|known| known.len() == 1), "{:?}", network.known);
        }
    }

    #[test]
    fn garbage_changes_nothing() {
        let mut network = Network::of(2);
        network.connect(1, 2);
        let now = network.now;
        for garbage in [&b""[..], b"x", &[0xff; 300], &[0; 70_000]] {
            assert_eq!(network.members.get_mut(&1).unwrap().heard(garbage, now), []);
        }
    }
}
