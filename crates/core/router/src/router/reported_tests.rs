//! What engines report, from the event to the decision and back from the answer.

mod media;
mod tiers;
mod trust;
mod unrendered;

use std::sync::Arc;

use warmroute_fleet::{ProbeResult, Worker};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_policy::{Standard, StickyLeastLoaded};
use warmroute_prompt::Vocabulary;
use warmroute_types::{Address, CacheEvent, RemovedBlocks, StoredBlocks};

use super::*;
use crate::request::Silence;
use crate::{Answered, Change, Feedback, PromptChunks, PromptText, SavedState};
use crate::{Family, Matching, Unit};
use warmroute_fleet::Models;
use warmroute_types::Usage;

const BLOCK: usize = 16;

/// A token for each byte.
fn vocabulary() -> Arc<Vocabulary> {
    Arc::new(Vocabulary::new((0..=255).map(|byte| (u32::from(byte), vec![byte])).collect()))
}

fn router_of(n: usize) -> Router<Standard> {
    let router = Router::new(Standard::StickyLeastLoaded(StickyLeastLoaded::default()), Config::default());
    for i in 0..n {
        let address = Address::new(format!("http://engine-{i}"));
        router.join(address, Models::named(&["m", "adapter"])).unwrap();
    }
    for view in router.inspect().workers() {
        let worker = view.worker;
        let matching = Some(Matching::bytes(Family::new("m"), vocabulary()));
        router.apply(Change::Probed {
            worker: Arc::clone(&worker),
            result: ProbeResult::Answered,
            at: Micros(1),
        });
        router.apply(Change::Aligned { worker: Arc::clone(&worker), matching });
        router.apply(Change::Viewed { worker, view: CacheView::Reported });
    }
    router
}

fn worker(router: &Router<Standard>, worker_index: u16) -> Arc<Worker> {
    Arc::clone(&router.inspect().workers()[usize::from(worker_index)].worker)
}

/// A name for a block: by its content up to its end, as engines do it.
fn name(text: &[u8]) -> u64 {
    xxhash(text)
}

fn xxhash(text: &[u8]) -> u64 {
    text.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Blocks `from..to` of a text.
fn blocks(text: &[u8], from: usize, to: usize) -> StoredBlocks {
    StoredBlocks {
        names: (from..to).map(|block| name(&text[..(block + 1) * BLOCK])).collect(),
        parent: (from > 0).then(|| name(&text[..from * BLOCK])),
        tokens: text[from * BLOCK..to * BLOCK].iter().map(|&byte| byte.into()).collect(),
        block_tokens: BLOCK as u32,
        text_blocks: (to - from) as u32,
        ..StoredBlocks::default()
    }
}

fn report(router: &Router<Standard>, worker_index: u16, event: CacheEvent) {
    router.apply(Change::Cached { worker: worker(router, worker_index), events: vec![event] });
}

fn store(router: &Router<Standard>, worker_index: u16, text: &[u8], from: usize, to: usize) {
    report(router, worker_index, CacheEvent::Stored(blocks(text, from, to)));
}

fn remove(router: &Router<Standard>, worker_index: u16, text: &[u8], block: usize) {
    let names = vec![name(&text[..(block + 1) * BLOCK])];
    report(router, worker_index, CacheEvent::Removed(RemovedBlocks { names, ..RemovedBlocks::default() }));
}

struct Asking {
    text: Vec<u8>,
    digests: Vec<u64>,
    model: &'static str,
    family: &'static str,
    salt: Option<&'static str>,
}

impl Asking {
    fn of(text: &[u8]) -> Asking {
        let digests = text.chunks_exact(64).map(xxhash).collect();
        Asking { text: text.to_vec(), digests, model: "m", family: "m", salt: None }
    }

    fn chunks(&self) -> PromptChunks<'_> {
        let source = Source::Presumed;
        let root = RootKey::of(&Namespace { model: "m", lora: None, salt: None, cut: 64, source });
        PromptChunks { root, digests: &self.digests, chunk_bytes: 64, bytes: self.text.len() as u32 }
    }

    fn request<'a>(&'a self, texts: &'a [PromptText<'a>]) -> Request<'a> {
        let (model, prompt) = (Some(self.model), Some(self.chunks()));
        Request { model, prompt, texts, silence: Silence::MeansZero, ..Request::default() }
    }

    fn route(&self, router: &Router<Standard>, now: Micros) -> Decision {
        let texts = [self.text(router)];
        router.route(&self.request(&texts), &mut Scratch::default(), now, 7).unwrap()
    }

    fn text(&self, router: &Router<Standard>) -> PromptText<'_> {
        let root =
            router.inspect().text_root(&Family::new(self.family), Some(self.model), self.salt, Unit::Byte);
        PromptText { root, bytes: &self.text, unit: Unit::Byte }
    }

    fn answer(&self, router: &Router<Standard>, decision: &mut Decision, cached: u32) -> Feedback {
        let prompt_tokens = self.text.len() as u32;
        let usage = Usage { prompt_tokens, output_tokens: 1, cached_tokens: Some(cached) };
        let texts = [self.text(router)];
        // Feedback alone: after the end, the presumption would wait for its event.
        router.feedback(decision, Answered { request: &self.request(&texts), usage, at: Micros(1) })
    }
}

