//! Engines whose model has several caches: the router promises what all of them together can serve.

use super::{BLOCK, Cluster, MODEL, Prediction};
use crate::harness::client::{Call, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, engine};
use serde_json::json;

/// Tokens that the second group sees.
const WINDOW: u64 = 64;

/// Sends a prompt of this text. Three tokens are generated, so that the window moves on before the request ends.
fn complete(cluster: &mut Cluster, text: &str) -> Prediction {
    let body = json!({"model": MODEL, "max_tokens": 3, "prompt": text});
    let response = post(cluster.gateway.url(), "/v1/completions", &body.to_string());
    assert_eq!(response.status, 200, "{}", response.text());
    let asked = Prediction::of(&response);
    // The last generated token is not computed.
    cluster.told += (asked.prompt + 2) / BLOCK - asked.cached / BLOCK;
    cluster.settle();
    asked
}

/// Text of so many blocks: two bytes a token. The first token of a prompt is none of the text.
fn text(name: &str, blocks: u64) -> String {
    let unit = format!("{name}, a text like no other. ");
    unit.repeat(blocks as usize * 2).chars().take((blocks * BLOCK * 2) as usize - 2).collect()
}

/// Text that ends two tokens earlier, so that none of the generated tokens begins a block. A block that begins while
/// decoding evicts another with an event that stores nothing, and `settle` waits for what is stored.
fn ending_early(name: &str, blocks: u64) -> String {
    text(name, blocks).chars().take((blocks * BLOCK * 2) as usize - 6).collect()
}

fn cluster(name: &str, kv_tokens: &str) -> Cluster {
    let window = WINDOW.to_string();
    let flags = ["--sliding-window", window.as_str(), "--kv-tokens", kv_tokens];
    Cluster::new(name, 1, &flags, &[])
}

#[test]
fn a_prefix_without_its_window_is_not_promised() {
    // 200 blocks for both groups.
    let mut cluster = cluster("model-window", "3200");
    let first = text("first", 40);
    let asked = complete(&mut cluster, &format!("{first}{}", ending_early("question", 2)));
    assert_eq!((asked.predicted, asked.cached), (0, 0));
    let again = complete(&mut cluster, &format!("{first}{}", ending_early("another", 2)));
    assert_eq!((again.predicted, again.cached), (40 * BLOCK, 40 * BLOCK), "both groups are there");
    // These need the blocks that the window has given up, and no others.
    complete(&mut cluster, &ending_early("filler", 45));
    complete(&mut cluster, &ending_early("other filler", 22));
    let removed = |cluster: &Cluster| cluster.gateway.workers()[0]["events"]["blocks"]["removed"].clone();
    assert_eq!(removed(&cluster), 0, "the full attention has lost nothing");
    let whole = complete(&mut cluster, &format!("{first}{}", ending_early("question", 3)));
    assert_eq!(whole.predicted, whole.cached);
    assert!(whole.cached >= 40 * BLOCK, "those at the end are there: {whole:?}");
    let half: String = first.chars().take((20 * BLOCK * 2) as usize).collect();
    let half = complete(&mut cluster, &format!("{half}{}", ending_early("question", 3)));
    assert_eq!(half.predicted, half.cached);
    assert!(half.cached < 20 * BLOCK, "the window's blocks in the middle are gone: {half:?}");
    let worker = &cluster.gateway.workers()[0];
    assert_eq!((&worker["view"], worker["why"].is_null()), (&json!("reported"), true), "{worker}");
}

#[test]
fn promises_of_several_groups_equal_cached_tokens_while_blocks_are_evicted() {
    let mut cluster = cluster("model-window-churn", "2400");
    let mut found = [0_u64; 2];
    for round in 0..5_u64 {
        for number in 0..12_u64 {
            // Conversations under two heads, which grow, and return to an earlier point now and then.
            let head = ending_early(&format!("head {}", number % 2), 6);
            let turns = if (number + round) % 3 == 0 { 1 } else { 2 + 2 * round };
            let turns: String = (0..turns).map(|turn| text(&format!("{number}.{turn}"), 3)).collect();
            let asked = complete(&mut cluster, &format!("{head}{turns}"));
            assert_eq!(asked.predicted, asked.cached, "round {round}, conversation {number}: {asked:?}");
            found[usize::from(asked.cached > 0)] += 1;
        }
    }
    let counted = |name: &str| cluster.gateway.metric_sum(name);
    let wrong = ["warmroute_stale_tokens_total", "warmroute_missed_tokens_total"].map(counted);
    assert_eq!(wrong, [0.0, 0.0]);
    assert!(found[1] >= 10 && found[0] >= 2, "misses and hits: {found:?}");
    let removed = cluster.gateway.workers()[0]["events"]["blocks"]["removed"].as_u64().unwrap();
    assert!(removed > 100, "{removed} blocks of the full attention were evicted");
}

#[test]
fn a_group_that_cannot_be_followed_leaves_the_cache_presumed_with_the_reason() {
    let folder = format!("{}/model-groups", env!("CARGO_TARGET_TMPDIR"));
    let one = engine(&["--write-model", &folder]);
    let gateway = Gateway::over(&[one.url()], &["--model-path", &folder, "--events-token", "secret"]);
    eventually("the worker is aligned", || gateway.workers()[0]["events"].is_object().then_some(()));
    let mut seq = 0;
    let mut tell = |group: u16, kind: &str, reset: bool| {
        let body = json!({"source": "test", "seq": seq, "reset": reset, "events": [
            {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null, "token_ids": vec![300; 32],
             "block_size": 16, "group_idx": group, "kv_cache_spec_kind": kind}]});
        seq += 1;
        let path = format!("/events?worker={}", one.url().replace(':', "%3A").replace('/', "%2F"));
        let headers = ["content-type: application/json", "authorization: Bearer secret"];
        let response =
            Call::send(gateway.admin(), "POST", &path, &headers, body.to_string().as_bytes()).finish();
        assert_eq!(response.status, 200, "{}", response.text());
    };
    let wait_for = |view: &str, part: &str| {
        eventually(&format!("{view}, why: {part}; {:?}", gateway.workers()), || {
            let worker = &gateway.workers()[0];
            let why = worker["why"].as_str().unwrap_or_default();
            (worker["view"] == view && why.contains(part)).then_some(())
        });
    };
    tell(0, "full_attention", false);
    wait_for("reported", "");
    tell(1, "chunked_local_attention", false);
    wait_for("presumed", "KV cache group 1 is chunked_local_attention");
    tell(0, "mamba", true);
    wait_for("presumed", "none of its KV cache groups has full attention");
    tell(1, "mla_attention", false);
    wait_for("reported", "");
}
