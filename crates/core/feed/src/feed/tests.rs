//! Scripts of one stream: each line is something the driver tells the feed, and what it must answer.

mod siblings;
mod storm;

use super::*;
use warmroute_types::{CacheEvent, RemovedBlocks, StoredBlocks};

/// A batch of a process that started at this second: one block, named after process and number.
fn batch(process: u64, seq: u64) -> EventBatch {
    stored(process, seq, process * 1_000 + seq)
}

fn stored(process: u64, seq: u64, name: u64) -> EventBatch {
    let blocks =
        StoredBlocks { names: vec![name], tokens: vec![1], block_tokens: 1, ..StoredBlocks::default() };
    made(process, seq, vec![CacheEvent::Stored(blocks)])
}

fn made(process: u64, seq: u64, events: Vec<CacheEvent>) -> EventBatch {
    let at_unix_s = process as f64 * 1e4 + seq as f64;
    EventBatch { at_unix_s, events, rank: None, unreadable: 0, print: process << 32 | (seq + 1) }
}

/// A feed and the steps it has not been asked for yet.
struct Script {
    feed: Feed,
    steps: Vec<Step>,
    now: Micros,
}

impl Script {
    fn new() -> Script {
        Script { feed: Feed::new(Config::default()), steps: Vec::new(), now: Micros::ZERO }
    }

    /// Connected, with batches 0 to `count` - 1 of this process applied.
    fn in_step(process: u64, count: u64) -> Script {
        let mut script = Script::new();
        script.feed.connected(script.now, &mut script.steps);
        (0..count).for_each(|seq| script.replay(process, seq));
        script.end(ReplayEnd::Complete);
        assert_eq!(script.feed.view(), View::Reported);
        script.steps.clear();
        script
    }

    fn connect(&mut self) {
        self.feed.connected(self.now, &mut self.steps);
    }

    fn disconnect(&mut self) {
        self.feed.disconnected(self.now, &mut self.steps);
    }

    fn hear(&mut self, process: u64, seq: u64) {
        self.hear_batch(seq, batch(process, seq));
    }

    fn hear_batch(&mut self, seq: u64, batch: EventBatch) {
        self.feed.heard(seq, batch, Moment { now: self.now, unix_s: 0.0 }, &mut self.steps);
    }

    fn replay(&mut self, process: u64, seq: u64) {
        self.feed.replayed(seq, batch(process, seq), self.now, &mut self.steps);
    }

    fn judge(&mut self, view: View) {
        self.feed.judged(view, self.now, &mut self.steps);
    }

    fn end(&mut self, end: ReplayEnd) {
        self.feed.replay_ended(end, self.now, &mut self.steps);
    }

    fn pass(&mut self, secs: u64) {
        self.now = self.now + Micros::from_secs(secs);
        self.feed.tick(self.now, &mut self.steps);
    }

    /// What it told since the last time, in words: `+7` applied, `!` forget, `?3` ask from 3, and views.
    #[track_caller]
    fn expect(&mut self, words: &str) {
        let told: Vec<String> = self.steps.drain(..).map(|step| word(&step)).collect();
        assert_eq!(told.join(" "), words);
    }
}

fn word(step: &Step) -> String {
    match step {
        Step::Apply(events) => events.iter().map(event_word).collect::<Vec<_>>().join(","),
        Step::Forget => "!".to_owned(),
        Step::AskReplay { from_seq } => format!("?{from_seq}"),
        Step::View(view) => view.to_string(),
    }
}

fn event_word(event: &CacheEvent) -> String {
    match event {
        CacheEvent::Stored(stored) => format!("+{}", stored.names[0]),
        CacheEvent::Removed(removed) => format!("-{}", removed.names[0]),
        CacheEvent::Cleared => "0".to_owned(),
        CacheEvent::Restored(known) => format!("={}", known.floor_seq),
    }
}

#[test]
fn a_newcomer_asks_for_everything_and_holds_what_is_live() {
    let mut script = Script::new();
    script.connect();
    script.expect("?0");
    script.hear(1, 2);
    script.expect("");
    script.replay(1, 0);
    script.expect("+1000 uncertain");
    script.replay(1, 1);
    script.end(ReplayEnd::Complete);
    script.expect("+1001 +1002 reported");
}

#[test]
fn live_and_replayed_batches_overlap_without_harm() {
    let mut script = Script::new();
    script.connect();
    script.hear(1, 1);
    (0..=2).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    script.hear(1, 2);
    script.hear(1, 3);
    script.expect("?0 +1000 uncertain +1001 +1002 reported +1003");
    assert_eq!(script.feed.counters().duplicates, 2);
}

