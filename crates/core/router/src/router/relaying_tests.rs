//! Several routers, and an engine whose events reach one of them at a time.
//!
//! The law: when everything has been quiet for two seconds, every router that is up knows exactly what the engine holds, whichever of
//! them its reporter has spoken to, and whatever the network did.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use proptest::prelude::*;
use warmroute_feed::{Arrival, BatchId, Config as FeedConfig, Moment, PeerPresence, ReplayEnd, Step, Stream};
use warmroute_fleet::{Models, ProbeResult, Worker};
use warmroute_index::{Overlaps, Prompt};
use warmroute_peers::{
    Config as PeersConfig, Envelope, PeerMessage, RelayedBatch, RelayedBatchKind, StreamPosition,
    pack_events, unpack_events,
};
use warmroute_policy::{Standard, StickyLeastLoaded};
use warmroute_prompt::Vocabulary;
use warmroute_types::{
    Address, CacheEvent, EventBatch, Micros, RemovedBlocks, Restored, RouterId, StoredBlocks,
};

use super::*;
use crate::reported_view::ReportedView;
use crate::router::net::{self, mix};
use crate::{Change, Family, Matching, Unit};

const BLOCK: usize = 16;
const BLOCKS: usize = 12;
const PROMPTS: u64 = 6;
const KEPT_POSTS_MAX: usize = 64;

/// Prompts share their heads.
fn prompt(number: u64) -> Vec<u8> {
    let shared = 2 * BLOCK * (number as usize % 3);
    (0..BLOCK * BLOCKS)
        .map(|at| mix(if at < shared { at as u64 } else { number << 20 | at as u64 }) as u8)
        .collect()
}

fn name(text: &[u8]) -> u64 {
    text.iter().fold(7, |hash, &byte| mix(hash ^ u64::from(byte)))
}

/// An engine with its reporter.
struct Engine {
    source: u64,
    held: BTreeSet<u64>,
    /// Posts that no router has taken, by number.
    kept: BTreeMap<u64, (Arrival, EventBatch)>,
    seq: u64,
    clock: u64,
    snapshots: usize,
}

impl Engine {
    fn new() -> Engine {
        Engine { source: 1, held: BTreeSet::new(), kept: BTreeMap::new(), seq: 0, clock: 1_000, snapshots: 0 }
    }

    /// Another process: nothing is held any more.
    fn restart(&mut self) {
        let (source, clock) = (self.source + 1, self.clock);
        *self = Engine { source, clock, ..Engine::new() };
    }

    fn keep(&mut self, arrival: Arrival, events: Vec<CacheEvent>) {
        self.clock += 1;
        let print = mix(self.source << 32 | self.seq);
        let batch = EventBatch { at_unix_s: self.clock as f64, events, print, ..EventBatch::default() };
        self.kept.insert(self.seq, (arrival, batch));
        self.seq += 1;
    }

    /// Computes a prompt up to somewhere, or evicts something.
    fn work(&mut self, dice: u64) {
        let text = prompt(dice % PROMPTS);
        let names: Vec<u64> = (1..=BLOCKS).map(|end| name(&text[..end * BLOCK])).collect();
        let held = names.iter().take_while(|name| self.held.contains(name)).count();
        let event = match dice >> 8 & 7 {
            0..5 if held < BLOCKS => {
                let free = names[held..].iter().take_while(|name| !self.held.contains(name)).count();
                let to = held + 1 + (dice >> 16) as usize % free;
                self.held.extend(&names[held..to]);
                CacheEvent::Stored(blocks(&text, held, to))
            }
            7 if dice >> 24 & 7 == 0 => {
                self.held.clear();
                CacheEvent::Cleared
            }
            _ => {
                // Any block, with all behind it: engines evict chains from their ends.
                let from = (dice >> 32) as usize % BLOCKS;
                let names: Vec<u64> =
                    names[from..].iter().copied().filter(|name| self.held.remove(name)).collect();
                CacheEvent::Removed(RemovedBlocks { names, ..RemovedBlocks::default() })
            }
        };
        self.keep(Arrival::Next, vec![event]);
    }

