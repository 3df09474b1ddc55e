//! Membership of the mesh by SWIM, as `foca` implements it, without sockets and clocks.
//!
//! Routers probe each other in turn, ask others about one that does not answer, and gossip about what they
//! find. So a router learns of routers that are not in its list, and notices one that is gone without a word.
//! Membership does not decide where messages go: all connected routers receive them.

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

use crate::mesh::config::MeshTimings;
use crate::seal;

/// A router in gossip.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GossipNode {
    router: u64,
    /// Increases each time the router was declared gone and came back.
    incarnation: u32,
    address: String,
}

/// What the coordinator has to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MembershipAction {
    /// Send bytes to a router if it is connected; otherwise drop them.
    Send(RouterId, Vec<u8>),
    /// A router joined at this address.
    Joined(RouterId, String),
    /// A router is gone.
    Left(RouterId),
    /// This router was declared gone: announce to all connected routers that it is not.
    Announce,
}

/// The members as this router knows them.
pub(crate) struct Membership {
    foca: Foca<GossipNode, PostcardCodec, SmallRng, NoCustomBroadcast>,
    runtime: AccumulatingRuntime<GossipNode>,
    timers: BinaryHeap<Reverse<DueTimer>>,
}

/// Ordered by due time, then by `foca`'s own order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DueTimer(Instant, Timer<GossipNode>);

impl GossipNode {
    pub(crate) fn new(router: RouterId, address: String) -> GossipNode {
        GossipNode { router: router.0, incarnation: 0, address }
    }

    fn id(&self) -> RouterId {
        RouterId(self.router)
    }
}

/// The address is an attribute of a router, not part of its identity.
impl PartialEq for GossipNode {
    fn eq(&self, other: &GossipNode) -> bool {
        (self.router, self.incarnation) == (other.router, other.incarnation)
    }
}

impl Eq for GossipNode {}

impl Identity for GossipNode {
    type Addr = u64;

    fn renew(&self) -> Option<GossipNode> {
        Some(GossipNode { incarnation: self.incarnation.wrapping_add(1), ..self.clone() })
    }

    fn addr(&self) -> u64 {
        self.router
    }

    fn win_addr_conflict(&self, adversary: &GossipNode) -> bool {
        self.incarnation > adversary.incarnation
    }
}

fn config(timings: &MeshTimings) -> foca::Config {
    let few = NonZeroUsize::new(3).expect("not zero");
    foca::Config {
        probe_period: timings.probe_every,
        probe_rtt: timings.probe_every / 3,
        num_indirect_probes: few,
        max_transmissions: NonZeroU8::new(10).expect("not zero"),
        suspect_to_down_after: timings.gone_after,
        remove_down_after: Some(Duration::from_secs(3_600)),
        // Not datagrams: all members fit into one frame.
        max_packet_size: NonZeroUsize::new(64 << 10).expect("not zero"),
        notify_down_members: true,
        periodic_announce: Some(PeriodicParams {
            frequency: timings.probe_every * 10,
            num_members: NonZeroUsize::MIN,
        }),
        // Routers that are gone are dialed, and announced to when they answer.
        periodic_announce_to_down_members: None,
        periodic_gossip: Some(PeriodicParams { frequency: timings.probe_every / 5, num_members: few }),
    }
}

impl Membership {
    pub(crate) fn new(me: GossipNode, timings: &MeshTimings) -> Membership {
        let rng = SmallRng::from_seed(seal::random());
        let foca = Foca::new(me, config(timings), rng, PostcardCodec);
        Membership { foca, runtime: AccumulatingRuntime::new(), timers: BinaryHeap::new() }
    }

    /// A router connected: announces this router to it and learns of the others.
    pub(crate) fn connected(
        &mut self,
        router: RouterId,
        address: String,
        now: Instant,
    ) -> Vec<MembershipAction> {
        let outcome = self.foca.announce(GossipNode::new(router, address), &mut self.runtime);
        self.actions(outcome, now)
    }

    /// Handles gossip from a router.
    pub(crate) fn handle_gossip(&mut self, bytes: &[u8], now: Instant) -> Vec<MembershipAction> {
        let outcome = self.foca.handle_data(bytes, &mut self.runtime);
        self.actions(outcome, now)
    }

    /// A router said goodbye, so it needs no suspicion phase.
    pub(crate) fn router_left(&mut self, router: RouterId, now: Instant) -> Vec<MembershipAction> {
        let of_router = self.foca.iter_members().filter(|member| member.id().id() == router);
        let gone: Vec<_> = of_router.map(|member| Member::down(member.id().clone())).collect();
        let outcome = self.foca.apply_many(gone.into_iter(), true, &mut self.runtime);
        self.actions(outcome, now)
    }

