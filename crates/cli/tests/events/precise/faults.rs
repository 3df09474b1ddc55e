//! Each fault of an event stream and its cost, with caches too small for the traffic.
//!
//! Without eviction a lost removal does no harm, and requests that are faster than events are mispredicted anyway. So
//! caches hold less than half of all conversations, and engines publish before they answer, as vLLM does.

use std::time::{Duration, Instant};

use super::*;

/// Less than half of the conversations of one engine.
const KV_TOKENS: &str = "4000";
const CONVERSATIONS: usize = 24;
const REQUESTS: usize = 160;
/// One engine is restarted after this many requests.
const RESTART_EVERY: usize = 20;
/// Requests that may follow before the restart is noticed.
const UNNOTICED: usize = 4;

/// A fault and its permitted cost.
struct Fault {
    name: &'static str,
    kind: Kind,
    /// Maximum share of predicted tokens that may be absent.
    stale_max: f64,
    /// Minimum share of the hits without the fault.
    hit_share_min: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// The fault can be repaired: every view must be reported again.
    Mends(&'static str),
    /// Lost events stay lost: the view may remain uncertain, but its predictions must be right again.
    Stays(&'static str),
    Restarts,
}

impl Kind {
    fn order(self) -> &'static str {
        match self {
            Kind::Mends(order) | Kind::Stays(order) => order,
            Kind::Restarts => NO_FAULT,
        }
    }
}

const NO_FAULT: &str = r#"{"kind":"none"}"#;

/// The cost of a fault.
struct Damage {
    hit: f64,
    predicted: f64,
    stale: f64,
    healed_ms: u128,
}

/// A view that lost events is rebuilt 2, 4, 8 and more seconds later.
pub fn patiently<T>(what: &str, mut happened: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        if let Some(result) = happened() {
            return result;
        }
        assert!(Instant::now() < deadline, "it never happened: {what}");
    }
}

fn order(cluster: &Cluster, fault: &str) {
    for one in &cluster.engines {
        assert_eq!(post(one.url(), "/fault", fault).status, 200, "{fault}");
    }
}

/// Runs conversations during a fault, then ends it and waits until every prediction is right again.
fn damage(name: &str, kind: Kind) -> Damage {
    let flags = ["--policy", "sticky_least_loaded"];
    let mut cluster = Cluster::new(name, 3, &["--kv-tokens", KV_TOKENS], &flags);
    order(&cluster, kind.order());
    let mut turns = [1_usize; CONVERSATIONS];
    let (mut predicted, mut stale, mut cached, mut prompt) = (0, 0, 0, 0);
    // In random order, because a cycle slightly larger than the cache evicts exactly the next entry.
    let mut draw = 1_usize;
    for request in 0..REQUESTS {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (draw >> 33) % turns.len();
        let asked = cluster.ask(&conversation(number, turns[number]));
        turns[number] = (turns[number] + 2).min(9);
        predicted += asked.predicted;
        let over = asked.predicted.saturating_sub(asked.cached);
        stale += if over > BLOCK { over } else { 0 };
        (cached, prompt) = (cached + asked.cached, prompt + asked.prompt);
        if kind == Kind::Restarts {
            restart_now_and_then(&cluster, request, &asked.worker);
        }
    }
    order(&cluster, NO_FAULT);
    let healed_ms = heal(&mut cluster, kind, &turns);
    Damage {
        hit: cached as f64 / prompt as f64,
        predicted: predicted as f64 / prompt as f64,
        stale: stale as f64 / f64::max(1.0, predicted as f64),
        healed_ms,
    }
}

