//! Routers over a network that loses, repeats, delays and reorders messages, as seeded scripts: join, work,
//! cut, heal, crash.
//!
//! The invariant: two seconds after the network is healthy again, every router knows exactly the open
//! assignments of every peer that it can reach, whatever happened before.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod net;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use net::{Net, mix};
use proptest::prelude::*;
use warmroute_peers::{
    AnswerPart, AssignmentEnd, BookingRecord, Config, Effect, Envelope, Ledger, OwnLedger, PeerMessage,
    Peers, PromptDigests, Query, QueryKind, StoredResponse, WorkerHealth,
};
use warmroute_types::{Delivery, Micros, RouterId};

/// Faults of a router's clock.
#[derive(Clone, Copy, Debug)]
enum Clock {
    Right,
    /// By a year.
    Ahead,
    /// Seven times as fast.
    Fast,
    Stopped,
    Backwards,
    /// By hours, once per second.
    Jumping,
}

impl Clock {
    fn show(self, now: Micros) -> Micros {
        let hours = |count: u64| Micros::from_secs(3_600 * count);
        match self {
            Clock::Right => now,
            Clock::Ahead => now + hours(24 * 365),
            Clock::Fast => Micros(now.0 * 7),
            Clock::Stopped => hours(1),
            Clock::Backwards => Micros(hours(1_000).0 - now.0),
            Clock::Jumping => hours(mix(now.0 / 1_000_000) % 100) + now,
        }
    }
}

struct Node {
    clock: Clock,
    peers: Peers,
    own: OwnLedger,
    /// Its own open assignments.
    open: Vec<u64>,
    /// Peers' assignments that it booked.
    booked: BTreeMap<(RouterId, u64), BookingRecord>,
    /// Peers' assignments that it knows to be prefilled.
    prefilled: BTreeSet<(RouterId, u64)>,
    /// Its own prefilled assignments, and how its own assignments ended.
    own_prefilled: BTreeSet<u64>,
    ended: BTreeMap<u64, Ended>,
    /// How peers' assignments ended, as last reported.
    ends_seen: BTreeMap<(RouterId, u64), Ended>,
    /// By peer, the batch before the first one received, and the first assignment whose booking was received.
    first_batch: BTreeMap<RouterId, u64>,
    followed_from: BTreeMap<RouterId, u64>,
    /// Workers whose caches peers found empty.
    clears: Vec<u64>,
    /// Responses that workers stored for its own clients, and all that it knows of.
    own_stored: BTreeMap<u128, StoredResponse>,
    stored: BTreeMap<u128, StoredResponse>,
    /// Bookings of peers' assignments so far.
    bookings: usize,
    /// Its own snapshot, and the snapshots of peers that it received.
    snapshot: Arc<[u8]>,
    snapshots: Vec<Vec<u8>>,
    /// Snapshots composed so far.
    composed: usize,
}

fn booking(prompt: Option<PromptDigests>) -> BookingRecord {
    BookingRecord {
        worker: 3,
        prompt_tokens: 100,
        cached_tokens: 0,
        restorable_tokens: 0,
        delivery: Delivery::Streamed,
        prompt,
    }
}

/// How an assignment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ended {
    was_prefilled: bool,
    end: AssignmentEnd,
}

impl Node {
    fn new(id: u64) -> Node {
        Node {
            clock: Clock::Right,
            peers: Peers::new(RouterId(id), Config::default()),
            own: OwnLedger::default(),
            open: Vec::new(),
            booked: BTreeMap::new(),
            prefilled: BTreeSet::new(),
            own_prefilled: BTreeSet::new(),
            ended: BTreeMap::new(),
            ends_seen: BTreeMap::new(),
            first_batch: BTreeMap::new(),
            followed_from: BTreeMap::new(),
            clears: Vec::new(),
            own_stored: BTreeMap::new(),
            stored: BTreeMap::new(),
            bookings: 0,
            snapshot: [7].into(),
            snapshots: Vec::new(),
            composed: 0,
        }
    }

