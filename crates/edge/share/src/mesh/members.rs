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
    AccumulatingRuntime, Foca, Identity, NoCustomBroadcast, OwnedNotification, PeriodicParams, PostcardCodec,
    Timer,
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
