//! How long a worker takes, and how long it will be busy with the prompts it has.
//!
//! Engines compute prompts in the order in which they come. So when a first token is heard, everything booked before its
//! prompt is done, and what was booked after it is begun: what a prompt took is the time since the first token before it,
//! and what lies ahead of a new one is the sum of what was booked, less what has passed since then. Neither needs a
//! word from the engine.
//!
//! An answer that comes whole has no first token: its prompt is taken for computed when its turn has come and its time has passed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use warmroute_types::{Delivery, Micros};

use crate::fit::{Effort, Features, Fit, Place, Slowness};

/// One seat's pace: what decisions read, as atomics, and behind it what that follows from.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Pace {
    /// How many times as long as the fleet's it takes; f32 bits.
    slowness: AtomicU32,
    /// Prompts that are booked and not done.
    prompts: AtomicU32,
    /// What those are expected to take, in microseconds.
    booked_us: AtomicU64,
    /// What those before the first that will be heard are expected to take,
    unheard_us: AtomicU64,
    /// how many they are,
    unheard: AtomicU32,
    /// and what that first one is expected to take.
    heard_us: AtomicU64,
    /// When the one at the head was begun.
    begun_at: AtomicU64,
    /// Since when that first one could have been heard; `u64::MAX` where there is none.
    quiet_since: AtomicU64,
    /// When the last one was booked.
    booked_at: AtomicU64,
    /// Tokens of the worker's cache; 0 until it is known.
    kv_tokens: AtomicU64,
    /// Prompts that waited in the engine when it last reported, beyond those that were booked here.
    strangers: AtomicU32,
    row: Mutex<Row>,
}

/// The prompts in the order in which they were booked.
#[derive(Debug)]
struct Row {
    turns: VecDeque<Expected>,
    last_number: u64,
    /// When the first of them began, as far as this router's own first tokens tell.
    since: Micros,
    /// When a first token was last heard, here or by another router.
    heard: Micros,
    /// Those whose first tokens were heard last.
    batch: Option<Batch>,
    slowness: Slowness,
    /// The one at the head was given up: how much of the time since it began was its own is not known.
    is_disturbed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Expected {
    turn: Turn,
    us: u64,
    delivery: Delivery,
    /// Another router has heard its first token, or nobody will and its time has passed. It lies before nobody any more, but when its
    /// turn came and for how long is not known here: it stays to be learned from with the next one that is heard.
    is_done: bool,
}

/// Prompts whose first tokens came together: one step has computed them, and what it took is what they took in sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub features: Features,
    pub took_ms: f64,
    /// When the last of them was heard.
    heard: Micros,
    /// Something else took a part of that time.
    is_disturbed: bool,
}

/// Room in a row before it has to grow.
const PROMPTS_USUAL: usize = 64;

/// No prompt takes longer, whatever was learned.
const EXPECTED_MAX_MS: f32 = 3.6e6;

/// Instead of a time at which the one at the head was begun: it is begun when somebody next looks, or it is not known whether it was.
const BEGINS_NOW: u64 = u64::MAX;
const UNKNOWN: u64 = u64::MAX - 1;

/// So many that are done are kept to be learned from; where nobody is heard for longer there is nothing to learn.
const DONE_MAX: usize = 64;

/// A first token that takes so many times as long as expected, and so much longer, will not come soon: the engine has stalled. It
/// may go on for as long as it has; but when all of them are late, because their memory is full, that says little, so it is
/// believed up to a limit.
const LATE: u64 = 10;
const LATE_MIN: Micros = Micros::from_millis(100);
const LATE_MAX: Micros = Micros::from_secs(2);

/// First tokens this close to each other are of one step.
const TOGETHER: Micros = Micros(500);

/// A prompt's place in the row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    number: u64,
    booked: Micros,
    effort: Effort,
}

