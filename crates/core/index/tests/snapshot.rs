//! Presumed spans survive encoding and restoring into another index, and age there as they would have here.
#![allow(clippy::unwrap_used)] // Tests may: a panic here is the report.

mod model;

use model::{Random, root, span};
use warmroute_index::{Config, HolderId, Index, Overlaps, Prompt, RootKey, Snapshot, Source, Span};
use warmroute_types::{Micros, Packed};

const WORKERS: [u16; 3] = [0, 7, 64];
/// The ids of the same workers in the other index.
const LATER: [u16; 3] = [5, 4_095, 1];
const TTL: u64 = 4_000;
const CAPACITIES: [u64; 3] = [60, 300, 5_000];

fn config() -> Config {
    Config { presumed_ttl: Micros(TTL), presumed_tokens: 1_000, ..Config::default() }
}

struct World {
    index: Index,
    workers: [u16; 3],
    roots: [RootKey; 2],
    chains: Vec<Vec<u64>>,
}

impl World {
    fn new(random: &mut Random, workers: [u16; 3]) -> World {
        let mut chains: Vec<Vec<u64>> = vec![(0..150).map(|_| random.next() >> 20).collect()];
        for _ in 0..9 {
            let mut chain = chains[random.below(chains.len() as u64) as usize].clone();
            let fork = random.below(150) as usize;
            chain[fork..].iter_mut().for_each(|digest| *digest = random.next() >> 20);
            chains.push(chain);
        }
        World::over(chains, workers)
    }

    fn over(chains: Vec<Vec<u64>>, workers: [u16; 3]) -> World {
        let index = Index::new(&config());
        let roots = [root("a", Source::Presumed), root("b", Source::Presumed)];
        let world = World { index, workers, roots, chains };
        for (worker, capacity) in workers.iter().zip(CAPACITIES) {
            world.index.set_capacity(HolderId(*worker), capacity).unwrap();
        }
        world
    }

    /// A request, chosen by a number. Seven of eight are answered.
    fn ask(&self, choice: u64, now: u64) {
        let random = &mut Random(choice);
        let chain = &self.chains[random.below(self.chains.len() as u64) as usize];
        let spans: Vec<Span> =
            chain[..1 + random.below(150) as usize].iter().map(|&digest| span(digest)).collect();
        let worker = HolderId(self.workers[random.below(3) as usize]);
        let root = self.roots[random.below(2) as usize];
        let asked = self.index.presume(worker, root, &spans, Micros(now)).unwrap();
        match random.below(8) {
            0 => self.index.withdraw(asked),
            _ => self.index.confirm(asked),
        }
    }

    /// How many spans each worker holds of every chain.
    fn view(&self) -> Vec<Vec<(usize, u32)>> {
        let (mut out, mut all) = (Overlaps::new(), Vec::new());
        for (root, chain) in
            self.roots.iter().flat_map(|root| self.chains.iter().map(move |chain| (root, chain)))
        {
            self.index.lookup(*root, Prompt::Chunks(chain), &mut out);
            let place = |worker: HolderId| self.workers.iter().position(|&one| one == worker.0).unwrap();
            let mut held: Vec<(usize, u32)> =
                out.as_slice().iter().map(|overlap| (place(overlap.holder), overlap.reach.spans)).collect();
            held.sort_unstable();
            all.push(held);
        }
        all
    }

    fn successor(&self, now: u64, away: u64) -> World {
        let mut bytes = Vec::new();
        self.index.snapshot(Micros(now)).encode(&mut bytes);
        let mut packed = Packed(&bytes);
        let snapshot = Snapshot::decode(&mut packed).unwrap();
        assert!(packed.0.is_empty());
        let other = World::over(self.chains.clone(), LATER);
        let pending = other.index.begin_restore(snapshot, Micros(now + away), Micros(away));
        // In any order.
        for place in [2, 0, 1] {
            let (of, worker) = (HolderId(self.workers[place]), HolderId(other.workers[place]));
            other.index.restore(&pending, of, worker).unwrap();
        }
        other
    }
}

