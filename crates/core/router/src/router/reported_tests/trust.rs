//! Trust in feeds: wrong events, restarts, late events, sampled answers.

use std::collections::VecDeque;

use warmroute_feed::{Feed, Moment, ReplayEnd, Step, View};
use warmroute_types::{EventBatch, LoadReport, PrefixCache};

use super::*;

/// An engine with room for three of eight prompts, whose feed hides removals and replays every batch.
struct Liar {
    router: Router<Standard>,
    feed: Feed,
    memory: Vec<EventBatch>,
    holds: VecDeque<u8>,
    now: Micros,
    views: Vec<CacheView>,
    replays: u32,
}

impl Liar {
    fn new() -> Liar {
        let mut liar = Liar {
            router: router_of(1),
            feed: Feed::new(warmroute_feed::Config::default()),
            memory: Vec::new(),
            holds: VecDeque::new(),
            now: Micros::from_secs(1),
            views: Vec::new(),
            replays: 0,
        };
        liar.pass(|feed, now, steps| feed.connected(now, steps));
        liar
    }

    /// Passes an input to the feed and executes its steps.
    fn pass(&mut self, input: impl FnOnce(&mut Feed, Micros, &mut Vec<Step>)) {
        let mut steps = Vec::new();
        input(&mut self.feed, self.now, &mut steps);
        for step in steps {
            let worker = worker(&self.router, 0);
            match step {
                Step::Apply(events) => self.router.apply(Change::Cached { worker, events }),
                Step::Forget => self.router.apply(Change::Emptied { worker }),
                Step::View(view) => self.view(worker, view),
                Step::AskReplay { .. } => self.replay(),
            }
        }
    }

    fn view(&mut self, worker: Arc<Worker>, view: View) {
        let view = match view {
            View::Reported => CacheView::Reported,
            View::Uncertain => CacheView::Uncertain,
            View::Silent => CacheView::Presumed,
        };
        self.router.apply(Change::Viewed { worker, view });
    }

    fn replay(&mut self) {
        self.replays += 1;
        for (seq, batch) in self.memory.clone().into_iter().enumerate() {
            self.pass(|feed, now, steps| feed.replayed(seq as u64, batch, now, steps));
        }
        self.pass(|feed, now, steps| feed.replay_ended(ReplayEnd::Complete, now, steps));
    }

    /// A prompt is asked for and answered; half a second passes.
    fn request(&mut self, number: u8) {
        let asking = Asking::of(&text(number, 1_000));
        let mut decision = asking.route(&self.router, self.now);
        self.router.observe(&mut decision, Outcome::Ended { answered: None });
        let is_held = self.holds.contains(&number);
        if !is_held {
            self.publish(&asking.text);
        }
        self.holds.retain(|held| *held != number);
        self.holds.push_back(number);
        self.holds.drain(..self.holds.len().saturating_sub(3));
        asking.answer(&self.router, &mut decision, if is_held { 960 } else { 0 });
        drop(decision);
        self.now = self.now + Micros(500_000);
        let view = match self.router.inspect().cache_view(WorkerId(0)) {
            CacheView::Reported => View::Reported,
            CacheView::Uncertain => View::Uncertain,
            CacheView::Presumed => View::Silent,
        };
        self.pass(|feed, now, steps| feed.corrected(view, now, steps));
        self.pass(|feed, now, steps| feed.tick(now, steps));
        self.router.apply(Change::EventsDue { at: self.now });
        self.views.push(self.router.inspect().cache_view(WorkerId(0)));
    }

    fn publish(&mut self, text: &[u8]) {
        let seq = self.memory.len() as u64;
        let events = vec![CacheEvent::Stored(blocks(text, 0, 60))];
        let batch = EventBatch { at_unix_s: seq as f64, events, rank: None, unreadable: 0, print: seq + 1 };
        self.memory.push(batch.clone());
        self.pass(|feed, now, steps| feed.received_live(seq, batch, Moment { now, unix_s: 0.0 }, steps));
    }

    /// How often the view became reported again.
    fn relapses(&self) -> usize {
        let is_relapse =
            |pair: &&[CacheView]| pair[0] != CacheView::Reported && pair[1] == CacheView::Reported;
        self.views.windows(2).filter(is_relapse).count()
    }
}

#[test]
fn a_liar_that_repeats_its_lies_is_not_believed_again_and_not_asked_for_ever() {
    let mut liar = Liar::new();
    for round in 0..2_000 {
        liar.request((round % 8) as u8);
    }
    assert_eq!(liar.views[20], CacheView::Uncertain);
    assert_eq!(liar.relapses(), 0, "a thousand seconds of the same lies");
    // The first question at the beginning, then after 2, 4, 8 ... 256 and 512 seconds: the last one is not due yet.
    assert!((5..=10).contains(&liar.replays), "{} replays", liar.replays);
    assert!(liar.router.inspect().workers()[0].load.trust < 0.1);
    for round in 0..60 {
        liar.request(round % 3);
    }
    assert_eq!(liar.relapses(), 1, "what it says is true now: answers have shown it");
    assert_eq!(liar.views.last(), Some(&CacheView::Reported));
}

