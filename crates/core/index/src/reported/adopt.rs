//! One seat takes over what another one holds, under the same names.
//!
//! An engine may have several seats: one for what it may hold, one for what it certainly holds. When something that was
//! only possible turns out to be true, the second seat adopts it from the first. From then on both know the spans by
//! the same names as often, so that a removal reported by the engine can be told to both. A seat that is only needed from
//! some moment on begins with all that another one holds by then.

use super::{Reported, Unnamed};
use crate::book::Book;
use crate::node::{NodeId, NodeRef, Serial};
use crate::places::Place;
use crate::tree::Tree;

impl Reported {
    /// Some of the nodes in which a worker holds something, and which spans those are: all of one part of its book.
    pub fn nodes_in(&self, tree: &Tree, worker: u16, part: usize) -> Vec<(NodeId, Serial, u64)> {
        let ids = self.peek(worker).into_iter().flat_map(|book| book.holds.keys_in(part));
        ids.map(|id| tree.node(id)).map(|node| (node.id, node.serial, tree.mask(node, worker))).collect()
    }

    /// The parts of a worker's book.
    pub fn parts_of(&self, worker: u16) -> usize {
        self.peek(worker).map_or(0, |book| book.holds.parts())
    }

    /// Gives spans of a node, all of which `of` holds, to `by` too. Names that `by` did not use for them are added to
    /// `adopted`. Returns how many of the spans it did not hold.
    pub fn adopt(
        &mut self,
        tree: &mut Tree,
        of: u16,
        by: u16,
        node: NodeRef,
        bits: u64,
        adopted: &mut Vec<u64>,
    ) -> usize {
        let before = tree.mask(node, by) & bits;
        if before == bits && self.know_alike(of, by, node, bits) {
            return 0;
        }
        if !self.adopt_new(tree, of, by, node, bits) {
            for offset in offsets(bits) {
                self.adopt_span(tree, of, by, Place::new(node.id, offset), adopted);
            }
        }
        (bits & !before).count_ones() as usize
    }

    fn know_alike(&self, of: u16, by: u16, node: NodeRef, bits: u64) -> bool {
        let book = |seat: u16| self.books.get(usize::from(seat)).and_then(Option::as_deref);
        book(of).zip(book(by)).is_some_and(|(of, by)| of.knows_alike(by, node.id, bits))
    }

    /// The common case: `by` holds none of the spans and uses none of their names, each of which was stored once.
    fn adopt_new(&mut self, tree: &mut Tree, of: u16, by: u16, node: NodeRef, bits: u64) -> bool {
        let mask = tree.mask(node, by);
        if self.homonyms > 0 || self.orphans.waits(by) || mask & bits != 0 {
            return false;
        }
        let (names, own) = self.names_of(tree, of, node, bits);
        let is_new = |offset: usize| self.is_new(tree, of, by, names[offset]);
        if self.peek(of).is_some_and(Book::has_twins) || !offsets(bits).all(is_new) {
            return false;
        }
        let book = self.book(by);
        book.holds.get_or_default(node.id);
        for offset in offsets(own) {
            book.own.insert(names[offset], Place::new(node.id, offset));
        }
        if own != 0 {
            book.note_own(node.id, own, 0, &names);
        }
        tree.set_mask(node, by, mask | bits);
        true
    }

    /// The names under which a worker without twins holds spans of a node, by their offsets, and which of them are its own.
    fn names_of(&self, tree: &Tree, worker: u16, node: NodeRef, bits: u64) -> (Vec<u64>, u64) {
        let book = self.peek(worker);
        let own = book.map_or(0, |book| book.own_bits(node.id) & bits);
        let shared = &tree.ledger(node).names;
        let name = |offset| match book.filter(|_| own >> offset & 1 == 1) {
            Some(book) => book.own_name(Place::new(node.id, offset)).unwrap_or_default(),
            None => shared.get(offset).copied().unwrap_or_default(),
        };
        ((0..64 - bits.leading_zeros() as usize).map(name).collect(), own)
    }

    /// Whether `of` has stored a name once and `by` does not use it.
    fn is_new(&self, tree: &Tree, of: u16, by: u16, name: u64) -> bool {
        let is_once = |book: &Book| !book.twice.contains_key(&name);
        self.books[usize::from(of)].as_deref().is_some_and(is_once)
            && self.resolve(tree, by, name, Unnamed::default()).is_none()
    }

    fn adopt_span(&mut self, tree: &mut Tree, of: u16, by: u16, place: Place, adopted: &mut Vec<u64>) {
        let ledger = tree.ledger(tree.node(place.node()));
        let shared = ledger.names.get(place.offset()).copied().unwrap_or_default();
        for name in self.book(of).names_of(place, shared) {
            if self.resolve(tree, by, name, Unnamed::default()) == Some(place) {
                continue;
            }
            self.settle_one(tree, by, name, place, Unnamed::default());
            if let Some(&again) = self.book(of).twice.get(&name) {
                *self.book(by).twice.get_or_default(name) = again;
            }
            adopted.push(name);
        }
    }
}

/// The places of the bits that are set, from the lowest on.
fn offsets(bits: u64) -> impl Iterator<Item = usize> {
    (0..64).filter(move |offset| bits >> offset & 1 == 1)
}
