//! Scripts of one stream: each line is an input of the feed and the steps that it must return.

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

/// A feed and the steps that have not been checked yet.
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
        self.feed.received_live(seq, batch, Moment { now: self.now, unix_s: 0.0 }, &mut self.steps);
    }

    fn replay(&mut self, process: u64, seq: u64) {
        self.feed.replayed(seq, batch(process, seq), self.now, &mut self.steps);
    }

    fn assess(&mut self, view: View) {
        self.feed.corrected(view, self.now, &mut self.steps);
    }

    fn end(&mut self, end: ReplayEnd) {
        self.feed.replay_ended(end, self.now, &mut self.steps);
    }

    fn pass(&mut self, secs: u64) {
        self.now = self.now + Micros::from_secs(secs);
        self.feed.tick(self.now, &mut self.steps);
    }

    /// Checks the steps since the last call: `+7` applied, `!` forget, `?3` request from 3, and views.
    #[track_caller]
    fn expect(&mut self, words: &str) {
        let published: Vec<String> = self.steps.drain(..).map(|step| word(&step)).collect();
        assert_eq!(published.join(" "), words);
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
    }
}

#[test]
fn a_new_feed_requests_everything_and_holds_live_batches() {
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
fn overlapping_live_and_replayed_batches_are_applied_once() {
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
fn an_engine_without_any_batch_holds_nothing() {
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
fn an_interrupted_first_replay_is_continued_while_the_engine_is_idle() {
    let mut script = Script::new();
    script.connect();
    script.replay(1, 0);
    script.replay(1, 1);
    script.end(ReplayEnd::Failed);
    script.expect("?0 +1000 uncertain +1001");
    script.pass(2);
    script.expect("?1");
    script.replay(1, 1);
    script.replay(1, 2);
    script.end(ReplayEnd::Complete);
    script.expect("+1002 reported");
    script.pass(600);
    script.expect("");
}

#[test]
fn a_first_replay_without_a_reply_is_requested_again_while_the_engine_is_idle() {
    let mut script = Script::new();
    script.connect();
    script.end(ReplayEnd::Failed);
    script.expect("?0");
    script.pass(2);
    script.expect("?0");
    script.replay(1, 0);
    script.end(ReplayEnd::Complete);
    script.expect("+1000 uncertain reported");
}

#[test]
fn a_truncated_first_replay_leaves_a_floor_and_no_gap() {
    let mut script = Script::new();
    script.connect();
    script.replay(1, 500);
    script.end(ReplayEnd::Complete);
    script.expect("?0 +1500 uncertain reported");
    let counters = script.feed.counters();
    assert_eq!((counters.floor_seq, counters.lost), (Some(500), 0));
}

#[test]
fn a_gap_is_requested_and_filled_in_order() {
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
fn a_late_batch_fills_its_own_gap() {
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
fn a_permanent_gap_makes_the_view_uncertain_and_keeps_it() {
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
fn batches_lost_during_a_replay_are_requested_again() {
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
fn a_gap_after_a_failed_replay_is_repaired_by_a_later_one() {
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
fn a_view_is_not_rebuilt_from_a_replay_that_begins_too_late() {
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
fn live_batches_behind_a_replay_are_no_restart() {
    let mut script = Script::in_step(1, 2);
    script.hear(1, 3);
    (2..=600).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    (4..=601).for_each(|seq| script.hear(1, seq));
    assert_eq!((script.feed.counters().restarts, script.feed.counters().next_seq), (0, Some(602)));
}

#[test]
fn held_batches_behind_a_replay_are_no_restart() {
    let mut script = Script::new();
    script.connect();
    (0..=300).for_each(|seq| script.hear(1, seq));
    (0..=600).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    assert_eq!((script.feed.counters().restarts, script.feed.counters().next_seq), (0, Some(601)));
}

#[test]
fn a_restart_is_detected_when_the_engines_clock_steps_back() {
    let mut script = Script::in_step(9, 400);
    script.hear(9, 400);
    script.steps.clear();
    script.hear(2, 0);
    script.expect("! ?0 silent");
}

#[test]
fn a_new_process_with_higher_numbers_is_detected() {
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
fn a_new_process_with_lower_numbers_is_detected() {
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
fn a_late_reconnect_starts_over_from_the_engines_memory() {
    let mut script = Script::in_step(1, 3);
    script.disconnect();
    script.connect();
    script.replay(1, 100);
    script.end(ReplayEnd::Complete);
    script.expect("uncertain ?2 ! +1100 reported");
    assert_eq!(script.feed.counters().floor_seq, Some(100));
}

#[test]
fn a_reconnect_without_replay_is_uncertain_until_answers_agree() {
    let mut script = Script::in_step(1, 3);
    script.disconnect();
    script.connect();
    script.end(ReplayEnd::Failed);
    script.expect("uncertain ?2");
    script.hear(1, 3);
    script.expect("+1003");
    script.assess(View::Reported);
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
fn a_late_batch_of_a_lost_gap_is_no_restart() {
    let mut script = Script::in_step(1, 2);
    script.hear(1, 4);
    script.end(ReplayEnd::Complete);
    script.hear(1, 3);
    script.expect("?2 +1004 uncertain");
    assert_eq!((script.feed.counters().restarts, script.feed.counters().duplicates), (0, 1));
}

#[test]
fn held_batches_are_bounded_and_the_rest_is_requested_later() {
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
fn a_working_engine_without_events_is_silent_until_the_next_batch() {
    let mut script = Script::in_step(1, 1);
    script.pass(1_000);
    script.expect("");
    for _ in 0..3 {
        script.feed.answered(script.now, &mut script.steps);
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
fn batches_published_elsewhere_are_found_by_a_replay() {
    let mut script = Script::in_step(1, 1);
    script.feed.answered(script.now, &mut script.steps);
    script.pass(1);
    script.expect("");
    script.pass(1);
    (1..=2).for_each(|seq| script.replay(1, seq));
    script.end(ReplayEnd::Complete);
    script.expect("?1 +1001 +1002");
    assert_eq!((script.feed.counters().missed_live, script.feed.counters().live), (2, 0));
    script.pass(1_000);
    script.expect("");
}

#[test]
fn an_engine_that_published_nothing_is_not_silent() {
    let mut script = Script::in_step(1, 1);
    for _ in 0..20 {
        script.feed.answered(script.now, &mut script.steps);
        script.pass(2);
        script.end(ReplayEnd::Complete);
        script.expect("?1");
    }
    assert_eq!((script.feed.view(), script.feed.counters().missed_live), (View::Reported, 0));
}

#[test]
fn live_batches_during_a_silence_check_are_applied_at_once_and_once() {
    let mut script = Script::in_step(1, 1);
    script.feed.answered(script.now, &mut script.steps);
    script.pass(2);
    script.hear(1, 1);
    script.expect("?1 +1001");
    script.replay(1, 1);
    script.end(ReplayEnd::Complete);
    script.expect("");
    assert_eq!((script.feed.counters().missed_live, script.feed.counters().duplicates), (0, 1));
}

#[test]
fn a_lasting_disconnect_is_silence() {
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
fn an_engine_without_memory_has_its_floor_at_the_first_live_batch() {
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
fn contradiction_makes_the_view_uncertain_and_agreement_restores_it() {
    let mut script = Script::in_step(1, 1);
    script.assess(View::Uncertain);
    script.expect("uncertain");
    script.assess(View::Reported);
    script.expect("reported");
}

#[test]
fn a_replay_does_not_restore_a_contradicted_view() {
    let mut script = Script::in_step(1, 2);
    script.assess(View::Uncertain);
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
    script.assess(View::Reported);
    script.expect("reported");
    script.assess(View::Uncertain);
    // The planned 32 s count, although no attempt waited for them.
    script.pass(63);
    script.expect("uncertain");
    script.pass(1);
    script.expect("?0");
}

#[test]
fn a_cleared_cache_does_not_restore_trust_and_a_new_process_does() {
    let mut script = Script::in_step(1, 2);
    script.assess(View::Uncertain);
    script.hear_batch(2, made(1, 2, vec![CacheEvent::Cleared]));
    script.expect("uncertain 0");
    script.hear(2, 0);
    script.replay(2, 0);
    script.end(ReplayEnd::Complete);
    script.expect("! ?0 silent +2000 uncertain reported");
}

#[test]
fn answers_do_not_vouch_for_a_lost_connection() {
    let mut script = Script::in_step(1, 2);
    script.disconnect();
    script.assess(View::Reported);
    script.expect("uncertain uncertain");
    script.connect();
    script.assess(View::Reported);
    script.expect("?1 uncertain");
    script.replay(1, 1);
    script.end(ReplayEnd::Complete);
    script.expect("reported");
}

#[test]
fn a_correction_of_an_outdated_view_is_ignored() {
    let mut script = Script::in_step(1, 2);
    script.assess(View::Reported);
    script.assess(View::Silent);
    script.expect("");
}

#[test]
fn a_restart_reported_by_the_driver_is_counted() {
    let mut script = Script::in_step(1, 2);
    script.feed.restarted(script.now, &mut script.steps);
    script.expect("! ?0 silent");
    assert_eq!(script.feed.counters().restarts, 1);
}

#[test]
fn only_the_followed_cache_is_applied_and_the_rest_is_counted() {
    let mut script = Script::in_step(1, 1);
    let other = RemovedBlocks { names: vec![4, 5], group: 3, ..RemovedBlocks::default() };
    let mut batch = made(1, 1, vec![CacheEvent::Removed(other)]);
    batch.unreadable = 2;
    script.hear_batch(1, batch);
    script.expect("uncertain");
    let counters = script.feed.counters();
    assert_eq!((counters.skipped_blocks, counters.unreadable, counters.next_seq), (2, 2, Some(2)));
}
