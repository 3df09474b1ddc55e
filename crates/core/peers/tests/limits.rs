//! Limits of a tenant over several routers, as seeded scripts over a network that delays, loses, repeats and cuts.
//!
//! The invariant: routers that reach each other admit together what one router would, within 5 %, wherever requests
//! arrive; a router that is cut off admits that much alone.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod net;

use std::collections::BTreeSet;

use net::{Net, STEP};
use warmroute_admission::{ExpectedTokens, Lease, LeaseRequest, Limits, SharedLimits};
use warmroute_peers::{Config, Effect, Envelope, OwnLedger, PeerMessage, Peers};
use warmroute_types::{Micros, RouterId};

const TENANT: u64 = 7;

struct Node {
    id: RouterId,
    peers: Peers,
    own: OwnLedger,
    limits: SharedLimits<Request>,
    /// Running requests.
    running: Vec<Running>,
    admitted: usize,
    refused: usize,
    tokens: u64,
}

/// A request: what it expects to use, what it uses, and how long it runs.
#[derive(Clone, Copy)]
struct Request {
    expected: u32,
    used: u32,
    steps: u64,
}

struct Running {
    lease: Lease,
    request: Request,
    until: Micros,
}

impl Node {
    fn new(id: u64) -> Node {
        let id = RouterId(id);
        Node {
            id,
            peers: Peers::new(id, Config::default()),
            own: OwnLedger::default(),
            limits: SharedLimits::default(),
            running: Vec::new(),
            admitted: 0,
            refused: 0,
            tokens: 0,
        }
    }

    fn ask(&mut self, limits: Limits, request: Request, now: Micros) {
        let expected = ExpectedTokens { prompt: request.expected, answers: 0, answer_max: Some(0) };
        if let LeaseRequest::Decided(decision) = self.limits.ask(TENANT, limits, expected, request, now) {
            self.decide((request, decision), now);
        }
    }

    fn decide(&mut self, (request, decision): warmroute_admission::LeaseDecision<Request>, now: Micros) {
        match decision {
            Ok(lease) => {
                self.admitted += 1;
                let until = now + Micros(STEP.0 * request.steps);
                self.running.push(Running { lease, request, until });
            }
            Err(_) => self.refused += 1,
        }
    }

    fn end_finished(&mut self, now: Micros) {
        for one in self.running.extract_if(.., |one| one.until <= now) {
            self.limits.settle(&one.lease, one.request.used);
            self.tokens += u64::from(one.request.used);
        }
    }

    fn limit_messages(&mut self) -> Vec<Envelope> {
        let from = self.id;
        let messages = self.limits.take_messages().into_iter();
        let encode = |message| PeerMessage::Limits { from, messages: vec![message] }.encode().into();
        messages.map(|(to, message)| Envelope { to, bytes: encode(message) }).collect()
    }
}

impl net::Node for Node {
    fn receive(&mut self, bytes: &[u8], now: Micros) -> Vec<Envelope> {
        let mut effects = Vec::new();
        let mut answers = self.peers.receive(bytes, now, &mut effects).unwrap();
        for effect in effects {
            if let Effect::LimitsReceived { router, messages } = effect {
                for message in messages {
                    let decided = self.limits.receive(router, message, now);
                    decided.into_iter().for_each(|decided| self.decide(decided, now));
                }
            }
        }
        answers.extend(self.limit_messages());
        answers
    }

    fn step(&mut self, now: Micros) -> Vec<Envelope> {
        self.peers.expire(now, &mut Vec::new());
        let others: BTreeSet<RouterId> = self.peers.limit_sharers().collect();
        let mut decided = self.limits.set_members(self.id, others, now);
        decided.extend(self.limits.tick(now));
        decided.into_iter().for_each(|decided| self.decide(decided, now));
        self.end_finished(now);
        let mut envelopes = self.peers.compose(self.own.take_updates(), now);
        envelopes.extend(self.limit_messages());
        envelopes
    }
}

/// Routers that know each other.
fn cluster(seed: u64, routers: u64) -> Net<Node> {
    let mut net = Net::new(seed);
    net.nodes.extend((1..=routers).map(|id| (id, Node::new(id))));
    net.steps(40);
    net
}

fn sum(net: &Net<Node>, of: impl Fn(&Node) -> u64) -> f64 {
    net.nodes.values().map(of).sum::<u64>() as f64
}

fn admitted(net: &Net<Node>) -> f64 {
    sum(net, |node| node.admitted as u64)
}

/// Where requests arrive.
#[derive(Clone, Copy, Debug)]
enum Arrivals {
    Everywhere,
    /// On the router with this number only.
    At(u64),
}

