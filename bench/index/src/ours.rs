//! Warmroute's index.

use std::sync::Arc;

use warmroute_index::{Config, Index, NamedSpan, Namespace, Overlaps, Parent, Prompt, RootKey, Source, Span, HolderId};
use warmroute_types::Micros;

use crate::rival::Rival;
use crate::stream::{Remove, Store};

pub struct Ours {
    pub index: Arc<Index>,
    pub root: RootKey,
    out: Overlaps,
    spans: Vec<NamedSpan>,
}

pub fn root() -> RootKey {
    let namespace = Namespace { model: "m", lora: None, salt: None, cut: 0, source: Source::Reported };
    RootKey::of(&namespace)
}

impl Ours {
    pub fn new() -> Ours {
        let config = Config { budget_bytes: 64 << 30, ..Config::default() };
        Ours::of(Arc::new(Index::new(&config)))
    }

    fn of(index: Arc<Index>) -> Ours {
        Ours { index, root: root(), out: Overlaps::new(), spans: Vec::new() }
    }

    /// The same index, for another thread.
    pub fn share(&self) -> Ours {
        Ours::of(Arc::clone(&self.index))
    }
}

impl Rival for Ours {
    fn name(&self) -> &'static str {
        "warmroute-index"
    }

    fn store(&mut self, store: &Store) {
        self.spans.clear();
        let named = |block: &crate::stream::Block| NamedSpan {
            name: block.name,
            span: Span { digest: block.digest, bytes: 64, tokens: 16 },
        };
        self.spans.extend(store.blocks.iter().map(named));
        let parent = store.parent.map_or(Parent::Root(self.root), Parent::Name);
        let stored = self.index.store(HolderId(store.worker as u16), parent, &self.spans);
        debug_assert!(stored.is_ok_and(|stored| stored.placed == store.blocks.len()));
    }

    fn remove(&mut self, remove: &Remove) {
        self.index.remove(HolderId(remove.worker as u16), &remove.names);
    }

    fn find(&mut self, prompt: &[u64]) -> (usize, u64) {
        self.index.lookup(self.root, Prompt::Chunks(prompt), &mut self.out);
        let sum = self.out.as_slice().iter().map(|overlap| u64::from(overlap.reach.spans)).sum();
        (self.out.as_slice().len(), sum)
    }

    /// Frees what waits to be freed.
    fn drain(&mut self) -> u64 {
        self.index.expire(Micros::ZERO);
        0
    }
}