    /// All members including this router, with their advertised addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (RouterId, String)> {
        let others = self.foca.iter_members().map(Member::id);
        others.chain([self.foca.identity()]).map(|node| (node.id(), node.address.clone()))
    }

    /// When [`Membership::tick`] is next due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse(DueTimer(due, _))| *due)
    }

    /// Runs the timers that are due.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<MembershipAction> {
        let mut actions = Vec::new();
        while self.next_due().is_some_and(|due| due <= now) {
            let Some(Reverse(DueTimer(_, timer))) = self.timers.pop() else { break };
            let outcome = self.foca.handle_timer(timer, &mut self.runtime);
            actions.extend(self.actions(outcome, now));
        }
        actions
    }

    /// Collects the actions. An error means malformed gossip or late timers; `foca` recovers by itself.
    fn actions(&mut self, outcome: Result<(), foca::Error>, now: Instant) -> Vec<MembershipAction> {
        if let Err(error) = outcome {
            tracing::debug!(%error, "gossip");
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.timers.push(Reverse(DueTimer(now + after, timer)));
        }
        let mut actions = Vec::new();
        while let Some(notification) = self.runtime.to_notify() {
            actions.extend(action(notification));
        }
        while let Some((to, bytes)) = self.runtime.to_send() {
            actions.push(MembershipAction::Send(to.id(), bytes.to_vec()));
        }
        actions
    }
}

fn action(notification: OwnedNotification<GossipNode>) -> Option<MembershipAction> {
    match notification {
        OwnedNotification::MemberUp(node) | OwnedNotification::Rename(_, node) => {
            Some(MembershipAction::Joined(node.id(), node.address))
        }
        OwnedNotification::MemberDown(node) => Some(MembershipAction::Left(node.id())),
        OwnedNotification::Rejoin(_) => Some(MembershipAction::Announce),
        OwnedNotification::Active | OwnedNotification::Idle | OwnedNotification::Defunct => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Routers, their connections and a manual clock.
    struct Network {
        members: BTreeMap<u64, Membership>,
        known: BTreeMap<u64, BTreeSet<u64>>,
        connections: BTreeSet<(u64, u64)>,
        now: Instant,
    }

    impl Network {
        fn of(routers: u64) -> Network {
            let timings = MeshTimings::default();
            let member =
                |me| (me, Membership::new(GossipNode::new(RouterId(me), format!("host-{me}:1")), &timings));
            let members: BTreeMap<u64, Membership> = (1..=routers).map(member).collect();
            let known = members.keys().map(|me| (*me, BTreeSet::new())).collect();
            Network { members, known, connections: BTreeSet::new(), now: Instant::now() }
        }

        fn connect(&mut self, a: u64, b: u64) {
            self.connections.extend([(a, b), (b, a)]);
            for (me, other) in [(a, b), (b, a)] {
                let now = self.now;
                let actions =
                    self.members.get_mut(&me).unwrap().connected(RouterId(other), String::new(), now);
                self.execute(me, actions);
            }
        }

        fn cut(&mut self, a: u64, b: u64) {
            self.connections.retain(|pair| *pair != (a, b) && *pair != (b, a));
        }

        fn execute(&mut self, me: u64, actions: Vec<MembershipAction>) {
            for action in actions {
                match action {
                    MembershipAction::Joined(router, _) => {
                        _ = self.known.get_mut(&me).unwrap().insert(router.0)
                    }
                    MembershipAction::Left(router) => _ = self.known.get_mut(&me).unwrap().remove(&router.0),
                    MembershipAction::Send(to, bytes) if self.connections.contains(&(me, to.0)) => {
                        let now = self.now;
                        let actions = self.members.get_mut(&to.0).unwrap().handle_gossip(&bytes, now);
                        self.execute(to.0, actions);
                    }
                    MembershipAction::Send(..) => {}
                    MembershipAction::Announce => {
                        let mine = self.connections.iter().filter(|(from, _)| *from == me);
                        for other in mine.map(|(_, other)| *other).collect::<Vec<_>>() {
                            let now = self.now;
                            let actions = self.members.get_mut(&me).unwrap().connected(
                                RouterId(other),
                                String::new(),
                                now,
                            );
                            self.execute(me, actions);
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
                    let actions = self.members.get_mut(&me).unwrap().tick(now);
                    self.execute(me, actions);
                }
            }
        }
    }

    #[test]
    fn one_connection_is_enough_to_learn_of_all_routers() {
        let mut network = Network::of(4);
        (2..=4).for_each(|other| network.connect(1, other));
        network.pass(Duration::from_secs(5));
        for (me, known) in &network.known {
            assert_eq!(known.len(), 3, "{me} knows {known:?}");
        }
    }

    #[test]
    fn only_a_router_that_no_other_reaches_is_declared_gone() {
        let mut network = Network::of(3);
        [(1, 2), (1, 3), (2, 3)].into_iter().for_each(|(a, b)| network.connect(a, b));
        network.pass(Duration::from_secs(5));
        network.cut(1, 2);
        network.pass(Duration::from_secs(60));
        assert!(
            network.known[&1].contains(&2) && network.known[&2].contains(&1),
            "the third router still reaches both"
        );
        network.cut(2, 3);
        network.pass(Duration::from_secs(60));
        assert!(!network.known[&1].contains(&2) && !network.known[&3].contains(&2));
    }

    #[test]
    fn routers_that_declared_each_other_gone_rejoin_at_once() {
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
            assert_eq!(network.members.get_mut(&1).unwrap().handle_gossip(garbage, now), []);
        }
    }
}
