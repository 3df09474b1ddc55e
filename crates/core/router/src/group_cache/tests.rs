//! What several groups can serve, compared with a naive model of an engine: sets of names, and a rule that tries every
//! length.

use std::collections::BTreeMap;

use proptest::prelude::*;
use warmroute_index::{Config, Index, Overlaps, Prompt, Recording};
use warmroute_types::{CacheEvent, Medium, RemovedBlocks, StoredBlocks, UnfollowedKind, WorkerId};

use super::*;
use crate::family::Family;
use crate::matching::Matching;
use crate::reported::Reported;
use crate::reported_view::ReportedView;
use crate::unit::Unit;

const WORKER: WorkerId = WorkerId(3);
/// Tokens in a block of the full attention.
const BLOCK: u32 = 2;

/// The engine: its groups, and how often each holds a block.
struct NaiveEngine {
    groups: Vec<(Attention, u32)>,
    held: BTreeMap<(usize, u64), u32>,
}

/// The hash of a prompt's beginning, which names the block that ends there.
fn name(tokens: &[u32]) -> u64 {
    tokens
        .iter()
        .fold(17, |hash, &token| (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ hash >> 29)
}

impl NaiveEngine {
    fn holds(&self, group: usize, tokens: &[u32]) -> bool {
        self.held.contains_key(&(group, name(tokens)))
    }

    /// Whether a group can continue after these tokens.
    fn serves(&self, group: usize, prefix: &[u32]) -> bool {
        let (attention, block) = self.groups[group];
        let (length, block) = (prefix.len(), block as usize);
        let holds_after = |from: usize| {
            let ends = (1..=length / block).map(|count| count * block).filter(|&end| end > from);
            ends.into_iter().all(|end| self.holds(group, &prefix[..end]))
        };
        match attention {
            Attention::Full => holds_after(0),
            // Blocks that contain any of the tokens before the next one that it sees.
            Attention::Window { tokens } => holds_after(length.saturating_sub(tokens.max(2) as usize - 1)),
            _ => length == 0 || self.holds(group, prefix),
        }
    }

    /// The tokens of a prompt that the engine finds: the longest length that every group can serve.
    fn finds(&self, prompt: &[u32]) -> u32 {
        let alignment = alignment_of(self.groups.iter().map(|(_, block)| *block)) as usize;
        let lengths = (1..prompt.len()).rev().filter(|length| length % alignment == 0);
        let is_served =
            |length: &usize| (0..self.groups.len()).all(|group| self.serves(group, &prompt[..*length]));
        lengths.into_iter().find(is_served).unwrap_or(0) as u32
    }

    /// Stores the blocks of a prompt after the first `skipped`, in each group those that `mask` selects.
    fn store(&mut self, prompt: &[u32], skipped: usize, mask: u64) -> Vec<CacheEvent> {
        let mut events = Vec::new();
        for (group, (attention, block)) in self.groups.clone().into_iter().enumerate() {
            let size = block as usize;
            let first = skipped * BLOCK as usize / size;
            let ends = (first + 1..=prompt.len() / size).map(|count| count * size);
            let is_kept =
                |end: &usize| attention == Attention::Full || mask >> ((end / size + group) % 64) & 1 == 1;
            let names: Vec<u64> = ends.filter(is_kept).map(|end| name(&prompt[..end])).collect();
            names.iter().for_each(|&name| *self.held.entry((group, name)).or_default() += 1);
            let tokens = prompt[first * size..prompt.len() / size * size].to_vec();
            events.push(CacheEvent::Stored(StoredBlocks {
                text_blocks: names.len() as u32,
                names,
                parent: (first > 0).then(|| name(&prompt[..first * size])),
                tokens,
                block_tokens: block,
                group: Group { index: group as u16, attention },
                ..StoredBlocks::default()
            }));
        }
        events
    }

    /// Evicts a block of a group.
    fn evict(&mut self, which: usize) -> Option<CacheEvent> {
        let &(group, name) = self.held.keys().nth(which % self.held.len().max(1))?;
        let count = self.held.get_mut(&(group, name))?;
        *count -= 1;
        if *count == 0 {
            self.held.remove(&(group, name));
        }
        let removed = RemovedBlocks { names: vec![name], medium: Medium::Gpu, group: group as u16 };
        Some(CacheEvent::Removed(removed))
    }

    /// Blocks of a prompt's beginning that every full group holds: a request may begin after any of them.
    fn chain(&self, prompt: &[u32]) -> usize {
        let is_full = |group: &usize| self.groups[*group].0 == Attention::Full;
        let holds = |blocks: &usize| {
            let prefix = &prompt[..blocks * BLOCK as usize];
            (0..self.groups.len()).filter(is_full).all(|group| self.serves(group, prefix))
        };
        (0..=prompt.len() / BLOCK as usize).take_while(holds).last().unwrap_or(0)
    }
}

/// The router's side.
struct Follower {
    index: Index,
    reported: Reported,
    family: Family,
}

impl Follower {
    fn new() -> Follower {
        let family = Family::new("m");
        let reported = Reported::default();
        reported.align(WORKER, Some(Matching::tokens(family.clone())));
        Follower { index: Index::new(&Config::default()), reported, family }
    }

    fn promises(&self, prompt: &[u32]) -> u32 {
        let text: Vec<u8> = prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
        let root = self.reported.root_for(&self.family, None, None, Unit::Token);
        let mut overlaps = Overlaps::new();
        overlaps.record(Recording::On);
        self.index.lookup(root, Prompt::Bytes(&text), &mut overlaps);
        let holder = ReportedView::Sampled.holder(WORKER);
        let Some(overlap) = overlaps.as_slice().iter().find(|overlap| overlap.holder == holder) else {
            return 0;
        };
        let usable = self.reported.groups.usable(WORKER, overlap, overlaps.trail(), text.len() as u32);
        usable.expect("the worker has several groups").tokens
    }
}

#[derive(Clone, Debug)]
enum Act {
    Store { prompt: Vec<u32>, skipped: usize, mask: u64 },
    Evict(usize),
    Clear,
}

fn prompts() -> impl Strategy<Value = Vec<u32>> {
    // Few different tokens, so that prompts share their beginnings.
    prop::collection::vec(1_u32..3, 1..24)
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (prompts(), any::<usize>(), prop_oneof![Just(u64::MAX), any::<u64>()])
            .prop_map(|(prompt, skipped, mask)| Act::Store { prompt, skipped, mask }),
        8 => any::<usize>().prop_map(Act::Evict),
        1 => Just(Act::Clear),
    ]
}