fn text(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| b'a' + ((i * 7 + i / 13 + usize::from(seed) * 31) % 26) as u8).collect()
}

/// Cached tokens expected on worker 0, the only one.
fn expected(router: &Router<Standard>, prompt: &[u8]) -> u32 {
    Asking::of(prompt).route(router, Micros(1)).cached_tokens.unwrap()
}

#[test]
fn a_prompt_goes_to_the_engine_that_reports_it_and_the_promise_is_whole_blocks() {
    let router = router_of(4);
    let prompt = text(1, 1_000);
    store(&router, 2, &prompt, 0, 50);
    let decision = Asking::of(&prompt).route(&router, Micros(1));
    assert_eq!((decision.worker.id, decision.reason), (WorkerId(2), "hit"));
    assert_eq!((decision.cached_tokens, decision.view), (Some(800), CacheView::Reported));
    let differs_within_a_block = [&prompt[..700], &text(2, 300)].concat();
    assert_eq!(Asking::of(&differs_within_a_block).route(&router, Micros(1)).cached_tokens, Some(688));
}

#[test]
fn a_prompt_that_ends_with_a_block_computes_that_block_anew() {
    let router = router_of(1);
    let prompt = text(1, 20 * BLOCK);
    store(&router, 0, &prompt, 0, 20);
    assert_eq!(expected(&router, &prompt), 19 * BLOCK as u32);
    assert_eq!(expected(&router, &prompt[..20 * BLOCK - 1]), 19 * BLOCK as u32);
}

#[test]
fn removal_makes_a_hole_and_clearing_forgets_that_worker_only() {
    let router = router_of(2);
    let prompt = text(1, 1_000);
    store(&router, 0, &prompt, 0, 50);
    store(&router, 1, &prompt, 0, 30);
    remove(&router, 0, &prompt, 10);
    let decision = Asking::of(&prompt).route(&router, Micros(1));
    assert_eq!((decision.worker.id, decision.cached_tokens), (WorkerId(1), Some(480)));
    drop(decision);
    store(&router, 0, &prompt, 10, 12);
    report(&router, 1, CacheEvent::Cleared);
    let decision = Asking::of(&prompt).route(&router, Micros(1));
    assert_eq!((decision.worker.id, decision.cached_tokens), (WorkerId(0), Some(800)), "whole again");
    drop(decision);
    router.apply(Change::Emptied { worker: worker(&router, 0) });
    assert_eq!(Asking::of(&prompt).route(&router, Micros(1)).cached_tokens, Some(0));
}

