//! Engines' events that only one router hears, passed on to all.
//!
//! They carry the engines' own numbers, so they need none of ours: who misses one sees it by the next, or by how far others say that
//! they have heard, and asks any of them. That one has the last reports still, or tells all that it knows. Everything is bounded: what
//! is not told or not kept is asked for.

use std::collections::VecDeque;

use warmroute_types::{Micros, RouterId, To};

use crate::fetches::Fetches;
use crate::{Letter, Message, Reach, Report, ReportKind};

/// Bytes of reports that wait to be told.
const UNTOLD_MAX: usize = 4 << 20;

/// Bytes of reports that are kept for those who missed them.
const KEPT_MAX: usize = 4 << 20;

/// A report larger than this is not told: who sees that it is missing asks, and gets it in parts.
const REPORT_MAX: usize = 512 << 10;

/// About so many bytes make a message.
const MESSAGE_BYTES: usize = 256 << 10;

/// How far streams were heard is told this often,
const REACH_EVERY: Micros = Micros::from_millis(500);

/// of so many at a time.
const REACHES_AT_ONCE: usize = 256;

/// What is passed on, and what is asked for.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    untold: VecDeque<Report>,
    untold_bytes: usize,
    kept: VecDeque<Report>,
    kept_bytes: usize,
    /// How far streams were heard here.
    reaches: Vec<Reach>,
    reaches_told: Option<Micros>,
    next_reach: usize,
    pub fetches: Fetches,
    pub counted: Relayed,
}

/// What was passed on, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Reports that were told to the others.
    pub told: u64,
    /// Reports that were heard of others.
    pub heard: u64,
    /// Reports that were not told because they were too large, or too many.
    pub dropped: u64,
    /// Times that another router was asked for what was missing.
    pub asked: u64,
    /// Times that it had nothing, or did not answer.
    pub unanswered: u64,
    /// Times that another router was told what it missed.
    pub given: u64,
    /// Streams that are passed on and known without a hole.
    pub streams: u64,
}

impl Relay {
    /// Passes a report on.
    pub fn tell(&mut self, report: Report) {
        self.keep(report.clone());
        if report.bytes.len() > REPORT_MAX {
            self.counted.dropped += 1;
            return;
        }
        self.untold_bytes += report.weight();
        self.untold.push_back(report);
        while self.untold_bytes > UNTOLD_MAX
            && let Some(report) = self.untold.pop_front()
        {
            self.untold_bytes -= report.weight();
            self.counted.dropped += 1;
        }
    }

    /// Keeps a report for those who missed it.
    pub fn keep(&mut self, report: Report) {
        self.kept_bytes += report.weight();
        self.kept.push_back(report);
        while self.kept_bytes > KEPT_MAX
            && let Some(report) = self.kept.pop_front()
        {
            self.kept_bytes -= report.weight();
        }
    }

    /// The reports of a stream from a number on, where all of them are still there.
    pub fn kept_from(&self, worker: u64, source: u64, from_seq: u64) -> Option<Vec<Report>> {
        let is_of = |report: &&Report| (report.worker, report.source) == (worker, source);
        let mut reports: Vec<Report> =
            self.kept.iter().filter(is_of).filter(|report| report.seq >= from_seq).cloned().collect();
        reports.sort_by_key(|report| report.seq);
        reports.dedup_by_key(|report| report.seq);
        let is_whole = (0..).zip(&reports).all(|(at, report)| report.seq - from_seq == at);
        (is_whole && !reports.is_empty()).then_some(reports)
    }

    pub fn set_reaches(&mut self, reaches: Vec<Reach>) {
        self.counted.streams = reaches.len() as u64;
        self.reaches = reaches;
    }

    /// What is to be said to all now.
    pub fn speak(&mut self, from: RouterId, now: Micros) -> Vec<Letter> {
        let mut letters = Vec::new();
        while !self.untold.is_empty() {
            letters.push(Message::Relay { from, reports: self.take_some() });
        }
        let is_due = self.reaches_told.is_none_or(|told| now.since(told) >= REACH_EVERY);
        if is_due && !self.reaches.is_empty() {
            self.reaches_told = Some(now);
            letters.push(Message::Reach { from, reaches: self.some_reaches() });
        }
        let letter = |message: Message| Letter { to: To::Everyone, bytes: message.encode().into() };
        letters.into_iter().map(letter).collect()
    }