    fn apply(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Booked { router, assignment, booking } => {
                    self.bookings += 1;
                    assert!(self.booked.insert((router, assignment), booking).is_none(), "booked twice");
                }
                Effect::Prefilled { router, assignment } => {
                    assert!(self.booked.contains_key(&(router, assignment)), "prefilled, but not booked");
                    assert!(self.prefilled.insert((router, assignment)), "prefilled twice");
                }
                Effect::Ended { router, assignment, end, .. } => {
                    assert!(self.booked.remove(&(router, assignment)).is_some(), "ended, but not booked");
                    let was_prefilled = self.prefilled.remove(&(router, assignment));
                    self.ends_seen.insert((router, assignment), Ended { was_prefilled, end });
                }
                Effect::LedgerRequested { router, up_to, low_water } => {
                    let state = OwnLedger::collect_open(|number| self.own.open_after(number));
                    let stored = self.stored.clone();
                    self.peers.answer_ledger(router, up_to, Ledger { low_water, stored, ..state });
                }
                Effect::SnapshotRequested => {
                    self.composed += 1;
                    self.peers.answer_snapshot(Arc::clone(&self.snapshot));
                }
                Effect::SnapshotReceived { bytes, .. } => self.snapshots.push(bytes),
                Effect::CacheCleared { worker } => self.clears.push(worker),
                Effect::ResponseStored { id, stored } => _ = self.stored.insert(id, stored),
                Effect::LimitsReceived { .. } => {}
                // No state: the driver passes it on.
                Effect::Reported { .. } => {}
            }
        }
    }

    /// Assignments are numbered and sent in order, so a router that receives one as it begins receives all
    /// later ones.
    fn note_first_batch(&mut self, bytes: &[u8]) {
        let Ok(Some(PeerMessage::Batch { from, number, updates })) = PeerMessage::decode(bytes) else {
            return;
        };
        let before = *self.first_batch.entry(from).or_insert(number - u64::from(!updates.is_empty()));
        let first = updates
            .assignments
            .iter()
            .find(|(_, assignment)| assignment.booking.is_some() && number > before);
        first.into_iter().for_each(|(&first, _)| _ = self.followed_from.entry(from).or_insert(first));
    }

    fn compose_now(&mut self, now: Micros) -> Vec<Envelope> {
        let now = self.clock.show(now);
        if self.peers.may_send_now(now) {
            self.peers.compose(self.own.take_updates(), now)
        } else {
            Vec::new()
        }
    }

    /// Number of workers that it reports as failing.
    fn failing(&self) -> usize {
        let state = OwnLedger::collect_open(|number| self.own.open_after(number));
        state.findings.values().filter(|finding| finding.health == WorkerHealth::Failing).count()
    }
}

impl net::Node for Node {
    fn receive(&mut self, bytes: &[u8], now: Micros) -> Vec<Envelope> {
        let mut effects = Vec::new();
        self.note_first_batch(bytes);
        let answers = self.peers.receive(bytes, self.clock.show(now), &mut effects).unwrap();
        self.apply(effects);
        answers
    }

    fn step(&mut self, now: Micros) -> Vec<Envelope> {
        let (now, mut effects) = (self.clock.show(now), Vec::new());
        self.peers.expire(now, &mut effects);
        self.apply(effects);
        self.peers.compose(self.own.take_updates(), now)
    }
}

/// What the routers do, and checks of what they know.
trait Cluster {
    fn work(&mut self, id: u64);
    fn disagreement(&self) -> Option<String>;
    fn wrong_belief(&self) -> Option<String>;
}

impl Cluster for Net<Node> {
    /// A router begins, prefills or ends an assignment.
    fn work(&mut self, id: u64) {
        let choice = self.random_below(4);
        let pick = self.random_below(u64::MAX);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        match choice {
            0 | 1 => {
                let booking = BookingRecord { worker: pick % 8, ..booking(None) };
                node.open.push(node.own.begin(booking));
            }
            _ if node.open.is_empty() => {}
            2 => {
                let assignment = node.open[pick as usize % node.open.len()];
                node.own.mark_prefilled(assignment);
                node.own_prefilled.insert(assignment);
            }
            _ => {
                let assignment = node.open.swap_remove(pick as usize % node.open.len());
                let end = [
                    AssignmentEnd::Abandoned,
                    AssignmentEnd::Answered,
                    AssignmentEnd::Stale { found_chunks: 3 },
                ][(pick >> 8) as usize % 3];
                node.own.end(assignment, end);
                node.ended.insert(
                    assignment,
                    Ended { was_prefilled: node.own_prefilled.contains(&assignment), end },
                );
            }
        }
        if pick & 48 == 0 {
            let health = if pick & 64 == 0 { WorkerHealth::Failing } else { WorkerHealth::Healthy };
            node.own.report_health(pick % 8, health);
        }
        if pick & 384 == 0 {
            let response = u128::from(id) << 64 | u128::from(pick);
            let stored = StoredResponse { owner: id, worker: pick % 8 };
            node.own.report_stored(response, stored);
            node.own_stored.insert(response, stored);
            node.stored.insert(response, stored);
        }
        // Some updates wait for the next batch.
        let envelopes = if pick & 8 == 0 { node.compose_now(self.now) } else { Vec::new() };
        self.send(id, &envelopes);
    }