fn kinds() -> impl Strategy<Value = Vec<(Attention, u32)>> {
    let other = prop_oneof![
        1 => Just(Attention::Full),
        4 => (1_u32..12).prop_map(|tokens| Attention::Window { tokens }),
        2 => Just(Attention::State),
    ];
    let sized = (other, prop_oneof![3 => Just(BLOCK), 1 => Just(2 * BLOCK)]);
    let full_first = any::<bool>();
    (prop::collection::vec(sized, 1..4), full_first).prop_map(|(others, full_first)| {
        let full = vec![(Attention::Full, BLOCK)];
        // A full attention with larger blocks would be followed if it came first.
        let others: Vec<_> = others
            .into_iter()
            .map(|(attention, block)| (attention, if attention == Attention::Full { BLOCK } else { block }))
            .collect();
        if full_first { [full, others].concat() } else { [others, full].concat() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn all_groups_together_serve_what_the_naive_engine_finds(
        groups in kinds(),
        acts in prop::collection::vec(acts(), 1..40),
        asked in prop::collection::vec(prompts(), 1..6),
    ) {
        let mut engine = NaiveEngine { groups, held: BTreeMap::new() };
        let follower = Follower::new();
        let mut known = vec![];
        let opened = engine.store(&[9, 9, 9, 9], 0, u64::MAX);
        follower.reported.take(&follower.index, WORKER, &opened);
        for act in acts {
            let events = match act {
                Act::Store { prompt, skipped, mask } => {
                    let alignment = alignment_of(engine.groups.iter().map(|(_, block)| *block)) / BLOCK;
                    let skipped = skipped % (engine.chain(&prompt) + 1);
                    let events = engine.store(&prompt, skipped - skipped % alignment as usize, mask);
                    known.push(prompt);
                    events
                }
                Act::Evict(which) => engine.evict(which).into_iter().collect(),
                Act::Clear => {
                    engine.held.clear();
                    vec![CacheEvent::Cleared]
                }
            };
            follower.reported.take(&follower.index, WORKER, &events);
        }
        for prompt in asked.iter().chain(&known) {
            let longer = [prompt.as_slice(), &[1]].concat();
            for prompt in [prompt, &longer] {
                prop_assert_eq!(follower.promises(prompt), engine.finds(prompt), "{:?} {:?}", engine.groups, prompt);
            }
        }
    }
}

#[test]
fn a_worker_with_one_group_is_not_limited() {
    let mut engine = NaiveEngine { groups: vec![(Attention::Full, BLOCK)], held: BTreeMap::new() };
    let follower = Follower::new();
    follower.reported.take(&follower.index, WORKER, &engine.store(&[1, 2, 3, 4], 0, u64::MAX));
    assert_eq!(follower.reported.groups.recording(), Recording::Off);
}

#[test]
fn a_restarted_engine_may_have_other_groups() {
    let window = (Attention::Window { tokens: 4 }, BLOCK);
    let mut engine = NaiveEngine { groups: vec![(Attention::Full, BLOCK), window], held: BTreeMap::new() };
    let follower = Follower::new();
    follower.reported.take(&follower.index, WORKER, &engine.store(&[1, 2, 3, 4, 5], 0, u64::MAX));
    assert_eq!(follower.promises(&[1, 2, 3, 4, 5]), 4);
    follower.reported.emptied(WORKER);
    assert_eq!(follower.reported.groups.recording(), Recording::Off);
}

#[test]
fn names_of_one_text_count_where_all_of_them_are_held() {
    let hash = Index::new(&Config::default()).table_hash();
    let mut cache = GroupCache::new(0, hash);
    let full = Group { index: 0, attention: Attention::Full };
    let state = Group { index: 1, attention: Attention::State };
    let span = |name| NamedSpan { name, span: warmroute_index::Span { digest: 5, bytes: 8, tokens: 2 } };
    let root = Family::new("m").root(None, None, Unit::Byte);
    let key = BoundaryKey::of_root(root);
    for name in [70, 71] {
        cache.store_chain(full, 2, Err(key), &[span(name)]);
    }
    let reach = Reach { spans: 1, bytes: 8, tokens: 2 };
    let boundary = Boundary { key: key.after(5), reach, before: TrailPlace::default() };
    cache.store(state, 2, &[70]);
    assert_eq!(cache.held(&boundary), 1, "the prompt may have the other tokens");
    cache.store(state, 2, &[71]);
    assert_eq!(cache.held(&boundary), 3);
    cache.remove(1, &[70]);
    cache.remove(0, &[70]);
    assert_eq!(cache.held(&boundary), 3, "one name is left");
    cache.remove(0, &[71]);
    cache.remove(1, &[71]);
    assert_eq!((cache.held(&boundary), cache.by_key.len(), cache.aliases.len()), (0, 0, 0));
}

#[test]
fn a_group_that_is_not_followed_never_opens_a_cache_without_full_attention() {
    let follower = Follower::new();
    let group = Group { index: 0, attention: Attention::Unfollowed(UnfollowedKind::Unknown) };
    let event = CacheEvent::Stored(StoredBlocks { names: vec![1], group, ..StoredBlocks::default() });
    follower.reported.take(&follower.index, WORKER, &[event]);
    assert_eq!(follower.reported.groups.recording(), Recording::Off);
}

#[test]
fn blocks_that_are_stored_again_and_again_take_bounded_memory() {
    let mut cache = GroupCache::new(0, Index::new(&Config::default()).table_hash());
    let state = Group { index: 1, attention: Attention::State };
    let names: Vec<u64> = (0..3 * EXTRA_COUNTS_MAX as u64).collect();
    (0..3).for_each(|_| cache.store(state, 2, &names));
    assert_eq!(cache.extra_counts.len(), EXTRA_COUNTS_MAX);
    cache.remove(1, &names);
    assert_eq!(
        cache.blocks.len(),
        EXTRA_COUNTS_MAX,
        "a block that was not counted is gone with its first removal"
    );
    (0..2).for_each(|_| cache.remove(1, &names));
    assert_eq!((cache.blocks.len(), cache.extra_counts.len()), (0, 0));
}

#[test]
fn long_windows_and_groups_that_disagree_cost_a_few_looks_at_each_boundary() {
    const BLOCKS: u32 = 2_000;
    let follower = Follower::new();
    let mut engine = NaiveEngine { groups: vec![(Attention::Full, BLOCK)], held: BTreeMap::new() };
    let prompt: Vec<u32> = (0..BLOCKS * BLOCK).collect();
    follower.reported.take(&follower.index, WORKER, &engine.store(&prompt, 0, u64::MAX));
    let text: Vec<u8> = prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
    let root = follower.reported.root_for(&follower.family, None, None, Unit::Token);
    let mut overlaps = Overlaps::new();
    overlaps.record(Recording::On);
    follower.index.lookup(root, Prompt::Bytes(&text), &mut overlaps);
    let from = overlaps.as_slice()[0].place;
    let rule = |attention, groups| GroupRule { attention, block_tokens: BLOCK, groups };
    // The window is held everywhere. One state is held after even blocks, the other after odd ones.
    let window = rule(Attention::Window { tokens: BLOCKS / 2 }, 1);
    let rules = [window, rule(Attention::State, 2), rule(Attention::State, 4)];
    let looks = std::cell::Cell::new(0);
    let held = |boundary: &Boundary| {
        looks.set(looks.get() + 1);
        1 | 2 << (boundary.reach.tokens / BLOCK % 2)
    };
    let end = longest_common(&rules, BLOCK, overlaps.trail(), from, held);
    assert!(overlaps.trail().at(end).is_none(), "no boundary suits both states");
    assert!((BLOCKS..=6 * BLOCKS).contains(&looks.get()), "{} looks at {BLOCKS} boundaries", looks.get());
}

#[test]
fn bytes_grow_with_the_blocks_and_are_none_of_an_empty_cache() {
    let mut cache = GroupCache::new(0, Index::new(&Config::default()).table_hash());
    assert_eq!(cache.bytes(), 0);
    let names: Vec<u64> = (0..100_000).collect();
    cache.store(Group { index: 1, attention: Attention::State }, 2, &names);
    let entry = size_of::<(u64, NamedBlock)>() + 1;
    let per_block = cache.bytes() / names.len();
    // Tables are filled between 7/16 and 7/8.
    assert!((entry * 8 / 7..=entry * 16 / 7 + 1).contains(&per_block), "{per_block} bytes for {entry}");
    drop(cache.take());
    assert_eq!(cache.bytes(), 0);
}