    fn snapshot(&mut self) {
        self.snapshots += 1;
        self.kept.clear();
        let mut told = BTreeSet::new();
        let mut events = Vec::new();
        for text in (0..PROMPTS).map(prompt) {
            for block in 0..BLOCKS {
                let name = name(&text[..(block + 1) * BLOCK]);
                if self.held.contains(&name) && told.insert(name) {
                    events.push(CacheEvent::Stored(blocks(&text, block, block + 1)));
                }
            }
        }
        self.keep(Arrival::Begins, events);
    }

    /// As the reporter does it, at one router for each post.
    fn post(&mut self, nodes: &mut BTreeMap<u64, Node>, mut whom: impl FnMut() -> u64, now: Micros) {
        if self.kept.len() > KEPT_POSTS_MAX {
            self.snapshot();
        }
        for _ in 0..2 * KEPT_POSTS_MAX {
            let Some((&seq, (arrival, batch))) = self.kept.first_key_value() else { return };
            let Some(node) = nodes.get_mut(&whom()) else { return };
            let post = BatchId { source: self.source, seq, arrival: *arrival };
            let expected = node.post(post, batch.clone(), now);
            match expected {
                expected if expected > seq => self.kept = self.kept.split_off(&expected),
                expected if !self.kept.contains_key(&expected) => self.snapshot(),
                _ => {}
            }
        }
    }

    /// How many tokens of each prompt it holds.
    fn truth(&self) -> Vec<u32> {
        let reach = |text: Vec<u8>| {
            let is_held = |end: &usize| self.held.contains(&name(&text[..end * BLOCK]));
            ((1..=BLOCKS).take_while(is_held).count() * BLOCK) as u32
        };
        (0..PROMPTS).map(prompt).map(reach).collect()
    }
}

fn blocks(text: &[u8], from: usize, to: usize) -> StoredBlocks {
    StoredBlocks {
        names: (from..to).map(|block| name(&text[..(block + 1) * BLOCK])).collect(),
        parent: (from > 0).then(|| name(&text[..from * BLOCK])),
        tokens: text[from * BLOCK..to * BLOCK].iter().map(|&byte| byte.into()).collect(),
        block_tokens: BLOCK as u32,
        text_blocks: (to - from) as u32,
        ..StoredBlocks::default()
    }
}

/// A router, and the driver of the worker's feed.
struct Node {
    router: Router<Standard>,
    worker: Arc<Worker>,
    stream: Stream,
    /// Who has last told more than was known here.
    teller: Option<RouterId>,
}

impl Node {
    fn new(id: u64) -> Node {
        let router =
            Router::new(Standard::StickyLeastLoaded(StickyLeastLoaded::default()), Config::default());
        let address = Address::new("http://engine");
        router.join(address, Models::Any).unwrap();
        let worker = Arc::clone(&router.inspect().workers()[0].worker);
        let bytes = (0..=255).map(|byte| (u32::from(byte), vec![byte])).collect();
        let matching = Some(Matching::bytes(Family::new("m"), Arc::new(Vocabulary::new(bytes))));
        let probed =
            Change::Probed { worker: Arc::clone(&worker), result: ProbeResult::Answered, at: Micros(1) };
        router.apply(probed);
        router.apply(Change::Aligned { worker: Arc::clone(&worker), matching });
        router.peering().start(RouterId(id), PeersConfig::default());
        router.peering().follow_streams();
        Node { router, worker, stream: Stream::new(FeedConfig::default()), teller: None }
    }

