//! The holders of a node's spans, as the writer rearranges them.
//!
//! A few holders are listed one by one, each with a mask. When too many are listed, the holders that hold every span
//! move into the bit set: a prefix that a thousand holders share costs a thousand bits, and a lookup passes it with
//! sixteen words. A node with holders in the set takes no more spans, because they would not hold them. The chain
//! continues in a child.

use std::sync::atomic::Ordering::Relaxed;

use crate::body::{Body, SPANS_MAX, ones};
use crate::holder_bits::HolderPosition;

/// Most holders listed before complete ones move into the bit set. A node that may still grow lists more, because
/// moving them would end its growth and leave the chain in short pieces.
const LISTED_MAX: usize = 4;
const LISTED_MAX_GROWING: usize = 24;

/// A body's holders as plain values.
#[derive(Default)]
pub(crate) struct Holders {
    /// The words of the set of holders that hold every span: (index, bits).
    pub words: Vec<(u8, u64)>,
    /// The other holders: (position, mask).
    pub entries: Vec<(HolderPosition, u64)>,
}

impl Holders {
    pub fn load(&mut self, body: Body<'_>) {
        self.words.clear();
        self.words.extend(body.words().map(|(index, word)| (index as u8, word.load(Relaxed))));
        self.entries.clear();
        let (ids, masks) = body.entries();
        self.entries.extend(ids.iter().zip(masks).map(|(&id, mask)| (id, mask.load(Relaxed))));
    }

    /// Lists a holder with this mask and removes it from the set.
    pub fn set(&mut self, holder: HolderPosition, mask: u64) {
        for (index, bits) in &mut self.words {
            if usize::from(*index) == holder.word() {
                *bits &= !holder.mask();
            }
        }
        match self.entries.iter_mut().find(|(id, _)| *id == holder) {
            Some(entry) => entry.1 = mask,
            None => self.entries.push((holder, mask)),
        }
    }

    /// Drops holders that hold nothing and, where many are listed, moves those that hold every span into the set.
    pub fn normalize(&mut self, len: usize) {
        self.entries.retain(|&(_, mask)| mask != 0);
        let listed_max = if len == SPANS_MAX { LISTED_MAX } else { LISTED_MAX_GROWING };
        if self.entries.len() > listed_max {
            let (words, whole) = (&mut self.words, ones(len));
            self.entries.retain(|&(id, mask)| mask != whole || !add(words, id));
        }
        self.words.retain(|&(_, bits)| bits != 0);
    }
}

/// Adds a holder to a sparse set. Always returns true.
fn add(words: &mut Vec<(u8, u64)>, holder: HolderPosition) -> bool {
    let (index, bit) = (holder.word() as u8, holder.mask());
    match words.iter_mut().find(|word| word.0 == index) {
        Some(word) => word.1 |= bit,
        None => words.push((index, bit)),
    }
    true
}

/// The spans of a node that a holder holds.
pub(crate) fn mask(body: Body<'_>, holder: HolderPosition) -> u64 {
    if is_complete(body, holder) {
        return ones(body.len());
    }
    let (ids, masks) = body.entries();
    ids.iter().position(|&id| id == holder).map_or(0, |at| masks[at].load(Relaxed))
}

fn is_complete(body: Body<'_>, holder: HolderPosition) -> bool {
    let (index, bit) = (holder.word(), holder.mask());
    body.words().any(|(at, word)| at == index && word.load(Relaxed) & bit != 0)
}

/// The spans of a node that any holder holds.
pub(crate) fn union(body: Body<'_>) -> u64 {
    if has_complete(body) {
        return ones(body.len());
    }
    body.entries().1.iter().fold(0, |all, mask| all | mask.load(Relaxed))
}

/// Whether the set contains a holder. Such a node takes no more spans.
pub(crate) fn has_complete(body: Body<'_>) -> bool {
    body.words().any(|(_, word)| word.load(Relaxed) != 0)
}

/// Changes a holder's mask in one atomic step. Returns false where that needs a new body, or where a new body is
/// better because the holder could move into the set.
pub(crate) fn set_in_place(body: Body<'_>, holder: HolderPosition, mask: u64) -> bool {
    if mask == u64::MAX && body.entries().0.len() > LISTED_MAX {
        return is_complete(body, holder);
    }
    let (index, bit) = (holder.word(), holder.mask());
    let word = body.words().find(|&(at, _)| at == index).map(|(_, word)| word);
    if let Some(word) = word.filter(|word| word.load(Relaxed) & bit != 0) {
        return set_complete(word, bit, mask, body.len());
    }
    let (ids, masks) = body.entries();
    if let Some(at) = ids.iter().position(|&id| id == holder) {
        masks[at].store(mask, Relaxed);
        return true;
    }
    match word {
        Some(word) if mask == ones(body.len()) => {
            word.fetch_or(bit, Relaxed);
            true
        }
        _ => mask == 0,
    }
}

/// A holder in the set keeps every span or leaves the set.
fn set_complete(word: &std::sync::atomic::AtomicU64, bit: u64, mask: u64, len: usize) -> bool {
    if mask == 0 {
        word.fetch_and(!bit, Relaxed);
    }
    mask == 0 || mask == ones(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_holders_move_into_the_set_when_many_are_listed() {
        let mut holders = Holders::default();
        for holder in [1, 2, 64, 130, 4095] {
            holders.set(HolderPosition(holder), u64::MAX);
        }
        holders.set(HolderPosition(5), 0b101);
        holders.normalize(64);
        assert_eq!(holders.words, [(0, 0b110), (1, 1), (2, 4), (63, 1 << 63)]);
        assert_eq!(holders.entries, [(HolderPosition(5), 0b101)]);
    }

    #[test]
    fn holders_of_nothing_are_dropped() {
        let mut holders = Holders { words: vec![(0, 0b10)], entries: vec![(HolderPosition(7), 1)] };
        holders.set(HolderPosition(1), 0);
        holders.set(HolderPosition(7), 0);
        holders.normalize(1);
        assert!(holders.words.is_empty() && holders.entries.is_empty());
    }
}
