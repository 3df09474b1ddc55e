//! How a holder comes to hold a range of spans under its engine's names.
//!
//! Two cases cover nearly all stores, and take one pass each: other holders hold these spans under the same names
//! (`assign_shared`), or the holder uses the names for the first time (`assign_fresh`). The rest is handled span by
//! span: a name that the holder used elsewhere has moved, a name that it used here counts once more, and a name that
//! differs from the shared one goes into its `HolderNames`.

use super::{AHEAD, ALIASES_MAX, HOMONYMS_MAX, Reported, SPANS_A_NODE, Unnamed};
use crate::chain::{NodeRange, Origin};
use crate::holder_bits::HolderPosition;
use crate::holder_names::NameKind;
use crate::name_table::{NameHash, NameTable, SpanAddress};
use crate::node::{NodeRef, offsets};
use crate::tree::PinnedTree;

/// What became of the names of a range. Each is a set of spans.
#[derive(Clone, Copy, Default)]
struct Entered {
    /// The name is now the span's shared name.
    shared: u64,
    /// The name is now the holder's own name of the span.
    own: u64,
    /// The name may be in use already.
    doubtful: u64,
}

impl Reported {
    /// Gives the spans of a range to the holder, under these names.
    pub(super) fn assign(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        range: NodeRange<'_>,
        names: &[u64],
        counts: &[u32],
    ) {
        if counts.iter().all(|&count| count == 1) && !self.orphans.has_waiting(holder) {
            if !self.assign_shared(tree, holder, range, names) {
                self.assign_fresh(tree, holder, range, names);
            }
            return;
        }
        let wanted =
            (0..names.len()).filter(|&i| counts[i] > 0).fold(0, |bits, i| bits | 1 << (range.from + i));
        let mut unnamed = self.cover(tree, holder, range, wanted);
        for offset in offsets(wanted) {
            let (name, count) = (names[offset - range.from], counts[offset - range.from]);
            self.assign_one(tree, holder, name, SpanAddress::new(range.node.id, offset), unnamed);
            unnamed.bits &= !(1 << offset);
            if count > 1 {
                *self.holder_names_mut(holder).extra_counts.get_or_default(name) += count - 1;
            }
        }
    }

    /// The second most common case: names that the holder has not used before. They are entered together; those that
    /// may be in use already are handled one by one afterwards.
    fn assign_fresh(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        range: NodeRange<'_>,
        names: &[u64],
    ) {
        let (node, bits) = (range.node, range.bits());
        let unnamed = self.cover(tree, holder, range, bits);
        if range.origin == Origin::New {
            tree.set_names(node, range.from, names);
        }
        let entered = self.enter(tree, holder, range, names, unnamed.bits);
        if range.origin == Origin::New {
            tree.meta_mut(node).named |= entered.shared;
        } else {
            offsets(entered.shared).for_each(|at| tree.set_name(node, at, names[at - range.from]));
        }
        if entered.own != 0 {
            self.holder_names_mut(holder).set_own_names(node.id, entered.own, range.from, names);
        }
        let mut left = Unnamed { node: node.id, bits: unnamed.bits & entered.doubtful };
        for offset in offsets(entered.doubtful) {
            let address = SpanAddress::new(node.id, offset);
            self.assign_one(tree, holder, names[offset - range.from], address, left);
            left.bits &= !(1 << offset);
        }
    }

    /// Enters the names of spans that the holder did not hold into the tables: as shared names where spans have none,
    /// else as the holder's own.
    fn enter(
        &mut self,
        tree: &PinnedTree<'_, '_>,
        holder: HolderPosition,
        range: NodeRange<'_>,
        names: &[u64],
        unheld: u64,
    ) -> Entered {
        let meta = tree.meta(range.node);
        let mut hashes = [NameHash::default(); SPANS_A_NODE];
        for (hash, &name) in hashes.iter_mut().zip(names) {
            *hash = NameHash::of(self.hash, name);
        }
        let hashes = &hashes[..names.len()];
        let mut entered = Entered { doubtful: range.bits(), ..Entered::default() };
        let shared = &mut self.shared;
        let Some(holder_names) = self.holders[holder.index()].as_deref_mut() else { return entered };
        let own = &mut holder_names.own;
        let has_own = !own.is_empty() || meta.named & range.bits() != 0;
        let prefetch = |shared: &NameTable, own: &NameTable, hash: NameHash| {
            shared.prefetch(hash);
            if has_own {
                own.prefetch(hash);
            }
        };
        hashes.iter().take(AHEAD).for_each(|&hash| prefetch(shared, own, hash));
        for (i, (&name, &hash)) in names.iter().zip(hashes).enumerate() {
            if let Some(&soon) = hashes.get(i + AHEAD) {
                prefetch(shared, own, soon);
            }
            let (offset, bit) = (range.from + i, 1 << (range.from + i));
            let address = SpanAddress::new(range.node.id, offset);
            // A name behind a span that the holder holds may come to that span first.
            if unheld & bit == 0 {
                break;
            }
            if meta.named & bit == 0 {
                let is_new = !(has_own && own.contains(hash)) && shared.insert_new(hash, address);
                entered.shared |= u64::from(is_new) << offset;
            } else if meta.names[offset] != name {
                let is_new = !shared.contains(hash) && own.insert_new(hash, address);
                entered.own |= u64::from(is_new) << offset;
            }
        }
        entered.doubtful &= !(entered.shared | entered.own);
        entered
    }

