//! `kv-index` 2.0: its ChainIndex, with one lane map per worker, as its gateway uses it.

use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};

use crate::rival::Rival;
use crate::stream::{Remove, Store};

pub struct Kv {
    pub index: ChainIndex,
    lanes: Vec<(u32, ChainBlockMap)>,
    blocks: Vec<StoredBlock>,
    names: Vec<SequenceHash>,
}

impl Kv {
    /// At most 1,024 workers: that is its own limit.
    pub fn new(workers: usize) -> Kv {
        let index = ChainIndex::with_max_workers(workers);
        let lane = |worker: usize| {
            let id = index.intern_worker(&worker.to_string()).expect("there is a slot for every worker");
            (id, ChainBlockMap::default())
        };
        let lanes = (0..workers).map(lane).collect();
        Kv { index, lanes, blocks: Vec::new(), names: Vec::new() }
    }
}

impl Rival for Kv {
    fn name(&self) -> &'static str {
        "kv-index"
    }

    fn store(&mut self, store: &Store) {
        self.blocks.clear();
        let stored = |block: &crate::stream::Block| StoredBlock {
            seq_hash: SequenceHash(block.name),
            content_hash: ContentHash(block.digest),
        };
        self.blocks.extend(store.blocks.iter().map(stored));
        let (id, lane) = &mut self.lanes[store.worker];
        let applied = self.index.apply_stored(*id, &self.blocks, store.parent.map(SequenceHash), lane);
        debug_assert!(applied.is_ok());
    }

    fn remove(&mut self, remove: &Remove) {
        self.names.clear();
        self.names.extend(remove.names.iter().map(|&name| SequenceHash(name)));
        let (id, lane) = &mut self.lanes[remove.worker];
        self.index.apply_removed(*id, &self.names, lane);
    }

    fn find(&mut self, prompt: &[u64]) -> (usize, u64) {
        let (mut workers, mut sum) = (0, 0);
        self.index.score_into(
            prompt,
            |digest| *digest,
            false,
            |_, score| {
                workers += 1;
                sum += u64::from(score);
            },
        );
        (workers, sum)
    }
}
