//! What one worker is presumed to hold of one node, and since when.
//!
//! What is presumed of a worker is closed towards the root: it holds the first spans of a node or none. Each span was
//! last used by some request, and a request that uses a span uses everything before it, so the last uses of a node
//! are a short list of (end, use) with newer uses first: no span has a stamp of its own.

/// The number of a use: one request on one worker, in the order of arrival.
pub(crate) type UseId = u64;

/// A use and how many of the node's spans it reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub end: u8,
    pub by: UseId,
}

/// One worker's share of one node.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Who used the spans last: ends grow, uses get older.
    pub last: Vec<Mark>,
    /// Requests that have not yet reached their first token, where they hold what nobody else has confirmed.
    pub pending: Vec<Mark>,
    /// How many of the spans were confirmed by a first token.
    pub sure: u8,
}

impl Record {
    /// How many spans are held.
    pub fn end(&self) -> usize {
        self.last.last().map_or(0, |mark| mark.end.into())
    }

    /// Bytes it has allocated beyond itself.
    pub fn bytes(&self) -> usize {
        (self.last.capacity() + self.pending.capacity()) * size_of::<Mark>()
    }

    /// Notes that `by` used the first `end` spans. Returns the uses that are no longer anybody's last here.
    pub fn touch(&mut self, mark: Mark) -> Vec<UseId> {
        let covered = self.last.iter().take_while(|old| old.end <= mark.end).count();
        let displaced = self.last[..covered].iter().map(|old| old.by).filter(|&by| by != mark.by).collect();
        self.last.drain(..covered);
        if self.last.first().is_none_or(|first| first.by != mark.by) {
            self.last.reserve_exact(1);
            self.last.insert(0, mark);
        }
        displaced
    }

    /// Notes that `by` waits for its first token, where its spans are not confirmed anyway.
    pub fn await_first_token(&mut self, mark: Mark) -> bool {
        self.pending.retain(|old| old.by != mark.by);
        let is_unsure = mark.end > self.sure;
        if is_unsure {
            self.pending.push(mark);
        }
        is_unsure
    }

    /// Takes a pending use off; `None` where it was not pending here.
    pub fn settle(&mut self, by: UseId) -> Option<Mark> {
        let at = self.pending.iter().position(|mark| mark.by == by)?;
        let mark = self.pending.swap_remove(at);
        if self.pending.is_empty() {
            self.pending = Vec::new();
        }
        Some(mark)
    }

    /// Whether a use waits here for its first token.
    pub fn waits(&self, by: UseId) -> bool {
        self.pending.iter().any(|mark| mark.by == by)
    }

    /// How many spans are confirmed or still waited for.
    pub fn supported(&self) -> usize {
        self.pending.iter().map(|mark| mark.end).max().unwrap_or(0).max(self.sure).into()
    }

    /// The spans that `by` used last, if there are any.
    pub fn used_last_by(&self, by: UseId) -> Option<std::ops::Range<usize>> {
        let at = self.last.iter().position(|mark| mark.by == by)?;
        let start = if at == 0 { 0 } else { self.last[at - 1].end };
        Some(start.into()..self.last[at].end.into())
    }

    /// Gives up all spans from `end` on. Returns the uses that have nothing left here.
    pub fn trim(&mut self, end: usize) -> Vec<UseId> {
        let end = end as u8;
        let mut gone: Vec<UseId> = Vec::new();
        let mut start = 0;
        for mark in &mut self.last {
            if start >= end {
                gone.push(mark.by);
            }
            start = mark.end;
            mark.end = mark.end.min(end);
        }
        self.last.retain(|mark| !gone.contains(&mark.by));
        self.pending.iter_mut().for_each(|mark| mark.end = mark.end.min(end));
        if end == 0 {
            gone.extend(self.pending.drain(..).map(|mark| mark.by));
        }
        self.sure = self.sure.min(end);
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(marks: &[(u8, UseId)]) -> Record {
        Record { last: marks.iter().map(|&(end, by)| Mark { end, by }).collect(), ..Record::default() }
    }

    #[test]
    fn a_use_displaces_what_it_covers_and_leaves_what_lies_deeper() {
        let mut record = record(&[(10, 5), (30, 4), (64, 1)]);
        assert_eq!(record.touch(Mark { end: 30, by: 9 }), [5, 4]);
        assert_eq!(record.used_last_by(9), Some(0..30));
        assert_eq!(record.used_last_by(1), Some(30..64));
        assert_eq!(record.touch(Mark { end: 40, by: 9 }), []);
        assert_eq!((record.used_last_by(9), record.used_last_by(1)), (Some(0..40), Some(40..64)));
    }

    #[test]
    fn trimming_shortens_the_use_it_meets_and_ends_those_beyond() {
        let mut record = record(&[(10, 5), (30, 4), (64, 1)]);
        record.sure = 50;
        assert_eq!(record.trim(20), [1]);
        assert_eq!((record.end(), record.sure), (20, 20));
        assert_eq!(record.trim(0), [5, 4]);
    }

    #[test]
    fn confirmed_spans_need_no_pending_use() {
        let mut record = record(&[(10, 5)]);
        record.sure = 10;
        assert!(!record.await_first_token(Mark { end: 10, by: 6 }));
        assert!(record.await_first_token(Mark { end: 12, by: 6 }));
        assert_eq!(record.supported(), 12);
        assert_eq!(record.settle(6), Some(Mark { end: 12, by: 6 }));
        assert_eq!(record.supported(), 10);
    }
}