#[test]
fn speculation_bridges_the_gap_to_the_event_and_no_longer() {
    let router = router_of(4);
    let asking = Asking::of(&text(1, 1_000));
    let mut first = asking.route(&router, Micros(1));
    let sibling = asking.route(&router, Micros(2));
    assert_eq!(sibling.worker.id, first.worker.id, "it is on its way there");
    assert!(sibling.cached_tokens.unwrap() > 0);
    drop(sibling);
    router.observe(&mut first, Outcome::FirstToken { at: Micros(1) });
    router.apply(Change::EventsDue { at: Micros::from_secs(1) });
    let worker_index = first.worker.id.0;
    assert!(asking.route(&router, Micros::from_secs(1)).cached_tokens.unwrap() > 0);
    router.apply(Change::EventsDue { at: Micros::from_secs(3) });
    assert_eq!(asking.route(&router, Micros::from_secs(3)).cached_tokens, Some(0), "no event came");
    store(&router, worker_index, &asking.text, 0, 62);
    assert_eq!(asking.route(&router, Micros::from_secs(3)).cached_tokens, Some(992));
}

#[test]
fn an_event_that_came_after_its_answer_ends_the_speculation() {
    let router = router_of(1);
    let asking = Asking::of(&text(1, 1_000));
    let mut decision = asking.route(&router, Micros(1));
    router.observe(&mut decision, Outcome::FirstToken { at: Micros(1) });
    asking.answer(&router, &mut decision, 0);
    store(&router, 0, &asking.text, 0, 30);
    assert!(expected(&router, &asking.text) > 30 * BLOCK as u32, "the rest is on its way");
    store(&router, 0, &asking.text, 30, 62);
    assert_eq!(expected(&router, &asking.text), 62 * BLOCK as u32);
    (0..62).for_each(|block| remove(&router, 0, &asking.text, block));
    assert_eq!(expected(&router, &asking.text), 0, "nothing is presumed beside the events");
}

#[test]
fn the_only_new_block_of_a_prompt_counts_as_the_prompts_though_it_is_reported_after_the_answer() {
    let router = router_of(1);
    let prompt = text(1, 20 * BLOCK);
    store(&router, 0, &prompt, 0, 10);
    let asking = Asking::of(&prompt[..11 * BLOCK + 5]);
    let mut decision = asking.route(&router, Micros(1));
    router.observe(&mut decision, Outcome::FirstToken { at: Micros(1) });
    asking.answer(&router, &mut decision, 10 * BLOCK as u32);
    store(&router, 0, &prompt, 10, 11);
    assert_eq!(expected(&router, &prompt), 11 * BLOCK as u32);
    store(&router, 0, &prompt, 11, 12);
    assert_eq!(
        expected(&router, &prompt),
        11 * BLOCK as u32,
        "filled while decoding, perhaps in other tokens"
    );
}

#[test]
fn an_answer_that_waits_for_events_says_nothing_about_a_restarted_engine() {
    let router = router_of(1);
    let prompt = text(1, 11 * BLOCK + 5);
    let asking = Asking::of(&prompt);
    let mut decision = asking.route(&router, Micros(1));
    router.observe(&mut decision, Outcome::FirstToken { at: Micros(1) });
    asking.answer(&router, &mut decision, 0);
    router.apply(Change::EventsDue { at: Micros::from_secs(3) });
    assert_eq!(router.awaited_answers.take(WorkerId(0)).len(), 0, "given up with the presumption");
    let mut decision = asking.route(&router, Micros(1));
    router.observe(&mut decision, Outcome::FirstToken { at: Micros(1) });
    asking.answer(&router, &mut decision, 0);
    router.apply(Change::Emptied { worker: worker(&router, 0) });
    store(&router, 0, &prompt, 0, 10);
    store(&router, 0, &prompt, 10, 11);
    assert_eq!(router.awaited_answers.take(WorkerId(0)).len(), 0);
    assert_eq!(decision.expectation.generation + 1, router.fleet.load_view(WorkerId(0)).generation);
}

