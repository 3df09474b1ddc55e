//! Short random sequences of changes compared with the naive model. A failure shrinks to the fewest steps that
//! reproduce it.
//!
//! The seeded worlds of `reported.rs` and `presumed.rs` cover more states; these sequences help to find the cause.
#![allow(clippy::unwrap_used)] // Tests may: a panic here is the report.

mod model;

use std::collections::BTreeMap;

use model::{Cache, Reports, first_beyond, named, reach, root, span};
use proptest::prelude::*;
use warmroute_index::{Config, HolderId, Index, Overlaps, Parent, Presumption, Prompt, Source};
use warmroute_types::Micros;

const WORKERS: [u16; 3] = [0, 4_096, 12_287];

/// One change. The bits of a chain's number choose the direction of each span, so that chains share beginnings.
#[derive(Clone, Debug)]
enum Step {
    Store { id: usize, chain: u8, from: usize, length: usize, naming: u64 },
    Remove { id: usize, chain: u8, at: usize, naming: u64 },
    CopyPrefix { from: usize, to: usize, chain: u8, upto: u32 },
    CopyAll { from: usize, to: usize },
    StoreByName { id: usize, chain: u8, at: usize, naming: u64 },
    CutUnless { id: usize, spared_by: usize, chain: u8, keep: u32 },
    Clear { id: usize },
    Presume { id: usize, chain: u8, length: usize },
    Confirm { which: usize },
    Withdraw { which: usize },
    Resize { id: usize, tokens: u64 },
}

const LENGTH: usize = 70;

/// A chain, which diverges from others where the bits of its number do.
fn chain(number: u8) -> Vec<u64> {
    (0..LENGTH as u64).map(|at| at * 1_024 + 1 + u64::from(number & ((2 << (at / 9)) - 1) as u8)).collect()
}

fn name(chain: &[u64], end: usize, naming: u64) -> u64 {
    chain[..end].iter().fold(naming, |key, &digest| model::Random(key ^ digest).next())
}

fn step() -> impl Strategy<Value = Step> {
    let (id, number) = (0..WORKERS.len(), any::<u8>());
    let (at, tokens) = (0..LENGTH, 0..200u32);
    prop_oneof![
        4 => (id.clone(), number, at.clone(), 1..LENGTH, 0..2u64)
            .prop_map(|(id, chain, from, length, naming)| Step::Store { id, chain, from, length, naming }),
        3 => (id.clone(), number, at.clone(), 0..2u64)
            .prop_map(|(id, chain, at, naming)| Step::Remove { id, chain, at, naming }),
        2 => (id.clone(), id.clone(), number, tokens.clone())
            .prop_map(|(from, to, chain, upto)| Step::CopyPrefix { from, to, chain, upto }),
        1 => (id.clone(), id.clone()).prop_map(|(from, to)| Step::CopyAll { from, to }),
        1 => (id.clone(), number, at.clone(), 0..2u64)
            .prop_map(|(id, chain, at, naming)| Step::StoreByName { id, chain, at, naming }),
        1 => (id.clone(), id.clone(), number, tokens)
            .prop_map(|(id, spared_by, chain, keep)| Step::CutUnless { id, spared_by, chain, keep }),
        1 => id.clone().prop_map(|id| Step::Clear { id }),
        3 => (id.clone(), number, 1..LENGTH)
            .prop_map(|(id, chain, length)| Step::Presume { id, chain, length }),
        3 => (0..8usize).prop_map(|which| Step::Confirm { which }),
        1 => (0..8usize).prop_map(|which| Step::Withdraw { which }),
        1 => (id, 0..300u64).prop_map(|(id, tokens)| Step::Resize { id, tokens }),
    ]
}

struct World {
    index: Index,
    reports: Vec<Reports>,
    caches: Vec<Cache>,
    waiting: BTreeMap<u64, (usize, Presumption)>,
    next: u64,
}