    /// Finds a router that does not know exactly the open assignments of its reachable peers.
    fn disagreement(&self) -> Option<String> {
        for (&id, node) in &self.nodes {
            let others = self.nodes.iter().filter(|&(&other, _)| other != id && !self.is_cut(id, other));
            let actual_open: BTreeSet<(RouterId, u64)> = others
                .flat_map(|(&other, node)| {
                    node.open.iter().map(move |&assignment| (RouterId(other), assignment))
                })
                .collect();
            let known_open: BTreeSet<_> = node.booked.keys().copied().collect();
            if actual_open != known_open {
                return Some(format!("{id} knows {known_open:?} instead of {actual_open:?}"));
            }
            let others = self.nodes.iter().filter(|&(&other, _)| !self.is_cut(id, other));
            let mut stored = others.flat_map(|(_, other)| &other.own_stored);
            if let Some(unknown) = stored.find(|(response, place)| node.stored.get(response) != Some(place)) {
                return Some(format!("{id} does not know where {unknown:?} is stored"));
            }
            for status in node.peers.statuses(self.now) {
                let found = self.nodes.get(&status.id.0).map(Node::failing);
                if !self.is_cut(id, status.id.0) && found != Some(status.failing) {
                    return Some(format!(
                        "{id} wrongly knows that {} reports {} workers as failing",
                        status.id, status.failing
                    ));
                }
            }
        }
        None
    }

    /// Finds a router that knows a wrong end of a peer's assignment, or none, although it followed the peer
    /// then. Peers that were suspended and came back are included.
    fn wrong_belief(&self) -> Option<String> {
        for (&id, node) in &self.nodes {
            for (&other, sender) in self.nodes.iter().filter(|&(&other, _)| other != id) {
                let Some(&from) = node.followed_from.get(&RouterId(other)) else { continue };
                for (&assignment, actual) in sender.ended.range(from..) {
                    let ends_seen = node.ends_seen.get(&(RouterId(other), assignment));
                    if ends_seen != Some(actual) {
                        return Some(format!(
                            "{id} knows {ends_seen:?} instead of {actual:?} for assignment {assignment} of {other}"
                        ));
                    }
                }
            }
        }
        None
    }
}