#[test]
fn an_event_after_an_answer_without_counts_ends_the_speculation_with_the_next_answer() {
    let router = router_of(1);
    let [early, next] = [1, 2].map(|seed| Asking::of(&text(seed, 1_000)));
    let mut first = early.route(&router, Micros(1));
    router.observe(&mut first, Outcome::Ended { answered: None });
    store(&router, 0, &early.text, 0, 62);
    (0..62).for_each(|block| remove(&router, 0, &early.text, block));
    assert!(
        expected(&router, &early.text) > 0,
        "its event came and went, and the router has not processed it"
    );
    let mut second = next.route(&router, Micros(1));
    router.observe(&mut second, Outcome::FirstToken { at: Micros(1) });
    store(&router, 0, &next.text, 0, 62);
    next.answer(&router, &mut second, 0);
    assert_eq!(expected(&router, &early.text), 0, "whatever was reported before this has been processed");
}

#[test]
fn a_feed_that_lies_is_demoted_discounted_and_cut_and_can_come_back() {
    let router = router_of(1);
    let asking = Asking::of(&text(1, 1_000));
    store(&router, 0, &asking.text, 0, 60);
    let view = || (router.inspect().workers()[0].load.view, router.inspect().workers()[0].load.trust);
    for _ in 0..4 {
        let mut decision = asking.route(&router, Micros(1));
        assert_eq!(decision.cached_tokens, Some(960));
        assert_eq!(asking.answer(&router, &mut decision, 0).stale, 960);
    }
    assert_eq!(view().0, CacheView::Uncertain);
    let mut decision = asking.route(&router, Micros(1));
    assert!(decision.cached_tokens.unwrap() < 480, "discounted by what is left of the trust");
    asking.answer(&router, &mut decision, 0);
    drop(decision);
    let decision = asking.route(&router, Micros(1));
    assert_eq!(decision.expectation.prediction.unwrap().proven, 0, "and cut at what was found");
    assert!(decision.cached_tokens.unwrap() > 900, "but it has just been computed: that is presumed");
    drop(decision);
    let honest = Asking::of(&text(2, 1_000));
    store(&router, 0, &honest.text, 0, 60);
    for _ in 0..20 {
        let mut decision = honest.route(&router, Micros(1));
        honest.answer(&router, &mut decision, 960);
    }
    assert_eq!(view().0, CacheView::Reported, "right often enough");
}

#[test]
fn a_hole_in_the_stream_discounts_and_a_stream_that_is_whole_again_does_not() {
    let router = router_of(1);
    let prompt = text(1, 1_000);
    store(&router, 0, &prompt, 0, 60);
    let viewed = |view| router.apply(Change::Viewed { worker: worker(&router, 0), view });
    viewed(CacheView::Uncertain);
    assert_eq!(expected(&router, &prompt), 480);
    viewed(CacheView::Reported);
    assert_eq!(expected(&router, &prompt), 960);
    viewed(CacheView::Presumed);
    assert_eq!(expected(&router, &prompt), 0, "a silent feed says nothing; only our own routing counts");
}

#[test]
fn generated_tokens_are_unproven_until_an_answer_confirms_them() {
    let router = router_of(1);
    let prompt = text(1, 1_000);
    store(&router, 0, &prompt, 0, 40);
    for block in 40..60 {
        store(&router, 0, &prompt, block, block + 1);
    }
    let asking = Asking::of(&prompt);
    let mut decision = asking.route(&router, Micros(1));
    let expected_tokens = decision.cached_tokens.unwrap();
    assert!(
        (640..960).contains(&expected_tokens),
        "more than what is certain, less than all: {expected_tokens}"
    );
    asking.answer(&router, &mut decision, 960);
    drop(decision);
    assert_eq!(expected(&router, &prompt), 960, "it was found, so it is certain");
    remove(&router, 0, &prompt, 59);
    assert_eq!(expected(&router, &prompt), 944, "and is removed like anything else");
}

