//! One request inside the engine, and the table of all requests.
//!
//! The table is dense: a sequence has a slot, which is reused after it, together with its list of blocks. A
//! [`SequenceId`] is the slot and its number of uses, so an outdated id is recognized.

use std::ops::{Index, IndexMut};

use warmroute_types::Micros;

use crate::blocks::Hold;
use crate::{BlockName, Request, SequenceId};

/// A sequence and its progress.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub id: SequenceId,
    pub phase: Phase,
    pub submitted: Micros,
    pub chain: Vec<BlockName>,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// Output tokens so far.
    pub generated: u32,
    /// Tokens whose KV is in its blocks, including those of the step in progress.
    pub computed: u32,
    /// The blocks that it holds. The named ones are always the first of its chain.
    pub hold: Hold,
    /// The blocks of the group with sliding-window attention. As many of its first blocks are named or given up as of
    /// the chain.
    pub window: Hold,
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The slot is free.
    Vacant,
    /// In the queue, never scheduled.
    New,
    /// In the queue again, after it lost its blocks.
    Preempted,
    /// In the batch.
    Running,
}

impl Sequence {
    /// Existing tokens: the prompt, and the answer so far.
    pub fn known(&self) -> u32 {
        self.prompt_tokens + self.generated
    }

    /// Existing tokens that are not computed. The last sampled token is always one of them.
    pub fn remaining(&self) -> u32 {
        self.known() - self.computed
    }

    /// Starts a request in the slot. `hold` keeps only its allocation.
    fn occupy(&mut self, submitted: Micros, request: Request) {
        debug_assert!(self.phase == Phase::Vacant && self.hold.count() + self.window.count() == 0);
        self.phase = Phase::New;
        self.submitted = submitted;
        self.chain = request.chain;
        self.prompt_tokens = request.prompt_tokens;
        self.output_tokens = request.output_tokens;
        (self.generated, self.computed) = (0, 0);
    }

    fn vacant(id: SequenceId) -> Sequence {
        Sequence {
            id,
            phase: Phase::Vacant,
            submitted: Micros::ZERO,
            chain: Vec::new(),
            prompt_tokens: 0,
            output_tokens: 0,
            generated: 0,
            computed: 0,
            hold: Hold::default(),
            window: Hold::default(),
        }
    }
}

/// All sequences, by slot.
#[derive(Clone, Debug, Default)]
pub struct Sequences {
    slots: Vec<Sequence>,
    vacant: Vec<u32>,
}

impl Sequences {
    /// Inserts a request and returns its slot.
    pub fn insert(&mut self, submitted: Micros, request: Request) -> u32 {
        let slot = self.vacant.pop().unwrap_or_else(|| self.grow());
        self[slot].occupy(submitted, request);
        slot
    }

    /// The slot of a sequence that still exists.
    pub fn find(&self, id: SequenceId) -> Option<u32> {
        let slot = id.slot() as u32;
        let sequence = self.slots.get(slot as usize)?;
        (sequence.id == id && sequence.phase != Phase::Vacant).then_some(slot)
    }

    /// Frees a slot. Its blocks must have been released.
    pub fn remove(&mut self, slot: u32) {
        let sequence = &mut self[slot];
        sequence.id.0 = sequence.id.0.wrapping_add(SequenceId::USE);
        sequence.phase = Phase::Vacant;
        sequence.chain = Vec::new();
        self.vacant.push(slot);
    }

    fn grow(&mut self) -> u32 {
        let slot = self.slots.len() as u32;
        self.slots.push(Sequence::vacant(SequenceId(u64::from(slot))));
        slot
    }
}

impl Index<u32> for Sequences {
    type Output = Sequence;

    fn index(&self, slot: u32) -> &Sequence {
        &self.slots[slot as usize]
    }
}

impl IndexMut<u32> for Sequences {
    fn index_mut(&mut self, slot: u32) -> &mut Sequence {
        &mut self.slots[slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_not_valid_for_the_next_sequence_in_its_slot() {
        let request = Request { chain: Vec::new(), prompt_tokens: 1, output_tokens: 1 };
        let mut sequences = Sequences::default();
        let slot = sequences.insert(Micros::ZERO, request.clone());
        let first = sequences[slot].id;
        assert_eq!(sequences.find(first), Some(slot));
        sequences.remove(slot);
        assert_eq!(sequences.find(first), None);
        assert_eq!(sequences.insert(Micros::ZERO, request), slot);
        assert_eq!(sequences.find(first), None);
        assert_eq!(sequences.find(sequences[slot].id), Some(slot));
    }
}
