//! Short random sequences of changes against the naive model: what fails here is shrunk to the fewest steps that do.
//!
//! The seeded worlds of `reported.rs` and `presumed.rs` go far and wide; these are for whoever has to find out why.
#![allow(clippy::unwrap_used)] // Tests may: a panic here is the report.

mod model;

use std::collections::BTreeMap;

use model::{Cache, Reports, first_beyond, named, reach, root, span};
use proptest::prelude::*;
use warmroute_index::{Config, Index, Overlaps, Parent, Presumption, Prompt, Source};
use warmroute_types::{Micros, WorkerId};

const SEATS: [u16; 3] = [0, 4_096, 12_287];

/// One change. Chains are numbers whose bits say which way each span goes, so that chains share heads.
#[derive(Clone, Debug)]
enum Step {
    Store { seat: usize, chain: u8, from: usize, length: usize, naming: u64 },
    Remove { seat: usize, chain: u8, at: usize, naming: u64 },
    Adopt { of: usize, by: usize, chain: u8, upto: u32 },
    AdoptAll { of: usize, by: usize },
    StoreAgain { seat: usize, chain: u8, at: usize, naming: u64 },
    CutUnless { seat: usize, spared_by: usize, chain: u8, keep: u32 },
    Clear { seat: usize },
    Presume { seat: usize, chain: u8, length: usize },
    Confirm { which: usize },
    Withdraw { which: usize },
    Resize { seat: usize, tokens: u64 },
}

const LENGTH: usize = 70;

/// A chain: it leaves the others where a bit of its number does.
fn chain(number: u8) -> Vec<u64> {
    (0..LENGTH as u64).map(|at| at * 1_024 + 1 + u64::from(number & ((2 << (at / 9)) - 1) as u8)).collect()
}

fn name(chain: &[u64], end: usize, naming: u64) -> u64 {
    chain[..end].iter().fold(naming, |key, &digest| model::Random(key ^ digest).next())
}

