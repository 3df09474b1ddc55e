//! Names of the LoRA adapters that engines list beside their base models.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::RwLock;
use xxhash_rust::xxh3::xxh3_64;

/// Names that are kept. More are treated like models: their loads are not counted.
const NAMES_MAX: usize = 65_536;

/// Names of adapters.
#[derive(Default)]
pub(crate) struct AdapterNames {
    names: RwLock<BTreeSet<Arc<str>>>,
    /// Whether there is any. Most fleets have none, and then a decision does not look further.
    is_any: AtomicBool,
}

impl AdapterNames {
    /// Adds a name, unless `NAMES_MAX` are known. A known one takes the read lock only.
    pub(crate) fn add(&self, name: &Arc<str>) {
        if self.names.read().contains(name) {
            return;
        }
        let mut names = self.names.write();
        if names.len() < NAMES_MAX {
            names.insert(Arc::clone(name));
            self.is_any.store(true, Relaxed);
        }
    }

    /// The hash of the adapter with this name; `None` if the name is not an adapter's.
    pub(crate) fn of(&self, model: Option<&str>) -> Option<u64> {
        let model = model.filter(|_| self.is_any.load(Relaxed))?;
        self.names.read().contains(model).then(|| adapter_hash(model))
    }
}

/// The hash by which the fleet knows an adapter.
pub(crate) fn adapter_hash(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_names_are_adapters() {
        let names = AdapterNames::default();
        assert_eq!(names.of(Some("sql")), None);
        names.add(&Arc::from("sql"));
        assert_eq!((names.of(Some("sql")), names.of(Some("base"))), (Some(adapter_hash("sql")), None));
        assert_eq!(names.of(None), None);
    }
}
