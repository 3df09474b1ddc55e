//! Engines that restart: the old process's cache is not credited to the new one.

use super::faults::patiently;
use super::*;
use crate::harness::process::engine_on;

fn restarts(cluster: &Cluster) -> f64 {
    cluster.gateway.metric_sum("warmroute_feed_restarts_total")
}

fn restart(cluster: &Cluster) {
    assert_eq!(post(cluster.engines[0].url(), "/fault", r#"{"kind":"restart"}"#).status, 200);
}

#[test]
fn a_restarted_engines_cache_is_cleared_at_once_and_no_other() {
    let mut cluster = Cluster::new("model-restart", 2, &[], &[]);
    for number in 0..8 {
        cluster.ask(&conversation(number, 3));
    }
    cluster.settle();
    restart(&cluster);
    // Without a request, the new process shows by not knowing the old one's last batch.
    eventually("the restart is noticed", || (restarts(&cluster) >= 1.0).then_some(()));
    cluster.wait_for_view("reported");
    let restarted = cluster.engines[0].url().to_owned();
    let mut known_elsewhere = 0;
    for number in 0..8 {
        let asked = Prediction::of(&chat(&cluster.gateway, &conversation(number, 3)));
        assert!(asked.predicted <= asked.cached, "nothing is credited across a restart: {asked:?}");
        known_elsewhere += if asked.worker == restarted { 0 } else { asked.predicted };
    }
    assert!(known_elsewhere > 0, "the other engine is not forgotten");
}

#[test]
fn a_router_that_joins_after_a_reset_learns_of_it_before_the_first_request() {
    let mut cluster = Cluster::new("model-joins-after-reset", 1, &[], &[]);
    cluster.ask(&conversation(0, 3));
    cluster.settle();
    // The engine is idle, so it publishes the reset only with its next step; its replay says that all is cached.
    assert_eq!(post(cluster.engines[0].url(), "/reset_prefix_cache", "{}").status, 200);
    let folder = format!("{}/model-joins-after-reset", env!("CARGO_TARGET_TMPDIR"));
    cluster.gateway = Gateway::start(&[cluster.engines[0].url()], &["--model-path", &folder]);
    cluster.wait_for_view("reported");
    let asked = Prediction::of(&chat(&cluster.gateway, &conversation(0, 3)));
    assert_eq!((asked.predicted, asked.cached), (0, 0), "{asked:?}");
}

#[test]
fn without_a_replay_a_lost_connection_is_uncertain_until_the_first_event() {
    let mut cluster = Cluster::without_events("model-restart-without-events", 1, &[], &[]);
    eventually("its events can be read", || cluster.gateway.workers()[0]["events"].is_object().then_some(()));
    let whole: Vec<Prediction> = (0..4).map(|number| cluster.ask(&conversation(number, 3))).collect();
    cluster.wait_for_view("reported");
    restart(&cluster);
    cluster.wait_for_view("uncertain");
    // Events before the reconnection are lost: a replay is requested in vain.
    let replays = || cluster.gateway.workers()[0]["events"]["stream"]["replays"].as_u64();
    eventually("we are connected again", || (replays() >= Some(2)).then_some(()));
    cluster.wait_for_view("uncertain");
    let first = cluster.ask(&conversation(0, 3));
    assert_eq!(first.cached, 0, "the new process holds nothing");
    assert!(first.predicted <= whole[0].prompt / 2, "the dead one's word counts half at most: {first:?}");
    eventually("its first event tells who it is", || (restarts(&cluster) >= 1.0).then_some(()));
    cluster.wait_for_view("reported");
    for number in 1..4 {
        let asked = cluster.ask(&conversation(number, 3));
        assert!(asked.predicted <= asked.cached, "nothing is credited across a restart: {asked:?}");
    }
}

#[test]
fn an_engine_whose_events_moved_is_found_again() {
    let mut cluster = Cluster::new("model-moved", 1, &[], &[]);
    cluster.ask(&conversation(0, 3));
    let before = cluster.engines.remove(0);
    let port = before.url().rsplit(':').next().unwrap().to_owned();
    drop(before);
    let flags = ["--events", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0"];
    let after = engine_on(&port, &flags);
    // The old endpoint counts as silent after 10 s; queries are 15 s apart.
    patiently("its events are found where they are now", || {
        (cluster.gateway.workers()[0]["view"] == "reported").then_some(())
    });
    let cold = Prediction::of(&chat(&cluster.gateway, &conversation(0, 3)));
    assert_eq!((cold.predicted, cold.cached), (0, 0), "{cold:?}");
    eventually("its events are heard", || {
        let asked = Prediction::of(&chat(&cluster.gateway, &conversation(0, 3)));
        assert!(asked.predicted <= asked.cached + BLOCK, "{asked:?}");
        (asked.predicted > 0 && cluster.stored() > 0).then_some(())
    });
    drop(after);
}