    /// Tells the stream something, does what follows, and asks for what it lacks.
    fn tell<T>(&mut self, now: Micros, input: impl FnOnce(&mut Stream, Moment, &mut Vec<Step>) -> T) -> T {
        let mut steps = Vec::new();
        let told = input(&mut self.stream, Moment { now, unix_s: 0.0 }, &mut steps);
        let mut asked = self.take(steps);
        while let Some(from_seq) = asked {
            let wanted = (self.stream.source(), from_seq);
            asked = None;
            if !self.router.peering().request_replay(&self.worker, wanted, self.teller, now) {
                let mut steps = Vec::new();
                self.stream.feed.replay_ended(ReplayEnd::Failed, now, &mut steps);
                asked = self.take(steps);
            }
        }
        if self.stream.has_caught_up() {
            let mut steps = Vec::new();
            self.stream.feed.replay_ended(ReplayEnd::Complete, now, &mut steps);
            assert_eq!(self.take(steps), None);
        }
        if !self.stream.feed.is_awaiting_replay() {
            self.router.peering().cancel_replay(&self.worker);
        }
        told
    }

    fn take(&mut self, steps: Vec<Step>) -> Option<u64> {
        let mut asked = None;
        for step in steps {
            match step {
                Step::AskReplay { from_seq } => asked = Some(from_seq),
                step => {
                    let change = Change::from_feed(&self.worker, step).unwrap();
                    self.router.apply(change);
                }
            }
        }
        asked
    }

    /// The number that is expected next.
    fn post(&mut self, post: BatchId, mut batch: EventBatch, now: Micros) -> u64 {
        let others =
            if self.router.peering().has_peers() { PeerPresence::Present } else { PeerPresence::Absent };
        let bytes = self.router.peering().digest(self.worker.id, &mut batch).unwrap();
        match self.tell(now, |stream, at, steps| stream.posted(post, batch, others, at, steps)) {
            Ok(Some(arrival)) => {
                self.router.peering().relay(&self.worker, BatchId { arrival, ..post }, bytes);
                post.seq + 1
            }
            Ok(None) => self.stream.feed.counters().next_seq.unwrap(),
            Err(expected) => expected,
        }
    }

    fn receive(&mut self, news: StreamNews, now: Micros) {
        match news {
            StreamNews::Reported(router, report) => {
                self.teller = Some(router);
                let batch = unpack_events(&report.bytes).unwrap();
                self.tell(now, |stream, at, steps| stream.relayed(numbered(&report), batch, at, steps));
            }
            StreamNews::Reached(router, reach) => {
                self.teller = Some(router);
                let StreamPosition { source, next, at_unix_ms, .. } = reach;
                self.tell(now, |stream, at, steps| stream.reached(source, next, at_unix_ms, at.now, steps));
            }
            StreamNews::Asked(router, wanted) => {
                let reports = self.router.peering().retained(wanted).or_else(|| self.known(wanted.source));
                self.router.peering().answer_replay(router, &self.worker, &reports.unwrap_or_default());
            }
            StreamNews::Replayed(reports) => self.replayed(&reports, now),
        }
    }

    fn replayed(&mut self, reports: &[RelayedBatch], now: Micros) {
        self.tell(now, |stream, at, steps| {
            for report in reports {
                let batch = unpack_events(&report.bytes).unwrap();
                match report.kind {
                    RelayedBatchKind::Snapshot => {
                        stream.restored(report.source, report.seq, batch, at.now, steps)
                    }
                    _ => stream.replayed(numbered(report), batch, at, steps),
                }
            }
            let end = if reports.is_empty() { ReplayEnd::Failed } else { ReplayEnd::Complete };
            if !reports.iter().any(|report| report.kind == RelayedBatchKind::Snapshot) {
                stream.feed.replay_ended(end, at.now, steps);
            }
        });
    }

    fn known(&self, wanted: u64) -> Option<Vec<RelayedBatch>> {
        let (source, extent) = self.stream.extent().filter(|(source, _)| wanted == 0 || *source == wanted)?;
        let bytes = self.router.peering().holdings(self.worker.id)?;
        let known = Restored { bytes, group: extent.group, floor_seq: extent.floor_seq };
        let events = vec![CacheEvent::Restored(known)];
        let (at_unix_s, print) = (extent.at_unix_s, extent.print);
        let batch = EventBatch { at_unix_s, print, events, ..EventBatch::default() };
        let (worker, kind) = (self.worker.identity, RelayedBatchKind::Snapshot);
        Some(vec![RelayedBatch { worker, source, seq: extent.seq, kind, bytes: pack_events(&batch) }])
    }

