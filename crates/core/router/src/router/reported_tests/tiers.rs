//! What engines tell of slower memory: with its tokens, by name alone, and what answers make of it.

use warmroute_types::Medium;

use super::*;

/// What is expected on the GPU, and beyond it.
fn promised(router: &Router<Standard>, prompt: &[u8]) -> (u32, u32) {
    let decision = Asking::of(prompt).route(router, Micros(1));
    (decision.cached_tokens.unwrap(), decision.expectation.prediction.unwrap().restorable)
}

/// Blocks `from..to` of a text lie in host memory too, reported as vLLM's offloading connector does.
fn offload(router: &Router<Standard>, text: &[u8], from: usize, to: usize) {
    let names = blocks(text, from, to).names;
    let stored = StoredBlocks { names, medium: Medium::Host, ..StoredBlocks::default() };
    report(router, 0, CacheEvent::Stored(stored));
}

/// They have left it.
fn drop_from_host(router: &Router<Standard>, text: &[u8], from: usize, to: usize) {
    let names = blocks(text, from, to).names;
    report(router, 0, CacheEvent::Removed(RemovedBlocks { names, medium: Medium::Host, group: 0 }));
}

fn evict(router: &Router<Standard>, text: &[u8], from: usize, to: usize) {
    (from..to).rev().for_each(|block| remove(router, 0, text, block));
}

#[test]
fn slower_memory_is_no_hit_but_is_known() {
    let router = router_of(1);
    let prompt = text(1, 1_000);
    let host = StoredBlocks { medium: Medium::Host, ..blocks(&prompt, 0, 60) };
    report(&router, 0, CacheEvent::Stored(host));
    assert_eq!(expected(&router, &prompt), 0);
    store(&router, 0, &prompt, 0, 20);
    let decision = Asking::of(&prompt).route(&router, Micros(1));
    assert_eq!(decision.cached_tokens, Some(320));
    assert_eq!(decision.expectation.prediction.unwrap().restorable, 640);
    drop(decision);
    (0..20).rev().for_each(|block| remove(&router, 0, &prompt, block));
    let decision = Asking::of(&prompt).route(&router, Micros(1));
    assert_eq!(
        decision.expectation.prediction.unwrap().restorable,
        960,
        "evicted from the GPU, not from the host"
    );
}

#[test]
fn a_chain_that_goes_on_in_slower_memory_goes_on_from_what_was_on_the_gpu_before() {
    let router = router_of(1);
    let prompt = text(1, 1_000);
    store(&router, 0, &prompt, 0, 20);
    let host = StoredBlocks { medium: Medium::Host, ..blocks(&prompt, 20, 60) };
    report(&router, 0, CacheEvent::Stored(host));
    assert_eq!(promised(&router, &prompt), (320, 640));
    evict(&router, &prompt, 0, 20);
    assert_eq!(promised(&router, &prompt), (0, 0), "its beginning is nowhere");
}

#[test]
fn offloaded_blocks_reported_by_name_keep_their_content() {
    let router = router_of(1);
    let prompt = text(1, 1_000);
    store(&router, 0, &prompt, 0, 60);
    offload(&router, &prompt, 0, 40);
    assert_eq!(promised(&router, &prompt), (960, 0));
    evict(&router, &prompt, 10, 60);
    assert_eq!(promised(&router, &prompt), (160, 480));
    evict(&router, &prompt, 0, 10);
    assert_eq!(promised(&router, &prompt), (0, 640));
    drop_from_host(&router, &prompt, 30, 40);
    assert_eq!(promised(&router, &prompt), (0, 480));
    store(&router, 0, &prompt, 0, 30);
    drop_from_host(&router, &prompt, 0, 30);
    assert_eq!(promised(&router, &prompt), (480, 0), "fetched: they have moved");
    let ingested = router.inspect().feed_report(WorkerId(0)).unwrap().ingested;
    assert_eq!((ingested.offloaded, ingested.unknown), (40, 0));
}

#[test]
fn offloaded_names_without_tokens_are_counted_and_ignored() {
    let router = router_of(1);
    let (prompt, other) = (text(1, 1_000), text(2, 1_000));
    store(&router, 0, &prompt, 0, 10);
    let bytes_before = router.inspect().index_stats().bytes.holder_names;
    offload(&router, &other, 0, 10);
    assert_eq!(promised(&router, &prompt), (160, 0));
    assert_eq!(promised(&router, &other), (0, 0));
    assert_eq!(router.inspect().feed_report(WorkerId(0)).unwrap().ingested.unknown, 10);
    assert_eq!(
        router.inspect().index_stats().bytes.holder_names,
        bytes_before,
        "who names slower memory otherwise has no tiers"
    );
}

#[test]
fn what_was_restored_is_neither_stale_nor_missed() {
    let router = router_of(1);
    let prompt = text(1, 1_000);
    store(&router, 0, &prompt, 0, 60);
    offload(&router, &prompt, 0, 60);
    evict(&router, &prompt, 10, 60);
    for (found, stale, missed) in [(960, 0, 0), (160, 0, 0), (0, 160, 0)] {
        let asking = Asking::of(&prompt);
        let mut decision = asking.route(&router, Micros(1));
        assert_eq!(decision.cached_tokens, Some(160));
        let feedback = asking.answer(&router, &mut decision, found);
        assert_eq!((feedback.stale, feedback.missed), (stale, missed), "{found}");
    }
}