    /// The most common case: spans that others hold under the same names, and this holder does not.
    fn assign_shared(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        range: NodeRange<'_>,
        names: &[u64],
    ) -> bool {
        let (node, bits) = (range.node, range.bits());
        if range.origin != Origin::Existing || self.homonyms > 0 {
            return false;
        }
        let meta = tree.meta(node);
        let mask = tree.mask(node, holder);
        let is_known = meta.named & bits == bits && meta.names[range.from..][..names.len()] == *names;
        // Without homonyms, only one of the holder's own names can stand for another address.
        let hash = self.hash;
        let holder_names = self.holder_names_mut(holder);
        let is_own = |&name: &u64| holder_names.own_address(name, NameHash::of(hash, name)).is_some();
        if !is_known || mask & bits != 0 || !holder_names.own.is_empty() && names.iter().any(is_own) {
            return false;
        }
        holder_names.nodes.get_or_default(node.id);
        tree.set_mask(node, holder, mask | bits);
        true
    }

    /// Makes the holder hold the wanted spans of a range, and no others of those just inserted. Returns the spans
    /// that it did not hold before, which have no names yet.
    fn cover(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        range: NodeRange<'_>,
        wanted: u64,
    ) -> Unnamed {
        let node = range.node;
        let mask = tree.mask(node, holder);
        let before = if range.origin == Origin::New { mask & !range.bits() } else { mask };
        if mask != before | wanted {
            tree.set_mask(node, holder, before | wanted);
        }
        if wanted != range.bits() {
            self.to_prune.push(node.id);
        }
        if before | wanted != 0 {
            self.holder_names_mut(holder).nodes.get_or_default(node.id);
        }
        Unnamed { node: node.id, bits: wanted & !before }
    }

    /// Gives one span to the holder under one name.
    pub(super) fn assign_one(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        name: u64,
        address: SpanAddress,
        unnamed: Unnamed,
    ) {
        if let Some(other) = self.resolve(tree, holder, name, unnamed) {
            if other == address {
                *self.holder_names_mut(holder).extra_counts.get_or_default(name) += 1;
                return;
            }
            self.moved += 1;
            self.holder_names_mut(holder).extra_counts.remove(&name);
            self.release_name(tree, holder, name, other);
        }
        if self.orphans.has_waiting(holder) {
            self.orphans.forget(holder, name);
        }
        self.support(tree, holder, name, address, unnamed);
    }

    /// Adds a name to those under which the holder holds a span.
    fn support(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        name: u64,
        address: SpanAddress,
        unnamed: Unnamed,
    ) {
        let (node, bit) = (tree.node(address.node()), 1 << address.offset());
        let mask = tree.mask(node, holder);
        let is_first = mask & bit == 0 || (unnamed.node == node.id && unnamed.bits & bit != 0);
        let kind = self.share_name(tree, node, address, name);
        if mask & bit == 0 {
            tree.set_mask(node, holder, mask | bit);
        }
        let holder_names = self.holder_names_mut(holder);
        if is_first {
            holder_names.add_name(address, name, kind);
        } else if holder_names.aliases_of(address) < ALIASES_MAX {
            holder_names.add_alias(address, name, kind);
        }
    }

    /// Makes this the span's shared name where it has none. Returns which kind of name it is for the span.
    fn share_name(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        node: NodeRef<'_>,
        address: SpanAddress,
        name: u64,
    ) -> NameKind {
        let meta = tree.meta(node);
        if meta.named >> address.offset() & 1 == 1 {
            return if meta.names[address.offset()] == name { NameKind::Shared } else { NameKind::Own };
        }
        let homonyms = self.count_homonyms(tree, name);
        if homonyms >= HOMONYMS_MAX {
            return NameKind::Own;
        }
        self.homonyms += usize::from(homonyms > 0);
        tree.set_name(node, address.offset(), name);
        self.shared.insert(NameHash::of(self.hash, name), address);
        NameKind::Shared
    }
}