#[test]
fn a_restored_index_finds_the_same_and_evicts_in_the_same_order() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let world = World::new(&mut random, WORKERS);
        let mut now = 1_000_000;
        for _ in 0..1 + random.below(60) {
            now += random.below(100);
            world.ask(random.next(), now);
            if random.below(10) == 0 {
                world.index.expire(Micros(now));
            }
        }
        world.index.expire(Micros(now));
        let other = world.successor(now, 0);
        assert_eq!(world.view(), other.view(), "seed {seed}");
        let tokens =
            |world: &World| world.workers.map(|worker| world.index.presumed_tokens(HolderId(worker)));
        assert_eq!(tokens(&world), tokens(&other), "seed {seed}");
        for step in 0..40 {
            now += random.below(300);
            let choice = random.next();
            for one in [&world, &other] {
                one.ask(choice, now);
                one.index.expire(Micros(now));
            }
            assert_eq!(world.view(), other.view(), "seed {seed}, step {step}: capacity and age do the same");
        }
    }
}

#[test]
fn expired_uses_are_not_restored() {
    let world = World::new(&mut Random(1), WORKERS);
    (0..20).for_each(|turn| world.ask(turn, 1_000_000 + turn * 100));
    let now = 1_002_000;
    assert!(world.successor(now, 1_000).view().iter().flatten().count() > 0);
    assert_eq!(world.successor(now, TTL).view().iter().flatten().count(), 0);
    let (late, on_time) = (world.successor(now, TTL - 500), world.successor(now, 0));
    on_time.index.expire(Micros(now + TTL - 500));
    assert_eq!(late.view(), on_time.view(), "as if it had been there from the start");
}

#[test]
fn the_budget_holds_for_restored_spans() {
    let world = World::new(&mut Random(3), WORKERS);
    (0..50).for_each(|turn| world.ask(turn, 1_000_000));
    let small = Config { budget_bytes: 20_000, ..config() };
    let index = Index::new(&small);
    let pending = index.begin_restore(world.index.snapshot(Micros(1_000_000)), Micros(1_000_000), Micros(0));
    WORKERS.iter().for_each(|&worker| index.restore(&pending, HolderId(worker), HolderId(worker)).unwrap());
    assert!(index.bytes() <= 25_000, "{}", index.bytes());
}

#[test]
fn any_bytes_are_decoded_or_refused() {
    let world = World::new(&mut Random(2), WORKERS);
    (0..30).for_each(|turn| world.ask(turn, 1_000_000));
    let mut bytes = Vec::new();
    world.index.snapshot(Micros(1_000_000)).encode(&mut bytes);
    for end in 0..bytes.len() {
        assert!(Snapshot::decode(&mut Packed(&bytes[..end])).is_err(), "cut at {end}");
    }
    let index = Index::new(&config());
    for at in 0..bytes.len() {
        for flip in [1_u8, 0x80, 0xff] {
            let mut spoiled = bytes.clone();
            spoiled[at] ^= flip;
            // There is no checksum: whatever decodes must be harmless.
            if let Ok(snapshot) = Snapshot::decode(&mut Packed(&spoiled)) {
                let pending = index.begin_restore(snapshot, Micros(1), Micros(0));
                WORKERS.iter().for_each(|&of| index.restore(&pending, HolderId(of), HolderId(of)).unwrap());
                WORKERS.iter().for_each(|&of| index.clear(HolderId(of)));
            }
        }
    }
}

/// How many spans of the chain the first worker holds.
fn held(index: &Index, chain: &[u64]) -> u32 {
    let mut out = Overlaps::new();
    index.lookup(root("a", Source::Presumed), Prompt::Chunks(chain), &mut out);
    out.as_slice().iter().map(|overlap| overlap.reach.spans).max().unwrap_or(0)
}

fn answer(index: &Index, chain: &[u64], now: u64) {
    let spans: Vec<Span> = chain.iter().map(|&digest| span(digest)).collect();
    let asked = index.presume(HolderId(0), root("a", Source::Presumed), &spans, Micros(now)).unwrap();
    index.confirm(asked);
}

