//! Reported spans compared with the naive model: random stores, removals, clears and cuts, with names that agree,
//! differ per worker, clash or are arbitrary.
#![allow(clippy::unwrap_used)] // Tests may: a panic here is the report.

mod model;

use model::{Random, Reports, first_beyond, named, reach, root};
use warmroute_index::{Config, HolderId, Index, Overlaps, Parent, Prompt, Removed, RootKey, Source};

/// How engines name their spans.
#[derive(Clone, Copy, Debug)]
enum Naming {
    /// By content: all engines agree.
    Agreed,
    /// By content and a seed per engine.
    PerWorker,
    /// By content, but some contents share a name: a name has several addresses.
    Clashing,
    /// Small numbers: names collide between workers, move, and repeat.
    Arbitrary,
}

struct World {
    index: Index,
    workers: Vec<(u16, Reports)>,
    roots: [RootKey; 2],
    chains: Vec<Vec<u64>>,
    naming: Naming,
    random: Random,
    out: Overlaps,
    /// Spans stored and removed so far.
    changes: usize,
}

const WORKERS: [u16; 9] = [0, 1, 5, 64, 65, 130, 4_095, 8_192, 12_287];

impl World {
    fn new(seed: u64, naming: Naming, length: u64) -> World {
        let mut random = Random(seed);
        let mut chains: Vec<Vec<u64>> = vec![(0..length).map(|_| random.below(1 << 40)).collect()];
        for _ in 0..5 {
            // Each further chain diverges from an earlier one at a random span.
            let mut chain = chains[random.below(chains.len() as u64) as usize].clone();
            let fork = random.below(length) as usize;
            chain[fork..].iter_mut().for_each(|digest| *digest = random.below(1 << 40));
            chains.push(chain);
        }
        World {
            index: Index::new(&Config::default()),
            workers: WORKERS.iter().map(|&id| (id, Reports::default())).collect(),
            roots: [root("a", Source::Reported), root("b", Source::Reported)],
            chains,
            naming,
            random,
            out: Overlaps::new(),
            changes: 0,
        }
    }

    fn name(&mut self, worker: usize, path: &[u64]) -> u64 {
        let agreed = path.iter().fold(7u64, |key, &digest| Random(key ^ digest).next());
        match self.naming {
            Naming::Agreed => agreed,
            Naming::Clashing => agreed % 499,
            Naming::PerWorker => Random(agreed ^ worker as u64).next(),
            Naming::Arbitrary => self.random.below(40),
        }
    }

    fn store(&mut self) {
        let worker = self.random.below(WORKERS.len() as u64) as usize;
        let which = self.random.below(2) as usize;
        let chain = self.chains[self.random.below(self.chains.len() as u64) as usize].clone();
        let from = if self.random.one_in(2) { 0 } else { self.random.below(chain.len() as u64) as usize };
        let most = if self.random.one_in(3) { 2 } else { chain.len() - from };
        let to = from + 1 + self.random.below(most as u64) as usize;
        let mut path = vec![which as u64];
        path.extend_from_slice(&chain[..from]);
        let parent = if from == 0 { None } else { Some(self.name(worker, &path.clone())) };
        let mut spans = Vec::new();
        for &digest in &chain[from..to.min(chain.len())] {
            path.push(digest);
            spans.push((self.name(worker, &path.clone()), digest));
        }
        let reported: Vec<_> = spans.iter().map(|&(name, digest)| named(name, digest)).collect();
        let to = parent.map_or(Parent::Root(self.roots[which]), Parent::Name);
        let stored = self.index.store(HolderId(WORKERS[worker]), to, &reported).unwrap();
        assert_eq!(stored.placed + stored.parked, spans.len());
        self.changes += spans.len();
        self.workers[worker].1.store(parent.map_or(Ok(which as u64), Err), &spans);
    }

    /// Removes some names that are held and some that are not, half of the time from the end of the chain.
    fn remove(&mut self) {
        let worker = self.random.below(WORKERS.len() as u64) as usize;
        let held: Vec<u64> = self.workers[worker].1.names.keys().copied().collect();
        let mut names = Vec::new();
        for _ in 0..=self.random.below(60) {
            match held.len() as u64 {
                0 => names.push(self.random.below(40)),
                count => names.push(held[self.random.below(count) as usize]),
            }
        }
        if self.random.one_in(4) {
            names.push(self.random.below(40));
        }
        let found = names.iter().filter(|&&name| self.workers[worker].1.remove(name)).count();
        let removed = self.index.remove(HolderId(WORKERS[worker]), &names);
        assert_eq!(removed, Removed { known: found, unknown: names.len() - found });
        self.changes += found;
    }

