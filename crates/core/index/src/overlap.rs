//! The answer of a lookup, in a buffer that the caller keeps: nothing is allocated once it has grown to its size.

use warmroute_types::WorkerId;

use crate::span::Reach;

/// How far from its start one worker holds a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// Who.
    pub worker: WorkerId,
    /// How far.
    pub reach: Reach,
}

/// The overlaps of one prompt: every worker that holds anything of it, once, in no particular order.
#[derive(Debug, Default)]
pub struct Overlaps {
    found: Vec<Overlap>,
    /// By seat: where in `found` it stands, with the lookup that this belongs to; only used where chains fork.
    seats: Vec<(u64, u32)>,
    lookup: u64,
    overflows: u32,
}

impl Overlaps {
    /// An empty buffer.
    pub fn new() -> Overlaps {
        Overlaps::default()
    }

    /// The workers that hold something, each once.
    pub fn as_slice(&self) -> &[Overlap] {
        &self.found
    }

    /// What one worker holds. This looks through the list: to score a fleet, walk the list once instead.
    pub fn of(&self, worker: WorkerId) -> Reach {
        self.found
            .iter()
            .find(|overlap| overlap.worker == worker)
            .map_or(Reach::default(), |found| found.reach)
    }

    /// How often the last lookup gave up a way because it already followed four.
    pub fn overflows(&self) -> u32 {
        self.overflows
    }

    pub(crate) fn begin(&mut self) {
        self.found.clear();
        self.lookup += 1;
        self.overflows = 0;
    }

    pub(crate) fn count_overflow(&mut self) {
        self.overflows += 1;
    }

    /// Reports a worker that was not reported before.
    #[inline]
    pub(crate) fn report(&mut self, worker: WorkerId, reach: Reach) {
        self.found.push(Overlap { worker, reach });
    }

    /// Reports a worker that another way may have reported already: the further one counts.
    pub(crate) fn report_best(&mut self, seat: u16, worker: WorkerId, reach: Reach) {
        let seat = usize::from(seat);
        if self.seats.len() <= seat {
            self.seats.resize(seat + 1, (0, 0));
        }
        let (lookup, at) = self.seats[seat];
        if lookup != self.lookup {
            self.seats[seat] = (self.lookup, self.found.len() as u32);
            self.report(worker, reach);
        } else if self.found[at as usize].reach.bytes < reach.bytes {
            self.found[at as usize].reach = reach;
        }
    }
}