/// How soon a worker could begin with a new prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Until it is that prompt's turn.
    pub queue_ms: f32,
    /// Where it would stand.
    pub place: Place,
    /// Prompts before it.
    pub prompts: u32,
    /// Since the last one was booked.
    pub idle: Micros,
    /// Tokens of the worker's cache, where they are known.
    pub kv_tokens: Option<u64>,
    /// How many times as long as the fleet's it takes.
    pub slowness: f32,
    /// Prompts that came to the engine by another way and waited there when it last reported.
    pub strangers: u32,
}

/// How fast a worker has shown to be, in words that need no explaining.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaceView {
    /// What a thousand prompt tokens take that are not cached.
    pub ms_per_1k_tokens: f32,
    /// What every request takes before its first token: the network, the end of the step under way.
    pub ms_before_first: f32,
    /// How many times as long as the whole fleet it takes.
    pub slowness: f32,
    /// Until it could begin with a new prompt.
    pub queue_ms: f32,
}

impl Row {
    fn new() -> Row {
        Row {
            turns: VecDeque::new(),
            last_number: 0,
            since: Micros::ZERO,
            heard: Micros::ZERO,
            batch: None,
            slowness: Slowness::NONE,
            is_disturbed: false,
        }
    }

    /// Those that are not done.
    fn waiting(&self) -> impl Iterator<Item = &Expected> {
        self.turns.iter().filter(|expected| !expected.is_done)
    }

    fn is_head(&self, turn: Turn) -> bool {
        self.waiting().next().is_some_and(|head| head.turn.number == turn.number)
    }

    /// When the one at the head begins, where the one before it was given up. Until something is heard, one that will be heard
    /// is taken for not begun; one that will not cannot be waited for.
    fn beginning(&self) -> u64 {
        match self.waiting().next() {
            Some(head) if head.delivery == Delivery::Whole => BEGINS_NOW,
            _ => UNKNOWN,
        }
    }

    /// Takes one for done; what it was expected to take.
    fn finish(&mut self, number: u64) -> u64 {
        let is_it = |expected: &&mut Expected| expected.turn.number == number;
        let Some(expected) = self.turns.iter_mut().find(is_it) else { return 0 };
        expected.is_done = true;
        let us = std::mem::take(&mut expected.us);
        if self.turns.iter().take_while(|expected| expected.is_done).count() > DONE_MAX {
            self.turns.pop_front();
            self.is_disturbed = true;
        }
        us
    }
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            slowness: AtomicU32::new(1.0_f32.to_bits()),
            prompts: AtomicU32::new(0),
            booked_us: AtomicU64::new(0),
            unheard_us: AtomicU64::new(0),
            unheard: AtomicU32::new(0),
            heard_us: AtomicU64::new(0),
            begun_at: AtomicU64::new(0),
            quiet_since: AtomicU64::new(u64::MAX),
            booked_at: AtomicU64::new(0),
            kv_tokens: AtomicU64::new(0),
            strangers: AtomicU32::new(0),
            row: Mutex::new(Row::new()),
        }
    }
}

impl Pace {
    /// What lies before a prompt that would be booked now.
    pub(crate) fn outlook(&self, now: Micros) -> Outlook {
        let since = |at: &AtomicU64| now.since(Micros(at.load(Relaxed)));
        let (begun_us, unheard_us) = (now.since(self.begun_at(now)).0, self.unheard_us.load(Relaxed));
        let passed = if begun_us < unheard_us { 0 } else { self.unheard.load(Relaxed) };
        let prompts = self.prompts.load(Relaxed).saturating_sub(passed);
        // However long it has been under way, none behind the first that will be heard is.
        let heard_us = self.heard_us.load(Relaxed);
        let passed_us = begun_us.min(unheard_us + heard_us);
        let on_time_us = unheard_us + LATE * heard_us + LATE_MIN.0;
        let stalled_us = since(&self.quiet_since).0.saturating_sub(on_time_us).min(LATE_MAX.0);
        let left_us = self.booked_us.load(Relaxed).saturating_sub(passed_us) + stalled_us;
        Outlook {
            queue_ms: left_us as f32 / 1e3,
            place: if prompts == 0 { Place::First } else { Place::Behind },
            prompts,
            idle: since(&self.booked_at),
            slowness: self.slowness(),
            strangers: self.strangers.load(Relaxed),
            kv_tokens: Some(self.kv_tokens.load(Relaxed)).filter(|&tokens| tokens > 0),
        }
    }

