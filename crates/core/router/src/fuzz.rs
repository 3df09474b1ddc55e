//! Fuzz target: a saved state is refused with a reason, or it is encoded to the bytes it was decoded from, and a router that restores it
//! has bounded memory and finite numbers.

use warmroute_fleet::{Models, ProbeResult};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_policy::Standard;
use warmroute_types::{Address, Micros};
use xxhash_rust::xxh3::xxh3_64;

#[cfg(test)]
use crate::BadSavedState;
use crate::{Change, Config, PromptChunks, Request, Router, SavedState, Scratch};

/// Late enough that ages can be subtracted.
const NOW: Micros = Micros::from_secs(100_000);
const AWAY: Micros = Micros::from_secs(30);
const CHUNK: u32 = 256;
/// Small, so that inputs exceed it.
const BUDGET_BYTES: usize = 32 << 10;
/// Bytes by which the index may exceed its budget before it evicts.
const OVER_BYTES_MAX: usize = 32 << 10;
const WORKERS: usize = 8;

/// Takes a saved state without its checksum, which is added here: a wrong one would be refused before anything is read.
pub fn memory(input: &[u8]) {
    let bytes = [input, &xxh3_64(input).to_le_bytes()].concat();
    match SavedState::decode(&bytes) {
        Ok(memory) => {
            assert!(memory.encode() == bytes, "decode and encode do not round-trip");
            restore_into_router(memory);
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

fn restore_into_router(memory: SavedState) {
    let index = warmroute_index::Config {
        seed: memory.seed(),
        hash: memory.hash,
        budget_bytes: BUDGET_BYTES,
        ..warmroute_index::Config::default()
    };
    let policy = Standard::ExpectedTtft(Default::default());
    let router = Router::new(policy, Config { index, ..Config::default() });
    let addresses: Vec<Address> =
        memory.workers.iter().map(|worker| worker.address.clone()).take(WORKERS).collect();
    let (uses, ..) = memory.extent();
    let state = Box::new(memory);
    router.apply(Change::Restored { state, age: AWAY, at: NOW });
    for address in addresses {
        // An address that is named twice is refused.
        _ = router.join(address, Models::named(&["m"]));
        let bytes = router.inspect().index_stats().bytes.total();
        assert!(bytes <= BUDGET_BYTES + OVER_BYTES_MAX, "{bytes} bytes are held");
    }
    for view in router.inspect().workers() {
        let latency = router.inspect().latency(view.worker.id, NOW);
        let numbers =
            [latency.relative_latency, latency.ms_per_1k_tokens, latency.ms_before_first, latency.queue_ms];
        assert!(numbers.iter().all(|number| number.is_finite() && *number >= 0.0), "{latency:?}");
        router.apply(Change::Probed { worker: view.worker, result: ProbeResult::Answered, at: NOW });
    }
    assert_predicted_ttft_is_finite(&router);
    let again = router.inspect().saved_state(NOW, 0);
    assert!(again.extent().0 <= uses, "the saved state grew by being restored");
    assert!(SavedState::decode(&again.encode()) == Ok(again), "the state saved after that can be decoded");
}

fn assert_predicted_ttft_is_finite(router: &Router<Standard>) {
    let root =
        RootKey::of(&Namespace { model: "m", lora: None, salt: None, cut: CHUNK, source: Source::Presumed });
    let digests = [0, 1, 1_000];
    let prompt = PromptChunks { root, digests: &digests, chunk_bytes: CHUNK, bytes: 3 * CHUNK };
    let request = Request { model: Some("m"), prompt: Some(prompt), ..Request::default() };
    if let Ok(decision) = router.route(&request, &mut Scratch::default(), NOW, 7) {
        assert!(decision.cached_tokens.unwrap_or(0) <= decision.prompt_tokens);
        let ttft_ms = decision.expected_ttft_ms();
        assert!(ttft_ms.is_finite() && ttft_ms >= 0.0, "{ttft_ms} ms");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A corpus of an older version is refused at its first bytes and tests nothing.
    #[test]
    fn the_corpus_is_of_the_current_version() {
        for input in warmroute_fuzz::corpus("memory") {
            let bytes = [&input[..], &xxh3_64(&input).to_le_bytes()].concat();
            let decoded = SavedState::decode(&bytes);
            assert!(!matches!(decoded, Err(BadSavedState::OtherVersion(_))), "{decoded:?}");
        }
    }

    #[test]
    fn saved_states_are_restored_or_refused() {
        warmroute_fuzz::try_out("memory", super::memory);
    }
}
