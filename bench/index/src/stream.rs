//! The same events and prompts for every index.
//!
//! Conversations share a head and go their own way; each is held by several workers to different depths. A worker
//! stores a conversation turn by turn, the turns of all conversations interleaved, and its last blocks one by one, as
//! decoding does. Evictions come tail first, a few blocks per event.

/// A small seeded generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Whether engines name the same content alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    Agree,
    Differ,
}

/// What a stream looks like.
#[derive(Clone, Debug)]
pub struct Shape {
    pub label: String,
    pub workers: usize,
    pub sessions: usize,
    /// Blocks of a whole conversation.
    pub blocks: usize,
    /// Blocks that all conversations share.
    pub head: usize,
    /// Workers that hold each conversation.
    pub holders: usize,
    pub names: Names,
}

/// One block: the engine's name and the content's digest.
#[derive(Clone, Copy)]
pub struct Block {
    pub name: u64,
    pub digest: u64,
}

pub struct Store {
    pub worker: usize,
    pub parent: Option<u64>,
    pub blocks: Vec<Block>,
}

pub struct Remove {
    pub worker: usize,
    pub names: Vec<u64>,
}

pub struct Stream {
    pub stores: Vec<Store>,
    /// One-block appends that follow the stores.
    pub appends: Vec<Store>,
    pub removes: Vec<Remove>,
    /// What each removal took, stored again.
    pub restores: Vec<Store>,
    pub prompts: Vec<Vec<u64>>,
}

const TURN: usize = 48;
const APPENDS: usize = 6;
const EVICTED_TOGETHER: usize = 8;
const UNKNOWN_TAIL: usize = 16;

/// The chain of one conversation on one worker, as that worker names it.
fn chain(digests: &[u64], worker: usize, names: Names) -> Vec<Block> {
    let mut name = if names == Names::Agree { 1 } else { worker as u64 + 2 };
    let link = |&digest: &u64| {
        name = Random(name ^ digest.rotate_left(17)).next();
        Block { name, digest }
    };
    digests.iter().map(link).collect()
}

impl Stream {
    pub fn new(shape: &Shape, seed: u64) -> Stream {
        let mut random = Random(seed);
        let head: Vec<u64> = (0..shape.head).map(|_| random.next()).collect();
        let mut stream =
            Stream { stores: vec![], appends: vec![], removes: vec![], restores: vec![], prompts: vec![] };
        let mut turns: Vec<(usize, Store)> = Vec::new();
        let mut heads = vec![0; shape.workers];
        for _ in 0..shape.sessions {
            let own = (shape.head..shape.blocks).map(|_| random.next());
            let digests: Vec<u64> = head.iter().copied().chain(own).collect();
            let first = random.below(shape.workers);
            for holder in 0..shape.holders {
                let worker = (first + holder) % shape.workers;
                let depth = if holder == 0 {
                    shape.blocks
                } else {
                    shape.blocks / 2 + random.below(shape.blocks / 2)
                };
                let chain = chain(&digests[..depth.max(1)], worker, shape.names);
                // An engine says nothing about blocks that it has already.
                let known = std::mem::replace(&mut heads[worker], shape.head.min(chain.len()));
                stream.hold(&mut turns, &chain, known, worker, &mut random);
            }
            let unknown = (0..UNKNOWN_TAIL).map(|_| random.next());
            stream.prompts.push(digests.into_iter().chain(unknown).collect());
        }
        turns.sort_by_key(|&(turn, _)| turn);
        stream.stores = turns.into_iter().map(|(_, store)| store).collect();
        stream
    }

    /// One worker holds one chain, the first `known` blocks already: turns, then single blocks; later its last quarter
    /// is evicted.
    fn hold(
        &mut self,
        turns: &mut Vec<(usize, Store)>,
        chain: &[Block],
        known: usize,
        worker: usize,
        random: &mut Random,
    ) {
        let prefill = chain.len().saturating_sub(APPENDS).max(1);
        // The head comes before what continues it.
        let after_head = usize::from(known > 0);
        let mut from = known;
        while from < prefill {
            let to = (from + TURN / 2 + random.below(TURN)).min(prefill);
            let parent = from.checked_sub(1).map(|at| chain[at].name);
            turns
                .push((from / TURN + after_head, Store { worker, parent, blocks: chain[from..to].to_vec() }));
            from = to;
        }
        for at in prefill..chain.len() {
            self.appends.push(Store { worker, parent: Some(chain[at - 1].name), blocks: vec![chain[at]] });
        }
        let kept = (chain.len() * 3 / 4).max(known).max(1);
        let mut end = chain.len();
        while end > kept {
            let from = end.saturating_sub(EVICTED_TOGETHER).max(kept);
            let names = chain[from..end].iter().rev().map(|block| block.name).collect();
            self.removes.push(Remove { worker, names });
            let parent = Some(chain[from - 1].name);
            self.restores.push(Store { worker, parent, blocks: chain[from..end].to_vec() });
            end = from;
        }
    }

    pub fn stored_blocks(&self) -> usize {
        self.stores.iter().map(|store| store.blocks.len()).sum()
    }

    pub fn removed_blocks(&self) -> usize {
        self.removes.iter().map(|remove| remove.names.len()).sum()
    }
}
