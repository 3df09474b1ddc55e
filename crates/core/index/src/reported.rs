//! What engines report: spans stored, removed and cleared, under the engines' own names.
//!
//! A name belongs to the worker that used it. It is counted (stored twice, removed twice), it stands for one place at a
//! time (stored elsewhere, it has moved), and it is a parent only while the worker holds it. Where engines agree on
//! hashes the name beside the span serves all of them; the `Book` of a worker holds only what differs.

mod adopt;
mod again;
mod export;
mod settle;

pub(crate) use export::Export;

use crate::book::Book;
use crate::chain::{Chain, Point};
use crate::holders;
use crate::node::{NodeId, NodeRef};
use crate::orphans::Orphans;
use crate::places::{Place, Places};
use crate::tree::Tree;

/// Places that one shared name may have. More happen only where names are no hashes; then they are kept per worker.
const HOMONYMS_MAX: usize = 4;

/// How many names ahead of the one at hand are fetched into the cache.
const AHEAD: usize = 8;

/// All that was reported.
pub(crate) struct Reported {
    shared: Places,
    /// By worker.
    books: Vec<Option<Box<Book>>>,
    pub orphans: Orphans,
    /// Shared names that stand for one more place than one. While there are none, a name settles its place.
    homonyms: usize,
    /// Nodes from which something was taken during the operation at hand.
    untidy: Vec<NodeId>,
    /// Bytes of all books.
    book_bytes: usize,
    /// Names that were stored again in another place.
    pub moved: u64,
}

/// The spans of the stretch at hand that the worker holds already in the tree, but not yet under their names.
#[derive(Clone, Copy, Default)]
struct Unnamed {
    node: NodeId,
    bits: u64,
    /// Those that have a name of the worker's own by now, which is still to be written down.
    own: u64,
}

/// Spans of one node that the worker holds, around the one that it gave up last. Evictions take chains from their ends,
/// so the next name is mostly that of a neighbour, and the tables need not be asked.
#[derive(Default)]
struct Beside {
    node: Option<NodeRef>,
    /// Those that it knows by their own names, and by names of its own.
    shared: u64,
    own: u64,
    at: usize,
}

impl Beside {
    /// Where this name is, if it is a neighbour's; then that is given up, and the next one is looked for beside it.
    #[inline]
    fn take(&mut self, tree: &Tree, book: &Book, name: u64) -> Option<Place> {
        let node = self.node?;
        let names = &tree.ledger(node).names;
        let is_it = |at: usize| {
            at < 64
                && (self.shared >> at & 1 == 1 && names[at] == name
                    || self.own >> at & 1 == 1 && book.own_name(Place::new(node.id, at)) == Some(name))
        };
        let at = [self.at.wrapping_sub(1), self.at + 1].into_iter().find(|&at| is_it(at))?;
        (self.shared, self.own) = (self.shared & !(1 << at), self.own & !(1 << at));
        self.at = at;
        Some(Place::new(node.id, at))
    }
}

impl Reported {
    pub fn new(orphans_max: usize) -> Reported {
        Reported {
            shared: Places::default(),
            books: Vec::new(),
            orphans: Orphans::new(orphans_max),
            homonyms: 0,
            untidy: Vec::new(),
            book_bytes: 0,
            moved: 0,
        }
    }

    /// Bytes of the shared names, and of the workers' books.
    pub fn bytes(&self) -> (usize, usize) {
        let seats = self.books.capacity() * size_of::<Option<Box<Book>>>();
        (self.shared.allocated(), self.book_bytes + seats + self.orphans.bytes())
    }

    /// Where the chain goes on after a span that the worker holds under this name.
    pub fn after(&self, tree: &Tree, worker: u16, name: u64) -> Option<Point> {
        let place = self.resolve(tree, worker, name, Unnamed::default())?;
        Some(Point { node: tree.node(place.node()), at: place.offset() + 1 })
    }

    /// Where the worker holds this name.
    fn resolve(&self, tree: &Tree, worker: u16, name: u64, unnamed: Unnamed) -> Option<Place> {
        let book = self.books.get(usize::from(worker))?.as_deref()?;
        if let Some(place) = book.own_place(name) {
            return Some(place);
        }
        self.shared.find(name, |place| {
            let (node, bit) = (tree.node(place.node()), 1 << place.offset());
            tree.ledger(node).names[place.offset()] == name
                && tree.mask(node, worker) & bit != 0
                && !(unnamed.node == node.id && unnamed.bits & bit != 0)
                && !book.is_own(place)
        })
    }

    /// Brings the slots of a name into the cache.
    fn prefetch(&self, worker: u16, name: u64) {
        self.shared.prefetch(name);
        if let Some(book) = self.books.get(usize::from(worker)).and_then(Option::as_deref) {
            book.own.prefetch(name);
        }
    }

