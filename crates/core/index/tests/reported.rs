//! Reported residency against the naive model: random stores, removals, clears and cuts, with names that agree, that
//! differ per worker, and that are nonsense.
#![allow(clippy::unwrap_used)] // Tests may: a panic here is the report.

mod model;

use model::{Random, Reports, first_beyond, named, reach, root};
use warmroute_index::{Config, Holdings, Index, Overlaps, Parent, Prompt, Removed, RootKey, Source};
use warmroute_types::{Packed, WorkerId};

/// How engines name their spans.
#[derive(Clone, Copy, Debug)]
enum Naming {
    /// By content: all agree.
    Agreed,
    /// Each engine by its own seed.
    PerWorker,
    /// By content, but some contents have the name of another: names stand for several places.
    Clashing,
    /// Small numbers: names collide between workers, move, and come twice.
    Nonsense,
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

const SEATS: [u16; 9] = [0, 1, 5, 64, 65, 130, 4_095, 8_192, 12_287];

impl World {
    fn new(seed: u64, naming: Naming, length: u64) -> World {
        let mut random = Random(seed);
        let mut chains: Vec<Vec<u64>> = vec![(0..length).map(|_| random.below(1 << 40)).collect()];
        for _ in 0..5 {
            // Each further chain leaves an earlier one somewhere.
            let mut chain = chains[random.below(chains.len() as u64) as usize].clone();
            let fork = random.below(length) as usize;
            chain[fork..].iter_mut().for_each(|digest| *digest = random.below(1 << 40));
            chains.push(chain);
        }
        World {
            index: Index::new(&Config::default()),
            workers: SEATS.iter().map(|&seat| (seat, Reports::default())).collect(),
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
            Naming::Nonsense => self.random.below(40),
        }
    }

    fn store(&mut self) {
        let worker = self.random.below(SEATS.len() as u64) as usize;
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
        let stored = self.index.store(WorkerId(SEATS[worker]), to, &reported).unwrap();
        assert_eq!(stored.placed + stored.parked, spans.len());
        self.changes += spans.len();
        self.workers[worker].1.store(parent.map_or(Ok(which as u64), Err), &spans);
    }

    /// Removes some names that are held and some that are not, tail first as often as not.
    fn remove(&mut self) {
        let worker = self.random.below(SEATS.len() as u64) as usize;
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
        let removed = self.index.remove(WorkerId(SEATS[worker]), &names);
        assert_eq!(removed, Removed { known: found, unknown: names.len() - found });
        self.changes += found;
    }

    /// Evicts all but the head of what one worker holds of a chain, from its end.
    fn evict_tail(&mut self) {
        let worker = self.random.below(SEATS.len() as u64) as usize;
        let mut held: Vec<(usize, u64)> =
            self.workers[worker].1.names.iter().map(|(&name, (path, _))| (path.len(), name)).collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        let count = self.random.below(held.len() as u64 + 1) as usize;
        let names: Vec<u64> = held[..count].iter().map(|&(_, name)| name).collect();
        names.iter().for_each(|&name| assert!(self.workers[worker].1.remove(name)));
        assert_eq!(self.index.remove(WorkerId(SEATS[worker]), &names).known, count);
        self.changes += count;
    }

    fn clear(&mut self) {
        let worker = self.random.below(SEATS.len() as u64) as usize;
        self.workers[worker].1 = Reports::default();
        self.index.clear(WorkerId(SEATS[worker]));
    }

    fn cut(&mut self) {
        let worker = self.random.below(SEATS.len() as u64) as usize;
        let which = self.random.below(2) as usize;
        let prompt = self.prompt();
        let keep = self.random.below(prompt.len() as u64 * 2) as u32;
        if let Some(place) = first_beyond(which as u64, &prompt, keep) {
            self.workers[worker].1.cut(&place);
        }
        self.index.cut(WorkerId(SEATS[worker]), self.roots[which], Prompt::Chunks(&prompt), keep);
    }

    /// One of the workers and another one.
    fn pair(&mut self) -> (usize, usize) {
        let one = self.random.below(SEATS.len() as u64) as usize;
        (one, (one + 1 + self.random.below(SEATS.len() as u64 - 1) as usize) % SEATS.len())
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
        let (root, spared_by) = (self.roots[which], WorkerId(SEATS[other]));
        self.index
            .cut_unless(WorkerId(SEATS[worker]), root, Prompt::Chunks(&prompt), keep, spared_by)
            .unwrap();
    }