#[derive(Clone, Debug)]
enum Step {
    Join(u64),
    Die(u64),
    Cut(u64, u64),
    Heal,
    Lose(u64),
    Repeat(u64),
    Delay(u64),
    Work(u64, u8),
    Wait(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0_u64..5;
    prop_oneof![
        2 => node.clone().prop_map(Step::Join),
        1 => node.clone().prop_map(Step::Die),
        2 => (node.clone(), node.clone()).prop_map(|(a, b)| Step::Cut(a, b)),
        1 => Just(Step::Heal),
        1 => (0_u64..80).prop_map(Step::Lose),
        1 => (0_u64..80).prop_map(Step::Repeat),
        1 => (1_u64..600).prop_map(Step::Delay),
        8 => (node, 1_u8..40).prop_map(|(node, times)| Step::Work(node, times)),
        8 => (1_u8..100).prop_map(Step::Wait),
    ]
}

/// Plays a script and heals the network.
fn play(seed: u64, script: &[Step]) -> Net<Node> {
    let mut net = Net::new(seed);
    // A restarted router has a new id.
    let mut generation = 0;
    let mut ids: BTreeMap<u64, u64> = BTreeMap::new();
    for step in script {
        match *step {
            Step::Join(node) => {
                generation += 100;
                ids.entry(node).or_insert_with(|| {
                    net.nodes.insert(generation + node, Node::new(generation + node));
                    generation + node
                });
            }
            Step::Die(node) => {
                ids.remove(&node).into_iter().for_each(|id| _ = net.nodes.remove(&id));
            }
            Step::Cut(a, b) => {
                if let (Some(&a), Some(&b)) = (ids.get(&a), ids.get(&b)) {
                    net.cut.insert((a.min(b), a.max(b)));
                }
            }
            Step::Heal => net.cut.clear(),
            Step::Lose(percent) => net.lost = percent,
            Step::Repeat(percent) => net.repeated = percent,
            Step::Delay(ms) => net.set_delay_ms(0..=ms),
            Step::Work(node, times) => {
                if let Some(&id) = ids.get(&node) {
                    (0..times).for_each(|_| net.work(id));
                }
            }
            Step::Wait(steps) => net.steps(steps.into()),
        }
    }
    net.heal();
    net
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn all_routers_agree_two_seconds_after_any_script(seed: u64, script in proptest::collection::vec(step(), 1..60)) {
        let mut net = play(seed, &script);
        // Delayed messages may still be in flight when the network is healed.
        net.steps(24 + 80);
        let disagreement = net.disagreement();
        prop_assert!(disagreement.is_none(), "{}", disagreement.unwrap_or_default());
        let wrong_belief = net.wrong_belief();
        prop_assert!(wrong_belief.is_none(), "{}", wrong_belief.unwrap_or_default());
    }
}

/// A router that sent more than it retains: its first findings and bookings are evicted, and its first
/// assignment is still open.
fn node_with_history() -> Node {
    let mut node = Node::new(1);
    node.open.push(node.own.begin(booking(None)));
    (0..2_000).for_each(|worker| node.own.report_health(worker, WorkerHealth::Failing));
    let digests: Arc<[u64]> = (0..2_048).collect();
    for at in 0..60 {
        for _ in 0..20 {
            let digests = digests.clone();
            let prompt =
                PromptDigests { root: 1, chunk_bytes: 256, chunk_tokens: 64, digests, is_unrendered: false };
            let assignment = node.own.begin(booking(Some(prompt)));
            node.own.end(assignment, AssignmentEnd::Answered);
        }
        node.peers.compose(node.own.take_updates(), Micros(at * net::STEP.0));
    }
    node
}

#[test]
fn a_late_joiner_learns_open_assignments_whose_batches_are_evicted() {
    let mut net = Net::<Node>::new(7);
    net.nodes.extend([(1, node_with_history()), (2, Node::new(2))]);
    net.steps(40);
    assert_eq!(net.disagreement(), None);
    assert_eq!(net.nodes[&2].peers.statuses(net.now)[0].missing, 0);
}

/// Two connected routers that have exchanged many batches.
fn two_routers_with_traffic() -> Net<Node> {
    let mut net = Net::<Node>::new(13);
    net.nodes.extend([(1, Node::new(1)), (2, Node::new(2))]);
    net.steps(4);
    for _ in 0..200 {
        (1..=2).for_each(|id| net.work(id));
        net.step();
    }
    net
}

fn change(net: &mut Net<Node>, id: u64, change: impl FnOnce(&mut OwnLedger)) {
    change(&mut net.nodes.get_mut(&id).unwrap().own);
    net.steps(4);
}

#[test]
fn a_cleared_cache_is_reported_once_and_not_to_later_joiners() {
    let mut net = two_routers_with_traffic();
    change(&mut net, 1, |own| own.report_cache_cleared(7));
    assert_eq!(net.nodes[&2].clears, [7]);
    net.cut.insert((1, 2));
    net.steps(100);
    assert_eq!(net.nodes[&2].peers.lost_peers, 1);
    change(&mut net, 1, |own| own.report_cache_cleared(8));
    net.heal();
    net.steps(40);
    assert_eq!(net.nodes[&2].clears, [7, 8], "the missed report, and no repetition");
    net.nodes.insert(3, Node::new(3));
    net.steps(40);
    assert_eq!(net.nodes[&3].clears, [0; 0], "it joined later");
    change(&mut net, 1, |own| own.report_health(7, WorkerHealth::Failing));
    assert_eq!(net.nodes[&3].clears, [0; 0], "another kind of finding");
    change(&mut net, 1, |own| own.report_cache_cleared(9));
    assert_eq!(net.nodes[&3].clears, [9], "later reports arrive");
}

#[test]
fn after_a_silence_only_missed_batches_and_open_assignments_are_applied() {
    let mut net = two_routers_with_traffic();
    let (open, before) = (net.nodes[&1].open.len(), net.nodes[&2].bookings);
    assert!(open > 0 && before > open, "{open} open of {before}");
    net.cut.insert((1, 2));
    net.steps(100);
    change(&mut net, 1, |own| _ = own.begin(booking(None)));
    let requested = net.nodes[&2].peers.batches_requested;
    net.heal();
    net.steps(40);
    assert_eq!(net.nodes[&2].bookings, before + open + 1);
    assert_eq!(net.nodes[&2].peers.batches_requested, requested + 1);
    assert_eq!(net.nodes[&2].snapshots.len(), 0, "no snapshot was needed");
    assert_eq!(net.wrong_belief(), None);
}

#[test]
fn a_joiner_books_only_open_assignments() {
    let mut net = two_routers_with_traffic();
    net.nodes.insert(3, Node::new(3));
    net.steps(40);
    let open: usize = [1, 2].iter().map(|id| net.nodes[id].open.len()).sum();
    assert_eq!((net.disagreement(), net.nodes[&3].bookings), (None, open));
}

#[test]
fn a_router_that_missed_evicted_batches_fetches_a_snapshot() {
    let mut net = two_routers_with_traffic();
    net.cut.insert((1, 2));
    net.steps(100);
    let sender = net.nodes.get_mut(&1).unwrap();
    let open = std::mem::take(&mut sender.open);
    open.iter().skip(1).for_each(|assignment| sender.own.end(*assignment, AssignmentEnd::Answered));
    sender.open = open[..1].to_vec();
    let digests: std::sync::Arc<[u64]> = (0..2_048).collect();
    for _ in 0..400 {
        let (root, digests) = (1, digests.clone());
        let prompt =
            PromptDigests { root, chunk_bytes: 256, chunk_tokens: 64, digests, is_unrendered: false };
        change(&mut net, 1, |own| {
            let assignment = own.begin(booking(Some(prompt)));
            own.end(assignment, AssignmentEnd::Answered);
        });
    }
    net.heal();
    net.steps(80);
    assert_eq!((net.disagreement(), net.nodes[&2].snapshots.len()), (None, 1));
}

#[test]
fn a_joiner_fetches_a_snapshot_whatever_message_comes_first() {
    let from = RouterId(1);
    let query = Query { id: 9, asked_at_us: 0, kind: QueryKind::Snapshot, parts: vec![0] };
    let part = AnswerPart { query_id: 1, asked_at_us: 0, answer_id: 1, index: 0, count: 1 };
    let first = [PeerMessage::Query { from, query }, PeerMessage::Answer { from, part, bytes: Vec::new() }];
    for message in first {
        let mut net = two_routers_with_traffic();
        // Otherwise the second router would be queried.
        net.nodes.remove(&2);
        net.steps(80);
        let mut joiner = Node::new(3);
        net::Node::receive(&mut joiner, &message.encode(), net.now);
        net.nodes.insert(3, joiner);
        net.steps(40);
        assert_eq!((net.nodes[&3].snapshots.len(), net.disagreement()), (1, None), "{message:?}");
    }
}

#[test]
fn the_ledger_state_arrives_although_half_of_the_messages_are_lost() {
    for seed in 0..20 {
        let mut net = Net::<Node>::new(seed);
        net.nodes.extend([(1, node_with_history()), (2, Node::new(2))]);
        net.lost = 50;
        net.steps(200);
        net.lost = 0;
        net.steps(80);
        assert_eq!(net.disagreement(), None, "{seed}");
        assert_eq!(net.nodes[&2].peers.statuses(net.now)[0].failing, 2_000, "{seed}");
    }
}

/// Bytes sent per byte of the snapshot when a router joins over a network with this delay and bandwidth,
/// while the sender works.
fn cost_of_joining(delay_ms: u64, bytes_per_step: usize) -> f64 {
    let mut net = Net::<Node>::new(11);
    net.set_delay_ms(delay_ms..=delay_ms);
    net.bytes_per_step = bytes_per_step;
    let mut sender = node_with_history();
    sender.snapshot = (0..24 << 20).map(|at: u32| mix(at.into()) as u8).collect();
    let snapshot = sender.snapshot.clone();
    net.nodes.extend([(1, sender), (2, Node::new(2)), (3, Node::new(3))]);
    let has_snapshot = |net: &Net<Node>| [2, 3].iter().all(|id| net.nodes[id].snapshots.len() == 1);
    for _ in 0..4_000 {
        net.work(1);
        net.step();
        if has_snapshot(&net) && net.nodes[&2].peers.statuses(net.now)[0].missing == 0 {
            break;
        }
    }
    assert!(has_snapshot(&net) && net.nodes[&2].snapshots[0] == *snapshot, "{delay_ms} ms");
    net.steps(80);
    assert_eq!((net.disagreement(), net.dropped), (None, 0), "{delay_ms} ms: no batch was dropped");
    assert!(net.nodes[&2].peers.batches_requested <= 2, "{}", net.nodes[&2].peers.batches_requested);
    net.sent[&(1, 2)] as f64 / snapshot.len() as f64
}

#[test]
fn a_large_snapshot_is_pulled_at_full_speed_and_drops_no_batch() {
    for (delay_ms, bytes_per_step) in [(500, 400_000), (500, usize::MAX), (20, 60_000), (1, usize::MAX)] {
        let cost = cost_of_joining(delay_ms, bytes_per_step);
        assert!(cost < 1.5, "{cost:.2} bytes sent per byte at {delay_ms} ms");
    }
}

#[test]
fn a_ledger_state_above_the_limit_is_sent_without_prompts() {
    let mut net = Net::<Node>::new(7);
    let mut sender = node_with_history();
    let digests: Arc<[u64]> = (0..2_048).collect();
    for at in 0..4_500 {
        let prompt = PromptDigests {
            root: 1,
            chunk_bytes: 256,
            chunk_tokens: 64,
            digests: Arc::clone(&digests),
            is_unrendered: false,
        };
        sender.open.push(sender.own.begin(booking(Some(prompt))));
        if at % 10 == 0 {
            sender.peers.compose(sender.own.take_updates(), Micros::from_secs(2) + Micros::from_millis(at));
        }
    }
    net.nodes.extend([(1, sender), (2, Node::new(2))]);
    net.steps(200);
    assert_eq!((net.disagreement(), net.nodes[&1].peers.truncated_answers), (None, 1));
}

#[test]
fn a_peer_with_history_is_queried_for_a_snapshot_whatever_message_comes_first() {
    let mut node = Node::new(2);
    let query = Query { id: 9, asked_at_us: 0, kind: QueryKind::Ping, parts: vec![0] };
    let ping = PeerMessage::Query { from: RouterId(1), query }.encode();
    let batch = PeerMessage::Batch { from: RouterId(1), number: 9, updates: Ledger::default() }.encode();
    for bytes in [ping, batch] {
        node.peers.receive(&bytes, Micros(1), &mut Vec::new()).unwrap();
    }
    let envelopes = node.peers.compose(node.own.take_updates(), Micros(2));
    let asks_for_snapshot = |envelope: &Envelope| match PeerMessage::decode(&envelope.bytes) {
        Ok(Some(PeerMessage::Query { query, .. })) => query.kind == QueryKind::Snapshot,
        _ => false,
    };
    assert!(envelopes.iter().any(asks_for_snapshot));
}

#[test]
fn a_peer_that_answers_nothing_is_not_queried_at_every_tick() {
    let (mut node, mut queries) = (Node::new(2), 0);
    let batch = PeerMessage::Batch { from: RouterId(1), number: 9, updates: Ledger::default() }.encode();
    for step in 1..=500 {
        let now = Micros(step * net::STEP.0);
        let mut envelopes = node.peers.compose(node.own.take_updates(), now);
        envelopes.extend(node.peers.receive(&batch, now, &mut Vec::new()).unwrap());
        for envelope in envelopes {
            let Ok(Some(PeerMessage::Query { query, .. })) = PeerMessage::decode(&envelope.bytes) else {
                continue;
            };
            if !matches!(query.kind, QueryKind::Batches(_)) {
                continue;
            }
            queries += 1;
            let (query_id, asked_at_us) = (query.id, query.asked_at_us);
            let part = AnswerPart { query_id, asked_at_us, answer_id: step, index: 0, count: 1 };
            let nothing = PeerMessage::Answer { from: RouterId(1), part, bytes: Vec::new() }.encode();
            node.peers.receive(&nothing, now, &mut Vec::new()).unwrap();
        }
    }
    assert!((1..=4).contains(&queries), "{queries} times");
}

#[test]
fn four_joiners_share_one_composed_snapshot() {
    let mut net = Net::<Node>::new(11);
    net.set_delay_ms(100..=100);
    let mut sender = node_with_history();
    sender.snapshot = (0..24 << 20).map(|at: u32| mix(at.into()) as u8).collect();
    let snapshot = Arc::clone(&sender.snapshot);
    net.nodes.extend([(1, sender)].into_iter().chain((2..=5).map(|id| (id, Node::new(id)))));
    let has_snapshot = |node: &Node| node.snapshots.last().is_some_and(|last| **last == *snapshot);
    let steps = (0..2_000).find(|_| {
        (1..=5).for_each(|id| net.work(id));
        net.step();
        net.nodes.range(2..).all(|(_, node)| has_snapshot(node))
    });
    assert!(steps.is_some(), "a joiner never got the snapshot");
    assert_eq!(net.nodes[&1].composed, 1);
}

#[test]
fn a_change_is_sent_at_once_after_a_pause_and_otherwise_with_the_next_batch() {
    let mut node = Node::new(1);
    let mut booked_at = |at_ms| {
        node.own.begin(booking(None));
        node.compose_now(Micros::from_millis(at_ms)).len()
    };
    assert_eq!([1_000, 1_001, 1_019, 1_020, 1_030].map(&mut booked_at), [1, 0, 0, 1, 0]);
    let rest = node.peers.compose(node.own.take_updates(), Micros::from_millis(1_040));
    assert_eq!(rest.len(), 1, "the rest with the next batch");
}

#[test]
fn a_query_for_too_much_gets_a_short_answer() {
    let mut node = Node::new(1);
    for at_ms in 1..=200 {
        node.own.report_cache_cleared(7);
        assert_eq!(node.peers.compose(node.own.take_updates(), Micros::from_millis(20 * at_ms)).len(), 1);
    }
    let kind = QueryKind::Batches((1..=200).map(|number| number..=number).collect());
    let query = Query { id: 1, asked_at_us: 0, kind, parts: (0..1_000).collect() };
    let ask = PeerMessage::Query { from: RouterId(2), query }.encode();
    let answers = node.peers.receive(&ask, Micros::from_secs(4), &mut Vec::new()).unwrap();
    assert_eq!(answers.len(), 1);
    assert!(answers[0].bytes.len() < 16 * 100, "{}", answers[0].bytes.len());
}

#[test]
fn a_crashed_router_is_forgotten_within_two_seconds() {
    let mut net = Net::<Node>::new(3);
    (0..3).for_each(|id| _ = net.nodes.insert(id, Node::new(id)));
    net.steps(4);
    (0..50).for_each(|_| net.work(0));
    net.steps(4);
    assert!(!net.nodes[&1].booked.is_empty());
    net.nodes.remove(&0);
    net.steps(64);
    assert!(net.nodes[&1].booked.is_empty() && net.nodes[&2].booked.is_empty());
    assert_eq!(net.nodes[&1].peers.lost_peers, 1);
}

#[test]
fn a_wrong_clock_does_no_harm() {
    for clock in [Clock::Ahead, Clock::Fast, Clock::Stopped, Clock::Backwards, Clock::Jumping] {
        let mut net = Net::<Node>::new(5);
        (0..3).for_each(|id| _ = net.nodes.insert(id, Node::new(id)));
        net.nodes.get_mut(&1).unwrap().clock = clock;
        net.steps(8);
        for _ in 0..40 {
            (0..3).for_each(|id| net.work(id));
            net.steps(2);
        }
        net.lost = 30;
        (0..3).for_each(|id| (0..20).for_each(|_| net.work(id)));
        net.steps(4);
        net.lost = 0;
        net.steps(80);
        assert_eq!((net.disagreement(), net.wrong_belief()), (None, None), "{clock:?}");
        // Without work only heartbeats are sent, and they keep all routers connected.
        net.steps(200);
        assert_eq!(net.disagreement(), None, "{clock:?}");
        let lost: u64 = net.nodes.values().map(|node| node.peers.lost_peers).sum();
        assert_eq!(lost, 0, "{clock:?}");
        net.nodes.remove(&2);
        net.steps(120);
        assert_eq!(net.disagreement(), None, "{clock:?}: a removed router is forgotten");
    }
}