    /// Stores a chain after `point`, as far as `may_grow` agrees. Returns how many spans were stored.
    pub fn store(
        &mut self,
        tree: &mut Tree,
        worker: u16,
        mut point: Point,
        chain: &Chain,
        may_grow: impl Fn(&Tree) -> bool,
    ) -> usize {
        let mut stored = 0;
        while stored < chain.names.len() && may_grow(tree) {
            let stretch = tree.lay(worker, point, chain.links().from(stored));
            let range = stored..stored + stretch.count;
            self.settle(tree, worker, stretch, &chain.names[range.clone()], &chain.counts[range]);
            (point, stored) = (stretch.end(), stored + stretch.count);
        }
        stored
    }

    fn homonyms_of(&self, tree: &Tree, name: u64) -> usize {
        let count = std::cell::Cell::new(0);
        self.shared.find(name, |place| {
            let is_same = tree.ledger(tree.node(place.node())).names[place.offset()] == name;
            count.set(count.get() + usize::from(is_same));
            false
        });
        count.get()
    }

    /// Takes a name off the span that the worker holds under it; the span goes when that was its last.
    fn release(&mut self, tree: &mut Tree, worker: u16, name: u64, place: Place) {
        if self.book(worker).unlearn(place, name) {
            return;
        }
        self.uncover(tree, worker, tree.node(place.node()), 1 << place.offset());
    }

    /// Takes spans of one node from a worker, whatever their names.
    fn uncover(&mut self, tree: &mut Tree, worker: u16, node: NodeRef, bits: u64) {
        let left = tree.mask(node, worker) & !bits;
        tree.set_mask(node, worker, left);
        self.book(worker).keep(node.id, left);
        let dead = bits & !holders::union(node.body());
        self.unname(tree, node, dead);
        if self.untidy.last() != Some(&node.id) {
            self.untidy.push(node.id);
        }
    }

    /// Takes the shared names off spans that nobody holds any more.
    fn unname(&mut self, tree: &mut Tree, node: NodeRef, dead: u64) {
        let mut named = tree.ledger(node).named & dead;
        tree.ledger_mut(node).named &= !dead;
        if named.count_ones() > 1 {
            let names = tree.ledger(node).names.iter().enumerate();
            names.filter(|(at, _)| named >> at & 1 == 1).for_each(|(_, &name)| self.shared.prefetch(name));
        }
        while named != 0 {
            let place = Place::new(node.id, named.trailing_zeros() as usize);
            let name = tree.ledger(node).names[place.offset()];
            self.shared.remove(name, |other| other == place);
            if self.homonyms > 0 && self.homonyms_of(tree, name) > 0 {
                self.homonyms -= 1;
            }
            named &= named - 1;
        }
    }

    /// Removes each of these names once. Returns how many were held.
    pub fn remove(&mut self, tree: &mut Tree, worker: u16, names: &[u64]) -> usize {
        if !self.has_book(worker) && !self.orphans.waits(worker) {
            return 0;
        }
        let mut found = 0;
        let mut leaving = Unnamed::default();
        let mut beside = Beside::default();
        for (i, &name) in names.iter().enumerate() {
            let guess = self.peek(worker).and_then(|book| beside.take(tree, book, name));
            if guess.is_none() || beside.own != 0 {
                self.prefetch_some(worker, &names[i + 1..]);
            }
            let place = guess.or_else(|| self.resolve(tree, worker, name, leaving));
            found += usize::from(self.remove_one(tree, worker, name, place, &mut leaving));
            if guess.is_none() {
                beside = self.look_beside(tree, worker, leaving, place);
            }
        }
        self.leave(tree, worker, leaving);
        found
    }

    fn peek(&self, worker: u16) -> Option<&Book> {
        self.books.get(usize::from(worker))?.as_deref()
    }

    /// What the worker holds around a place that it just gave up, where it has one name for each span, stored once.
    fn look_beside(&self, tree: &Tree, worker: u16, leaving: Unnamed, place: Option<Place>) -> Beside {
        let place = place.filter(|place| place.node() == leaving.node && !self.orphans.waits(worker));
        let Some((place, book)) = place.zip(self.peek(worker)) else { return Beside::default() };
        if !book.twice.is_empty() || book.has_twins() {
            return Beside::default();
        }
        let node = tree.node(place.node());
        let held = tree.mask(node, worker) & !leaving.bits;
        let own = held & book.own_bits(node.id);
        let shared = held & !own & tree.ledger(node).named;
        Beside { node: Some(node), shared, own, at: place.offset() }
    }

