//! State saved by one router and restored by another.

use warmroute_fleet::{Models, ProbeResult};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_policy::{Standard, StickyLeastLoaded};
use warmroute_types::{Address, LoadReport, PrefixCache, WorkerId};

use super::*;
use crate::saved_state::{BadSavedState, SavedState};
use crate::{Change, PromptChunks};

const CHUNK: u32 = 256;
/// A time far from zero, so that earlier times exist.
const NOW: Micros = Micros::from_secs(100_000);
const UNIX_S: u64 = 1_700_000_000;

fn chunks(digests: &[u64]) -> PromptChunks<'_> {
    let root =
        RootKey::of(&Namespace { model: "m", lora: None, salt: None, cut: CHUNK, source: Source::Presumed });
    PromptChunks { root, digests, chunk_bytes: CHUNK, bytes: digests.len() as u32 * CHUNK + 10 }
}

fn conversation(number: u64) -> Vec<u64> {
    (0..2).chain((0..40).map(|at| (number << 32) + at + 1_000)).collect()
}

fn router(seed: u64) -> Router<Standard> {
    let index = warmroute_index::Config { seed, ..warmroute_index::Config::default() };
    let policy = Standard::StickyLeastLoaded(StickyLeastLoaded::default());
    Router::new(policy, Config { index, ..Config::default() })
}

fn join(router: &Router<Standard>, engines: &[usize]) {
    for engine in engines {
        let address = Address::new(format!("http://engine-{engine}"));
        router.join(address, Models::named(&["m"])).unwrap();
    }
    probe(router, ProbeResult::Answered);
}

fn probe(router: &Router<Standard>, result: ProbeResult) {
    for view in router.inspect().workers() {
        router.apply(Change::Probed { worker: view.worker, result, at: NOW });
    }
}

fn request(router: &Router<Standard>, digests: &[u64]) -> (String, u32) {
    let decision = answered(router, digests);
    (decision.worker.address.url.clone(), decision.cached_tokens.unwrap_or(0))
}

fn answered(router: &Router<Standard>, digests: &[u64]) -> Decision {
    let request = Request { model: Some("m"), prompt: Some(chunks(digests)), ..Request::default() };
    let mut decision = router.route(&request, &mut Scratch::default(), NOW, 7).unwrap();
    router.observe(&mut decision, Outcome::FirstToken { at: NOW + Micros::from_millis(50) });
    router.observe(&mut decision, Outcome::Ended { answered: None });
    decision
}

/// A router that has seen ten conversations on three engines.
fn experienced() -> Router<Standard> {
    let router = router(7);
    join(&router, &[0, 1, 2]);
    // All at once, so that each engine gets some.
    let under_way: Vec<Decision> = (0..10).map(|number| answered(&router, &conversation(number))).collect();
    drop(under_way);
    assert!((0..3).all(|worker| router.index.presumed_tokens(WorkerId(worker).into()) > 0));
    router
}

fn memory() -> SavedState {
    experienced().save(NOW, UNIX_S)
}

fn reread(memory: &SavedState) -> SavedState {
    let read = SavedState::decode(&memory.encode()).unwrap();
    assert_eq!(read, *memory);
    read
}

#[test]
fn a_new_router_sends_conversations_where_the_old_one_did() {
    let old = experienced();
    let memory = reread(&old.save(NOW, UNIX_S));
    let new = router(memory.seed());
    new.restore(memory, NOW, Micros::from_secs(30));
    // In another order, and one of them does not come any more.
    join(&new, &[2, 0]);
    for number in 0..10 {
        let (home, known) = request(&old, &conversation(number));
        assert!(known > 0);
        let (sent_to, expected) = request(&new, &conversation(number));
        if home != "http://engine-1" {
            assert_eq!((sent_to, expected), (home, known), "conversation {number}");
        }
    }
}