    fn take_some(&mut self) -> Vec<Report> {
        let (mut reports, mut bytes) = (Vec::new(), 0);
        while bytes < MESSAGE_BYTES
            && let Some(report) = self.untold.pop_front()
        {
            bytes += report.weight();
            reports.push(report);
        }
        self.untold_bytes -= bytes;
        self.counted.told += reports.len() as u64;
        reports
    }

    /// A few at a time, each in its turn.
    fn some_reaches(&mut self) -> Vec<Reach> {
        let (count, from) = (self.reaches.len(), self.next_reach);
        self.next_reach = (from + REACHES_AT_ONCE) % count.max(1);
        (0..count.min(REACHES_AT_ONCE)).map(|i| self.reaches[(from + i) % count]).collect()
    }

    /// Reports that were heard of another router.
    pub fn heard(&mut self, reports: &[Report]) {
        self.counted.heard += reports.len() as u64;
        reports
            .iter()
            .filter(|report| report.kind != ReportKind::Known)
            .for_each(|one| self.keep(one.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(seq: u64, bytes: usize) -> Report {
        Report { worker: 1, source: 2, seq, kind: ReportKind::Next, bytes: vec![0; bytes].into() }
    }

    fn told(relay: &mut Relay) -> Vec<u64> {
        let letters = relay.speak(RouterId(1), Micros(1));
        let seqs = |letter: &Letter| match Message::decode(&letter.bytes) {
            Ok(Some(Message::Relay { reports, .. })) => reports.iter().map(|one| one.seq).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        letters.iter().flat_map(seqs).collect()
    }

    #[test]
    fn too_much_drops_the_oldest_and_what_is_too_large_is_for_those_who_ask() {
        let mut relay = Relay::default();
        let many = UNTOLD_MAX / (100 << 10) + 5;
        (0..many as u64).for_each(|seq| relay.tell(report(seq, 100 << 10)));
        relay.tell(report(many as u64, REPORT_MAX + 1));
        let told = told(&mut relay);
        assert_eq!(told.last(), Some(&(many as u64 - 1)));
        assert_eq!(relay.counted.dropped, many as u64 - told.len() as u64 + 1);
        assert!(relay.kept_bytes <= KEPT_MAX && relay.untold_bytes == 0);
        assert!(relay.kept_from(1, 2, 0).is_none(), "the first ones are gone");
        let kept = relay.kept_from(1, 2, many as u64).unwrap();
        assert_eq!(kept.len(), 1);
        assert!(relay.kept_from(1, 9, many as u64).is_none(), "another life");
    }

    #[test]
    fn what_is_kept_is_given_whole_or_not_at_all() {
        let mut relay = Relay::default();
        [7, 5, 6, 6, 9].into_iter().for_each(|seq| relay.keep(report(seq, 1)));
        let seqs =
            |from| relay.kept_from(1, 2, from).map(|all| all.iter().map(|one| one.seq).collect::<Vec<_>>());
        assert_eq!((seqs(9), seqs(8), seqs(5)), (Some(vec![9]), None, None));
        assert_eq!(relay.kept_from(1, 2, u64::MAX), None, "whatever is asked for");
        relay.keep(report(u64::MAX, 1));
        assert!(relay.kept_from(1, 2, u64::MAX).is_some());
    }

    #[test]
    fn every_stream_has_its_turn() {
        let mut relay = Relay::default();
        let reach = |worker| Reach { worker, source: 1, next: 1, at_unix_ms: 1 };
        relay.set_reaches((0..600).map(reach).collect());
        let mut heard = std::collections::BTreeSet::new();
        for _ in 0..3 {
            heard.extend(relay.some_reaches().iter().map(|reach| reach.worker));
        }
        assert_eq!(heard.len(), 600);
    }
}