/// Sends this many requests a step for some seconds. Calls `check` after each step.
fn flood(
    net: &mut Net<Node>,
    limits: Limits,
    arrivals: Arrivals,
    seconds: u64,
    mut check: impl FnMut(&Net<Node>),
) {
    for _ in 0..seconds * 40 {
        for _ in 0..6 {
            let at = match arrivals {
                Arrivals::Everywhere => net.random_below(net.nodes.len() as u64) as usize,
                Arrivals::At(id) => net.nodes.keys().position(|one| *one == id).unwrap(),
            };
            let (used, steps) = (net.random_below(100) as u32, net.random_below(20));
            let now = net.now;
            let id = *net.nodes.keys().nth(at).unwrap();
            let request = Request { expected: 100, used, steps };
            let messages = {
                let node = net.nodes.get_mut(&id).unwrap();
                node.ask(limits, request, now);
                node.limit_messages()
            };
            net.send(id, &messages);
        }
        net.step();
        check(net);
    }
}

fn assert_within(what: &str, amount: f64, allowed: f64) {
    assert!((0.95 * allowed..=1.05 * allowed).contains(&amount), "{what}: {amount} of {allowed}");
}

const REQUESTS: Limits = Limits { requests_per_minute: 120, tokens_per_minute: 0, concurrent: 0 };

/// A network: its seed, the number of routers, percentages of messages, and the range of delays.
#[derive(Clone, Copy, Debug)]
struct Network {
    seed: u64,
    routers: u64,
    lost: u64,
    repeated: u64,
    delay_ms: (u64, u64),
}

const NETWORKS: [Network; 6] = [
    Network { seed: 1, routers: 2, lost: 0, repeated: 0, delay_ms: (0, 1) },
    Network { seed: 2, routers: 3, lost: 0, repeated: 0, delay_ms: (1, 10) },
    Network { seed: 3, routers: 5, lost: 0, repeated: 10, delay_ms: (20, 80) },
    Network { seed: 4, routers: 3, lost: 2, repeated: 5, delay_ms: (1, 30) },
    Network { seed: 5, routers: 8, lost: 5, repeated: 5, delay_ms: (10, 100) },
    Network { seed: 6, routers: 4, lost: 10, repeated: 0, delay_ms: (5, 200) },
];

fn network(one: Network) -> Net<Node> {
    let mut net = cluster(one.seed, one.routers);
    (net.lost, net.repeated) = (one.lost, one.repeated);
    net.set_delay_ms(one.delay_ms.0..=one.delay_ms.1);
    net.steps(40);
    net
}

#[test]
fn requests_a_minute_hold_across_routers_wherever_they_arrive() {
    for one in NETWORKS {
        for arrivals in [Arrivals::Everywhere, Arrivals::At(1), Arrivals::At(2)] {
            let mut net = network(one);
            flood(&mut net, REQUESTS, arrivals, 30, |_| {});
            net.steps(60);
            assert_within(&format!("{one:?} {arrivals:?}"), admitted(&net), 120.0 + 60.0);
        }
    }
}

#[test]
fn tokens_a_minute_hold_across_routers() {
    let limits = Limits { requests_per_minute: 0, tokens_per_minute: 30_000, concurrent: 0 };
    for one in NETWORKS {
        let mut net = network(one);
        flood(&mut net, limits, Arrivals::Everywhere, 30, |_| {});
        net.steps(60);
        // Requests reserve 100 tokens and use half of them; what is reserved at the end has been used by none.
        let used = sum(&net, |node| node.tokens);
        assert!(used <= 1.05 * 45_000.0, "{one:?}: {used}");
        assert!(used >= 0.95 * 45_000.0 - 100.0 * 20.0, "{one:?}: {used}");
    }
}

#[test]
fn concurrency_holds_across_routers_at_any_time() {
    let limits = Limits { requests_per_minute: 0, tokens_per_minute: 0, concurrent: 10 };
    for one in NETWORKS.into_iter().filter(|one| one.lost == 0) {
        for arrivals in [Arrivals::Everywhere, Arrivals::At(1)] {
            let (mut net, mut most) = (network(one), 0);
            flood(&mut net, limits, arrivals, 20, |net| {
                most = most.max(net.nodes.values().map(|node| node.running.len()).sum::<usize>());
            });
            assert_eq!(most, 10, "{one:?} {arrivals:?}");
            net.steps(80);
            assert_eq!(
                sum(&net, |node| u64::from(node.limits.rates().running(TENANT))),
                0.0,
                "nothing stays"
            );
        }
    }
}