    /// How many times as long as the fleet's it takes.
    pub(crate) fn slowness(&self) -> f32 {
        f32::from_bits(self.slowness.load(Relaxed))
    }

    /// Books a prompt that is expected to take so long.
    pub(crate) fn book(&self, effort: Effort, delivery: Delivery, expected_ms: f32, now: Micros) -> Turn {
        let us = (expected_ms.clamp(0.0, EXPECTED_MAX_MS) * 1e3) as u64;
        let mut row = self.row.lock();
        self.pass(&mut row, now);
        if row.turns.is_empty() {
            self.begun_at.store(now.0, Relaxed);
            row.since = now;
        }
        self.booked_at.store(now.0, Relaxed);
        row.last_number += 1;
        let turn = Turn { number: row.last_number, booked: now, effort };
        row.turns.push_back(Expected { turn, us, delivery, is_done: false });
        self.booked_us.fetch_add(us, Relaxed);
        self.show(&row);
        turn
    }

    /// When the one at the head was begun: now, if it waits only for somebody to look.
    fn begun_at(&self, now: Micros) -> Micros {
        match self.begun_at.load(Relaxed) {
            BEGINS_NOW => {
                self.begun_at.store(now.0, Relaxed);
                now
            }
            at => Micros(at),
        }
    }

    /// Whoever is at the head, will not be heard, and has had its time is taken for done.
    fn pass(&self, row: &mut Row, now: Micros) {
        loop {
            let begun = self.begun_at(now);
            let unheard = row.waiting().next().filter(|head| head.delivery == Delivery::Whole);
            let Some(head) = unheard.filter(|head| now.since(begun).0 >= head.us.max(1)) else { break };
            let number = head.turn.number;
            let us = row.finish(number);
            self.begun_at.store(begun.0 + us, Relaxed);
            self.booked_us.fetch_sub(us, Relaxed);
        }
        if row.waiting().next().is_none() {
            row.turns.clear();
        }
    }

    /// A prompt left the row without a first token.
    pub(crate) fn release(&self, turn: Turn) {
        let mut row = self.row.lock();
        let Some(released) = row.turns.iter().find(|expected| expected.turn.number == turn.number) else {
            return;
        };
        match released.delivery {
            _ if released.is_done => {}
            // Its answer has come, or was given up after the prompt was computed: prompts take a small part of an answer's time.
            Delivery::Whole => self.release_whole(&mut row, turn),
            Delivery::Streamed => self.release_streamed(&mut row, turn),
        }
    }

    fn release_whole(&self, row: &mut Row, turn: Turn) {
        let (is_head, us) = (row.is_head(turn), row.finish(turn.number));
        self.booked_us.fetch_sub(us, Relaxed);
        if is_head {
            let begun = self.begun_at.load(Relaxed);
            let next = if begun < UNKNOWN { begun.saturating_add(us) } else { row.beginning() };
            self.begun_at.store(next, Relaxed);
        }
        if row.waiting().next().is_none() {
            row.turns.clear();
        }
        self.show(row);
    }

    fn release_streamed(&self, row: &mut Row, turn: Turn) {
        let is_head = row.is_head(turn);
        self.take_out(row, |number| number == turn.number);
        if is_head && !row.turns.is_empty() {
            row.is_disturbed = true;
            self.begun_at.store(row.beginning(), Relaxed);
        }
    }