    /// Brings the slots of the next few names into the cache.
    fn prefetch_some(&self, worker: u16, names: &[u64]) {
        if let Some(&soon) = names.get(AHEAD - 1) {
            self.prefetch(worker, soon);
        }
    }

    /// Removes one name once, which the worker holds at this place if anywhere. Spans of one node that follow each other
    /// leave it together, in `leaving`.
    fn remove_one(
        &mut self,
        tree: &mut Tree,
        worker: u16,
        name: u64,
        place: Option<Place>,
        leaving: &mut Unnamed,
    ) -> bool {
        if self.orphans.waits(worker) && self.orphans.remove(worker, name) {
            return true;
        }
        let Some(place) = place else { return false };
        let book = self.book(worker);
        if book.take_twice(name) {
            return true;
        }
        if book.has_twins() {
            self.leave(tree, worker, std::mem::take(leaving));
            self.release(tree, worker, name, place);
            return true;
        }
        if !book.own.is_empty() {
            book.own.remove(name, |at| at == place);
        }
        if leaving.node != place.node() {
            self.leave(tree, worker, std::mem::take(leaving));
            leaving.node = place.node();
        }
        leaving.bits |= 1 << place.offset();
        true
    }

    fn leave(&mut self, tree: &mut Tree, worker: u16, leaving: Unnamed) {
        if leaving.bits != 0 {
            self.uncover(tree, worker, tree.node(leaving.node), leaving.bits);
        }
    }

    /// Gives up all of these names that the worker holds, however often: they are about to be held elsewhere.
    pub fn give_up(&mut self, tree: &mut Tree, worker: u16, names: &[u64]) {
        for &name in names {
            if let Some(place) = self.resolve(tree, worker, name, Unnamed::default()) {
                self.moved += 1;
                self.book(worker).twice.remove(&name);
                self.release(tree, worker, name, place);
            }
        }
    }

    /// Forgets some of what one worker reported, up to so many nodes; true while there is more.
    pub fn clear_some(&mut self, tree: &mut Tree, worker: u16, nodes_max: usize) -> bool {
        self.orphans.clear(worker);
        if !self.has_book(worker) {
            return false;
        }
        for _ in 0..nodes_max {
            let Some(id) = self.book(worker).holds.any_key() else { break };
            let node = tree.node(id);
            let bits = tree.mask(node, worker);
            self.forget_one(tree, worker, node, bits);
            self.book(worker).keep(id, 0);
        }
        let is_over = self.book(worker).is_empty();
        self.tidy(tree, worker);
        !is_over
    }

    /// Forgets that the worker holds these spans of a node, whatever their names and counts.
    pub fn forget_one(&mut self, tree: &mut Tree, worker: u16, node: NodeRef, bits: u64) {
        if self.has_book(worker) {
            self.forget_counts(tree, worker, node, bits);
            self.book(worker).forget(node.id, bits);
            self.uncover(tree, worker, node, bits);
        }
    }

    /// Drops the extra counts of spans that the worker knows by their shared names.
    fn forget_counts(&mut self, tree: &Tree, worker: u16, node: NodeRef, bits: u64) {
        let book = self.book(worker);
        if book.twice.is_empty() {
            return;
        }
        let mut shared = bits & tree.ledger(node).named & !book.own_bits(node.id);
        while shared != 0 {
            book.twice.remove(&tree.ledger(node).names[shared.trailing_zeros() as usize]);
            shared &= shared - 1;
        }
    }

    /// Forgets the nodes that the operation at hand left empty. Nodes are only made before this, so a number in the
    /// list is either the same node or nobody.
    pub fn tidy(&mut self, tree: &mut Tree, worker: u16) {
        while let Some(id) = self.untidy.pop() {
            if let Some(node) = tree.living(id) {
                tree.tidy(node);
            }
        }
        self.weigh(worker);
    }

    /// Counts the bytes of a worker's book again, and closes an empty one.
    fn weigh(&mut self, worker: u16) {
        let Some(seat) = self.books.get_mut(usize::from(worker)) else { return };
        let Some(book) = seat else { return };
        let before = book.weighed;
        book.weighed = if book.is_empty() { 0 } else { book.bytes() };
        self.book_bytes = self.book_bytes + book.weighed - before;
        if book.is_empty() {
            *seat = None;
        }
    }

    fn book(&mut self, worker: u16) -> &mut Book {
        let seat = usize::from(worker);
        if self.books.len() <= seat {
            self.books.resize_with(seat + 1, || None);
        }
        self.books[seat].get_or_insert_default()
    }

    fn has_book(&self, worker: u16) -> bool {
        self.books.get(usize::from(worker)).is_some_and(Option::is_some)
    }
}
