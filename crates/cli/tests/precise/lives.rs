//! Engines that die and come back: what is known of the dead is not credited to the living.

use super::world::process::engine_on;
use super::*;
use crate::faults::patiently;

fn restarts(world: &World) -> f64 {
    world.gateway.metric_sum("warmroute_feed_restarts_total")
}

fn restart(world: &World) {
    assert_eq!(post(world.engines[0].url(), "/fault", r#"{"kind":"restart"}"#).status, 200);
}

#[test]
fn an_engine_that_is_restarted_is_forgotten_at_once_and_no_other() {
    let mut world = World::new("model-restart", 2, &[], &[]);
    for number in 0..8 {
        world.ask(&conversation(number, 3));
    }
    world.settle();
    restart(&world);
    // Nobody asks it anything: that it does not know its own last batch gives the new process away.
    eventually("the restart is noticed", || (restarts(&world) >= 1.0).then_some(()));
    world.wait_for_view("reported");
    let restarted = world.engines[0].url().to_owned();
    let mut known_elsewhere = 0;
    for number in 0..8 {
        let asked = Asked::of(&chat(&world.gateway, &conversation(number, 3)));
        assert!(asked.predicted <= asked.cached, "nothing is credited across a restart: {asked:?}");
        known_elsewhere += if asked.worker == restarted { 0 } else { asked.predicted };
    }
    assert!(known_elsewhere > 0, "the other engine is not forgotten");
}

#[test]
fn without_a_replay_a_lost_connection_is_uncertain_until_the_first_event() {
    let mut world = World::unheard("model-restart-unheard", 1, &[], &[]);
    eventually("its events can be read", || world.gateway.workers()[0]["events"].is_object().then_some(()));
    let whole: Vec<Asked> = (0..4).map(|number| world.ask(&conversation(number, 3))).collect();
    world.wait_for_view("reported");
    restart(&world);
    world.wait_for_view("uncertain");
    // What it publishes before we are connected again, nobody hears: a replay is asked for, in vain, when we are.
    let replays = || world.gateway.workers()[0]["events"]["stream"]["replays"].as_u64();
    eventually("we are connected again", || (replays() >= Some(2)).then_some(()));
    world.wait_for_view("uncertain");
    let first = world.ask(&conversation(0, 3));
    assert_eq!(first.cached, 0, "the new process holds nothing");
    assert!(first.predicted <= whole[0].prompt / 2, "the dead one's word counts half at most: {first:?}");
    eventually("its first event tells who it is", || (restarts(&world) >= 1.0).then_some(()));
    world.wait_for_view("reported");
    for number in 1..4 {
        let asked = world.ask(&conversation(number, 3));
        assert!(asked.predicted <= asked.cached, "nothing is credited across a restart: {asked:?}");
    }
}

#[test]
fn an_engine_that_comes_back_with_its_events_elsewhere_is_found_again() {
    let mut world = World::new("model-moved", 1, &[], &[]);
    world.ask(&conversation(0, 3));
    let before = world.engines.remove(0);
    let port = before.url().rsplit(':').next().unwrap().to_owned();
    drop(before);
    let flags = ["--events", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0"];
    let after = engine_on(&port, &flags);
    // Its old endpoint is silent after 10 s, and then it is asked; 15 s pass between two questions.
    patiently("its events are found where they are now", || {
        (world.gateway.workers()[0]["view"] == "reported").then_some(())
    });
    let cold = Asked::of(&chat(&world.gateway, &conversation(0, 3)));
    assert_eq!((cold.predicted, cold.cached), (0, 0), "{cold:?}");
    eventually("its events are heard", || {
        let asked = Asked::of(&chat(&world.gateway, &conversation(0, 3)));
        assert!(asked.predicted <= asked.cached + BLOCK, "{asked:?}");
        (asked.predicted > 0 && world.stored() > 0).then_some(())
    });
    drop(after);
}