#[test]
fn what_was_guessed_in_uncertain_times_stays_until_an_answer_finds_it_wrong() {
    let router = router_of(1);
    let [guessed, reported] = [1, 2].map(|seed| Asking::of(&text(seed, 1_000)));
    let uncertain = Change::Viewed { worker: worker(&router, 0), view: CacheView::Uncertain };
    router.apply(uncertain);
    let mut decision = guessed.route(&router, Micros(1));
    router.observe(&mut decision, Outcome::Ended { answered: None });
    drop(decision);
    assert!(expected(&router, &guessed.text) > 0);
    store(&router, 0, &reported.text, 0, 60);
    for _ in 0..20 {
        let mut decision = reported.route(&router, Micros(1));
        reported.answer(&router, &mut decision, 960);
    }
    assert_eq!(router.inspect().cache_view(WorkerId(0)), CacheView::Reported, "answers have vouched for it");
    assert!(expected(&router, &guessed.text) > 0, "not that it reported all");
    let mut decision = guessed.route(&router, Micros(1));
    guessed.answer(&router, &mut decision, 0);
    drop(decision);
    assert_eq!(expected(&router, &guessed.text), 0);
}

#[test]
fn predictions_from_before_a_restart_do_not_lower_trust() {
    let router = router_of(1);
    let asking = Asking::of(&text(1, 1_000));
    store(&router, 0, &asking.text, 0, 60);
    let mut overtaken: Vec<Decision> = (0..8).map(|_| asking.route(&router, Micros(1))).collect();
    router.apply(Change::Emptied { worker: worker(&router, 0) });
    for decision in &mut overtaken {
        assert_eq!(asking.answer(&router, decision, 0).stale, 960, "it is counted all the same");
    }
    let load = router.inspect().workers()[0].load;
    assert_eq!((load.view, load.trust), (CacheView::Reported, 1.0));
}

#[test]
fn counters_that_go_back_end_what_an_uncertain_view_knows_and_a_reported_one_knows_better() {
    let prompt = text(1, 1_000);
    for (view, left) in [(CacheView::Uncertain, 0), (CacheView::Reported, 960)] {
        let router = router_of(1);
        store(&router, 0, &prompt, 0, 60);
        router.apply(Change::Viewed { worker: worker(&router, 0), view });
        for queries in [500, 20] {
            let prefix_cache = Some(PrefixCache { queries, hits: 0 });
            let report = LoadReport { prefix_cache, at: Micros(1), ..LoadReport::default() };
            router.apply(Change::Load { worker: worker(&router, 0), report });
        }
        assert_eq!(expected(&router, &prompt), left, "{view}");
    }
}

#[test]
fn late_events_do_not_count_as_unrelated() {
    let router = router_of(1);
    let asking = Asking::of(&text(1, 1_000));
    let unmatched = || router.inspect().feed_report(WorkerId(0)).unwrap().ingested.unmatched;
    let request = |now| {
        let mut decision = asking.route(&router, now);
        router.observe(&mut decision, Outcome::Ended { answered: None });
        asking.answer(&router, &mut decision, 960);
    };
    (0..20).for_each(|_| request(Micros(1)));
    assert_eq!(unmatched(), 1, "only the first, for which nothing was predicted");
    for secs in [3, 6, 9] {
        router.apply(Change::EventsDue { at: Micros::from_secs(secs) });
        request(Micros::from_secs(secs));
    }
    assert_eq!(unmatched(), 4, "but what has had its time is one");
}

/// A prompt whose blocks from 40 to 60 were filled while decoding.
fn store_generated(router: &Router<Standard>, prompt: &[u8]) {
    store(router, 0, prompt, 0, 40);
    (40..60).for_each(|block| store(router, 0, prompt, block, block + 1));
}

#[test]
fn generated_blocks_that_are_always_found_are_promised_exactly_and_not_after_one_falls_short() {
    let router = router_of(1);
    let request = |seed, found| {
        let asking = Asking::of(&text(seed, 1_000));
        store_generated(&router, &asking.text);
        let mut decision = asking.route(&router, Micros(1));
        let promised = decision.expectation.prediction.unwrap().expected;
        asking.answer(&router, &mut decision, found);
        promised
    };
    assert_eq!(request(0, 960), 928, "nine of ten, at first");
    (1..8).for_each(|seed| assert!(request(seed, 960) < 960));
    (8..12).for_each(|seed| assert_eq!(request(seed, 960), 960));
    assert_eq!(request(12, 800), 960, "the engine found less than it had reported");
    (13..21).for_each(|seed| assert!(request(seed, 960) < 960));
    assert_eq!(request(21, 960), 960);
}

#[test]
fn generated_tokens_that_are_the_same_are_promised_at_once() {
    let router = router_of(1);
    let matching = Some(Matching::tokens(Family::new("m")));
    router.apply(Change::Aligned { worker: worker(&router, 0), matching });
    router.apply(Change::Viewed { worker: worker(&router, 0), view: CacheView::Reported });
    let prompt = text(1, 1_000);
    store_generated(&router, &prompt);
    let tokens: Vec<u8> = prompt.iter().flat_map(|&byte| u32::from(byte).to_le_bytes()).collect();
    let root = router.inspect().text_root(&Family::new("m"), Some("m"), None, Unit::Token);
    let texts = &[PromptText { root, bytes: &tokens, unit: Unit::Token }];
    let request = Request { model: Some("m"), texts, ..Request::default() };
    let decision = router.route(&request, &mut Scratch::default(), Micros(1), 7).unwrap();
    assert_eq!(decision.cached_tokens, Some(960));
}
