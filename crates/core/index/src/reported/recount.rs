//! Names reported again without their spans: the engine copied stored blocks to another memory tier.
//!
//! The first report gave their addresses. A repeated name only counts once more, so it stays until it has left all
//! tiers.

use super::{Reported, Unnamed};
use crate::holder_bits::HolderPosition;
use crate::tree::PinnedTree;

impl Reported {
    /// Counts each of these names once more. Returns how many the holder holds or has waiting; other names are
    /// ignored.
    pub fn store_by_name(
        &mut self,
        tree: &PinnedTree<'_, '_>,
        holder: HolderPosition,
        names: &[u64],
    ) -> usize {
        names.iter().filter(|&&name| self.count_again(tree, holder, name)).count()
    }

    /// Counts a name once more. Returns whether the holder knows the name.
    fn count_again(&mut self, tree: &PinnedTree<'_, '_>, holder: HolderPosition, name: u64) -> bool {
        if self.orphans.has_waiting(holder) && self.orphans.store_by_name(holder, name) {
            return true;
        }
        let is_held = self.resolve(tree, holder, name, Unnamed::default()).is_some();
        if is_held {
            let extra_counts = self.holder_names_mut(holder).extra_counts.get_or_default(name);
            *extra_counts = extra_counts.saturating_add(1);
        }
        is_held
    }

    /// Whether the holder holds this name or has it waiting.
    pub fn knows(&self, tree: &PinnedTree<'_, '_>, holder: HolderPosition, name: u64) -> bool {
        self.orphans.has(holder, name) || self.resolve(tree, holder, name, Unnamed::default()).is_some()
    }
}
