//! Routers over a network that loses, repeats, delays and reorders, as seeded scripts: join, work, cut, heal, die.
//!
//! The law: when everything has been quiet for a moment, every router that is up knows exactly what every other one that it can
//! reach has open, and has let go of everything else; whatever happened before.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod net;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use net::{Net, mix};
use proptest::prelude::*;
use warmroute_peers::{
    Booked, Config, Effect, Health, Ledger, Letter, Message, Over, OwnLedger, Part, Peers, Prompt, Question,
    Want,
};
use warmroute_types::{Delivery, Micros, RouterId};

/// What a router's clock shows.
#[derive(Clone, Copy, Debug)]
enum Clock {
    Right,
    /// A year away.
    Ahead,
    /// Seven times as fast.
    Fast,
    /// It stands still.
    Stopped,
    Backwards,
    /// Hours ahead or back, at every second.
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
    /// What it has open.
    open: Vec<u64>,
    /// What it believes of others.
    mirrored: BTreeMap<(RouterId, u64), Booked>,
    /// Of whose prompts it has heard that they were computed.
    computed: BTreeSet<(RouterId, u64)>,
    /// Which of its own prompts were computed, and how its trips ended.
    own_computed: BTreeSet<u64>,
    ended: BTreeMap<u64, Ended>,
    /// How those of others ended, as last heard.
    heard: BTreeMap<(RouterId, u64), Ended>,
    /// After which batch it has met others, and from which trip on it has heard their news.
    met: BTreeMap<RouterId, u64>,
    heard_from: BTreeMap<RouterId, u64>,
    /// Which caches others have found empty.
    emptied: Vec<u64>,
    /// How often it has booked something of another.
    bookings: usize,
    /// What it presumes, and what it was told that others do.
    view: Arc<[u8]>,
    views: Vec<Vec<u8>>,
    /// How often it has put together what it presumes.
    composed: usize,
}

fn booked(prompt: Option<Prompt>) -> Booked {
    Booked {
        worker: 3,
        prompt_tokens: 100,
        cached_tokens: 0,
        restorable_tokens: 0,
        delivery: Delivery::Streamed,
        prompt,
    }
}

/// How a trip ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ended {
    was_computed: bool,
    over: Over,
}

impl Node {
    fn new(id: u64) -> Node {
        Node {
            clock: Clock::Right,
            peers: Peers::new(RouterId(id), Config::default()),
            own: OwnLedger::default(),
            open: Vec::new(),
            mirrored: BTreeMap::new(),
            computed: BTreeSet::new(),
            own_computed: BTreeSet::new(),
            ended: BTreeMap::new(),
            heard: BTreeMap::new(),
            met: BTreeMap::new(),
            heard_from: BTreeMap::new(),
            emptied: Vec::new(),
            bookings: 0,
            view: [7].into(),
            views: Vec::new(),
            composed: 0,
        }
    }

    fn take_in(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Booked { router, trip, booked } => {
                    self.bookings += 1;
                    assert!(self.mirrored.insert((router, trip), booked).is_none(), "booked twice");
                }
                Effect::Computed { router, trip } => {
                    assert!(self.mirrored.contains_key(&(router, trip)), "computed, but not booked");
                    assert!(self.computed.insert((router, trip)), "computed twice");
                }
                Effect::Over { router, trip, over, .. } => {
                    assert!(self.mirrored.remove(&(router, trip)).is_some(), "over, but not booked");
                    let was_computed = self.computed.remove(&(router, trip));
                    self.heard.insert((router, trip), Ended { was_computed, over });
                }
                Effect::StateAsked { router, up_to, open_from } => {
                    let state = OwnLedger::state(|number| self.own.open_after(number));
                    self.peers.tell_state(router, up_to, Ledger { open_from, ..state });
                }
                Effect::ViewAsked => {
                    self.composed += 1;
                    self.peers.tell_view(Arc::clone(&self.view));
                }
                Effect::View { bytes, .. } => self.views.push(bytes),
                Effect::Emptied { worker } => self.emptied.push(worker),
                // How streams are passed on is tried with real feeds, in the router's tests.
                _ => {}
            }
        }
    }

    /// Trips are numbered as they begin, and told in this order: whoever hears of one as it begins hears of all that follow.
    fn note_first(&mut self, bytes: &[u8]) {
        let Ok(Some(Message::Batch { from, number, news })) = Message::decode(bytes) else { return };
        let before = *self.met.entry(from).or_insert(number - u64::from(!news.is_empty()));
        let first = news.trips.iter().find(|(_, trip)| trip.booked.is_some() && number > before);
        first.into_iter().for_each(|(&first, _)| _ = self.heard_from.entry(from).or_insert(first));
    }

    fn speak_up(&mut self, now: Micros) -> Vec<Letter> {
        let now = self.clock.show(now);
        if self.peers.is_quiet(now) { self.peers.speak(self.own.take(), now) } else { Vec::new() }
    }

    /// How many workers it finds failing.
    fn failing(&self) -> usize {
        let state = OwnLedger::state(|number| self.own.open_after(number));
        state.advice.values().filter(|advice| advice.health == Health::Failing).count()
    }
}

