//! Requests whose prompts are not rendered, on engines whose events are followed: they are presumed.

use super::*;

/// A turn of a conversation with a setting that the router does not follow. The engine's prompt is the same with it.
fn turn(number: usize, turns: usize) -> String {
    let messages = conversation(number, turns);
    json!({"model": MODEL, "max_tokens": 1, "messages": messages, "truncate_prompt_tokens": 100_000})
        .to_string()
}

fn ask(gateway: &Gateway, body: &str) -> Prediction {
    let response = post(gateway.url(), "/v1/chat/completions", body);
    assert_eq!(response.status, 200, "{}", response.text());
    Prediction::of(&response)
}

/// The longest overlap that a router expects now. The preview leaves no trace.
fn overlap(gateway: &Gateway, body: &str) -> u64 {
    let page = post(gateway.admin(), "/explain", body).json();
    let overlaps = page["candidates"].as_array().unwrap().iter();
    overlaps.map(|one| one["overlap_tokens"].as_u64().unwrap()).max().unwrap()
}

/// Waits until requests sent before this are no longer presumed only until their events: so is this one, whose events
/// come late.
fn outlive_awaited_events(cluster: &Cluster) {
    let order = |fault: &str| {
        cluster.engines.iter().for_each(|one| assert_eq!(post(one.url(), "/fault", fault).status, 200));
    };
    order(r#"{"kind":"events","lag_ms":60000}"#);
    let late = json!({"model": MODEL, "max_tokens": 1, "messages": conversation(77, 5)}).to_string();
    let sent = ask(&cluster.gateway, &late);
    assert!(overlap(&cluster.gateway, &late) + 2 * BLOCK > sent.cached, "its event is awaited");
    let known = overlap(&cluster.gateway, &late);
    eventually("its presumption ends", || (overlap(&cluster.gateway, &late) < known).then_some(()));
}

#[test]
fn conversations_that_are_not_rendered_keep_their_worker_after_the_time_of_their_events() {
    let policy = ["--policy", "sticky_least_loaded"];
    let cluster = Cluster::new("model-unrendered", 3, &[], &policy);
    let first: Vec<Prediction> = (0..6).map(|number| ask(&cluster.gateway, &turn(number, 9))).collect();
    outlive_awaited_events(&cluster);
    for (number, before) in first.iter().enumerate() {
        let asked = ask(&cluster.gateway, &turn(number, 11));
        assert_eq!(asked.worker, before.worker, "{asked:?} after {before:?}");
        assert!(asked.predicted > before.prompt / 2 && asked.predicted <= asked.cached, "{asked:?}");
    }
    assert!(cluster.gateway.workers().iter().all(|worker| worker["view"] == "reported"));
    let metrics = get(cluster.gateway.admin(), "/metrics").text();
    assert!(metrics.contains("warmroute_unrendered_total{"), "{metrics}");
}