#[test]
fn an_engine_that_has_said_nothing_yet_is_known_to_hold_nothing() {
    let mut script = Script::new();
    script.connect();
    script.end(ReplayEnd::Complete);
    script.expect("?0 reported");
    script.hear(1, 1);
    script.expect("?0");
    script.replay(1, 0);
    script.end(ReplayEnd::Complete);
    script.expect("+1000 +1001");
}

#[test]
fn without_a_replay_the_first_live_batch_is_the_floor() {
    let mut script = Script::new();
    script.connect();
    script.end(ReplayEnd::Failed);
    script.expect("?0");
    script.hear(1, 40);
    script.expect("+1040 reported");
    assert_eq!(script.feed.counters().floor_seq, Some(40));
}

#[test]
fn a_truncated_replay_at_the_first_connection_is_a_floor_and_no_hole() {
    let mut script = Script::new();
    script.connect();
    script.replay(1, 500);
    script.end(ReplayEnd::Complete);
    script.expect("?0 +1500 uncertain reported");
    let counters = script.feed.counters();
    assert_eq!((counters.floor_seq, counters.lost), (Some(500), 0));
}

#[test]
fn a_gap_is_asked_for_and_filled_in_order() {
    let mut script = Script::in_step(1, 2);
    script.hear(1, 4);
    script.hear(1, 5);
    script.expect("?2");
    (2..=4).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    script.expect("+1002 +1003 +1004 +1005");
    assert_eq!((script.feed.counters().gaps, script.feed.counters().lost), (1, 0));
}

#[test]
fn a_batch_that_only_came_late_fills_its_gap_itself() {
    let mut script = Script::in_step(1, 2);
    script.hear(1, 3);
    script.hear(1, 2);
    script.expect("?2 +1002 +1003");
    (2..=3).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    script.expect("");
    assert_eq!(script.feed.view(), View::Reported);
}

#[test]
fn a_hole_that_stays_makes_the_view_uncertain_and_keeps_it() {
    let mut script = Script::in_step(1, 2);
    script.hear(1, 6);
    script.replay(1, 5);
    script.end(ReplayEnd::Complete);
    script.expect("?2 +1005 +1006 uncertain");
    assert_eq!(script.feed.counters().lost, 3);
    script.hear(1, 7);
    script.expect("+1007");
}

#[test]
fn what_was_lost_while_a_replay_ran_is_asked_for_again() {
    let mut script = Script::in_step(1, 2);
    script.hear(1, 3);
    script.hear(1, 6);
    (2..=3).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    script.expect("?2 +1002 +1003 ?4");
    (4..=6).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    script.expect("+1004 +1005 +1006");
    assert_eq!(script.feed.view(), View::Reported);
}

#[test]
fn a_cleared_cache_is_known_exactly_again() {
    let mut script = Script::in_step(1, 2);
    script.hear(1, 4);
    script.end(ReplayEnd::Complete);
    script.expect("?2 +1004 uncertain");
    script.hear_batch(5, made(1, 5, vec![CacheEvent::Cleared]));
    script.expect("0 reported");
}

#[test]
fn a_hole_after_a_failed_replay_is_repaired_by_a_later_one() {
    let mut script = Script::in_step(1, 2);
    script.hear(1, 3);
    script.end(ReplayEnd::Failed);
    script.expect("?2 +1003 uncertain");
    script.pass(1);
    script.expect("");
    script.pass(1);
    script.expect("?0");
    script.hear(1, 4);
    (0..=3).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    script.expect("! +1000 +1001 +1002 +1003 +1004 reported");
}

#[test]
fn a_view_is_not_rebuilt_from_a_memory_that_begins_too_late() {
    let mut script = Script::in_step(1, 2);
    script.hear(1, 3);
    script.end(ReplayEnd::Failed);
    script.pass(2);
    script.expect("?2 +1003 uncertain ?0");
    (1..=3).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    script.expect("");
    script.pass(10_000);
    script.expect("");
    assert_eq!(script.feed.view(), View::Uncertain);
}

#[test]
fn a_sequence_that_begins_again_is_a_restart() {
    let mut script = Script::in_step(1, 5);
    script.hear(2, 0);
    script.expect("! ?0 silent");
    script.replay(2, 0);
    script.end(ReplayEnd::Complete);
    script.expect("+2000 uncertain reported");
    assert_eq!(script.feed.counters().restarts, 1);
}

#[test]
fn live_batches_that_a_replay_has_overtaken_are_no_restart() {
    let mut script = Script::in_step(1, 2);
    script.hear(1, 3);
    (2..=600).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    (4..=601).for_each(|seq| script.hear(1, seq));
    assert_eq!((script.feed.counters().restarts, script.feed.counters().next_seq), (0, Some(602)));
}

#[test]
fn batches_that_were_held_while_a_replay_overtook_them_are_no_restart() {
    let mut script = Script::new();
    script.connect();
    (0..=300).for_each(|seq| script.hear(1, seq));
    (0..=600).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    assert_eq!((script.feed.counters().restarts, script.feed.counters().next_seq), (0, Some(601)));
}