impl World {
    fn new() -> World {
        let config = Config { presumed_tokens: 150, ..Config::default() };
        World {
            index: Index::new(&config),
            reports: WORKERS.iter().map(|_| Reports::default()).collect(),
            caches: WORKERS.iter().map(|_| Cache { capacity_tokens: 150, ..Cache::default() }).collect(),
            waiting: BTreeMap::new(),
            next: 1,
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Store { id, chain: number, from, length, naming } => {
                let chain = chain(number);
                let to = (from + length).min(LENGTH);
                let parent = (from > 0).then(|| name(&chain, from, naming));
                let spans: Vec<(u64, u64)> =
                    (from..to).map(|at| (name(&chain, at + 1, naming), chain[at])).collect();
                let reported: Vec<_> = spans.iter().map(|&(name, digest)| named(name, digest)).collect();
                let after = parent.map_or(Parent::Root(root("a", Source::Reported)), Parent::Name);
                self.index.store(HolderId(WORKERS[id]), after, &reported).unwrap();
                self.reports[id].store(parent.map_or(Ok(0), Err), &spans);
            }
            Step::Remove { id, chain: number, at, naming } => {
                let name = name(&chain(number), at + 1, naming);
                let was_known = self.reports[id].remove(name);
                let removed = self.index.remove(HolderId(WORKERS[id]), &[name]);
                assert_eq!(removed.known, usize::from(was_known));
            }
            Step::CopyPrefix { from, to, chain: number, upto } if from != to => {
                let chain = chain(number);
                let [theirs, mine] = self.reports.get_disjoint_mut([from, to]).unwrap();
                mine.copy_prefix(theirs, 0, &chain, upto);
                let (from, to) = (HolderId(WORKERS[from]), HolderId(WORKERS[to]));
                self.index
                    .copy_prefix(from, to, root("a", Source::Reported), Prompt::Chunks(&chain), upto)
                    .unwrap();
            }
            Step::CopyAll { from, to } if from != to => {
                self.reports[to] = self.reports[from].clone();
                self.caches[to].blocks.clear();
                self.index.copy_all(HolderId(WORKERS[from]), HolderId(WORKERS[to])).unwrap();
            }
            Step::StoreByName { id, chain: number, at, naming } => {
                let name = name(&chain(number), at + 1, naming);
                let was_known = self.reports[id].store_by_name(name);
                let known = self.index.store_by_name(HolderId(WORKERS[id]), &[name]);
                assert_eq!(known, usize::from(was_known));
            }
            Step::CutUnless { id, spared_by, chain: number, keep } if id != spared_by => {
                let chain = chain(number);
                if let Some(place) = first_beyond(0, &chain, keep) {
                    let [mine, spared] = self.reports.get_disjoint_mut([id, spared_by]).unwrap();
                    mine.cut_unless(&place, spared);
                }
                let (id, spared_by) = (HolderId(WORKERS[id]), HolderId(WORKERS[spared_by]));
                let root = root("a", Source::Reported);
                self.index.cut_unless(id, root, Prompt::Chunks(&chain), keep, spared_by).unwrap();
            }
            Step::CopyPrefix { .. } | Step::CopyAll { .. } | Step::CutUnless { .. } => {}
            Step::Clear { id } => {
                self.reports[id] = Reports::default();
                self.caches[id].blocks.clear();
                self.index.clear(HolderId(WORKERS[id]));
            }
            _ => self.apply_presumed(step),
        }
    }

    fn apply_presumed(&mut self, step: &Step) {
        match *step {
            Step::Presume { id, chain: number, length } => {
                let prompt = &chain(number)[..length];
                let spans: Vec<_> = prompt.iter().map(|&digest| span(digest)).collect();
                let root = root("a", Source::Presumed);
                let handle = self.index.presume(HolderId(WORKERS[id]), root, &spans, Micros(0)).unwrap();
                self.caches[id].presume(0, prompt, self.next);
                self.waiting.insert(self.next, (id, handle));
                self.next += 1;
            }
            Step::Confirm { which } => {
                if let Some((id, worker, handle)) = self.take(which) {
                    self.index.confirm(handle);
                    self.caches[worker].confirm(id, self.next);
                    self.next += 1;
                }
            }
            Step::Withdraw { which } => {
                if let Some((id, worker, handle)) = self.take(which) {
                    self.index.withdraw(handle);
                    self.caches[worker].withdraw(id);
                }
            }
            Step::Resize { id, tokens } => {
                self.caches[id].capacity_tokens = tokens;
                self.caches[id].fit();
                self.index.set_capacity(HolderId(WORKERS[id]), tokens).unwrap();
            }
            _ => unreachable!("the others are reports"),
        }
    }

    fn take(&mut self, which: usize) -> Option<(u64, usize, Presumption)> {
        let id = *self.waiting.keys().nth(which)?;
        self.waiting.remove(&id).map(|(worker, handle)| (id, worker, handle))
    }

    fn check(&self, number: u8) {
        let prompt = chain(number);
        let mut out = Overlaps::new();
        let found = |out: &Overlaps, id: usize| {
            let reach = out.of(HolderId(WORKERS[id]));
            (reach.spans, reach.bytes, reach.tokens)
        };
        self.index.lookup(root("a", Source::Reported), Prompt::Chunks(&prompt), &mut out);
        for (id, reports) in self.reports.iter().enumerate() {
            assert_eq!(found(&out, id), reach(0, &prompt, |path| reports.holds(path)), "reported, {id}");
        }
        self.index.lookup(root("a", Source::Presumed), Prompt::Chunks(&prompt), &mut out);
        for (id, cache) in self.caches.iter().enumerate() {
            let expected = reach(0, &prompt, |path| cache.blocks.contains_key(path));
            assert_eq!(found(&out, id), expected, "presumed, {id}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_sequence_of_changes_equals_the_model(
        steps in proptest::collection::vec(step(), 1..60),
        asked in proptest::collection::vec(any::<u8>(), 4),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.apply(step);
            asked.iter().for_each(|&number| world.check(number));
        }
        WORKERS.iter().for_each(|&id| world.index.clear(HolderId(id)));
        let stats = world.index.stats();
        prop_assert_eq!((stats.spans, stats.held, stats.nodes, stats.orphans, stats.uses), (0, 0, 0, 0, 0));
    }
}
