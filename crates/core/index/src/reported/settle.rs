//! How a worker comes to hold a stretch of the tree under its engine's names.
//!
//! Two cases are nearly all there are, and are done in one sweep each: everybody else has these spans under the same
//! names (`join`), or nobody has them yet (`found`). What is left is settled span by span: a name that the worker used
//! elsewhere has moved, one that it used here counts twice, and one that is not the span's own goes into its book.

use super::{AHEAD, HOMONYMS_MAX, Reported, Unnamed};
use crate::book::Knows;
use crate::chain::{Origin, Stretch};
use crate::node::NodeRef;
use crate::places::Place;
use crate::tree::Tree;

impl Reported {
    /// Gives the spans of a stretch to the worker, under these names.
    pub(super) fn settle(
        &mut self,
        tree: &mut Tree,
        worker: u16,
        stretch: Stretch,
        names: &[u64],
        counts: &[u32],
    ) {
        let holds_all = counts.iter().all(|&count| count == 1);
        if holds_all && (self.join(tree, worker, stretch, names) || self.found(tree, worker, stretch, names))
        {
            return;
        }
        let wanted =
            (0..names.len()).filter(|&i| counts[i] > 0).fold(0, |bits, i| bits | 1 << (stretch.from + i));
        let mut unnamed = self.cover(tree, worker, stretch, wanted);
        names.iter().take(AHEAD).for_each(|&name| self.prefetch(worker, name));
        for (i, &name) in names.iter().enumerate().filter(|&(i, _)| counts[i] > 0) {
            if let Some(&soon) = names.get(i + AHEAD) {
                self.prefetch(worker, soon);
            }
            let place = Place::new(stretch.node.id, stretch.from + i);
            if !self.settle_new(tree, worker, name, place, &mut unnamed) {
                self.note_own(worker, &mut unnamed, stretch.from, names);
                self.settle_one(tree, worker, name, place, unnamed);
                unnamed.bits &= !(1 << place.offset());
            }
            if counts[i] > 1 {
                *self.book(worker).twice.get_or_default(name) += counts[i] - 1;
            }
        }
        self.note_own(worker, &mut unnamed, stretch.from, names);
    }

    /// The second most common case: spans that nobody has stored before. Names that may be known already are settled one
    /// by one afterwards.
    fn found(&mut self, tree: &mut Tree, worker: u16, stretch: Stretch, names: &[u64]) -> bool {
        let node = stretch.node;
        if stretch.origin != Origin::Laid || self.orphans.waits(worker) {
            return false;
        }
        tree.set_names(node, stretch.from, names);
        self.book(worker).holds.get_or_default(node.id);
        names.iter().take(AHEAD).for_each(|&name| self.prefetch(worker, name));
        let mut doubtful = 0;
        for (i, &name) in names.iter().enumerate() {
            if let Some(&soon) = names.get(i + AHEAD) {
                self.prefetch(worker, soon);
            }
            let is_new = self.book(worker).own_place(name).is_none()
                && self.shared.insert_new(name, Place::new(node.id, stretch.from + i));
            doubtful |= u64::from(!is_new) << (stretch.from + i);
        }
        tree.ledger_mut(node).named |= stretch.bits() & !doubtful;
        let mut unnamed = Unnamed { node: node.id, bits: doubtful, own: 0 };
        while unnamed.bits != 0 {
            let offset = unnamed.bits.trailing_zeros() as usize;
            let name = names[offset - stretch.from];
            self.settle_one(tree, worker, name, Place::new(node.id, offset), unnamed);
            unnamed.bits &= unnamed.bits - 1;
        }
        true
    }

    /// The usual case of a span that the worker did not hold, under a name that it did not use. False where it may be
    /// another.
    fn settle_new(
        &mut self,
        tree: &mut Tree,
        worker: u16,
        name: u64,
        place: Place,
        unnamed: &mut Unnamed,
    ) -> bool {
        let (node, bit) = (tree.node(place.node()), 1 << place.offset());
        if unnamed.bits & bit == 0 || self.orphans.waits(worker) {
            return false;
        }
        if tree.ledger(node).named & bit == 0 {
            return self.settle_unnamed(tree, worker, name, place, unnamed);
        }
        if tree.ledger(node).names[place.offset()] == name || self.shared.find(name, |_| true).is_some() {
            return false;
        }
        let is_new = self.book(worker).own.insert_new(name, place);
        unnamed.own |= u64::from(is_new) << place.offset();
        is_new
    }