    /// Evicts all but the beginning of a worker's chain, from its end.
    fn evict_tail(&mut self) {
        let worker = self.random.below(WORKERS.len() as u64) as usize;
        let mut held: Vec<(usize, u64)> =
            self.workers[worker].1.names.iter().map(|(&name, (path, _))| (path.len(), name)).collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        let count = self.random.below(held.len() as u64 + 1) as usize;
        let names: Vec<u64> = held[..count].iter().map(|&(_, name)| name).collect();
        names.iter().for_each(|&name| assert!(self.workers[worker].1.remove(name)));
        assert_eq!(self.index.remove(HolderId(WORKERS[worker]), &names).known, count);
        self.changes += count;
    }

    fn clear(&mut self) {
        let worker = self.random.below(WORKERS.len() as u64) as usize;
        self.workers[worker].1 = Reports::default();
        self.index.clear(HolderId(WORKERS[worker]));
    }

    fn cut(&mut self) {
        let worker = self.random.below(WORKERS.len() as u64) as usize;
        let which = self.random.below(2) as usize;
        let prompt = self.prompt();
        let keep = self.random.below(prompt.len() as u64 * 2) as u32;
        if let Some(place) = first_beyond(which as u64, &prompt, keep) {
            self.workers[worker].1.cut(&place);
        }
        self.index.cut(HolderId(WORKERS[worker]), self.roots[which], Prompt::Chunks(&prompt), keep);
    }

    /// Two different workers.
    fn pair(&mut self) -> (usize, usize) {
        let one = self.random.below(WORKERS.len() as u64) as usize;
        (one, (one + 1 + self.random.below(WORKERS.len() as u64 - 1) as usize) % WORKERS.len())
    }

    fn cut_unless(&mut self) {
        let (worker, other) = self.pair();
        let which = self.random.below(2) as usize;
        let prompt = self.prompt();
        let keep = self.random.below(prompt.len() as u64 * 2) as u32;
        if let Some(place) = first_beyond(which as u64, &prompt, keep) {
            let [(_, mine), (_, spared)] = self.workers.get_disjoint_mut([worker, other]).unwrap();
            mine.cut_unless(&place, spared);
        }
        let (root, spared_by) = (self.roots[which], HolderId(WORKERS[other]));
        self.index
            .cut_unless(HolderId(WORKERS[worker]), root, Prompt::Chunks(&prompt), keep, spared_by)
            .unwrap();
    }

    fn copy_prefix(&mut self) {
        let (of, other) = self.pair();
        let which = self.random.below(2) as usize;
        let prompt = self.prompt();
        let upto = self.random.below(prompt.len() as u64 * 3) as u32;
        let before = held_places(&self.workers[other].1);
        let [(_, theirs), (_, mine)] = self.workers.get_disjoint_mut([of, other]).unwrap();
        mine.copy_prefix(theirs, which as u64, &prompt, upto);
        let (of, to) = (HolderId(WORKERS[of]), HolderId(WORKERS[other]));
        let copied =
            self.index.copy_prefix(of, to, self.roots[which], Prompt::Chunks(&prompt), upto).unwrap();
        self.changes += copied;
        let is_simple = matches!(self.naming, Naming::Agreed) && self.workers[other].1.waiting() == 0;
        if is_simple && self.index.stats().orphans == 0 {
            assert_eq!(held_places(&self.workers[other].1), before + copied);
        }
    }

    fn copy_all(&mut self) {
        let (of, other) = self.pair();
        self.workers[other].1 = self.workers[of].1.clone();
        let copied = self.index.copy_all(HolderId(WORKERS[of]), HolderId(WORKERS[other])).unwrap();
        assert_eq!(copied, held_places(&self.workers[other].1));
        self.changes += copied;
    }