impl net::Node for Node {
    fn hear(&mut self, bytes: &[u8], now: Micros) -> Vec<Letter> {
        let mut effects = Vec::new();
        self.note_first(bytes);
        let answers = self.peers.hear(bytes, self.clock.show(now), &mut effects).unwrap();
        self.take_in(effects);
        answers
    }

    fn step(&mut self, now: Micros) -> Vec<Letter> {
        let (now, mut effects) = (self.clock.show(now), Vec::new());
        self.peers.expire(now, &mut effects);
        self.take_in(effects);
        self.peers.speak(self.own.take(), now)
    }
}

/// What these routers do, and what they believe.
trait Cluster {
    fn work(&mut self, id: u64);
    fn disagreement(&self) -> Option<String>;
    fn misbelief(&self) -> Option<String>;
}

impl Cluster for Net<Node> {
    /// A router books, computes or ends something.
    fn work(&mut self, id: u64) {
        let dice = self.roll(4);
        let pick = self.roll(u64::MAX);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        match dice {
            0 | 1 => {
                let booked = Booked { worker: pick % 8, ..booked(None) };
                node.open.push(node.own.begin(booked));
            }
            _ if node.open.is_empty() => {}
            2 => {
                let trip = node.open[pick as usize % node.open.len()];
                node.own.computed(trip);
                node.own_computed.insert(trip);
            }
            _ => {
                let trip = node.open.swap_remove(pick as usize % node.open.len());
                let over = [Over::Left, Over::Answered, Over::Found { chunks: 3 }][(pick >> 8) as usize % 3];
                node.own.over(trip, over);
                node.ended.insert(trip, Ended { was_computed: node.own_computed.contains(&trip), over });
            }
        }
        if pick & 48 == 0 {
            let health = if pick & 64 == 0 { Health::Failing } else { Health::Well };
            node.own.found(pick % 8, health);
        }
        // Some wait for their turn to speak.
        let letters = if pick & 8 == 0 { node.speak_up(self.now) } else { Vec::new() };
        self.post(id, &letters);
    }

    /// Whether everybody knows what everybody else whom they can reach has open, and nothing more.
    fn disagreement(&self) -> Option<String> {
        for (&id, node) in &self.nodes {
            let others = self.nodes.iter().filter(|&(&other, _)| other != id && !self.is_cut(id, other));
            let truth: BTreeSet<(RouterId, u64)> = others
                .flat_map(|(&other, node)| node.open.iter().map(move |&trip| (RouterId(other), trip)))
                .collect();
            let believed: BTreeSet<_> = node.mirrored.keys().copied().collect();
            if truth != believed {
                return Some(format!("{id} believes {believed:?} where there is {truth:?}"));
            }
            for view in node.peers.views(self.now) {
                let found = self.nodes.get(&view.id.0).map(Node::failing);
                if !self.is_cut(id, view.id.0) && found != Some(view.failing) {
                    return Some(format!("{id} believes that {} finds {} failing", view.id, view.failing));
                }
            }
        }
        None
    }

    /// Whether somebody believes that another one's trip ended otherwise than it did, or does not know that it did, though it has met that
    /// one before. Whoever was taken for dead and came back has told what was missed, so at last all know.
    fn misbelief(&self) -> Option<String> {
        for (&id, node) in &self.nodes {
            for (&other, teller) in self.nodes.iter().filter(|&(&other, _)| other != id) {
                let Some(&from) = node.heard_from.get(&RouterId(other)) else { continue };
                for (&trip, ended) in teller.ended.range(from..) {
                    let heard = node.heard.get(&(RouterId(other), trip));
                    if heard != Some(ended) {
                        return Some(format!(
                            "{id} heard {heard:?} of {other}'s {trip}, which was {ended:?}"
                        ));
                    }
                }
            }
        }
        None
    }
}

