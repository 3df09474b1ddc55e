//! What all of them must do, in a small world.

use warmroute_engine::Profile;

use super::*;
use crate::{Config, Outcome, Rule, Scale, Session, View, Workload, run};

/// Those that keep a prefix that all share on few workers, as their texts say.
const HERDS: [&str; 3] = ["preble_e2", "llmd_weights", "llmd_sticky"];

fn outcome(peer: &str, workload: Workload, requests: u64) -> Outcome {
    let config = Config { view: View::Exact, ..Config::new(Profile::Llama3_1_8b, 4) };
    let scale = Scale { requests: Some(requests), rate: 0.5, ..Scale::default() };
    let sessions: Vec<Session> = workload.sessions(scale).collect();
    run(&config, &Rule::parse(peer).unwrap(), sessions.into_iter()).unwrap()
}

#[test]
fn every_peer_is_found_by_the_name_it_bears() {
    for peer in &PEERS {
        assert_eq!((peer.make)().policy.name(), peer.name);
        assert_eq!(Peer::named(&peer.name.replace('_', "-")).unwrap().name, peer.name);
    }
    assert!(Peer::named("round_robin").is_none());
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for peer in &PEERS {
        let once = outcome(peer.name, Workload::Sharegpt, 300);
        assert_eq!(once.records.len(), 300, "{}", peer.name);
        assert_eq!(once, outcome(peer.name, Workload::Sharegpt, 300), "{}", peer.name);
    }
}

#[test]
fn a_prefix_that_all_share_is_spread_or_the_rule_is_known_to_herd() {
    let spread = |peer: &Peer| {
        let totals = outcome(peer.name, Workload::OneHotPrefix, 600).totals;
        (peer.name, totals.iter().map(|total| total.requests).collect::<Vec<u64>>())
    };
    let spreads: Vec<(&str, Vec<u64>)> = PEERS.iter().map(spread).collect();
    // Of 600, 150 each would be even; a fifth of that is to be left out. CHWBL's bound alone allows a third.
    let is_herd = |(_, requests): &&(&str, Vec<u64>)| requests.iter().any(|&one| one < 30);
    let herds: Vec<&str> = spreads.iter().filter(is_herd).map(|&(name, _)| name).collect();
    assert_eq!(herds, HERDS, "{spreads:?}");
}
