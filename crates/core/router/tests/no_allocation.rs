//! The critical section allocates nothing, as counted by the allocator itself: for every policy, with shadows, without a prompt,
//! with a prompt that the chosen worker is presumed or reported to hold, and with a new prompt. The index takes a new prompt in
//! after the section, where it allocates, or leaves it to the thread that is writing. Confirming a prompt at its first token
//! allocates too, outside the section.
#![allow(unsafe_code, reason = "a counting global allocator cannot be written without")]
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

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

/// One test at a time: the index frees memory through a collector of the whole process, and a thread that looks something
/// up may have to take over what another test's threads left.
static ALONE: Mutex<()> = Mutex::new(());

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
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for policy in Standard::NAMES {
        let request = Request { model: Some("m"), ..Request::default() };
        assert_eq!(allocated(&router(policy), &request), (0, 0, None), "{policy}");
    }
}

#[test]
fn a_presumed_prompt_is_routed_without_allocating() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
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
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Runs `work` while another thread holds the index's writer lock. Also returns whether that thread held it until the end; it
/// gives up after a minute.
fn while_written<T>(router: &Router<Standard>, work: impl FnOnce() -> T) -> (T, bool) {
    let (held, is_held) = mpsc::channel();
    let (done, is_done) = mpsc::channel();
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            router.inspect().while_index_is_written(|| {
                held.send(()).unwrap();
                is_done.recv_timeout(Duration::from_secs(60)).is_ok()
            })
        });
        is_held.recv().unwrap();
        let result = work();
        _ = done.send(());
        (result, writer.join().unwrap())
    })
}

/// New conversations, each routed with buffers of its own.
const NEWCOMERS: usize = 500;

/// Another thread holds the index's writer lock all the time: a decision about a new prompt neither waits for it nor allocates.
/// The next request with the same prompt finds what was presumed, although the index has not taken it in.
#[test]
fn a_new_prompt_is_routed_without_allocating_and_without_waiting_for_a_writer() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for policy in Standard::NAMES {
        let router = router(policy);
        let mut scratches: Vec<Scratch> = (0..2 * NEWCOMERS).map(|_| Scratch::default()).collect();
        let digests =
            |conversation: u64| (1..=CHUNKS as u64).map(move |at| conversation << 32 | at).collect();
        let namesake = chunks(&[]);
        let route = |scratch: &mut Scratch, digests: &[u64], i: u64| {
            let prompt = Some(PromptChunks { digests, ..namesake });
            let request = Request { model: Some("m"), prompt, prefix_key: Some(i), ..Request::default() };
            let decision = router.route(&request, scratch, Micros(i), i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            decision.unwrap()
        };
        let warm: Vec<u64> = digests(0);
        let open: Vec<_> = scratches.iter_mut().map(|scratch| route(scratch, &warm, 1)).collect();
        drop(open);
        let prompts: Vec<Vec<u64>> = (1..=NEWCOMERS as u64).map(digests).collect();
        let mut decisions = Vec::with_capacity(2 * NEWCOMERS);
        let (allocated, was_held) = while_written(&router, || {
            let before = allocations();
            for (i, scratch) in scratches.iter_mut().enumerate() {
                // The prompt, then the same one again.
                decisions.push(route(scratch, &prompts[i / 2], i as u64));
            }
            allocations() - before
        });
        assert!(was_held, "{policy}: a decision waited for the writer");
        assert_eq!(allocated, 0, "{policy}");
        let again = decisions.chunks(2).filter(|pair| pair[1].longest_match.is_some_and(|tokens| tokens > 0));
        assert_eq!(again.count(), NEWCOMERS, "{policy}: a prompt is not found again");
    }
}