    fn turn(&mut self, now: Micros) -> Vec<Envelope> {
        for (_, news) in self.router.peering().take_streams() {
            self.receive(news, now);
        }
        let reach = self.stream.extent().map(|(source, extent)| StreamPosition {
            worker: self.worker.identity,
            source,
            next: extent.seq + 1,
            at_unix_ms: self.stream.at_unix_ms(),
        });
        self.router.peering().set_positions(reach.into_iter().collect());
        self.tell(now, |stream, at, steps| stream.feed.tick(at.now, steps));
        self.router.peering().compose_messages(now)
    }

    /// How many tokens of each prompt the engine is believed to hold.
    fn view(&self) -> Vec<u32> {
        let mut out = Overlaps::new();
        let root = Family::new("m").root(None, None, Unit::Byte);
        let reach = |text: Vec<u8>| {
            self.router.index.lookup(root, Prompt::Bytes(&text), &mut out);
            out.of(ReportedView::Sampled.holder(self.worker.id)).tokens
        };
        (0..PROMPTS).map(prompt).map(reach).collect()
    }
}

fn numbered(report: &RelayedBatch) -> BatchId {
    let begins = report.kind == RelayedBatchKind::Restart;
    let arrival = if begins { Arrival::Begins } else { Arrival::Next };
    BatchId { source: report.source, seq: report.seq, arrival }
}

impl net::Node for Node {
    fn receive(&mut self, bytes: &[u8], now: Micros) -> Vec<Envelope> {
        self.router.peering().receive(bytes, now).unwrap()
    }

    fn step(&mut self, now: Micros) -> Vec<Envelope> {
        self.turn(now)
    }
}

/// Routers, and an engine.
struct World {
    net: net::Net<Node>,
    engine: Engine,
}

impl Deref for World {
    type Target = net::Net<Node>;

    fn deref(&self) -> &net::Net<Node> {
        &self.net
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut net::Net<Node> {
        &mut self.net
    }
}

impl World {
    fn new(seed: u64, nodes: u64) -> World {
        let mut net = net::Net::new(seed);
        net.nodes = (1..=nodes).map(|id| (id, Node::new(id))).collect();
        World { net, engine: Engine::new() }
    }

    /// The engine works, and its reporter posts; each post goes to one of the routers that a balancer chooses.
    fn work(&mut self, times: u8, balancer: Balancer) {
        for _ in 0..times {
            let dice = self.net.random_below(u64::MAX);
            self.engine.work(dice);
        }
        self.post(balancer);
    }

    fn post(&mut self, balancer: Balancer) {
        let ids: Vec<u64> = self.net.nodes.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let mut turn = self.net.random_below(u64::MAX);
        let whom = || match balancer {
            Balancer::First => ids[0],
            Balancer::RoundRobin => {
                turn = turn.wrapping_add(1);
                ids[turn as usize % ids.len()]
            }
        };
        self.engine.post(&mut self.net.nodes, whom, self.net.now);
    }