#[test]
fn what_was_learned_of_workers_comes_back_with_them() {
    let old = experienced();
    let worker = old.inspect().workers()[1].worker.clone();
    old.fleet.restore_worker(&worker, [2.5, 50.0], None);
    (0..30).for_each(|_| old.pools.read().serving(Some("m"), None).unwrap().tokens.learn(1_000, 400));
    let (before, rate) =
        (old.inspect().latency(worker.id, NOW), old.pools.read().token_rates().next().unwrap().1);
    let new = router(7);
    new.restore(reread(&old.save(NOW, UNIX_S)), NOW, Micros(0));
    join(&new, &[1, 0]);
    let after = new.inspect().latency(WorkerId(0), NOW);
    assert_eq!(
        (after.relative_latency, after.ms_per_1k_tokens),
        (before.relative_latency, before.ms_per_1k_tokens)
    );
    assert!(after.relative_latency > 2.0);
    assert_eq!(new.pools.read().token_rates().next().unwrap().1, rate);
}

#[test]
fn one_that_was_restarted_or_does_not_answer_begins_with_nothing() {
    let old = experienced();
    let (worker, queries) =
        (old.inspect().workers()[0].worker.clone(), |queries| PrefixCache { queries, hits: 0 });
    let report =
        |queries_now| LoadReport { prefix_cache: Some(queries(queries_now)), ..LoadReport::default() };
    old.apply(Change::Load { worker, report: report(1_000) });
    let memory = old.save(NOW, UNIX_S);
    for (queries_now, is_known) in [(1_500, true), (10, false)] {
        let new = router(7);
        new.restore(reread(&memory), NOW, Micros(0));
        join(&new, &[0]);
        let worker = new.inspect().workers()[0].worker.clone();
        new.apply(Change::Load { worker, report: report(queries_now) });
        assert_eq!(new.index.presumed_tokens(WorkerId(0).into()) > 0, is_known, "{queries_now}");
    }
    let new = router(7);
    new.restore(reread(&memory), NOW, Micros(0));
    let address = Address::new("http://engine-0");
    new.join(address, Models::named(&["m"])).unwrap();
    assert!(new.index.presumed_tokens(WorkerId(0).into()) > 0);
    probe(&new, ProbeResult::Failed);
    assert_eq!(new.index.presumed_tokens(WorkerId(0).into()), 0);
}

#[test]
fn every_byte_that_is_wrong_or_missing_is_found() {
    let bytes = memory().encode();
    for end in 0..bytes.len() {
        assert!(SavedState::decode(&bytes[..end]).is_err(), "cut at {end}");
    }
    for at in 0..bytes.len() {
        let mut spoiled = bytes.clone();
        spoiled[at] ^= 1 << (at % 8);
        assert!(SavedState::decode(&spoiled).is_err(), "spoiled at {at}");
    }
    assert_eq!(
        SavedState::decode(&[bytes, vec![0]].concat()),
        Err(BadSavedState::Corrupt),
        "and so is one too many"
    );
}

/// A state with a valid checksum and arbitrary content is restored or refused; it never panics.
#[test]
fn a_right_checksum_over_nonsense_is_harmless() {
    let bytes = memory().encode();
    let body = bytes.len() - 8;
    for at in 12..body {
        for flip in [0x01, 0x80, 0xff] {
            let mut spoiled = bytes.clone();
            spoiled[at] ^= flip;
            let checksum = xxhash_rust::xxh3::xxh3_64(&spoiled[..body]);
            spoiled[body..].copy_from_slice(&checksum.to_le_bytes());
            if let Ok(memory) = SavedState::decode(&spoiled) {
                let new = router(memory.seed());
                new.restore(memory, NOW, Micros(0));
                join(&new, &[0, 1, 2]);
                request(&new, &conversation(1));
            }
        }
    }
}

#[test]
fn what_is_of_no_use_is_refused_with_its_reason() {
    let (memory, config) = (memory(), warmroute_index::Config::default());
    let bytes = memory.encode();
    assert_eq!(SavedState::decode(b"something else"), Err(BadSavedState::NotOne));
    let mut newer = bytes.clone();
    newer[8] = 9;
    assert_eq!(SavedState::decode(&newer), Err(BadSavedState::OtherVersion(9)));
    assert_eq!(memory.age_s(&config, UNIX_S + 60), Ok(60));
    assert_eq!(memory.age_s(&config, UNIX_S + 1_800), Err(BadSavedState::TooOld(1_800)));
    assert_eq!(memory.age_s(&config, UNIX_S - 3_600), Err(BadSavedState::FromTheFuture));
    let other = warmroute_index::Config { hash: warmroute_index::Hash::Sha256, ..config };
    assert_eq!(memory.age_s(&other, UNIX_S), Err(BadSavedState::OtherHash));
}