#[test]
fn what_was_generated_and_not_found_is_given_up_but_prompts_are_kept() {
    let router = router_of(1);
    let prompt = text(1, 1_000);
    store(&router, 0, &prompt, 0, 40);
    for block in 40..60 {
        store(&router, 0, &prompt, block, block + 1);
    }
    let asking = Asking::of(&prompt);
    let mut decision = asking.route(&router, Micros(1));
    asking.answer(&router, &mut decision, 640);
    drop(decision);
    assert_eq!(expected(&router, &prompt), 640);
    assert_eq!(router.inspect().workers()[0].load.view, CacheView::Reported, "it was not predicted");
}

#[test]
fn images_end_what_can_be_matched_and_their_blocks_still_have_names() {
    let router = router_of(1);
    let prompt = text(1, 1_000);
    let with_image = StoredBlocks { text_blocks: 10, ..blocks(&prompt, 0, 20) };
    report(&router, 0, CacheEvent::Stored(with_image));
    assert_eq!(expected(&router, &prompt), 160);
    store(&router, 0, &prompt, 20, 30);
    assert_eq!(expected(&router, &prompt), 160, "nor does what follows it match");
    let held = router.inspect().index_stats().held;
    (0..30).for_each(|block| remove(&router, 0, &prompt, block));
    assert!(held > 0 && router.inspect().index_stats().held == 0, "and all of it can be removed");
}

#[test]
fn tokens_that_the_model_does_not_have_match_nothing_and_are_counted() {
    let router = router_of(1);
    let prompt = text(1, 1_000);
    let mut foreign = blocks(&prompt, 0, 20);
    foreign.tokens[5 * BLOCK] = 9_999;
    report(&router, 0, CacheEvent::Stored(foreign));
    assert_eq!(expected(&router, &prompt), 80);
    assert_eq!(router.inspect().feed_report(WorkerId(0)).unwrap().ingested.foreign, 1);
}

#[test]
fn adapters_and_salts_share_nothing() {
    let router = router_of(1);
    let prompt = text(1, 1_000);
    let stored = blocks(&prompt, 0, 60);
    report(&router, 0, CacheEvent::Stored(StoredBlocks { lora: Some("adapter".into()), ..stored.clone() }));
    assert_eq!(expected(&router, &prompt), 0);
    let adapter = Asking { model: "adapter", ..Asking::of(&prompt) };
    assert_eq!(adapter.route(&router, Micros(1)).cached_tokens, Some(960));
    let mut salted = StoredBlocks { salt: Some("s".into()), ..stored };
    salted.names.iter_mut().for_each(|name| *name ^= 1);
    report(&router, 0, CacheEvent::Stored(salted));
    assert_eq!(expected(&router, &prompt), 0);
    let with_salt = Asking { salt: Some("s"), ..Asking::of(&prompt) };
    assert_eq!(with_salt.route(&router, Micros(1)).cached_tokens, Some(960));
}

#[test]
fn equal_prompts_of_two_models_never_match_each_other() {
    let router = router_of(2);
    let matching = Some(Matching::bytes(Family::new("other"), vocabulary()));
    router.apply(Change::Aligned { worker: worker(&router, 1), matching });
    router.apply(Change::Viewed { worker: worker(&router, 1), view: CacheView::Reported });
    let prompt = text(1, 1_000);
    store(&router, 1, &prompt, 0, 60);
    assert_eq!(expected(&router, &prompt), 0, "the other model's cache is of no use");
    let other = Asking { family: "other", ..Asking::of(&prompt) };
    let decision = other.route(&router, Micros(1));
    assert_eq!((decision.worker.id, decision.cached_tokens), (WorkerId(1), Some(960)));
}