    /// A first token was heard: its prompt is done, as are those before it, and the next one begins. Those that were heard
    /// before it, if they are complete now and can be learned from.
    pub(crate) fn first_token(&self, turn: Turn, now: Micros) -> Option<Batch> {
        let mut row = self.row.lock();
        // One behind it was heard first: this one was taken for done, and says nothing about whoever is at the head now.
        if row.turns.front().is_none_or(|head| head.turn.number > turn.number) {
            return None;
        }
        self.begun_at.store(now.0, Relaxed);
        row.heard = now;
        let begun = std::mem::replace(&mut row.since, now);
        let mut features = self.take_out(&mut row, |number| number <= turn.number);
        // The head began when it was booked, or when the one before it was done.
        let (first, behind) = if begun > turn.booked { (0.0, 1.0) } else { (1.0, 0.0) };
        let others = features[0] + features[1] - 1.0;
        (features[0], features[1]) = (first, behind + others.max(0.0));
        if let Some(batch) = row.batch.as_mut().filter(|batch| now.since(batch.heard) <= TOGETHER) {
            batch.features.iter_mut().zip(features).for_each(|(sum, feature)| *sum += feature);
            batch.heard = now;
            return None;
        }
        let took_ms = now.since(begun).0 as f64 / 1e3;
        let is_disturbed = std::mem::take(&mut row.is_disturbed);
        let batch = Batch { features, took_ms, heard: now, is_disturbed };
        row.batch.replace(batch).filter(|batch| !batch.is_disturbed)
    }

    /// Another router has heard a first token: that prompt is done, and the next one has begun by now.
    pub(crate) fn done_elsewhere(&self, turn: Turn, now: Micros) {
        let mut row = self.row.lock();
        if row.is_head(turn) {
            self.begun_at.store(now.0, Relaxed);
        }
        row.heard = now;
        self.booked_us.fetch_sub(row.finish(turn.number), Relaxed);
        if row.waiting().next().is_none() {
            row.turns.clear();
        }
        self.show(&row);
    }

    /// Takes prompts out; what they were expected from, in sum.
    fn take_out(&self, row: &mut Row, is_out: impl Fn(u64) -> bool) -> Features {
        let mut sum = Features::default();
        row.turns.retain(|expected| {
            let is_out = is_out(expected.turn.number);
            if is_out {
                self.booked_us.fetch_sub(expected.us, Relaxed);
                let features = expected.turn.effort.features();
                sum.iter_mut().zip(features).for_each(|(sum, feature)| *sum += feature);
            }
            !is_out
        });
        if row.waiting().next().is_none() {
            row.turns.clear();
        }
        self.show(row);
        sum
    }

    fn show(&self, row: &Row) {
        let (mut prompts, mut unheard, mut unheard_us, mut heard) = (0, 0, 0, None);
        for expected in row.waiting() {
            prompts += 1;
            match expected.delivery {
                Delivery::Whole if heard.is_none() => {
                    unheard += 1;
                    unheard_us += expected.us;
                }
                _ => heard = heard.or(Some(expected)),
            }
        }
        let begun_at = Some(self.begun_at.load(Relaxed)).filter(|&at| at < UNKNOWN).unwrap_or(0);
        let quiet_since = heard.map_or(u64::MAX, |heard| heard.turn.booked.max(row.heard).0.max(begun_at));
        self.quiet_since.store(quiet_since, Relaxed);
        self.prompts.store(prompts, Relaxed);
        self.unheard.store(unheard, Relaxed);
        self.unheard_us.store(unheard_us, Relaxed);
        self.heard_us.store(heard.map_or(0, |heard| heard.us), Relaxed);
    }

    /// Takes in what prompts took, and the fleet with it.
    pub(crate) fn learn(&self, batch: &Batch, fleet: &mut Fit) {
        let mut row = self.row.lock();
        let fleet_ms = fleet.expected_ms(&batch.features);
        if fleet.is_known() {
            row.slowness.learn(batch.took_ms, fleet_ms);
        }
        // As it was: divided by what was just learned, the fleet's pace and all ratios could drift apart together.
        fleet.learn(&batch.features, batch.took_ms);
        self.set_slowness(row.slowness);
    }

    /// Another engine sits here now: it is believed to be like the others. What a seat needs is allocated now, not by requests.
    pub(crate) fn forget(&self) {
        let mut row = self.row.lock();
        row.slowness = Slowness::NONE;
        (row.batch, row.is_disturbed) = (None, false);
        row.turns.reserve(PROMPTS_USUAL);
        self.set_slowness(row.slowness);
        self.set_kv_tokens(0);
    }

