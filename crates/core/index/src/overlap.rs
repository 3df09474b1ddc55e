//! The result of a lookup, in a buffer that the caller reuses: lookups allocate nothing once it has grown.

use crate::holder_bits::HolderPosition;
use crate::holder_id::HolderId;
use crate::span::Reach;
use crate::trail::{Recording, Trail, TrailPlace};

/// How far from its start one holder holds a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The holder.
    pub holder: HolderId,
    /// How far its cache reaches.
    pub reach: Reach,
    /// Where its cache ends on the trail, if the lookup recorded one.
    pub place: TrailPlace,
}

/// Where the longest match of a prompt ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatchEnd {
    /// Bytes of the match.
    pub bytes: u32,
    /// Whether something longer is held: the prompt shares a beginning with it, and does not continue it.
    pub holds_more: bool,
}

/// The overlaps of one prompt: every holder that holds anything of it, once, in no particular order.
#[derive(Debug, Default)]
pub struct Overlaps {
    found: Vec<Overlap>,
    /// The first of them come from presumptions that are not in the tree yet.
    pending: usize,
    /// By bit position: the lookup that last reported it and the index in `found`. Used only where chains fork.
    reported: Vec<(u64, u32)>,
    lookup: u64,
    overflows: u32,
    end: MatchEnd,
    pub(crate) trail: Trail,
}

impl Overlaps {
    /// An empty buffer.
    pub fn new() -> Overlaps {
        Overlaps::default()
    }

    /// The holders that hold something, each once.
    pub fn as_slice(&self) -> &[Overlap] {
        &self.found
    }

    /// How far one holder's cache reaches. This scans the list; to score a fleet, iterate over it once instead.
    pub fn of(&self, holder: HolderId) -> Reach {
        self.found
            .iter()
            .find(|overlap| overlap.holder == holder)
            .map_or(Reach::default(), |found| found.reach)
    }

    /// Where the longest match of the last lookup ends.
    pub fn end(&self) -> MatchEnd {
        self.end
    }

    /// Records where a path ends, and whether something longer is held there.
    #[inline]
    pub(crate) fn end_path(&mut self, reach: Reach, holds_more: bool) {
        if reach.bytes > self.end.bytes {
            self.end = MatchEnd { bytes: reach.bytes, holds_more };
        }
    }

    /// How many paths the last lookup abandoned because it already followed four.
    pub fn overflows(&self) -> u32 {
        self.overflows
    }

    /// Whether the next lookups record the boundaries that they pass.
    pub fn record(&mut self, recording: Recording) {
        self.trail.set(recording);
    }

    /// The boundaries of the last lookup that recorded them.
    pub fn trail(&self) -> &Trail {
        &self.trail
    }

    pub(crate) fn begin(&mut self) {
        self.found.clear();
        self.pending = 0;
        self.lookup += 1;
        self.overflows = 0;
        self.end = MatchEnd::default();
    }

    /// Reports a presumption that is not in the tree yet, before the tree is walked.
    pub(crate) fn report_pending(&mut self, holder: HolderId, reach: Reach) {
        self.report(holder, reach);
        self.pending = self.found.len();
    }

    /// Joins the overlaps of presumptions with those that the tree has of the same holder: the longer one counts.
    pub(crate) fn join_pending(&mut self) {
        for at in (0..self.pending).rev() {
            let Overlap { holder, reach, .. } = self.found[at];
            let same = self.found[at + 1..].iter_mut().find(|overlap| overlap.holder == holder);
            if let Some(same) = same {
                if same.reach.bytes < reach.bytes {
                    same.reach = reach;
                }
                self.found.swap_remove(at);
            }
        }
    }

    pub(crate) fn count_overflow(&mut self) {
        self.overflows += 1;
    }

    /// Reports a holder that was not reported before.
    #[inline]
    pub(crate) fn report(&mut self, holder: HolderId, reach: Reach) {
        let place = self.trail.place_of(reach);
        self.found.push(Overlap { holder, reach, place });
    }

    /// Reports a holder that another path may have reported already; the longer overlap counts.
    pub(crate) fn report_best(&mut self, position: HolderPosition, holder: HolderId, reach: Reach) {
        let position = position.index();
        if self.reported.len() <= position {
            self.reported.resize(position + 1, (0, 0));
        }
        let (lookup, at) = self.reported[position];
        if lookup != self.lookup {
            self.reported[position] = (self.lookup, self.found.len() as u32);
            self.report(holder, reach);
        } else if self.found[at as usize].reach.bytes < reach.bytes {
            let found = &mut self.found[at as usize];
            (found.reach, found.place) = (reach, self.trail.place_of(reach));
        }
    }
}