#[test]
fn lost_messages_leave_no_request_counted_forever() {
    let limits = Limits { requests_per_minute: 0, tokens_per_minute: 0, concurrent: 20 };
    for one in NETWORKS.into_iter().filter(|one| one.lost > 0) {
        let (mut net, mut most) = (network(one), 0);
        flood(&mut net, limits, Arrivals::Everywhere, 20, |net| {
            most = most.max(net.nodes.values().map(|node| node.running.len()).sum::<usize>());
        });
        // A place whose end was lost is free again after half a second.
        assert!((17..=21).contains(&most), "{one:?}: {most}");
        net.heal();
        net.steps(120);
        assert_eq!(sum(&net, |node| u64::from(node.limits.rates().running(TENANT))), 0.0, "{one:?}");
    }
}

#[test]
fn a_router_that_is_cut_off_has_the_limit_alone_and_shares_again_when_healed() {
    let mut net = cluster(11, 3);
    // The buckets are empty when the cut comes, so each side has what flows in from then on.
    flood(&mut net, REQUESTS, Arrivals::Everywhere, 10, |_| {});
    net.cut.extend([(1, 3), (2, 3)]);
    flood(&mut net, REQUESTS, Arrivals::Everywhere, 5, |_| {});
    let before: Vec<f64> = net.nodes.values().map(|node| node.admitted as f64).collect();
    flood(&mut net, REQUESTS, Arrivals::Everywhere, 60, |_| {});
    let after: Vec<f64> = net.nodes.values().map(|node| node.admitted as f64).collect();
    assert_within("the two that reach each other", after[0] + after[1] - before[0] - before[1], 120.0);
    assert_within("the one that is cut off", after[2] - before[2], 120.0);
    net.heal();
    flood(&mut net, REQUESTS, Arrivals::Everywhere, 5, |_| {});
    let healed = admitted(&net);
    flood(&mut net, REQUESTS, Arrivals::Everywhere, 60, |_| {});
    assert_within("all together", admitted(&net) - healed, 120.0);
}

#[test]
fn the_next_home_goes_on_where_a_killed_one_stopped() {
    for killed in 1..=3 {
        let mut net = cluster(20 + killed, 3);
        flood(&mut net, REQUESTS, Arrivals::Everywhere, 10, |_| {});
        let gone = net.nodes.remove(&killed).unwrap();
        assert_within("before", admitted(&net) + gone.admitted as f64, 140.0);
        flood(&mut net, REQUESTS, Arrivals::Everywhere, 30, |_| {});
        let all = admitted(&net) + gone.admitted as f64;
        assert_within(&format!("router {killed} killed"), all, 200.0);
    }
}

/// A home that hangs is heard no more. Until the others agree on the next one, each of them counts its own requests.
#[test]
fn while_a_home_hangs_each_router_counts_its_own_for_a_bounded_time() {
    let limits = Limits { requests_per_minute: 0, tokens_per_minute: 0, concurrent: 10 };
    let (mut most, mut longest) = (0, Micros::ZERO);
    for seed in 100..104 {
        for hung in 1..=5 {
            let one = Network { seed, routers: 5, lost: 0, repeated: 10, delay_ms: (20, 80) };
            let mut net = network(one);
            flood(&mut net, limits, Arrivals::Everywhere, 5, |_| {});
            net.nodes.remove(&hung);
            let (since, mut exceeded) = (net.now, Micros::ZERO);
            flood(&mut net, limits, Arrivals::Everywhere, 10, |net| {
                let running = net.nodes.values().map(|node| node.running.len()).sum::<usize>();
                most = most.max(running);
                if running > 10 {
                    exceeded = net.now.since(since);
                }
            });
            longest = longest.max(exceeded);
        }
    }
    println!("five routers, one hangs: at most {most} of 10 at once, over by {longest:?} after it hung");
    assert!(most <= 4 * 10, "each of the others has the limit once: {most}");
    assert!(longest < Micros::from_secs(2), "{longest:?}");
}

#[test]
fn a_router_that_joins_brings_no_allowance_of_its_own() {
    for new in [4, 5, 6, 7] {
        let mut net = cluster(30 + new, 3);
        flood(&mut net, REQUESTS, Arrivals::Everywhere, 10, |_| {});
        net.nodes.insert(new, Node::new(new));
        net.steps(8);
        let before = admitted(&net);
        flood(&mut net, REQUESTS, Arrivals::Everywhere, 60, |_| {});
        assert_within(&format!("router {new}"), admitted(&net) - before, 120.0);
    }
}