#[test]
fn prompts_that_do_not_come_back_in_events_are_counted_where_answers_say_nothing() {
    let router = router_of(1);
    let request = |number: u64, reported: &[u8]| {
        let asking = Asking::of(&[&number.to_le_bytes()[..], &text(1, 1_000)].concat());
        let now = Micros::from_secs(3 * number);
        let mut decision = asking.route(&router, now);
        store(&router, 0, if reported.is_empty() { &asking.text } else { reported }, 0, 20);
        let usage = Usage { prompt_tokens: 1_008, ..Usage::default() };
        let texts = &[asking.text(&router)];
        let request = Request { model: Some("m"), texts, ..Request::default() };
        router.answered(&mut decision, &request, usage, now);
    };
    let met = || {
        let ingested = router.inspect().feed_report(WorkerId(0)).unwrap().ingested;
        (ingested.matched, ingested.unmatched)
    };
    (0..5).for_each(|number| request(number, &text(number as u8 + 2, 400)));
    assert_eq!(met(), (0, 4), "the last is still awaited");
    (5..8).for_each(|number| request(number, b""));
    assert_eq!(met(), (2, 5));
}

#[test]
fn families_of_one_model_are_each_matched_by_their_own_writing() {
    let router = router_of(2);
    let matching = Some(Matching::bytes(Family::new("m in capitals"), vocabulary()));
    router.apply(Change::Aligned { worker: worker(&router, 1), matching });
    router.apply(Change::Viewed { worker: worker(&router, 1), view: CacheView::Reported });
    let small = Asking::of(&text(1, 1_000));
    let capital = Asking { family: "m in capitals", ..Asking::of(&text(2, 900)) };
    let texts = [small.text(&router), capital.text(&router)];
    let request =
        Request { model: Some("m"), texts: &texts, silence: Silence::MeansZero, ..Request::default() };
    let route = || router.route(&request, &mut Scratch::default(), Micros(1), 7).unwrap();
    store(&router, 1, &capital.text, 0, 50);
    assert_eq!((route().worker.id, route().cached_tokens), (WorkerId(1), Some(800)));
    store(&router, 0, &small.text, 0, 60);
    assert_eq!((route().worker.id, route().cached_tokens), (WorkerId(0), Some(960)));
    remove(&router, 0, &small.text, 0);
    let mut decision = route();
    let usage = Usage { prompt_tokens: 900, cached_tokens: Some(0), ..Usage::default() };
    assert_eq!(router.answered(&mut decision, &request, usage, Micros(2)).stale, 800);
    assert!(router.inspect().workers()[1].load.trust < 1.0, "and judged by it");
}

#[test]
fn a_worker_whose_events_cannot_be_read_stays_presumed() {
    let router = router_of(2);
    router.apply(Change::Aligned { worker: worker(&router, 1), matching: None });
    router.apply(Change::Viewed { worker: worker(&router, 1), view: CacheView::Reported });
    let prompt = text(1, 1_000);
    store(&router, 1, &prompt, 0, 60);
    assert_eq!(Asking::of(&prompt).route(&router, Micros(1)).cached_tokens, Some(0));
}

#[test]
fn a_new_worker_in_a_slot_inherits_nothing() {
    let router = router_of(1);
    let prompt = text(1, 1_000);
    let former = worker(&router, 0);
    store(&router, 0, &prompt, 0, 60);
    router.apply(Change::Leave { address: former.address.clone() });
    let address = Address::new("http://newcomer");
    router.join(address, Models::named(&["m"])).unwrap();
    let newcomer = worker(&router, 0);
    assert_eq!(newcomer.id, former.id);
    router.apply(Change::Probed {
        worker: Arc::clone(&newcomer),
        result: ProbeResult::Answered,
        at: Micros(1),
    });
    let late = CacheEvent::Stored(blocks(&prompt, 0, 60));
    router.apply(Change::Cached { worker: former, events: vec![late] });
    assert_eq!(expected(&router, &prompt), 0);
    assert_eq!(router.inspect().workers()[0].load.view, CacheView::Presumed);
}

