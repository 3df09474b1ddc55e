//! The critical section allocates nothing, as counted by the allocator itself: for every policy, with shadows, without a prompt,
//! and with a prompt that the chosen worker is presumed or reported to hold. Presuming a new prompt allocates, because the
//! index grows. Confirming a prompt at its first token allocates too, outside the section.
#![allow(unsafe_code, reason = "a counting global allocator cannot be written without")]
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use std::sync::Arc;

use warmroute_fleet::{Models, ProbeResult};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_policy::Standard;
use warmroute_prompt::Vocabulary;
use warmroute_router::{
    Change, Config, Family, Matching, Outcome, PromptChunks, PromptText, Request, Router, Scratch, Unit,
};
use warmroute_types::{Address, CacheEvent, CacheView, Micros, StoredBlocks};

const WORKERS: usize = 64;
/// Enough for every worker to be chosen, also by policies that draw lots.
const WARM_UP: u64 = 3_000;
const MEASURED: u64 = 1_000;
const BLOCK: usize = 16;
const CHUNK: usize = 64;
const CHUNKS: usize = 20;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is handed to the system's allocator unchanged; the counter is a plain thread-local cell.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// A router of 64 ready workers, with every policy as a shadow.
fn router(policy: &str) -> Router<Standard> {
    let shadows = Standard::NAMES.iter().map(|shadow| shadow.parse().unwrap()).collect();
    let router = Router::with_shadows(policy.parse::<Standard>().unwrap(), shadows, Config::default());
    for i in 0..WORKERS {
        let address = Address::new(format!("http://engine-{i}"));
        router.join(address, Models::named(&["m"])).unwrap();
    }
    for view in router.inspect().workers() {
        let (worker, result) = (view.worker, ProbeResult::Answered);
        router.apply(Change::Probed { worker, result, at: Micros(1) });
    }
    router
}

/// Every worker reports the text as cached.
fn report(router: &Router<Standard>, text: &[u8]) {
    let bytes = (0..=255).map(|byte| (u32::from(byte), vec![byte])).collect();
    let vocabulary = Arc::new(Vocabulary::new(bytes));
    let blocks = StoredBlocks {
        names: (1..=(text.len() / BLOCK) as u64).collect(),
        tokens: text.iter().map(|&byte| byte.into()).collect(),
        block_tokens: BLOCK as u32,
        text_blocks: (text.len() / BLOCK) as u32,
        ..StoredBlocks::default()
    };
    for view in router.inspect().workers() {
        let worker = view.worker;
        let matching = Some(Matching::bytes(Family::new("m"), Arc::clone(&vocabulary)));
        let events = vec![CacheEvent::Stored(blocks.clone())];
        router.apply(Change::Aligned { worker: Arc::clone(&worker), matching });
        router.apply(Change::Viewed { worker: Arc::clone(&worker), view: CacheView::Reported });
        router.apply(Change::Cached { worker, events });
    }
}

fn text() -> Vec<u8> {
    (0..CHUNK * CHUNKS).map(|at| b'a' + (at % 23) as u8).collect()
}

fn chunks(digests: &[u64]) -> PromptChunks<'_> {
    let source = Source::Presumed;
    let root = RootKey::of(&Namespace { model: "m", lora: None, salt: None, cut: CHUNK as u32, source });
    PromptChunks { root, digests, chunk_bytes: CHUNK as u32, bytes: (CHUNK * CHUNKS) as u32 }
}

/// Allocations of `route` and of the first token over the measured requests, and the cached tokens of the last decision.
fn allocated(router: &Router<Standard>, prompt: &Request<'_>) -> (u64, u64, Option<u32>) {
    let mut scratch = Scratch::default();
    let (mut routing, mut observing, mut cached_tokens) = (0, 0, None);
    for i in 0..WARM_UP + MEASURED {
        let at = Micros(1_000 * i);
        let request = Request { session_key: Some(i), prefix_key: Some(i), ..*prompt };
        let before = allocations();
        let mut decision =
            router.route(&request, &mut scratch, at, i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap();
        let between = allocations();
        router.observe(&mut decision, Outcome::FirstToken { at });
        if i >= WARM_UP {
            routing += between - before;
            observing += allocations() - between;
        }
        cached_tokens = decision.cached_tokens;
        router.observe(&mut decision, Outcome::Ended { answered: None });
    }
    (routing, observing, cached_tokens)
}

#[test]
fn route_and_observe_allocate_nothing() {
    for policy in Standard::NAMES {
        let request = Request { model: Some("m"), ..Request::default() };
        assert_eq!(allocated(&router(policy), &request), (0, 0, None), "{policy}");
    }
}

#[test]
fn a_presumed_prompt_is_routed_without_allocating() {
    let digests: Vec<u64> = (1..=CHUNKS as u64).collect();
    for policy in Standard::NAMES {
        let request = Request { model: Some("m"), prompt: Some(chunks(&digests)), ..Request::default() };
        let (routing, _, cached_tokens) = allocated(&router(policy), &request);
        assert_eq!(routing, 0, "{policy}");
        assert!(cached_tokens.is_some_and(|tokens| tokens > 0), "{policy}: the prompt is not found");
    }
}

#[test]
fn a_reported_prompt_is_routed_without_allocating() {
    let (text, digests) = (text(), (1..=CHUNKS as u64).collect::<Vec<u64>>());
    for policy in Standard::NAMES {
        let router = router(policy);
        report(&router, &text);
        let root = router.inspect().text_root(&Family::new("m"), Some("m"), None, Unit::Byte);
        let texts = [PromptText { root, bytes: &text, unit: Unit::Byte }];
        // No event confirms a presumption here, so other policies presume the prompt anew after a while.
        let prompt = (policy == "expected_ttft").then(|| chunks(&digests));
        let request = Request { model: Some("m"), prompt, texts: &texts, ..Request::default() };
        let (routing, _, cached_tokens) = allocated(&router, &request);
        assert_eq!(routing, 0, "{policy}");
        assert!(cached_tokens.is_some_and(|tokens| tokens > 0), "{policy}: the prompt is not found");
    }
}