    fn disagreement(&self) -> Option<String> {
        let truth = self.engine.truth();
        let wrong = |(id, node): (&u64, &Node)| {
            let (view, belief) = (node.view(), node.router.inspect().cache_view(node.worker.id));
            let is_right = view == truth && belief == CacheView::Reported;
            (!is_right).then(|| {
                format!("{id} believes {view:?} ({belief}) where there is {truth:?}: {:?}", node.stream)
            })
        };
        self.net.nodes.iter().find_map(wrong)
    }
}

#[derive(Clone, Copy, Debug)]
enum Balancer {
    First,
    RoundRobin,
}

#[derive(Clone, Debug)]
enum Act {
    Join,
    Die(u8),
    Cut(u8, u8),
    Heal,
    Lose(u64),
    Repeat(u64),
    Delay(u64),
    BookedWork(u8, Balancer),
    Restart,
    Wait(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let balancer = || prop_oneof![Just(Balancer::First), Just(Balancer::RoundRobin)];
    prop_oneof![
        2 => Just(Act::Join),
        1 => any::<u8>().prop_map(Act::Die),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Act::Cut(a, b)),
        1 => Just(Act::Heal),
        1 => (0_u64..80).prop_map(Act::Lose),
        1 => (0_u64..80).prop_map(Act::Repeat),
        1 => (1_u64..600).prop_map(Act::Delay),
        10 => (1_u8..20, balancer()).prop_map(|(times, balancer)| Act::BookedWork(times, balancer)),
        1 => Just(Act::Restart),
        8 => (1_u8..40).prop_map(Act::Wait),
    ]
}

fn play(seed: u64, script: &[Act]) -> World {
    let mut net = World::new(seed, 2);
    let mut generation = 10;
    for act in script {
        let ids: Vec<u64> = net.nodes.keys().copied().collect();
        let pick = |number: u8| ids.get(usize::from(number) % ids.len().max(1)).copied().unwrap_or(0);
        match *act {
            Act::Join if ids.len() < 4 => {
                generation += 1;
                net.nodes.insert(generation, Node::new(generation));
            }
            Act::Join => {}
            Act::Die(number) => _ = net.nodes.remove(&pick(number)),
            Act::Cut(a, b) => _ = net.cut.insert((pick(a).min(pick(b)), pick(a).max(pick(b)))),
            Act::Heal => net.cut.clear(),
            Act::Lose(percent) => net.lost = percent,
            Act::Repeat(percent) => net.repeated = percent,
            Act::Delay(ms) => net.set_delay_ms(0..=ms),
            Act::BookedWork(times, balancer) => net.work(times, balancer),
            Act::Restart => net.engine.restart(),
            Act::Wait(steps) => net.steps(steps.into()),
        }
    }
    net.heal();
    net
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happened_two_seconds_of_peace_make_every_router_know_what_the_engine_holds(
        seed: u64, script in proptest::collection::vec(act(), 1..40),
    ) {
        let mut net = play(seed, &script);
        // What was sent before the peace may still be under way for as long as it was delayed.
        net.steps(24 + 80);
        // What died with a router and nobody else had heard, the engine's next word shows, and the one after it mends.
        net.work(1, Balancer::First);
        net.steps(40);
        net.work(1, Balancer::RoundRobin);
        net.steps(80);
        let disagreement = net.disagreement();
        prop_assert!(disagreement.is_none(), "{}", disagreement.unwrap_or_default());
    }
}

/// Three routers that know each other.
fn three() -> World {
    let mut net = World::new(7, 3);
    net.steps(4);
    net
}

#[test]
fn what_one_router_hears_all_know_at_once() {
    let mut net = three();
    for _ in 0..60 {
        net.work(2, Balancer::First);
        net.steps(2);
        assert_eq!(net.disagreement(), None);
    }
    assert!(net.engine.truth().iter().sum::<u32>() > 0 && net.engine.snapshots == 0);
    let relayed = |id: u64| net.nodes[&id].router.peering().view(net.now).unwrap().relayed;
    assert_eq!((relayed(1).sent, relayed(1).received), (120, 0));
    assert_eq!((relayed(2).received, relayed(3).received, relayed(3).replays_requested), (120, 120, 0));
}

#[test]
fn posts_that_are_dealt_out_in_turn_are_put_in_order_again() {
    let mut net = three();
    net.work(1, Balancer::First);
    net.steps(4);
    for _ in 0..60 {
        // Three at once, one to each: two of three come before the one they follow.
        net.work(3, Balancer::RoundRobin);
        net.steps(4);
        assert_eq!(net.disagreement(), None);
    }
    assert_eq!(net.engine.snapshots, 0, "nobody had to begin again");
}

#[test]
fn a_late_joiner_is_told_by_a_sibling_though_the_receiver_is_gone() {
    let mut net = three();
    (0..20).for_each(|_| net.work(3, Balancer::First));
    net.steps(4);
    net.nodes.remove(&1);
    net.steps(80);
    net.nodes.insert(9, Node::new(9));
    net.steps(60);
    assert_eq!(net.disagreement(), None);
    assert_eq!((net.engine.snapshots, net.nodes.len()), (0, 3));
}

#[test]
fn when_the_receiver_dies_the_next_number_decides_whether_all_is_known() {
    let mut net = three();
    net.work(20, Balancer::First);
    net.steps(4);
    net.nodes.remove(&1);
    net.work(5, Balancer::First);
    net.steps(4);
    assert_eq!(net.disagreement(), None, "nothing was missing");
    assert_eq!(net.engine.snapshots, 0);
    net.work(5, Balancer::First);
    net.nodes.remove(&2);
    net.steps(4);
    net.work(1, Balancer::First);
    assert_eq!(net.engine.snapshots, 0, "it may only be late");
    net.steps(80);
    let view = net.nodes[&3].router.inspect().cache_view(net.nodes[&3].worker.id);
    assert_eq!(view, CacheView::Uncertain, "five posts have died with their receiver");
    net.work(1, Balancer::First);
    net.steps(4);
    assert_eq!((net.disagreement(), net.engine.snapshots), (None, 1));
}

#[test]
fn what_is_lost_on_the_way_is_asked_for_and_not_all_of_it() {
    let mut net = three();
    net.work(20, Balancer::First);
    net.steps(4);
    net.lost = 100;
    net.work(5, Balancer::First);
    net.steps(4);
    net.lost = 0;
    net.steps(60);
    assert_eq!(net.disagreement(), None, "though the engine said nothing more");
    let given: u64 = net
        .nodes
        .values()
        .map(|node| node.router.peering().view(net.now).unwrap().relayed.replays_answered)
        .sum();
    assert!(given >= 2 && net.engine.snapshots == 0, "{given}");
    assert!(net.nodes[&3].stream.feed.counters().floor_seq == Some(0));
}

/// One that has no worker is asked for a worker's stream.
fn asked_in_vain(deaf: &Router<Standard>) {
    let teller = Node::new(1);
    let now = |ms: u64| Micros::from_millis(1_000 + ms);
    let numbered = BatchId { source: 1, seq: 0, arrival: Arrival::Begins };
    teller.router.peering().relay(&teller.worker, numbered, [7].into());
    deaf.peering()
        .compose_messages(now(0))
        .iter()
        .for_each(|one| _ = teller.router.peering().receive(&one.bytes, now(1)).unwrap());
    assert!(teller.router.peering().request_replay(&teller.worker, (1, 0), None, now(2)));
    let told = [now(2), now(200)].map(|at| teller.router.peering().compose_messages(at)).concat();
    told.iter().for_each(|one| _ = deaf.peering().receive(&one.bytes, now(201)).unwrap());
    assert!(
        deaf.peering().take_streams().is_empty()
            && deaf.peering().view(now(202)).unwrap().relayed.received == 1
    );
    let nothing = deaf.peering().compose_messages(now(202));
    let is_answer =
        |one: &&Envelope| matches!(PeerMessage::decode(&one.bytes), Ok(Some(PeerMessage::Answer { .. })));
    assert_eq!(nothing.iter().filter(is_answer).count(), 1, "it says at once that it has nothing");
    assert_eq!(deaf.peering().view(now(203)).unwrap().relayed.replays_answered, 0);
}

fn without_workers() -> Router<Standard> {
    let router = Router::new(Standard::StickyLeastLoaded(StickyLeastLoaded::default()), Config::default());
    router.peering().start(RouterId(2), PeersConfig::default());
    router
}

#[test]
fn a_router_without_feeds_keeps_no_updates_and_refuses_requests_at_once() {
    asked_in_vain(&without_workers());
}

#[test]
fn a_router_refuses_requests_for_unknown_workers_at_once() {
    let router = without_workers();
    router.peering().follow_streams();
    asked_in_vain(&router);
}
