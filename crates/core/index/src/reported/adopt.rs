//! One seat takes over what another one holds, under the same names.
//!
//! An engine may have several seats: one for what it may hold, one for what it certainly holds. When something that was
//! only possible turns out to be true, the second seat adopts it from the first. From then on both know the spans by
//! the same names as often, so that a removal reported by the engine can be told to both.

use super::{Reported, Unnamed};
use crate::body::ones;
use crate::book::Book;
use crate::node::NodeRef;
use crate::places::Place;
use crate::tree::Tree;

impl Reported {
    /// Gives the first `count` spans of a node, all of which `of` holds, to `by` too. Names that `by` did not use for
    /// them are added to `adopted`. Returns how many of the spans it did not hold.
    pub fn adopt(
        &mut self,
        tree: &mut Tree,
        of: u16,
        by: u16,
        node: NodeRef,
        count: usize,
        adopted: &mut Vec<u64>,
    ) -> usize {
        let bits = ones(count);
        let before = tree.mask(node, by) & bits;
        if before == bits && self.know_alike(of, by, node, bits) {
            return 0;
        }
        if !self.adopt_new(tree, of, by, node, bits) {
            for offset in 0..count {
                self.adopt_span(tree, of, by, Place::new(node.id, offset), adopted);
            }
        }
        count - before.count_ones() as usize
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
        let (names, own) = self.names_of(tree, of, node, bits.count_ones() as usize);
        if self.book(of).has_twins() || names.iter().any(|&name| !self.is_new(tree, of, by, name)) {
            return false;
        }
        let book = self.book(by);
        book.holds.get_or_default(node.id);
        for offset in (0..names.len()).filter(|offset| own >> offset & 1 == 1) {
            book.own.insert(names[offset], Place::new(node.id, offset));
        }
        if own != 0 {
            book.note_own(node.id, own, 0, &names);
        }
        tree.set_mask(node, by, mask | bits);
        true
    }

    /// The names under which a worker without twins holds the first spans of a node, and which of them are its own.
    fn names_of(&self, tree: &Tree, worker: u16, node: NodeRef, count: usize) -> (Vec<u64>, u64) {
        let Some(book) = self.books[usize::from(worker)].as_deref() else { return (Vec::new(), 0) };
        let own = book.own_bits(node.id) & ones(count);
        let shared = &tree.ledger(node).names;
        let name = |offset| match own >> offset & 1 {
            0 => shared[offset],
            _ => book.names_of(Place::new(node.id, offset), 0)[0],
        };
        ((0..count).map(name).collect(), own)
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
