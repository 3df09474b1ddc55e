//! Images in prompts: matched by the hashes in the engines' events, with as many placeholders as the engine has.

use super::{BLOCK, Cluster, MODEL, Prediction, conversation};
use crate::harness::client::post;
use crate::harness::eventually;
use crate::harness::process::{Gateway, Process};
use serde_json::{Value, json};

fn image(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn inline(number: u32) -> Value {
    image(&format!("data:image/png;base64,{}", format!("iVBORw0KGgo{number}").repeat(30)))
}

fn text(text: &str, times: usize) -> Value {
    json!({"type": "text", "text": text.repeat(times)})
}

/// A question about images, and how often its conversation went on.
fn question(images: &[Value], turns: usize) -> Value {
    let mut parts = vec![text("Look at this closely, please. ", 12)];
    for image in images {
        parts.extend([image.clone(), text("Then describe it in a few words. ", 9)]);
    }
    let mut messages = vec![json!({"role": "user", "content": parts})];
    for turn in 0..turns {
        messages.push(json!({"role": "assistant", "content": format!("It is number {turn}. ").repeat(9)}));
        messages.push(json!({"role": "user", "content": format!("And what else, {turn}? ").repeat(9)}));
    }
    Value::Array(messages)
}

/// A cluster whose engine has shown that it reports cached tokens, which it omits where there are none.
fn cluster(name: &str) -> Cluster {
    let mut cluster = Cluster::new(name, 1, &[], &[]);
    for _ in 0..2 {
        cluster.ask(&conversation(1, 3));
        cluster.settle();
    }
    cluster
}

fn ask(cluster: &mut Cluster, messages: &Value) -> Prediction {
    let asked = cluster.ask(messages);
    cluster.settle();
    asked
}

/// Everything of an earlier prompt but its last blocks, which differ.
fn is_most_of(asked: &Prediction, before: &Prediction) -> bool {
    asked.cached + 2 * BLOCK >= before.prompt
}

#[test]
fn conversations_about_images_are_promised_as_they_are_found() {
    let mut cluster = cluster("model-media");
    for number in 0..3 {
        let mut before = ask(&mut cluster, &question(&[inline(number)], 0));
        assert_eq!(before.predicted, before.cached, "another image ends the match: {before:?}");
        for turns in 1..4 {
            let asked = ask(&mut cluster, &question(&[inline(number)], turns));
            assert_eq!(asked.predicted, asked.cached, "image {number}, turn {turns}");
            assert!(is_most_of(&asked, &before), "{asked:?} after {before:?}");
            before = asked;
        }
    }
    let counted = |name: &str| cluster.gateway.metric_sum(name);
    let wrong = ["warmroute_stale_tokens_total", "warmroute_missed_tokens_total"].map(counted);
    assert_eq!(wrong, [0.0, 0.0]);
}

#[test]
fn several_images_of_one_prompt_are_told_apart() {
    let mut cluster = cluster("model-several-media");
    let first = ask(&mut cluster, &question(&[inline(7), inline(8)], 0));
    let again = ask(&mut cluster, &question(&[inline(7), inline(8)], 1));
    assert_eq!(again.predicted, again.cached, "{again:?}");
    assert!(is_most_of(&again, &first), "{again:?} after {first:?}");
    // The first image is known here, and the second is another.
    let other = ask(&mut cluster, &question(&[inline(7), inline(9)], 0));
    assert_eq!(other.predicted, other.cached, "{other:?}");
    assert!(other.cached > 12 * 30 / 2 + 40, "the first image is part of it: {other:?}");
    let swapped = ask(&mut cluster, &question(&[inline(8), inline(7)], 0));
    assert_eq!(swapped.predicted, swapped.cached, "{swapped:?}");
}

#[test]
fn images_behind_a_url_end_the_match_because_they_may_change() {
    let mut cluster = cluster("model-url-media");
    let remote = [image("http://example.invalid/picture.png")];
    let first = ask(&mut cluster, &question(&remote, 0));
    let again = ask(&mut cluster, &question(&remote, 1));
    assert!(is_most_of(&again, &first), "the engine finds it: {again:?}");
    let before_the_image = 12 * 30 / 2 / BLOCK * BLOCK;
    assert!(
        again.predicted >= before_the_image - BLOCK && again.predicted < first.prompt - 2 * BLOCK,
        "{again:?}"
    );
}

#[test]
fn the_images_of_an_engines_first_conversation_are_known_although_it_omits_a_count_of_zero() {
    let mut cluster = Cluster::new("model-first-media", 1, &[], &[]);
    let first = ask(&mut cluster, &question(&[inline(1)], 0));
    let again = ask(&mut cluster, &question(&[inline(1)], 1));
    assert_eq!(again.predicted, again.cached, "{again:?}");
    assert!(is_most_of(&again, &first), "{again:?} after {first:?}");
}

#[test]
fn an_engines_restart_leaves_conversations_about_images_at_the_others() {
    let mut cluster = Cluster::new("model-media-restart", 3, &[], &[]);
    for turns in 0..2 {
        ask(&mut cluster, &question(&[inline(4)], turns));
    }
    let home = ask(&mut cluster, &question(&[inline(4)], 2));
    assert_eq!(home.predicted, home.cached, "{home:?}");
    let other = cluster.engines.iter().find(|engine| engine.url() != home.worker).unwrap();
    // Something must be lost for the restart to show.
    let body = json!({"model": MODEL, "max_tokens": 1, "messages": conversation(1, 3)}).to_string();
    let answer = post(other.url(), "/v1/chat/completions", &body).json();
    cluster.told += answer["usage"]["prompt_tokens"].as_u64().unwrap() / BLOCK;
    cluster.settle();
    assert_eq!(post(other.url(), "/fault", r#"{"kind":"restart"}"#).status, 200);
    let restarts = || cluster.gateway.metric_sum("warmroute_feed_restarts_total");
    eventually("the restart is noticed", || (restarts() >= 1.0).then_some(()));
    cluster.wait_for_view("reported");
    let mut before = home.clone();
    for turns in 3..6 {
        let asked = ask(&mut cluster, &question(&[inline(4)], turns));
        assert_eq!((&asked.worker, asked.predicted), (&home.worker, asked.cached), "{asked:?}");
        assert!(is_most_of(&asked, &before), "{asked:?} after {before:?}");
        before = asked;
    }
}

/// Ends the gateway, and starts another one.
fn restart_gateway(cluster: Cluster, flags: &[&str]) -> Cluster {
    let Cluster { engines, gateway, told } = cluster;
    gateway.process.signal("-TERM");
    assert!(gateway.process.wait().success());
    let urls: Vec<&str> = engines.iter().map(Process::url).collect();
    let gateway = Gateway::start(&urls, flags);
    let cluster = Cluster { engines, gateway, told };
    cluster.wait_for_view("reported");
    cluster
}

#[test]
fn a_restarted_router_knows_saved_images_and_learns_cached_ones() {
    let folder = format!("{}/model-media-router", env!("CARGO_TARGET_TMPDIR"));
    let state = format!("{folder}-state");
    _ = std::fs::remove_file(&state);
    let kept = ["--model-path", folder.as_str(), "--state", state.as_str()];
    let mut cluster = Cluster::new("model-media-router", 1, &[], &kept[2..]);
    let first = ask(&mut cluster, &question(&[inline(5)], 0));
    let mut cluster = restart_gateway(cluster, &kept);
    let saved = ask(&mut cluster, &question(&[inline(5)], 1));
    assert_eq!(saved.predicted, saved.cached, "the file has it: {saved:?}");
    assert!(is_most_of(&saved, &first), "{saved:?} after {first:?}");
    let mut cluster = restart_gateway(cluster, &kept[..2]);
    let unknown = ask(&mut cluster, &question(&[inline(5)], 2));
    assert!(unknown.predicted < unknown.cached, "without a file it ends the match: {unknown:?}");
    let learned = ask(&mut cluster, &question(&[inline(5)], 3));
    assert_eq!(learned.predicted, learned.cached, "although it was never computed again: {learned:?}");
}