    /// Another process runs here: how slow the one before it was is no more than a guess now.
    pub(crate) fn doubt(&self) {
        let mut row = self.row.lock();
        row.slowness = row.slowness.doubted();
        (row.batch, row.is_disturbed) = (None, !row.turns.is_empty());
    }

    /// How slow it has shown to be, as numbers.
    pub(crate) fn numbers(&self) -> [f64; 2] {
        self.row.lock().slowness.numbers()
    }

    /// It showed this to somebody before.
    pub(crate) fn recall(&self, numbers: [f64; 2]) {
        let mut row = self.row.lock();
        row.slowness = Slowness::of_numbers(numbers);
        self.set_slowness(row.slowness);
    }

    fn set_slowness(&self, slowness: Slowness) {
        self.slowness.store((slowness.ratio() as f32).to_bits(), Relaxed);
    }

    /// The engine says how many prompts wait in it.
    pub(crate) fn report_waiting(&self, waiting: u32) {
        self.strangers.store(waiting.saturating_sub(self.prompts.load(Relaxed)), Relaxed);
    }

    pub(crate) fn set_kv_tokens(&self, tokens: u64) {
        self.kv_tokens.store(tokens, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Books a prompt of so many tokens, at a millisecond for 40.
    fn book(pace: &Pace, miss_tokens: u32, now: Micros) -> Turn {
        book_one(pace, miss_tokens, Delivery::Streamed, now)
    }

    fn book_one(pace: &Pace, miss_tokens: u32, delivery: Delivery, now: Micros) -> Turn {
        let effort = Effort { miss_tokens, ..Effort::default() };
        pace.book(effort, delivery, miss_tokens as f32 / 40.0, now)
    }

    #[test]
    fn what_is_booked_lies_ahead_until_it_is_computed() {
        let pace = Pace::default();
        assert_eq!(pace.outlook(Micros(0)).queue_ms, 0.0);
        let long = book(&pace, 10_000, Micros(1_000));
        let alone = pace.outlook(Micros(1_000));
        assert_eq!(alone.queue_ms, 250.0);
        assert_eq!((alone.place, alone.prompts), (Place::Behind, 1));
        let later = pace.outlook(Micros(101_000));
        assert!((alone.queue_ms - later.queue_ms - 100.0).abs() < 1.0, "time has passed: {later:?}");
        book(&pace, 1_000, Micros(101_000));
        let overdue = pace.outlook(Micros(2_000_000)).queue_ms;
        assert!((25.0..40.0).contains(&overdue), "the second one has not begun: {overdue}");
        pace.first_token(long, Micros(9_000_000));
        assert_eq!(pace.outlook(Micros(9_000_000)).prompts, 1);
    }

    #[test]
    fn a_first_token_shows_that_all_before_it_are_done() {
        let pace = Pace::default();
        let unheard = book(&pace, 5_000, Micros(0));
        let heard = book(&pace, 100, Micros(0));
        pace.first_token(heard, Micros(200_000));
        assert_eq!(
            pace.outlook(Micros(200_000)),
            Outlook { idle: Micros(200_000), slowness: 1.0, ..Outlook::default() }
        );
        let next = book(&pace, 100, Micros(300_000));
        let batch = pace.first_token(next, Micros(310_000)).unwrap();
        assert_eq!(
            (batch.features[2], batch.took_ms),
            (5.1, 200.0),
            "the unheard one's tokens took their part of it"
        );
        pace.release(unheard);
        assert_eq!(pace.outlook(Micros(200_000)).queue_ms, 0.0, "released once");
    }

    #[test]
    fn prompts_of_one_step_are_learned_from_together() {
        let pace = Pace::default();
        let turns = [1_000, 2_000, 3_000].map(|tokens| book(&pace, tokens, Micros(0)));
        assert!(pace.first_token(turns[0], Micros(150_000)).is_none(), "it may not be complete");
        assert!(pace.first_token(turns[1], Micros(150_100)).is_none());
        let batch = pace.first_token(turns[2], Micros(300_000)).unwrap();
        assert_eq!(batch.took_ms, 150.0);
        assert_eq!(batch.features[2], 3.0, "three thousand tokens in sum");
    }

    #[test]
    fn a_first_token_that_was_overtaken_says_nothing() {
        let pace = Pace::default();
        let (slow, fast) = (book(&pace, 5_000, Micros(0)), book(&pace, 100, Micros(0)));
        pace.first_token(fast, Micros(100_000));
        let next = book(&pace, 1_000, Micros(100_000));
        let before = pace.outlook(Micros(110_000));
        assert!(pace.first_token(slow, Micros(110_000)).is_none());
        assert_eq!(pace.outlook(Micros(110_000)), before, "whoever is computed now was not begun anew");
        let batch = pace.first_token(next, Micros(125_000)).unwrap();
        assert_eq!((batch.features[2], batch.took_ms), (5.1, 100.0), "the two are learned from once");
    }

    #[test]
    fn nothing_is_learned_from_the_time_of_a_prompt_that_was_given_up() {
        let pace = Pace::default();
        let (gone, next) = (book(&pace, 9_000, Micros(0)), book(&pace, 100, Micros(0)));
        pace.release(gone);
        assert!(pace.first_token(next, Micros(100_000)).is_none());
        let last = book(&pace, 100, Micros(200_000));
        assert!(pace.first_token(last, Micros(210_000)).is_none(), "the one before it is not told");
    }

    #[test]
    fn whoever_stood_behind_one_that_was_given_up_has_not_had_its_time() {
        let pace = Pace::default();
        let (gone, next) = (book(&pace, 40_000, Micros(0)), book(&pace, 4_000, Micros(0)));
        pace.release(gone);
        assert_eq!(pace.outlook(Micros(900_000)).queue_ms, 100.0, "all of it lies ahead");
        pace.first_token(next, Micros(1_000_000));
        book(&pace, 4_000, Micros(1_000_000));
        assert_eq!(pace.outlook(Micros(1_040_000)).queue_ms, 60.0);
    }

    #[test]
    fn equal_workers_are_equally_fast_whatever_was_guessed() {
        let (mut fleet, paces) = (Fit::new(), [(); 8].map(|()| Pace::default()));
        for n in 0..400_u32 {
            let pace = &paces[n as usize % 8];
            let (at, tokens) = (Micros(u64::from(n) * 10_000_000), 200 + n * 97 % 3_000);
            let turn = book(pace, tokens, at);
            // Twenty times as slow as anybody would have guessed.
            let heard = at + Micros(200_000 + u64::from(tokens) * 500);
            pace.first_token(turn, heard).iter().for_each(|batch| pace.learn(batch, &mut fleet));
        }
        let ratios = paces.map(|pace| pace.slowness());
        assert!(ratios.iter().all(|ratio| (0.9..1.1).contains(ratio)), "{ratios:?}");
    }

    #[test]
    fn an_engine_that_stalls_is_not_taken_for_idle() {
        let pace = Pace::default();
        book(&pace, 400, Micros(0));
        assert_eq!(pace.outlook(Micros(100_000)).queue_ms, 0.0, "some are late");
        assert_eq!(pace.outlook(Micros(500_000)).queue_ms, 300.0, "not that late");
        assert_eq!(pace.outlook(Micros(90_000_000)).queue_ms, 2_000.0, "up to a limit");
        let silent = Pace::default();
        book_one(&silent, 400, Delivery::Whole, Micros(0));
        assert_eq!(silent.outlook(Micros(90_000_000)).queue_ms, 0.0, "nobody expected a word");
    }

    #[test]
    fn after_a_restart_a_few_answers_tell_how_fast_it_is() {
        let (mut fleet, pace) = (Fit::new(), Pace::default());
        let work = |pace: &Pace, fleet: &mut Fit, n: u64, factor: u64| {
            let (at, tokens) = (Micros(n * 60_000_000), 500 + (n * 97 % 3_000) as u32);
            let turn = book(pace, tokens, at);
            let heard = at + Micros(factor * (8_000 + u64::from(tokens) * 25));
            pace.first_token(turn, heard).iter().for_each(|batch| pace.learn(batch, fleet));
        };
        let others = Pace::default();
        (0..400).for_each(|n| work(&others, &mut fleet, n, 1));
        (0..100).for_each(|n| work(&pace, &mut fleet.clone(), n, 4));
        assert!(pace.slowness() > 3.0, "{}", pace.slowness());
        pace.doubt();
        assert!(pace.slowness() > 3.0, "it is a guess, but the best there is");
        (100..125).for_each(|n| work(&pace, &mut fleet.clone(), n, 1));
        assert!(pace.slowness() < 2.2, "{}", pace.slowness());
    }

    #[test]
    fn what_another_router_heard_lies_ahead_no_more_and_is_learned_from_here() {
        let pace = Pace::default();
        let (theirs, ours) = (book(&pace, 4_000, Micros(0)), book(&pace, 1_000, Micros(0)));
        pace.done_elsewhere(theirs, Micros(90_000));
        let outlook = pace.outlook(Micros(90_000));
        assert_eq!((outlook.queue_ms, outlook.prompts), (25.0, 1));
        assert_eq!(pace.outlook(Micros(100_000)).queue_ms, 15.0, "ours has begun");
        assert!(pace.first_token(ours, Micros(125_000)).is_none(), "it may not be complete");
        let alone = book(&pace, 2_000, Micros(200_000));
        pace.done_elsewhere(alone, Micros(260_000));
        let next = book(&pace, 1_000, Micros(300_000));
        let both = pace.first_token(next, Micros(330_000)).unwrap();
        assert_eq!((both.features[2], both.took_ms), (5.0, 125.0), "theirs and ours, since both were booked");
        let last = book(&pace, 1_000, Micros(400_000));
        let one = pace.first_token(last, Micros(420_000)).unwrap();
        assert_eq!(
            (one.features[2], one.took_ms),
            (1.0, 30.0),
            "what was done before it was booked is not its own"
        );
    }

    #[test]
    fn a_prompt_whose_answer_comes_whole_is_done_when_its_time_has_passed() {
        let pace = Pace::default();
        let whole = [(); 3].map(|()| book_one(&pace, 4_000, Delivery::Whole, Micros(0)));
        let heard = book(&pace, 4_000, Micros(0));
        book(&pace, 4_000, Micros(0));
        let ahead = |at_ms: u64| {
            let outlook = pace.outlook(Micros(at_ms * 1_000));
            (outlook.queue_ms, outlook.prompts)
        };
        assert_eq!(ahead(0), (500.0, 5));
        assert_eq!(ahead(250), (250.0, 5), "those at the head are passing by");
        assert_eq!(ahead(350), (150.0, 2), "they have passed");
        assert_eq!(ahead(1_300), (100.0, 2), "but whoever will be heard is not done before");
        book_one(&pace, 4_000, Delivery::Whole, Micros(1_300_000));
        assert_eq!(ahead(1_300), (200.0, 3));
        whole.into_iter().for_each(|turn| pace.release(turn));
        assert_eq!(ahead(1_300), (200.0, 3), "their answers change nothing");
        assert!(pace.first_token(heard, Micros(9_000_000)).is_none());
        let last = book(&pace, 40, Micros(9_000_000));
        let batch = pace.first_token(last, Micros(9_500_000)).unwrap();
        assert_eq!((batch.features[2], batch.took_ms), (16.0, 9_000.0), "all four are learned from together");
    }

    #[test]
    fn whole_answers_that_end_early_late_or_never_stop_no_clock() {
        let pace = Pace::default();
        let [early, gone, next, last] = [(); 4].map(|()| book_one(&pace, 4_000, Delivery::Whole, Micros(0)));
        let queue_ms = |at_ms: u64| pace.outlook(Micros(at_ms * 1_000)).queue_ms;
        pace.release(early);
        assert_eq!(
            (queue_ms(50), queue_ms(150)),
            (300.0, 250.0),
            "the next one begins when it was expected to"
        );
        pace.release(gone);
        pace.release(next);
        assert_eq!((queue_ms(350), queue_ms(900)), (50.0, 0.0));
        let streamed = book(&pace, 4_000, Micros(900_000));
        let behind = book_one(&pace, 4_000, Delivery::Whole, Micros(900_000));
        pace.release(streamed);
        assert_eq!(queue_ms(1_000), 100.0, "given up: the next one begins when somebody looks");
        assert_eq!(queue_ms(1_060), 40.0);
        [last, behind].into_iter().for_each(|turn| pace.release(turn));
        assert_eq!((queue_ms(1_060), pace.outlook(Micros(1_060_000)).prompts), (0.0, 0));
    }

    #[test]
    fn an_engine_that_hangs_is_late_though_its_clients_give_up() {
        let pace = Pace::default();
        let turns = [(); 3].map(|()| book(&pace, 400, Micros(0)));
        pace.release(turns[0]);
        let outlook = pace.outlook(Micros(1_000_000));
        assert_eq!(outlook.queue_ms, 800.0 + 20.0, "late, and two before it");
        pace.first_token(turns[1], Micros(1_000_000));
        assert_eq!(pace.outlook(Micros(1_010_000)).queue_ms, 0.0, "it has spoken");
    }

    #[test]
    fn the_next_of_a_disturbed_step_is_not_learned_from_alone() {
        let pace = Pace::default();
        let [gone, one, two] = [4_000; 3].map(|tokens| book(&pace, tokens, Micros(0)));
        pace.release(gone);
        assert!(pace.first_token(one, Micros(300_000)).is_none());
        assert!(pace.first_token(two, Micros(300_100)).is_none());
        let later = book(&pace, 40, Micros(400_000));
        assert!(pace.first_token(later, Micros(401_000)).is_none(), "both are of that step");
        let last = book(&pace, 40, Micros(500_000));
        assert_eq!(pace.first_token(last, Micros(501_000)).unwrap().took_ms, 1.0);
    }

    #[test]
    fn where_nobody_is_ever_heard_the_row_stays_short() {
        let pace = Pace::default();
        (0..1_000_u64).for_each(|n| {
            book_one(&pace, 4_000, Delivery::Whole, Micros(n * 99_000));
        });
        assert!(pace.row.lock().turns.len() <= DONE_MAX + 12, "{}", pace.row.lock().turns.len());
        let outlook = pace.outlook(Micros(1_000 * 99_000));
        assert!((900.0..1_200.0).contains(&outlook.queue_ms), "a hundredth more than it can do: {outlook:?}");
    }

    #[test]
    fn those_that_were_done_before_it_was_booked_took_their_time_before_it() {
        let pace = Pace::default();
        let theirs = [2_000, 2_000].map(|tokens| book(&pace, tokens, Micros(0)));
        pace.done_elsewhere(theirs[0], Micros(50_000));
        let ours = book(&pace, 2_000, Micros(60_000));
        pace.done_elsewhere(theirs[1], Micros(100_000));
        assert!(pace.first_token(ours, Micros(150_000)).is_none(), "it may not be complete");
        let last = book(&pace, 40, Micros(200_000));
        let all = pace.first_token(last, Micros(210_000)).unwrap();
        assert_eq!((all.features[2], all.took_ms), (6.0, 150.0));
    }

    #[test]
    fn what_never_had_a_first_token_leaves_nothing_behind() {
        let pace = Pace::default();
        let turns: Vec<Turn> = (1..50).map(|tokens| book(&pace, tokens * 100, Micros(0))).collect();
        turns.into_iter().for_each(|turn| pace.release(turn));
        assert_eq!((pace.outlook(Micros(1)).queue_ms, pace.outlook(Micros(1)).prompts), (0.0, 0));
    }
}