#[test]
fn token_chains_go_through_the_same_index() {
    let router = router_of(1);
    let matching = Some(Matching::tokens(Family::new("m")));
    router.apply(Change::Aligned { worker: worker(&router, 0), matching });
    router.apply(Change::Viewed { worker: worker(&router, 0), view: CacheView::Reported });
    let prompt = text(1, 1_000);
    store(&router, 0, &prompt, 0, 60);
    let tokens: Vec<u8> = prompt.iter().flat_map(|&byte| u32::from(byte).to_le_bytes()).collect();
    let root = router.inspect().text_root(&Family::new("m"), Some("m"), None, Unit::Token);
    let request = Request {
        model: Some("m"),
        texts: &[PromptText { root, bytes: &tokens, unit: Unit::Token }],
        ..Request::default()
    };
    let decision = router.route(&request, &mut Scratch::default(), Micros(1), 7).unwrap();
    assert_eq!(decision.cached_tokens, Some(960));
}

#[test]
fn a_long_event_is_stored_as_a_whole_in_slices() {
    const BLOCKS: usize = 5_000;
    let router = router_of(2);
    let text = text(1, BLOCKS * BLOCK);
    store(&router, 1, &text, 0, BLOCKS);
    let asking = Asking::of(&text);
    let decision = asking.route(&router, Micros(2));
    assert_eq!(decision.worker.id, worker(&router, 1).id);
    assert!(
        decision.cached_tokens > Some((BLOCKS * BLOCK - 2 * BLOCK) as u32),
        "{:?}",
        decision.cached_tokens
    );
    let counted = |index| router.inspect().feed_report(worker(&router, index).id).unwrap().ingested;
    assert_eq!((counted(1).stored, counted(1).parked), (BLOCKS as u64, 0));
    // An unknown token in the second slice: nothing behind it can be compared, and all names are known.
    let mut unknown = blocks(&text, 0, BLOCKS);
    unknown.tokens[3_000 * BLOCK] = 999;
    let names = unknown.names.clone();
    report(&router, 0, CacheEvent::Stored(unknown));
    assert_eq!((counted(0).stored, counted(0).foreign), (BLOCKS as u64, 1));
    report(&router, 0, CacheEvent::Removed(RemovedBlocks { names, ..RemovedBlocks::default() }));
    assert_eq!((counted(0).removed, counted(0).unknown), (BLOCKS as u64, 0));
}

/// A reader sees a long event half stored, and routes requests of another text meanwhile.
#[test]
fn others_get_in_between_the_slices_of_a_long_event() {
    const BLOCKS: usize = 100_000;
    let text = text(1, BLOCKS * BLOCK);
    // Names by number: those by content would take longer than the event.
    let event = StoredBlocks { names: (1..=BLOCKS as u64).collect(), ..blocks_without_names(&text) };
    let is_seen_half_stored = || {
        let router = router_of(2);
        let (long, other) = (worker(&router, 1).id, Asking::of(b"a prompt of another client".as_slice()));
        let stored = || router.inspect().feed_report(long).unwrap().ingested.stored;
        std::thread::scope(|scope| {
            let storing = scope.spawn(|| report(&router, 1, CacheEvent::Stored(event.clone())));
            let mut is_seen = false;
            while !storing.is_finished() {
                let before = stored();
                drop(other.route(&router, Micros(2)));
                is_seen |= before > 0 && stored() < BLOCKS as u64;
            }
            assert_eq!(stored(), BLOCKS as u64);
            is_seen
        })
    };
    // The reader may have no core while the event is stored.
    assert!((0..50).any(|_| is_seen_half_stored()));
}

/// The blocks of a text, without names.
fn blocks_without_names(text: &[u8]) -> StoredBlocks {
    StoredBlocks {
        tokens: text.iter().map(|&byte| byte.into()).collect(),
        block_tokens: BLOCK as u32,
        text_blocks: (text.len() / BLOCK) as u32,
        ..StoredBlocks::default()
    }
}