fn merge(by: &Index, of: &Index, now: u64) {
    let pending = by.begin_restore(of.snapshot(Micros(now)), Micros(now), Micros(0));
    by.merge(&pending, HolderId(0), HolderId(0), || true).unwrap();
}

#[test]
fn merged_uses_keep_their_age_and_leave_own_uses_unchanged() {
    let (ours, theirs) = (Index::new(&config()), Index::new(&config()));
    let chain: Vec<u64> = (1..=200).collect();
    let other: Vec<u64> = (1_001..=1_100).collect();
    answer(&theirs, &chain, 1_000_000);
    answer(&theirs, &other, 1_001_000);
    answer(&ours, &chain[..100], 1_002_000);
    answer(&theirs, &chain[..50], 1_003_000);
    merge(&ours, &theirs, 1_003_500);
    let known = |now| {
        ours.expire(Micros(now));
        (held(&ours, &chain), held(&ours, &other))
    };
    assert_eq!(known(1_003_999), (200, 100));
    assert_eq!(known(1_000_000 + TTL), (100, 100), "it is as old as it was there");
    assert_eq!(known(1_001_000 + TTL), (100, 0));
    assert_eq!(
        known(1_002_000 + TTL),
        (50, 0),
        "what we knew is as old as before, and what was used since is younger"
    );
    assert_eq!(known(1_003_000 + TTL), (0, 0));
}

#[test]
fn merging_back_and_forth_does_not_extend_a_use() {
    let pair = [Index::new(&config()), Index::new(&config())];
    let chain: Vec<u64> = (1..=200).collect();
    answer(&pair[0], &chain, 1_000_000);
    for now in (1_000_000..1_000_000 + TTL).step_by(100) {
        merge(&pair[1], &pair[0], now);
        merge(&pair[0], &pair[1], now);
        assert_eq!([0, 1].map(|at| held(&pair[at], &chain)), [200, 200]);
    }
    pair.iter().for_each(|index| index.expire(Micros(1_000_000 + TTL)));
    assert_eq!([0, 1].map(|at| held(&pair[at], &chain)), [0, 0]);
    assert_eq!(pair[0].stats().uses, 0, "and nothing is left of it");
}

#[test]
fn a_bounded_snapshot_keeps_the_newest_uses() {
    let index = Index::new(&config());
    index.set_capacity(HolderId(0), 1_000_000).unwrap();
    let chain = |at: u64| (1_000 * at..1_000 * at + 60).collect::<Vec<u64>>();
    (0..100).for_each(|at| answer(&index, &chain(at), 1_000_000 + at));
    let snapshot_newest = index.snapshot_newest(Micros(1_000_100), 10_000);
    assert!(snapshot_newest.is_truncated && !index.snapshot_newest(Micros(1_000_100), 1 << 20).is_truncated);
    let mut bytes = Vec::new();
    snapshot_newest.snapshot.encode(&mut bytes);
    assert!((6_000..10_500).contains(&bytes.len()), "{}", bytes.len());
    let other = Index::new(&config());
    let kept = snapshot_newest.snapshot.uses() as u64;
    let pending = other.begin_restore(snapshot_newest.snapshot, Micros(1_000_100), Micros(0));
    other.merge(&pending, HolderId(0), HolderId(0), || true).unwrap();
    let known: Vec<u64> = (0..100).filter(|&at| held(&other, &chain(at)) > 0).collect();
    assert_eq!(known, (100 - kept..100).collect::<Vec<u64>>());
}

#[test]
fn clearing_a_worker_removes_merged_uses_too() {
    let (ours, theirs) = (Index::new(&config()), Index::new(&config()));
    let chain: Vec<u64> = (1..=200).collect();
    answer(&theirs, &chain, 1_000_000);
    merge(&ours, &theirs, 1_000_100);
    assert_eq!(held(&ours, &chain), 200);
    ours.clear_presumed(HolderId(0));
    assert_eq!((held(&ours, &chain), ours.stats().uses), (0, 0));
}