    fn adopt(&mut self) {
        let (of, by) = self.pair();
        let which = self.random.below(2) as usize;
        let prompt = self.prompt();
        let upto = self.random.below(prompt.len() as u64 * 3) as u32;
        let before = held_places(&self.workers[by].1);
        let [(_, theirs), (_, mine)] = self.workers.get_disjoint_mut([of, by]).unwrap();
        mine.adopt(theirs, which as u64, &prompt, upto);
        let (of, to) = (WorkerId(SEATS[of]), WorkerId(SEATS[by]));
        let adopted = self.index.adopt(of, to, self.roots[which], Prompt::Chunks(&prompt), upto).unwrap();
        self.changes += adopted;
        let is_simple = matches!(self.naming, Naming::Agreed) && self.workers[by].1.waiting() == 0;
        if is_simple && self.index.stats().orphans == 0 {
            assert_eq!(held_places(&self.workers[by].1), before + adopted);
        }
    }

    fn adopt_all(&mut self) {
        let (of, by) = self.pair();
        self.workers[by].1 = self.workers[of].1.clone();
        let adopted = self.index.adopt_all(WorkerId(SEATS[of]), WorkerId(SEATS[by])).unwrap();
        assert_eq!(adopted, held_places(&self.workers[by].1));
        self.changes += adopted;
    }

    /// One worker takes over what another, or it itself, has reported, by way of bytes.
    fn hold(&mut self) {
        let (of, by) = self.pair();
        let by = if self.random.one_in(3) { of } else { by };
        self.workers[by].1 = self.workers[of].1.clone();
        let taken = self.index.holdings(WorkerId(SEATS[of]));
        let mut bytes = Vec::new();
        taken.encode(&mut bytes);
        assert_eq!(Holdings::decode(&mut Packed(&bytes)).as_ref(), Ok(&taken));
        let half = &bytes[..bytes.len() / 2];
        assert!(Holdings::decode(&mut Packed(half)).is_err());
        self.index.hold(WorkerId(SEATS[by]), &taken).unwrap();
        self.changes += taken.spans();
    }

    /// Tells some names again that are held and some that are not.
    fn store_again(&mut self) {
        let worker = self.random.below(SEATS.len() as u64) as usize;
        let held: Vec<u64> = self.workers[worker].1.names.keys().copied().collect();
        let mut names: Vec<u64> = held.into_iter().filter(|_| self.random.one_in(3)).collect();
        names.push(self.random.below(40));
        let seat = WorkerId(SEATS[worker]);
        let is_any_known = self.index.knows_any(seat, &names);
        let known = names.iter().filter(|&&name| self.workers[worker].1.store_again(name)).count();
        assert_eq!((self.index.store_again(seat, &names), is_any_known), (known, known > 0));
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
        for (seat, reports) in &self.workers {
            let expected = reach(which as u64, &prompt, |path| reports.holds(path));
            let found = self.out.of(WorkerId(*seat));
            assert_eq!((found.spans, found.bytes, found.tokens), expected, "worker {seat}");
            reported += usize::from(expected.0 > 0);
        }
        assert_eq!(self.out.as_slice().len(), reported, "each worker that holds anything, once");
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..50 => self.store(),
            50..72 => self.remove(),
            72..86 => self.evict_tail(),
            86..88 => self.adopt(),
            88..89 => self.hold(),
            89..90 => self.adopt_all(),
            90..92 => self.store_again(),
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

    /// When all is gone, nothing is left: no span, no node, no name.
    fn forget_everything(&mut self) {
        for (seat, reports) in &mut self.workers {
            let names: Vec<u64> = reports
                .names
                .iter()
                .flat_map(|(&name, &(_, count))| std::iter::repeat_n(name, count as usize))
                .collect();
            self.index.remove(WorkerId(*seat), &names);
            self.index.clear(WorkerId(*seat));
        }
        let stats = self.index.stats();
        assert_eq!((stats.spans, stats.held, stats.nodes, stats.orphans), (0, 0, 0, 0));
        assert!(stats.bytes.total() < 1 << 17, "{:?}", stats.bytes);
    }
}

fn held_places(reports: &Reports) -> usize {
    let mut places: Vec<_> = reports.names.values().map(|(path, _)| path).collect();
    places.sort_unstable();
    places.dedup();
    places.len()
}

/// Runs worlds with short, middle and long chains. Returns how many spans were stored and removed.
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
fn equals_the_model_where_names_are_nonsense() {
    let changes = run(Naming::Nonsense, 60, 600);
    assert!(changes > 1_000_000, "{changes}");
}