/// Restarts the engine that has just answered, because it has certainly published. A few requests follow at once;
/// then the test waits until the restart is noticed, since here a second has two thousand requests.
fn restart_now_and_then(cluster: &Cluster, request: usize, answered: &str) {
    let (round, step) = (request / RESTART_EVERY, request % RESTART_EVERY);
    if step == RESTART_EVERY - 1 {
        assert_eq!(post(answered, "/fault", r#"{"kind":"restart"}"#).status, 200);
    }
    if step == UNNOTICED - 1 {
        let restarts = || cluster.gateway.metric_sum("warmroute_feed_restarts_total");
        eventually(&format!("{round} restarts are noticed"), || (restarts() >= round as f64).then_some(()));
    }
}

/// The time until the affected prompts are predicted right.
fn heal(cluster: &mut Cluster, kind: Kind, turns: &[usize]) -> u128 {
    let (began, is_lasting) = (Instant::now(), matches!(kind, Kind::Stays(_)));
    let mut numbers: Vec<usize> = (0..turns.len()).collect();
    patiently(&format!("views are right again: {:?}", cluster.gateway.workers()), || {
        // Back and forth, because a cycle evicts exactly the next entry.
        numbers.reverse();
        let asked = numbers.iter().map(|&number| cluster.ask(&conversation(number, turns[number])));
        // An uncertain view predicts less than the engine holds, on purpose.
        let is_under = |asked: &Prediction| !is_lasting && asked.predicted + BLOCK < asked.cached;
        let wrong = asked.filter(|asked| asked.predicted > asked.cached + BLOCK || is_under(asked)).count();
        (wrong <= 3).then_some(())
    });
    let healed_ms = began.elapsed().as_millis();
    if !is_lasting {
        patiently(&format!("every view is reported again: {:?}", cluster.gateway.workers()), || {
            (0..turns.len()).for_each(|number| _ = cluster.ask(&conversation(number, turns[number])));
            cluster.gateway.workers().iter().all(|worker| worker["view"] == "reported").then_some(())
        });
    }
    healed_ms
}

/// Bounds that a working router keeps by chance, too: hits differ by ten points between runs, because placement is random.
const FAULTS: [Fault; 10] = [
    // On a busy machine, a few requests in a hundred overtake the events of the previous one.
    Fault { name: "none", kind: Kind::Mends(NO_FAULT), stale_max: 0.12, hit_share_min: 0.0 },
    Fault {
        name: "lag 200 ms",
        kind: Kind::Mends(r#"{"kind":"events","lag_ms":200}"#),
        stale_max: 0.50,
        hit_share_min: 0.60,
    },
    Fault {
        name: "lag 700 ms",
        kind: Kind::Mends(r#"{"kind":"events","lag_ms":700}"#),
        stale_max: 0.50,
        hit_share_min: 0.55,
    },
    Fault {
        name: "loss",
        kind: Kind::Mends(r#"{"kind":"events","loss":0.2}"#),
        stale_max: 0.25,
        hit_share_min: 0.60,
    },
    Fault {
        name: "reorder",
        kind: Kind::Mends(r#"{"kind":"events","reorder":0.3}"#),
        stale_max: 0.10,
        hit_share_min: 0.75,
    },
    Fault {
        name: "duplicate",
        kind: Kind::Mends(r#"{"kind":"events","duplicate":0.5}"#),
        stale_max: 0.05,
        hit_share_min: 0.75,
    },
    Fault {
        name: "truncated",
        kind: Kind::Stays(r#"{"kind":"events","loss":0.2,"replay_batches":1}"#),
        stale_max: 0.35,
        hit_share_min: 0.55,
    },
    Fault { name: "restart", kind: Kind::Restarts, stale_max: 0.20, hit_share_min: 0.45 },
    Fault {
        name: "hidden-removals",
        kind: Kind::Stays(r#"{"kind":"events","removals":"hidden"}"#),
        stale_max: 0.30,
        hit_share_min: 0.60,
    },
    Fault {
        name: "stores-ahead",
        kind: Kind::Stays(r#"{"kind":"events","stores":"ahead"}"#),
        stale_max: 0.10,
        hit_share_min: 0.75,
    },
];

#[test]
fn every_fault_of_a_stream_is_survived_within_bounds() {
    println!("{:<18}{:>12}{:>12}{:>12}{:>14}", "fault", "hit ratio", "predicted", "stale", "right again");
    let (mut clean_hit, mut broken) = (None, Vec::new());
    for Fault { name, kind, stale_max, hit_share_min } in FAULTS {
        let folder = format!("model-fault-{}", name.replace(' ', "-"));
        let Damage { hit, predicted, stale, healed_ms } = damage(&folder, kind);
        let [hit_pc, predicted_pc, stale_pc] = [hit, predicted, stale].map(|share| share * 100.0);
        println!("{name:<18}{hit_pc:>11.1}%{predicted_pc:>11.1}%{stale_pc:>11.1}%{healed_ms:>11} ms");
        let clean = *clean_hit.get_or_insert(hit);
        let bounds = [
            (stale <= stale_max, "too much was promised and not there"),
            (hit >= clean * hit_share_min, "too many hits were lost"),
            (clean >= 0.5, "there was little to lose"),
            (predicted >= 0.2, "next to nothing was promised"),
            (healed_ms < 60_000, "it took too long to be right again"),
        ];
        let missed = bounds.into_iter().filter(|(holds, _)| !holds);
        broken.extend(missed.map(|(_, what)| format!("{name}: {what}")));
    }
    assert!(broken.is_empty(), "{broken:?}");
}