    /// The same for a span without a shared name: this becomes it.
    fn settle_unnamed(
        &mut self,
        tree: &mut Tree,
        worker: u16,
        name: u64,
        place: Place,
        unnamed: &mut Unnamed,
    ) -> bool {
        // Not `own_place`: names of this stretch may be in the table and not yet written down.
        if self.book(worker).own.find(name, |_| true).is_some() {
            return false;
        }
        let is_new = self.shared.insert_new(name, place);
        if is_new {
            tree.set_name(tree.node(place.node()), place.offset(), name);
            unnamed.bits &= !(1 << place.offset());
        }
        is_new
    }

    /// Writes down which spans of the stretch the worker knows by names of its own. Until then they count as unnamed.
    fn note_own(&mut self, worker: u16, unnamed: &mut Unnamed, from: usize, names: &[u64]) {
        if unnamed.own != 0 {
            self.book(worker).note_own(unnamed.node, unnamed.own, from, names);
            unnamed.bits &= !unnamed.own;
            unnamed.own = 0;
        }
    }

    /// The common case by far: spans that others hold under the same names, and this worker does not.
    fn join(&mut self, tree: &mut Tree, worker: u16, stretch: Stretch, names: &[u64]) -> bool {
        let (node, bits) = (stretch.node, stretch.bits());
        if stretch.origin != Origin::Found || self.homonyms > 0 || self.orphans.waits(worker) {
            return false;
        }
        let ledger = tree.ledger(node);
        let mask = tree.mask(node, worker);
        let is_known = ledger.named & bits == bits && ledger.names[stretch.from..][..names.len()] == *names;
        // Without homonyms only a name of the worker's own could stand for another place.
        let book = self.book(worker);
        if !is_known || mask & bits != 0 || names.iter().any(|&name| book.own_place(name).is_some()) {
            return false;
        }
        book.holds.get_or_default(node.id);
        tree.set_mask(node, worker, mask | bits);
        true
    }

    /// Makes the worker hold the wanted spans of a stretch and no others of those just laid. Returns which it holds
    /// only now: they have no names yet.
    fn cover(&mut self, tree: &mut Tree, worker: u16, stretch: Stretch, wanted: u64) -> Unnamed {
        let node = stretch.node;
        let mask = tree.mask(node, worker);
        let before = if stretch.origin == Origin::Laid { mask & !stretch.bits() } else { mask };
        if mask != before | wanted {
            tree.set_mask(node, worker, before | wanted);
            self.untidy.push(node.id);
        }
        if before | wanted != 0 {
            self.book(worker).holds.get_or_default(node.id);
        }
        Unnamed { node: node.id, bits: wanted & !before, own: 0 }
    }

    /// Gives one span to the worker under one name.
    pub(super) fn settle_one(
        &mut self,
        tree: &mut Tree,
        worker: u16,
        name: u64,
        place: Place,
        unnamed: Unnamed,
    ) {
        if let Some(other) = self.resolve(tree, worker, name, unnamed) {
            if other == place {
                *self.book(worker).twice.get_or_default(name) += 1;
                return;
            }
            self.moved += 1;
            self.book(worker).twice.remove(&name);
            self.release(tree, worker, name, other);
        }
        if self.orphans.waits(worker) {
            self.orphans.forget(worker, name);
        }
        self.support(tree, worker, name, place, unnamed);
    }

    /// Adds a name to those under which the worker holds a span.
    fn support(&mut self, tree: &mut Tree, worker: u16, name: u64, place: Place, unnamed: Unnamed) {
        let (node, bit) = (tree.node(place.node()), 1 << place.offset());
        let mask = tree.mask(node, worker);
        let is_first = mask & bit == 0 || (unnamed.node == node.id && unnamed.bits & bit != 0);
        let knows = self.share_name(tree, node, place, name);
        if mask & bit == 0 {
            tree.set_mask(node, worker, mask | bit);
        }
        let book = self.book(worker);
        if is_first {
            book.learn(place, name, knows);
        } else {
            book.learn_twin(place, name, knows);
        }
    }

    /// Makes this the span's shared name where it has none; says whether it is.
    fn share_name(&mut self, tree: &mut Tree, node: NodeRef, place: Place, name: u64) -> Knows {
        let ledger = tree.ledger(node);
        if ledger.named >> place.offset() & 1 == 1 {
            return if ledger.names[place.offset()] == name { Knows::SharedName } else { Knows::OwnName };
        }
        let homonyms = self.homonyms_of(tree, name);
        if homonyms >= HOMONYMS_MAX {
            return Knows::OwnName;
        }
        self.homonyms += usize::from(homonyms > 0);
        tree.set_name(node, place.offset(), name);
        self.shared.insert(name, place);
        Knows::SharedName
    }
}
