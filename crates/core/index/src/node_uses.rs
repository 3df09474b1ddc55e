//! The spans of one node that one holder is presumed to hold, and which requests used them last.
//!
//! A holder is presumed to hold the first spans of a node or none: presumed chains are complete towards the root. A
//! request that uses a span uses everything before it. So the last uses of a node are a short list of (end, use),
//! newest first, and no span needs a timestamp of its own.

/// The id of a use: one request on one holder. Ids of answered requests, own or merged from other routers, increase
/// with the time of the answer.
pub(crate) type UseId = u64;

/// A use, and how many of the node's spans it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub end: u8,
    pub by: UseId,
}

/// The uses of one node by one holder.
#[derive(Debug, Default)]
pub(crate) struct NodeUses {
    /// The last answered use of each span: ends increase, uses get older.
    last: Vec<Mark>,
    /// Requests that have no first token yet.
    waiting: WaitingMarks,
}

/// The requests that wait at a node. A single one, the usual number, is stored in place.
#[derive(Debug, Default)]
enum WaitingMarks {
    #[default]
    None,
    One(Mark),
    Many(Vec<Mark>),
}

impl WaitingMarks {
    fn as_slice(&self) -> &[Mark] {
        match self {
            WaitingMarks::None => &[],
            WaitingMarks::One(mark) => std::slice::from_ref(mark),
            WaitingMarks::Many(marks) => marks,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Mark] {
        match self {
            WaitingMarks::None => &mut [],
            WaitingMarks::One(mark) => std::slice::from_mut(mark),
            WaitingMarks::Many(marks) => marks,
        }
    }

    fn push(&mut self, mark: Mark) {
        match self {
            WaitingMarks::None => *self = WaitingMarks::One(mark),
            WaitingMarks::One(first) => *self = WaitingMarks::Many(vec![*first, mark]),
            WaitingMarks::Many(marks) => marks.push(mark),
        }
    }

    fn remove(&mut self, at: usize) -> Mark {
        let removed = self.as_slice()[at];
        match self {
            WaitingMarks::Many(marks) if marks.len() > 1 => _ = marks.swap_remove(at),
            _ => *self = WaitingMarks::None,
        }
        removed
    }

    /// Bytes allocated beyond the enum itself.
    fn bytes(&self) -> usize {
        match self {
            WaitingMarks::None | WaitingMarks::One(_) => 0,
            WaitingMarks::Many(marks) => marks.capacity() * size_of::<Mark>(),
        }
    }
}

impl NodeUses {
    /// Number of spans that an answered request used.
    pub fn answered(&self) -> usize {
        self.last.last().map_or(0, |mark| mark.end.into())
    }

    /// Number of spans that an unanswered request uses. They stay, whatever their age.
    pub fn pinned(&self) -> usize {
        self.waiting.as_slice().iter().map(|mark| mark.end).max().unwrap_or(0).into()
    }

    /// Number of spans that are held.
    pub fn held(&self) -> usize {
        self.answered().max(self.pinned())
    }

    /// Bytes allocated beyond the struct itself.
    pub fn bytes(&self) -> usize {
        self.last.capacity() * size_of::<Mark>() + self.waiting.bytes()
    }

    /// Adds a request that uses the first spans and waits for its first token.
    pub fn add_waiting(&mut self, mark: Mark) {
        match self.waiting.as_mut_slice().iter_mut().find(|old| old.by == mark.by) {
            Some(old) => old.end = mark.end,
            None => self.waiting.push(mark),
        }
    }

    /// Removes a waiting use; `None` where it does not wait here.
    pub fn remove_waiting(&mut self, by: UseId) -> Option<Mark> {
        let at = self.waiting.as_slice().iter().position(|mark| mark.by == by)?;
        Some(self.waiting.remove(at))
    }

    /// Whether a use waits here for its first token.
    pub fn is_waiting(&self, by: UseId) -> bool {
        self.waiting.as_slice().iter().any(|mark| mark.by == by)
    }

    /// Adds an answered use of the first spans. An old use gets only the spans that no later request used. Returns
    /// the uses that are no longer the last use of any span here.
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

    /// Removes all answered uses of the spans from `end` on. Returns the uses that have no span left here.
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

    /// Removes all uses of the spans from `end` on, answered or waiting. Returns the uses that have no span left
    /// here.
    pub fn trim(&mut self, end: usize) -> Vec<UseId> {
        let mut gone = self.evict(end);
        self.waiting.as_mut_slice().iter_mut().for_each(|mark| mark.end = mark.end.min(end as u8));
        if end == 0 {
            gone.extend(std::mem::take(&mut self.waiting).as_slice().iter().map(|mark| mark.by));
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node_uses(marks: &[(u8, UseId)]) -> NodeUses {
        NodeUses { last: marks.iter().map(|&(end, by)| Mark { end, by }).collect(), ..NodeUses::default() }
    }

    #[test]
    fn a_use_displaces_what_it_covers_and_leaves_what_lies_deeper() {
        let mut node_uses = node_uses(&[(10, 5), (30, 4), (64, 1)]);
        assert_eq!(node_uses.touch(Mark { end: 30, by: 9 }), [5, 4]);
        assert_eq!((node_uses.used_last_by(9), node_uses.used_last_by(1)), (Some(0..30), Some(30..64)));
    }

    #[test]
    fn an_old_use_displaces_nothing_that_was_used_since() {
        let mut node_uses = node_uses(&[(10, 50), (30, 40), (64, 10)]);
        assert_eq!(node_uses.touch(Mark { end: 30, by: 20 }), [], "all of it was used since");
        assert_eq!((node_uses.used_last_by(20), node_uses.used_last_by(10)), (None, Some(30..64)));
        assert_eq!(node_uses.touch(Mark { end: 40, by: 20 }), []);
        assert_eq!((node_uses.used_last_by(20), node_uses.used_last_by(10)), (Some(30..40), Some(40..64)));
        assert_eq!(node_uses.touch(Mark { end: 64, by: 30 }), [20, 10]);
        assert_eq!((node_uses.used_last_by(40), node_uses.used_last_by(30)), (Some(10..30), Some(30..64)));
    }

    #[test]
    fn eviction_shortens_the_use_at_its_end_and_drops_those_beyond() {
        let mut node_uses = node_uses(&[(10, 5), (30, 4), (64, 1)]);
        assert_eq!(node_uses.evict(20), [1]);
        assert_eq!((node_uses.answered(), node_uses.used_last_by(4)), (20, Some(10..20)));
        assert_eq!(node_uses.evict(0), [5, 4]);
    }

    #[test]
    fn waiting_spans_are_held_until_they_are_confirmed_or_trimmed() {
        let mut node_uses = node_uses(&[(10, 5)]);
        node_uses.add_waiting(Mark { end: 6, by: 7 });
        node_uses.add_waiting(Mark { end: 12, by: 6 });
        assert_eq!((node_uses.answered(), node_uses.pinned(), node_uses.held()), (10, 12, 12));
        assert_eq!(node_uses.evict(0), [5]);
        assert_eq!(node_uses.held(), 12);
        assert_eq!(node_uses.remove_waiting(6), Some(Mark { end: 12, by: 6 }));
        assert_eq!(node_uses.held(), 6);
        assert_eq!(node_uses.trim(4), []);
        assert_eq!((node_uses.held(), node_uses.is_waiting(7)), (4, true));
        assert_eq!(node_uses.trim(0), [7]);
    }
}