#[derive(Clone, Debug)]
enum Act {
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

fn act() -> impl Strategy<Value = Act> {
    let node = 0_u64..5;
    prop_oneof![
        2 => node.clone().prop_map(Act::Join),
        1 => node.clone().prop_map(Act::Die),
        2 => (node.clone(), node.clone()).prop_map(|(a, b)| Act::Cut(a, b)),
        1 => Just(Act::Heal),
        1 => (0_u64..80).prop_map(Act::Lose),
        1 => (0_u64..80).prop_map(Act::Repeat),
        1 => (1_u64..600).prop_map(Act::Delay),
        8 => (node, 1_u8..40).prop_map(|(node, times)| Act::Work(node, times)),
        8 => (1_u8..100).prop_map(Act::Wait),
    ]
}

/// Plays a script, and then lets it be quiet for two seconds.
fn play(seed: u64, script: &[Act]) -> Net<Node> {
    let mut net = Net::new(seed);
    // A router that is started again is another one.
    let mut generation = 0;
    let mut names: BTreeMap<u64, u64> = BTreeMap::new();
    for act in script {
        match *act {
            Act::Join(node) => {
                generation += 100;
                names.entry(node).or_insert_with(|| {
                    net.nodes.insert(generation + node, Node::new(generation + node));
                    generation + node
                });
            }
            Act::Die(node) => {
                names.remove(&node).into_iter().for_each(|id| _ = net.nodes.remove(&id));
            }
            Act::Cut(a, b) => {
                if let (Some(&a), Some(&b)) = (names.get(&a), names.get(&b)) {
                    net.cut.insert((a.min(b), a.max(b)));
                }
            }
            Act::Heal => net.cut.clear(),
            Act::Lose(percent) => net.lost = percent,
            Act::Repeat(percent) => net.repeated = percent,
            Act::Delay(ms) => net.set_delay_ms(0..=ms),
            Act::Work(node, times) => {
                if let Some(&id) = names.get(&node) {
                    (0..times).for_each(|_| net.work(id));
                }
            }
            Act::Wait(steps) => net.steps(steps.into()),
        }
    }
    net.heal();
    net
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happened_two_seconds_of_peace_make_everybody_agree(seed: u64, script in proptest::collection::vec(act(), 1..60)) {
        let mut net = play(seed, &script);
        // What was sent before the peace may still be under way for as long as it was delayed.
        net.steps(24 + 80);
        let disagreement = net.disagreement();
        prop_assert!(disagreement.is_none(), "{}", disagreement.unwrap_or_default());
        let misbelief = net.misbelief();
        prop_assert!(misbelief.is_none(), "{}", misbelief.unwrap_or_default());
    }
}

/// A router that has told more than is kept: what it found and sent at first is history, and one request of then is open still.
fn with_a_past() -> Node {
    let mut node = Node::new(1);
    node.open.push(node.own.begin(booked(None)));
    (0..2_000).for_each(|worker| node.own.found(worker, Health::Failing));
    let digests: Arc<[u64]> = (0..2_048).collect();
    for at in 0..60 {
        for _ in 0..20 {
            let digests = digests.clone();
            let prompt = Prompt { root: 1, chunk_bytes: 256, chunk_tokens: 64, digests };
            let trip = node.own.begin(booked(Some(prompt)));
            node.own.over(trip, Over::Answered);
        }
        node.peers.speak(node.own.take(), Micros(at * net::STEP.0));
    }
    node
}

#[test]
fn a_late_joiner_learns_what_is_open_though_its_batches_are_history() {
    let mut net = Net::<Node>::new(7);
    net.nodes.extend([(1, with_a_past()), (2, Node::new(2))]);
    net.steps(40);
    assert_eq!(net.disagreement(), None);
    assert_eq!(net.nodes[&2].peers.views(net.now)[0].missing, 0);
}

/// Two that know each other, and have said much.
fn acquainted() -> Net<Node> {
    let mut net = Net::<Node>::new(13);
    net.nodes.extend([(1, Node::new(1)), (2, Node::new(2))]);
    net.steps(4);
    for _ in 0..200 {
        (1..=2).for_each(|id| net.work(id));
        net.step();
    }
    net
}

fn say(net: &mut Net<Node>, id: u64, say: impl FnOnce(&mut OwnLedger)) {
    say(&mut net.nodes.get_mut(&id).unwrap().own);
    net.steps(4);
}

#[test]
fn an_empty_cache_is_heard_of_once_though_its_finder_was_silent_and_not_by_those_who_come_later() {
    let mut net = acquainted();
    say(&mut net, 1, |own| own.emptied(7));
    assert_eq!(net.nodes[&2].emptied, [7]);
    net.cut.insert((1, 2));
    net.steps(100);
    assert_eq!(net.nodes[&2].peers.lost_peers, 1);
    say(&mut net, 1, |own| own.emptied(8));
    net.heal();
    net.steps(40);
    assert_eq!(net.nodes[&2].emptied, [7, 8], "what was missed, and nothing again");
    net.nodes.insert(3, Node::new(3));
    net.steps(40);
    assert_eq!(net.nodes[&3].emptied, [0; 0], "that was before it came");
    say(&mut net, 1, |own| own.found(7, Health::Failing));
    assert_eq!(net.nodes[&3].emptied, [0; 0], "this is another finding");
    say(&mut net, 1, |own| own.emptied(9));
    assert_eq!(net.nodes[&3].emptied, [9], "and from now on it hears of it");
}

#[test]
fn after_a_silence_what_was_missed_is_told_and_what_is_open_booked_and_nothing_else() {
    let mut net = acquainted();
    let (open, before) = (net.nodes[&1].open.len(), net.nodes[&2].bookings);
    assert!(open > 0 && before > open, "{open} open of {before}");
    net.cut.insert((1, 2));
    net.steps(100);
    say(&mut net, 1, |own| _ = own.begin(booked(None)));
    let asked = net.nodes[&2].peers.asked;
    net.heal();
    net.steps(40);
    assert_eq!(net.nodes[&2].bookings, before + open + 1);
    assert_eq!(net.nodes[&2].peers.asked, asked + 1);
    assert_eq!(net.nodes[&2].views.len(), 0, "it has heard all");
    assert_eq!(net.misbelief(), None);
}

#[test]
fn what_was_over_before_somebody_came_is_not_taken_for_what_happens_now() {
    let mut net = acquainted();
    net.nodes.insert(3, Node::new(3));
    net.steps(40);
    let open: usize = [1, 2].iter().map(|id| net.nodes[id].open.len()).sum();
    assert_eq!((net.disagreement(), net.nodes[&3].bookings), (None, open));
}

#[test]
fn one_that_was_cut_off_for_longer_than_news_are_kept_is_told_what_is_presumed() {
    let mut net = acquainted();
    net.cut.insert((1, 2));
    net.steps(100);
    let teller = net.nodes.get_mut(&1).unwrap();
    let open = std::mem::take(&mut teller.open);
    open.iter().skip(1).for_each(|trip| teller.own.over(*trip, Over::Answered));
    teller.open = open[..1].to_vec();
    let digests: std::sync::Arc<[u64]> = (0..2_048).collect();
    for _ in 0..400 {
        let (root, digests) = (1, digests.clone());
        let prompt = Prompt { root, chunk_bytes: 256, chunk_tokens: 64, digests };
        say(&mut net, 1, |own| {
            let trip = own.begin(booked(Some(prompt)));
            own.over(trip, Over::Answered);
        });
    }
    net.heal();
    net.steps(80);
    assert_eq!((net.disagreement(), net.nodes[&2].views.len()), (None, 1));
}

#[test]
fn a_newcomer_is_told_what_is_presumed_whatever_it_hears_first() {
    let from = RouterId(1);
    let question = Question { ticket: 9, asked_at_us: 0, want: Want::View, parts: vec![0] };
    let part = Part { ticket: 1, asked_at_us: 0, answer: 1, at: 0, of: 1 };
    let first = [
        Message::Relay { from, reports: Vec::new() },
        Message::Reach { from, reaches: Vec::new() },
        Message::Ask { from, question },
        Message::Answer { from, part, bytes: Vec::new() },
    ];
    for message in first {
        let mut net = acquainted();
        // Else the other one would be asked.
        net.nodes.remove(&2);
        net.steps(80);
        let mut newcomer = Node::new(3);
        net::Node::hear(&mut newcomer, &message.encode(), net.now);
        net.nodes.insert(3, newcomer);
        net.steps(40);
        assert_eq!((net.nodes[&3].views.len(), net.disagreement()), (1, None), "{message:?}");
    }
}

#[test]
fn what_stands_for_history_comes_whole_though_half_of_it_is_lost() {
    for seed in 0..20 {
        let mut net = Net::<Node>::new(seed);
        net.nodes.extend([(1, with_a_past()), (2, Node::new(2))]);
        net.lost = 50;
        net.steps(200);
        net.lost = 0;
        net.steps(80);
        assert_eq!(net.disagreement(), None, "{seed}");
        assert_eq!(net.nodes[&2].peers.views(net.now)[0].failing, 2_000, "{seed}");
    }
}

/// The newcomer is told all, over a network as slow as this, while its teller works on: bytes of answers for each byte that was wanted.
fn cost_of_joining(delay_ms: u64, width: usize) -> f64 {
    let mut net = Net::<Node>::new(11);
    net.set_delay_ms(delay_ms..=delay_ms);
    net.width = width;
    let mut teller = with_a_past();
    teller.view = (0..24 << 20).map(|at: u32| mix(at.into()) as u8).collect();
    let view = teller.view.clone();
    net.nodes.extend([(1, teller), (2, Node::new(2)), (3, Node::new(3))]);
    let is_told = |net: &Net<Node>| [2, 3].iter().all(|id| net.nodes[id].views.len() == 1);
    for _ in 0..4_000 {
        net.work(1);
        net.step();
        if is_told(&net) && net.nodes[&2].peers.views(net.now)[0].missing == 0 {
            break;
        }
    }
    assert!(is_told(&net) && net.nodes[&2].views[0] == *view, "{delay_ms} ms");
    net.steps(80);
    assert_eq!((net.disagreement(), net.dropped), (None, 0), "{delay_ms} ms: no news was pushed out");
    assert!(net.nodes[&2].peers.asked <= 2, "{}", net.nodes[&2].peers.asked);
    net.sent[&(1, 2)] as f64 / view.len() as f64
}

#[test]
fn a_big_view_is_pulled_as_fast_as_it_goes_and_pushes_no_news_out() {
    for (delay_ms, width) in [(500, 400_000), (500, usize::MAX), (20, 60_000), (1, usize::MAX)] {
        let cost = cost_of_joining(delay_ms, width);
        assert!(cost < 1.5, "{cost:.2} bytes for each that is wanted at {delay_ms} ms");
    }
}

#[test]
fn a_state_that_is_too_large_to_be_told_is_told_without_prompts() {
    let mut net = Net::<Node>::new(7);
    let mut teller = with_a_past();
    let digests: Arc<[u64]> = (0..2_048).collect();
    for at in 0..4_500 {
        let prompt = Prompt { root: 1, chunk_bytes: 256, chunk_tokens: 64, digests: Arc::clone(&digests) };
        teller.open.push(teller.own.begin(booked(Some(prompt))));
        if at % 10 == 0 {
            teller.peers.speak(teller.own.take(), Micros::from_secs(2) + Micros::from_millis(at));
        }
    }
    net.nodes.extend([(1, teller), (2, Node::new(2))]);
    net.steps(200);
    assert_eq!((net.disagreement(), net.nodes[&1].peers.cut_answers), (None, 1));
}

#[test]
fn whoever_has_a_past_is_asked_for_it_whatever_it_says_first() {
    let mut node = Node::new(2);
    let reach = Message::Reach { from: RouterId(1), reaches: Vec::new() }.encode();
    let batch = Message::Batch { from: RouterId(1), number: 9, news: Ledger::default() }.encode();
    for said in [reach, batch] {
        node.peers.hear(&said, Micros(1), &mut Vec::new()).unwrap();
    }
    let letters = node.peers.speak(node.own.take(), Micros(2));
    let is_asked = |letter: &Letter| match Message::decode(&letter.bytes) {
        Ok(Some(Message::Ask { question, .. })) => question.want == Want::View,
        _ => false,
    };
    assert!(letters.iter().any(is_asked));
}

#[test]
fn who_can_tell_nothing_is_not_asked_at_every_tick() {
    let (mut node, mut asked) = (Node::new(2), 0);
    let batch = Message::Batch { from: RouterId(1), number: 9, news: Ledger::default() }.encode();
    for step in 1..=500 {
        let now = Micros(step * net::STEP.0);
        let mut letters = node.peers.speak(node.own.take(), now);
        letters.extend(node.peers.hear(&batch, now, &mut Vec::new()).unwrap());
        for letter in letters {
            let Ok(Some(Message::Ask { question, .. })) = Message::decode(&letter.bytes) else { continue };
            if !matches!(question.want, Want::Batches(_)) {
                continue;
            }
            asked += 1;
            let (ticket, asked_at_us) = (question.ticket, question.asked_at_us);
            let part = Part { ticket, asked_at_us, answer: step, at: 0, of: 1 };
            let nothing = Message::Answer { from: RouterId(1), part, bytes: Vec::new() }.encode();
            node.peers.hear(&nothing, now, &mut Vec::new()).unwrap();
        }
    }
    assert!((1..=4).contains(&asked), "{asked} times");
}

#[test]
fn four_who_come_at_once_are_told_by_one_who_puts_it_together_once() {
    let mut net = Net::<Node>::new(11);
    net.set_delay_ms(100..=100);
    let mut teller = with_a_past();
    teller.view = (0..24 << 20).map(|at: u32| mix(at.into()) as u8).collect();
    let view = Arc::clone(&teller.view);
    net.nodes.extend([(1, teller)].into_iter().chain((2..=5).map(|id| (id, Node::new(id)))));
    let is_told = |node: &Node| node.views.last().is_some_and(|last| **last == *view);
    let left = (0..2_000).find(|_| {
        (1..=5).for_each(|id| net.work(id));
        net.step();
        net.nodes.range(2..).all(|(_, node)| is_told(node))
    });
    assert!(left.is_some(), "somebody is never told");
    assert_eq!(net.nodes[&1].composed, 1);
}

#[test]
fn news_is_told_at_once_after_a_silence_and_else_with_what_follows_it() {
    let mut node = Node::new(1);
    let mut booked_at = |at_ms| {
        node.own.begin(booked(None));
        node.speak_up(Micros::from_millis(at_ms)).len()
    };
    assert_eq!([1_000, 1_001, 1_019, 1_020, 1_030].map(&mut booked_at), [1, 0, 0, 1, 0]);
    let rest = node.peers.speak(node.own.take(), Micros::from_millis(1_040));
    assert_eq!(rest.len(), 1, "the rest at the next turn");
}

#[test]
fn whoever_asks_for_too_much_at_once_is_told_a_little() {
    let mut node = Node::new(1);
    for at_ms in 1..=200 {
        node.own.emptied(7);
        assert_eq!(node.peers.speak(node.own.take(), Micros::from_millis(20 * at_ms)).len(), 1);
    }
    let want = Want::Batches((1..=200).map(|number| number..=number).collect());
    let question = Question { ticket: 1, asked_at_us: 0, want, parts: (0..1_000).collect() };
    let ask = Message::Ask { from: RouterId(2), question }.encode();
    let answers = node.peers.hear(&ask, Micros::from_secs(4), &mut Vec::new()).unwrap();
    assert_eq!(answers.len(), 1);
    assert!(answers[0].bytes.len() < 16 * 100, "{}", answers[0].bytes.len());
}

#[test]
fn a_router_that_dies_is_forgotten_within_two_seconds() {
    let mut net = Net::<Node>::new(3);
    (0..3).for_each(|id| _ = net.nodes.insert(id, Node::new(id)));
    net.steps(4);
    (0..50).for_each(|_| net.work(0));
    net.steps(4);
    assert!(!net.nodes[&1].mirrored.is_empty());
    net.nodes.remove(&0);
    net.steps(64);
    assert!(net.nodes[&1].mirrored.is_empty() && net.nodes[&2].mirrored.is_empty());
    assert_eq!(net.nodes[&1].peers.lost_peers, 1);
}

#[test]
fn a_router_whose_clock_is_wrong_does_no_harm() {
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
        assert_eq!((net.disagreement(), net.misbelief()), (None, None), "{clock:?}");
        // Nobody works: who only says that it is there is not taken for dead, by anybody.
        net.steps(200);
        assert_eq!(net.disagreement(), None, "{clock:?}");
        let lost: u64 = net.nodes.values().map(|node| node.peers.lost_peers).sum();
        assert_eq!(lost, 0, "{clock:?}");
        net.nodes.remove(&2);
        net.steps(120);
        assert_eq!(net.disagreement(), None, "{clock:?}: the dead are let go");
    }
}
