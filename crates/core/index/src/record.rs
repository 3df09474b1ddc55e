//! What one worker is presumed to hold of one node, and since when.
//!
//! What is presumed of a worker is closed towards the root: it holds the first spans of a node or none. Each answered
//! span was last used by some request, and a request that uses a span uses everything before it, so the last uses of a
//! node are a short list of (end, use) with newer uses first: no span has a stamp of its own.

/// The number of a use: one request on one worker. Of answered ones, in the order of their answers, those among them of which others tell.
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
    /// Which answered requests used the spans last: ends grow, uses get older.
    last: Vec<Mark>,
    /// Requests that have not yet reached their first token.
    waiting: Vec<Mark>,
}

impl Record {
    /// How many spans an answered request has used.
    pub fn sure(&self) -> usize {
        self.last.last().map_or(0, |mark| mark.end.into())
    }

    /// How many spans an unanswered request uses: these stay, whatever their age.
    pub fn pinned(&self) -> usize {
        self.waiting.iter().map(|mark| mark.end).max().unwrap_or(0).into()
    }

    /// How many spans are held.
    pub fn held(&self) -> usize {
        self.sure().max(self.pinned())
    }

    /// Bytes it has allocated beyond itself.
    pub fn bytes(&self) -> usize {
        (self.last.capacity() + self.waiting.capacity()) * size_of::<Mark>()
    }

    /// Notes that a request uses the first spans and waits for its first token.
    pub fn wait(&mut self, mark: Mark) {
        match self.waiting.iter_mut().find(|old| old.by == mark.by) {
            Some(old) => old.end = mark.end,
            None => {
                self.waiting.reserve_exact(1);
                self.waiting.push(mark);
            }
        }
    }

    /// Takes a waiting use off; `None` where it does not wait here.
    pub fn settle(&mut self, by: UseId) -> Option<Mark> {
        let at = self.waiting.iter().position(|mark| mark.by == by)?;
        let mark = self.waiting.swap_remove(at);
        if self.waiting.is_empty() {
            self.waiting = Vec::new();
        }
        Some(mark)
    }

    /// Whether a use waits here for its first token.
    pub fn waits(&self, by: UseId) -> bool {
        self.waiting.iter().any(|mark| mark.by == by)
    }

    /// Notes that an answered request used the first spans: as the last one, or long ago, where only what nobody has used since is its.
    /// Returns the uses that are no longer anybody's last here.
    pub fn touch(&mut self, mark: Mark) -> Vec<UseId> {
        let later = self.last.iter().take_while(|other| other.by > mark.by).count();
        if self.last[..later].last().is_some_and(|other| other.end >= mark.end) {
            return Vec::new();
        }
        let covered = self.last[later..].iter().take_while(|old| old.end <= mark.end).count();
        let displaced = self.last.drain(later..later + covered).map(|old| old.by).collect();
        self.last.reserve_exact(1);
        self.last.insert(later, mark);
        displaced
    }

    /// The spans that `by` used last, if there are any.
    pub fn used_last_by(&self, by: UseId) -> Option<std::ops::Range<usize>> {
        let at = self.last.iter().position(|mark| mark.by == by)?;
        let start = if at == 0 { 0 } else { self.last[at - 1].end };
        Some(start.into()..self.last[at].end.into())
    }

    /// Forgets that anybody answered used the spans from `end` on. Returns the uses that have nothing left here.
    pub fn evict(&mut self, end: usize) -> Vec<UseId> {
        let mut gone = Vec::new();
        let mut start = 0;
        self.last.retain_mut(|mark| {
            let is_left = start < end;
            if !is_left {
                gone.push(mark.by);
            }
            start = mark.end.into();
            mark.end = mark.end.min(end as u8);
            is_left
        });
        gone
    }

    /// Gives up all spans from `end` on, waited for or not. Returns the uses that have nothing left here.
    pub fn trim(&mut self, end: usize) -> Vec<UseId> {
        let mut gone = self.evict(end);
        self.waiting.iter_mut().for_each(|mark| mark.end = mark.end.min(end as u8));
        if end == 0 {
            gone.extend(self.waiting.drain(..).map(|mark| mark.by));
        }
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
        assert_eq!((record.used_last_by(9), record.used_last_by(1)), (Some(0..30), Some(30..64)));
    }

    #[test]
    fn a_use_of_long_ago_displaces_nothing_that_was_used_since() {
        let mut record = record(&[(10, 50), (30, 40), (64, 10)]);
        assert_eq!(record.touch(Mark { end: 30, by: 20 }), [], "all of it was used since");
        assert_eq!((record.used_last_by(20), record.used_last_by(10)), (None, Some(30..64)));
        assert_eq!(record.touch(Mark { end: 40, by: 20 }), []);
        assert_eq!((record.used_last_by(20), record.used_last_by(10)), (Some(30..40), Some(40..64)));
        assert_eq!(record.touch(Mark { end: 64, by: 30 }), [20, 10]);
        assert_eq!((record.used_last_by(40), record.used_last_by(30)), (Some(10..30), Some(30..64)));
    }

    #[test]
    fn evicting_shortens_the_use_it_meets_and_ends_those_beyond() {
        let mut record = record(&[(10, 5), (30, 4), (64, 1)]);
        assert_eq!(record.evict(20), [1]);
        assert_eq!((record.sure(), record.used_last_by(4)), (20, Some(10..20)));
        assert_eq!(record.evict(0), [5, 4]);
    }

    #[test]
    fn what_is_waited_for_is_held_until_it_is_settled_or_trimmed() {
        let mut record = record(&[(10, 5)]);
        record.wait(Mark { end: 6, by: 7 });
        record.wait(Mark { end: 12, by: 6 });
        assert_eq!((record.sure(), record.pinned(), record.held()), (10, 12, 12));
        assert_eq!(record.evict(0), [5]);
        assert_eq!(record.held(), 12);
        assert_eq!(record.settle(6), Some(Mark { end: 12, by: 6 }));
        assert_eq!(record.held(), 6);
        assert_eq!(record.trim(4), []);
        assert_eq!((record.held(), record.waits(7)), (4, true));
        assert_eq!(record.trim(0), [7]);
    }
}