#[test]
fn a_restart_is_noticed_though_the_engines_clock_went_back() {
    let mut script = Script::in_step(9, 400);
    script.hear(9, 400);
    script.steps.clear();
    script.hear(2, 0);
    script.expect("! ?0 silent");
}

#[test]
fn a_new_process_that_has_already_overtaken_us_is_noticed() {
    let mut script = Script::in_step(1, 3);
    script.disconnect();
    script.expect("uncertain");
    script.connect();
    script.expect("?2");
    script.hear(2, 9);
    script.replay(2, 2);
    script.expect("! ?0 silent");
    (0..=9).for_each(|seq| script.replay(2, seq));
    script.end(ReplayEnd::Complete);
    assert_eq!(script.feed.view(), View::Reported);
    assert_eq!(script.steps.iter().filter(|step| matches!(step, Step::Apply(_))).count(), 10);
}

#[test]
fn a_new_process_that_has_said_less_than_we_know_is_noticed() {
    let mut script = Script::in_step(1, 3);
    script.disconnect();
    script.connect();
    script.end(ReplayEnd::Complete);
    script.expect("uncertain ?2 ! ?0 silent");
    script.end(ReplayEnd::Complete);
    script.expect("reported");
}

#[test]
fn a_reconnect_to_the_same_process_forgets_nothing() {
    let mut script = Script::in_step(1, 3);
    script.disconnect();
    script.connect();
    script.expect("uncertain ?2");
    script.hear(1, 5);
    (2..=4).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    script.expect("+1003 +1004 +1005 reported");
    assert_eq!(script.feed.counters().restarts, 0);
}

#[test]
fn a_reconnect_after_too_long_begins_with_what_the_engine_remembers() {
    let mut script = Script::in_step(1, 3);
    script.disconnect();
    script.connect();
    script.replay(1, 100);
    script.end(ReplayEnd::Complete);
    script.expect("uncertain ?2 ! +1100 reported");
    assert_eq!(script.feed.counters().floor_seq, Some(100));
}

#[test]
fn a_reconnect_without_replay_leaves_doubt_until_somebody_vouches() {
    let mut script = Script::in_step(1, 3);
    script.disconnect();
    script.connect();
    script.end(ReplayEnd::Failed);
    script.expect("uncertain ?2");
    script.hear(1, 3);
    script.expect("+1003");
    script.judge(View::Reported);
    script.expect("reported");
}

#[test]
fn duplicates_are_applied_once() {
    let mut script = Script::in_step(1, 3);
    (0..3).for_each(|seq| script.hear(1, seq));
    script.expect("");
    assert_eq!(script.feed.counters().duplicates, 3);
}

#[test]
fn a_batch_of_a_hole_that_comes_after_all_is_no_restart() {
    let mut script = Script::in_step(1, 2);
    script.hear(1, 4);
    script.end(ReplayEnd::Complete);
    script.hear(1, 3);
    script.expect("?2 +1004 uncertain");
    assert_eq!((script.feed.counters().restarts, script.feed.counters().duplicates), (0, 1));
}

#[test]
fn what_is_held_is_bounded_and_the_rest_is_asked_for_later() {
    let mut script = Script::in_step(1, 1);
    script.feed.config.held_batches_max = 2;
    (2..=9).for_each(|seq| script.hear(1, seq));
    script.replay(1, 1);
    script.end(ReplayEnd::Complete);
    script.expect("?1 +1001 +1002 +1003");
    assert_eq!(script.feed.counters().dropped, 6);
    script.hear(1, 10);
    (4..=10).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    script.expect("?4 +1004 +1005 +1006 +1007 +1008 +1009 +1010");
}

#[test]
fn an_engine_that_works_and_says_nothing_is_silent_until_it_speaks() {
    let mut script = Script::in_step(1, 1);
    script.pass(1_000);
    script.expect("");
    for _ in 0..3 {
        script.feed.worked(script.now, &mut script.steps);
    }
    script.pass(9);
    script.expect("?1");
    script.end(ReplayEnd::Failed);
    script.pass(1);
    script.expect("silent");
    script.hear(1, 1);
    script.expect("+1001 reported");
}

#[test]
fn what_is_told_to_others_only_is_found_by_asking() {
    let mut script = Script::in_step(1, 1);
    script.feed.worked(script.now, &mut script.steps);
    script.pass(1);
    script.expect("");
    script.pass(1);
    (1..=2).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    script.expect("?1 +1001 +1002");
    assert_eq!((script.feed.counters().unheard, script.feed.counters().live), (2, 0));
    script.pass(1_000);
    script.expect("");
}