fn step() -> impl Strategy<Value = Step> {
    let (seat, number) = (0..SEATS.len(), any::<u8>());
    let (at, tokens) = (0..LENGTH, 0..200u32);
    prop_oneof![
        4 => (seat.clone(), number, at.clone(), 1..LENGTH, 0..2u64)
            .prop_map(|(seat, chain, from, length, naming)| Step::Store { seat, chain, from, length, naming }),
        3 => (seat.clone(), number, at.clone(), 0..2u64)
            .prop_map(|(seat, chain, at, naming)| Step::Remove { seat, chain, at, naming }),
        2 => (seat.clone(), seat.clone(), number, tokens.clone())
            .prop_map(|(of, by, chain, upto)| Step::Adopt { of, by, chain, upto }),
        1 => (seat.clone(), seat.clone()).prop_map(|(of, by)| Step::AdoptAll { of, by }),
        1 => (seat.clone(), number, at.clone(), 0..2u64)
            .prop_map(|(seat, chain, at, naming)| Step::StoreAgain { seat, chain, at, naming }),
        1 => (seat.clone(), seat.clone(), number, tokens)
            .prop_map(|(seat, spared_by, chain, keep)| Step::CutUnless { seat, spared_by, chain, keep }),
        1 => seat.clone().prop_map(|seat| Step::Clear { seat }),
        3 => (seat.clone(), number, 1..LENGTH)
            .prop_map(|(seat, chain, length)| Step::Presume { seat, chain, length }),
        3 => (0..8usize).prop_map(|which| Step::Confirm { which }),
        1 => (0..8usize).prop_map(|which| Step::Withdraw { which }),
        1 => (seat, 0..300u64).prop_map(|(seat, tokens)| Step::Resize { seat, tokens }),
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
            reports: SEATS.iter().map(|_| Reports::default()).collect(),
            caches: SEATS.iter().map(|_| Cache { capacity_tokens: 150, ..Cache::default() }).collect(),
            waiting: BTreeMap::new(),
            next: 1,
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Store { seat, chain: number, from, length, naming } => {
                let chain = chain(number);
                let to = (from + length).min(LENGTH);
                let parent = (from > 0).then(|| name(&chain, from, naming));
                let spans: Vec<(u64, u64)> =
                    (from..to).map(|at| (name(&chain, at + 1, naming), chain[at])).collect();
                let reported: Vec<_> = spans.iter().map(|&(name, digest)| named(name, digest)).collect();
                let after = parent.map_or(Parent::Root(root("a", Source::Reported)), Parent::Name);
                self.index.store(WorkerId(SEATS[seat]), after, &reported).unwrap();
                self.reports[seat].store(parent.map_or(Ok(0), Err), &spans);
            }
            Step::Remove { seat, chain: number, at, naming } => {
                let name = name(&chain(number), at + 1, naming);
                let was_known = self.reports[seat].remove(name);
                let removed = self.index.remove(WorkerId(SEATS[seat]), &[name]);
                assert_eq!(removed.known, usize::from(was_known));
            }
            Step::Adopt { of, by, chain: number, upto } if of != by => {
                let chain = chain(number);
                let [theirs, mine] = self.reports.get_disjoint_mut([of, by]).unwrap();
                mine.adopt(theirs, 0, &chain, upto);
                let (of, by) = (WorkerId(SEATS[of]), WorkerId(SEATS[by]));
                self.index.adopt(of, by, root("a", Source::Reported), Prompt::Chunks(&chain), upto).unwrap();
            }
            Step::AdoptAll { of, by } if of != by => {
                self.reports[by] = self.reports[of].clone();
                self.caches[by].blocks.clear();
                self.index.adopt_all(WorkerId(SEATS[of]), WorkerId(SEATS[by])).unwrap();
            }
            Step::StoreAgain { seat, chain: number, at, naming } => {
                let name = name(&chain(number), at + 1, naming);
                let was_known = self.reports[seat].store_again(name);
                let known = self.index.store_again(WorkerId(SEATS[seat]), &[name]);
                assert_eq!(known, usize::from(was_known));
            }
            Step::CutUnless { seat, spared_by, chain: number, keep } if seat != spared_by => {
                let chain = chain(number);
                if let Some(place) = first_beyond(0, &chain, keep) {
                    let [mine, spared] = self.reports.get_disjoint_mut([seat, spared_by]).unwrap();
                    mine.cut_unless(&place, spared);
                }
                let (seat, spared_by) = (WorkerId(SEATS[seat]), WorkerId(SEATS[spared_by]));
                let root = root("a", Source::Reported);
                self.index.cut_unless(seat, root, Prompt::Chunks(&chain), keep, spared_by).unwrap();
            }
            Step::Adopt { .. } | Step::AdoptAll { .. } | Step::CutUnless { .. } => {}
            Step::Clear { seat } => {
                self.reports[seat] = Reports::default();
                self.caches[seat].blocks.clear();
                self.index.clear(WorkerId(SEATS[seat]));
            }
            _ => self.apply_presumed(step),
        }
    }

    fn apply_presumed(&mut self, step: &Step) {
        match *step {
            Step::Presume { seat, chain: number, length } => {
                let prompt = &chain(number)[..length];
                let spans: Vec<_> = prompt.iter().map(|&digest| span(digest)).collect();
                let root = root("a", Source::Presumed);
                let handle = self.index.presume(WorkerId(SEATS[seat]), root, &spans, Micros(0)).unwrap();
                self.caches[seat].presume(0, prompt, self.next);
                self.waiting.insert(self.next, (seat, handle));
                self.next += 1;
            }
            Step::Confirm { which } => {
                if let Some((id, seat, handle)) = self.take(which) {
                    self.index.confirm(handle);
                    self.caches[seat].confirm(id, self.next);
                    self.next += 1;
                }
            }
            Step::Withdraw { which } => {
                if let Some((id, seat, handle)) = self.take(which) {
                    self.index.withdraw(handle);
                    self.caches[seat].withdraw(id);
                }
            }
            Step::Resize { seat, tokens } => {
                self.caches[seat].capacity_tokens = tokens;
                self.caches[seat].fit();
                self.index.set_capacity(WorkerId(SEATS[seat]), tokens).unwrap();
            }
            _ => unreachable!("the others are reports"),
        }
    }

    fn take(&mut self, which: usize) -> Option<(u64, usize, Presumption)> {
        let id = *self.waiting.keys().nth(which)?;
        self.waiting.remove(&id).map(|(seat, handle)| (id, seat, handle))
    }

    fn check(&self, number: u8) {
        let prompt = chain(number);
        let mut out = Overlaps::new();
        let found = |out: &Overlaps, seat: usize| {
            let reach = out.of(WorkerId(SEATS[seat]));
            (reach.spans, reach.bytes, reach.tokens)
        };
        self.index.lookup(root("a", Source::Reported), Prompt::Chunks(&prompt), &mut out);
        for (seat, reports) in self.reports.iter().enumerate() {
            assert_eq!(found(&out, seat), reach(0, &prompt, |path| reports.holds(path)), "reported, {seat}");
        }
        self.index.lookup(root("a", Source::Presumed), Prompt::Chunks(&prompt), &mut out);
        for (seat, cache) in self.caches.iter().enumerate() {
            let expected = reach(0, &prompt, |path| cache.blocks.contains_key(path));
            assert_eq!(found(&out, seat), expected, "presumed, {seat}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_sequence_of_changes_leaves_what_the_model_says(
        steps in proptest::collection::vec(step(), 1..60),
        asked in proptest::collection::vec(any::<u8>(), 4),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.apply(step);
            asked.iter().for_each(|&number| world.check(number));
        }
        SEATS.iter().for_each(|&seat| world.index.clear(WorkerId(seat)));
        let stats = world.index.stats();
        prop_assert_eq!((stats.spans, stats.held, stats.nodes, stats.orphans, stats.uses), (0, 0, 0, 0, 0));
    }
}