    /// Reports some names again that are held and some that are not.
    fn store_by_name(&mut self) {
        let worker = self.random.below(WORKERS.len() as u64) as usize;
        let held: Vec<u64> = self.workers[worker].1.names.keys().copied().collect();
        let mut names: Vec<u64> = held.into_iter().filter(|_| self.random.one_in(3)).collect();
        names.push(self.random.below(40));
        let id = HolderId(WORKERS[worker]);
        let is_any_known = self.index.knows_any(id, &names);
        let known = names.iter().filter(|&&name| self.workers[worker].1.store_by_name(name)).count();
        assert_eq!((self.index.store_by_name(id, &names), is_any_known), (known, known > 0));
        self.changes += known;
    }

    fn prompt(&mut self) -> Vec<u64> {
        let mut prompt = self.chains[self.random.below(self.chains.len() as u64) as usize].clone();
        prompt.truncate(1 + self.random.below(prompt.len() as u64) as usize);
        if self.random.one_in(4) {
            let at = self.random.below(prompt.len() as u64) as usize;
            prompt[at] ^= 1 << 50;
        }
        prompt
    }

    fn check(&mut self) {
        let which = self.random.below(2) as usize;
        let prompt = self.prompt();
        self.index.lookup(self.roots[which], Prompt::Chunks(&prompt), &mut self.out);
        let mut reported = 0;
        for (id, reports) in &self.workers {
            let expected = reach(which as u64, &prompt, |path| reports.holds(path));
            let found = self.out.of(HolderId(*id));
            assert_eq!((found.spans, found.bytes, found.tokens), expected, "worker {id}");
            reported += usize::from(expected.0 > 0);
        }
        assert_eq!(self.out.as_slice().len(), reported, "each worker that holds anything, once");
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..50 => self.store(),
            50..72 => self.remove(),
            72..86 => self.evict_tail(),
            86..88 => self.copy_prefix(),
            88..90 => self.copy_all(),
            90..92 => self.store_by_name(),
            92..95 => self.cut_unless(),
            95..98 => self.cut(),
            _ => self.clear(),
        }
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
            self.check();
        }
        let held: usize = self.workers.iter().map(|(_, reports)| held_places(reports)).sum();
        let waiting: usize = self.workers.iter().map(|(_, reports)| reports.waiting()).sum();
        assert_eq!((self.index.stats().held, self.index.stats().orphans), (held, waiting));
        self.forget_everything();
    }

    /// After all removals nothing is left: no span, no node, no name.
    fn forget_everything(&mut self) {
        for (id, reports) in &mut self.workers {
            let names: Vec<u64> = reports
                .names
                .iter()
                .flat_map(|(&name, &(_, count))| std::iter::repeat_n(name, count as usize))
                .collect();
            self.index.remove(HolderId(*id), &names);
            self.index.clear(HolderId(*id));
        }
        let stats = self.index.stats();
        assert_eq!((stats.spans, stats.held, stats.nodes, stats.orphans), (0, 0, 0, 0));
        assert!(stats.bytes.total() < 1 << 17, "{:?}", stats.bytes);
    }
}

fn held_places(reports: &Reports) -> usize {
    let mut name_table: Vec<_> = reports.names.values().map(|(path, _)| path).collect();
    name_table.sort_unstable();
    name_table.dedup();
    name_table.len()
}

/// Runs worlds with short, medium and long chains. Returns how many spans were stored and removed.
fn run(naming: Naming, worlds: u64, steps: usize) -> usize {
    let mut changes = 0;
    for seed in 0..worlds {
        for length in [3, 20, 150] {
            let mut world = World::new(seed * 1_000 + length, naming, length);
            world.run(steps);
            changes += world.changes;
        }
    }
    changes
}

#[test]
fn equals_the_model_where_engines_agree_on_names() {
    let changes = run(Naming::Agreed, 60, 600);
    assert!(changes > 1_000_000, "{changes}");
}

#[test]
fn equals_the_model_where_every_engine_has_its_own_names() {
    let changes = run(Naming::PerWorker, 60, 600);
    assert!(changes > 1_000_000, "{changes}");
}

#[test]
fn equals_the_model_where_contents_share_names() {
    let changes = run(Naming::Clashing, 60, 600);
    assert!(changes > 1_000_000, "{changes}");
}

#[test]
fn equals_the_model_where_names_are_arbitrary() {
    let changes = run(Naming::Arbitrary, 60, 600);
    assert!(changes > 1_000_000, "{changes}");
}