#[test]
fn an_engine_that_had_nothing_to_tell_is_not_silent() {
    let mut script = Script::in_step(1, 1);
    for _ in 0..20 {
        script.feed.worked(script.now, &mut script.steps);
        script.pass(2);
        script.end(ReplayEnd::Complete);
        script.expect("?1");
    }
    assert_eq!((script.feed.view(), script.feed.counters().unheard), (View::Reported, 0));
}

#[test]
fn what_comes_live_while_the_silence_is_asked_about_is_taken_at_once_and_once() {
    let mut script = Script::in_step(1, 1);
    script.feed.worked(script.now, &mut script.steps);
    script.pass(2);
    script.hear(1, 1);
    script.expect("?1 +1001");
    script.replay(1, 1);
    script.end(ReplayEnd::Complete);
    script.expect("");
    assert_eq!((script.feed.counters().unheard, script.feed.counters().duplicates), (0, 1));
}

#[test]
fn a_connection_that_stays_away_is_silence() {
    let mut script = Script::in_step(1, 1);
    script.disconnect();
    script.pass(9);
    script.expect("uncertain");
    script.pass(1);
    script.expect("silent");
    script.connect();
    script.replay(1, 0);
    script.end(ReplayEnd::Complete);
    script.expect("?0 uncertain reported");
}

#[test]
fn an_engine_that_remembers_nothing_has_a_floor_where_we_came() {
    let mut script = Script::new();
    script.connect();
    script.hear(1, 40);
    script.end(ReplayEnd::Complete);
    script.expect("?0 ?0 reported");
    script.end(ReplayEnd::Complete);
    script.expect("+1040");
    let counters = script.feed.counters();
    assert_eq!((counters.floor_seq, counters.lost), (Some(40), 0));
}

#[test]
fn doubt_discounts_and_a_voucher_restores() {
    let mut script = Script::in_step(1, 1);
    script.judge(View::Uncertain);
    script.expect("uncertain");
    script.judge(View::Reported);
    script.expect("reported");
}

#[test]
fn what_answers_contradict_is_not_believed_because_it_is_told_again() {
    let mut script = Script::in_step(1, 2);
    script.judge(View::Uncertain);
    script.expect("uncertain");
    for pause_secs in [2, 4, 8, 16] {
        script.pass(pause_secs - 1);
        script.expect("");
        script.pass(1);
        script.expect("?0");
        (0..2).for_each(|seq| script.replay(1, seq));
        script.end(ReplayEnd::Complete);
        script.expect("! +1000 +1001");
    }
    script.judge(View::Reported);
    script.expect("reported");
    script.judge(View::Uncertain);
    // The 32 s that were planned are counted, though nobody had to wait for them.
    script.pass(63);
    script.expect("uncertain");
    script.pass(1);
    script.expect("?0");
}

#[test]
fn an_empty_cache_gives_no_credit_and_a_new_process_does() {
    let mut script = Script::in_step(1, 2);
    script.judge(View::Uncertain);
    script.hear_batch(2, made(1, 2, vec![CacheEvent::Cleared]));
    script.expect("uncertain 0");
    script.hear(2, 0);
    script.replay(2, 0);
    script.end(ReplayEnd::Complete);
    script.expect("! ?0 silent +2000 uncertain reported");
}

#[test]
fn answers_do_not_vouch_for_whoever_is_at_the_end_of_a_lost_line() {
    let mut script = Script::in_step(1, 2);
    script.disconnect();
    script.judge(View::Reported);
    script.expect("uncertain uncertain");
    script.connect();
    script.judge(View::Reported);
    script.expect("?1 uncertain");
    script.replay(1, 1);
    script.end(ReplayEnd::Complete);
    script.expect("reported");
}

#[test]
fn a_judgement_of_another_telling_is_nobodys() {
    let mut script = Script::in_step(1, 2);
    script.judge(View::Reported);
    script.judge(View::Silent);
    script.expect("");
}

#[test]
fn a_driver_that_knows_of_a_new_process_says_so_and_it_is_counted() {
    let mut script = Script::in_step(1, 2);
    script.feed.restarted(script.now, &mut script.steps);
    script.expect("! ?0 silent");
    assert_eq!(script.feed.counters().restarts, 1);
}

#[test]
fn only_what_counts_is_applied_and_the_rest_is_counted() {
    let mut script = Script::in_step(1, 1);
    let other = RemovedBlocks { names: vec![4, 5], group: 3, ..RemovedBlocks::default() };
    let mut batch = made(1, 1, vec![CacheEvent::Removed(other)]);
    batch.unreadable = 2;
    script.hear_batch(1, batch);
    script.expect("uncertain");
    let counters = script.feed.counters();
    assert_eq!((counters.skipped_blocks, counters.unreadable, counters.next_seq), (2, 2, Some(2)));
}
