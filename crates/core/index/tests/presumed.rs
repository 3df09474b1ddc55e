//! Presumed spans compared with the naive model: requests arrive, succeed, fail and age, on small caches.
#![allow(clippy::unwrap_used)] // Tests may: a panic here is the report.

mod model;

use std::collections::BTreeMap;

use model::{Cache, Random, first_beyond, reach, root, span};
use warmroute_index::{
    Config, HolderId, Index, Namespace, Overlaps, Parent, Presumption, Prompt, RootKey, Source, Span,
};
use warmroute_types::Micros;

const WORKERS: [u16; 4] = [0, 7, 64, 4_095];
const TTL: u64 = 400;

struct World {
    index: Index,
    caches: Vec<Cache>,
    roots: [RootKey; 2],
    chains: Vec<Vec<u64>>,
    /// Unanswered requests: worker, time and handle.
    waiting: BTreeMap<u64, (usize, u64, Presumption)>,
    /// Answers: worker and time.
    answers: BTreeMap<u64, (usize, u64)>,
    next_use: u64,
    now: u64,
    /// The time that the index last received: a confirmation carries none.
    last_time: u64,
    random: Random,
    out: Overlaps,
}

impl World {
    fn new(seed: u64, length: u64, capacity_tokens: u64) -> World {
        let mut random = Random(seed);
        let mut chains: Vec<Vec<u64>> = vec![(0..length).map(|_| random.below(1 << 40)).collect()];
        for _ in 0..7 {
            let mut chain = chains[random.below(chains.len() as u64) as usize].clone();
            let fork = random.below(length) as usize;
            chain[fork..].iter_mut().for_each(|digest| *digest = random.below(1 << 40));
            chains.push(chain);
        }
        let config =
            Config { presumed_ttl: Micros(TTL), presumed_tokens: capacity_tokens, ..Config::default() };
        World {
            index: Index::new(&config),
            caches: WORKERS.iter().map(|_| Cache { capacity_tokens, ..Cache::default() }).collect(),
            roots: [root("a", Source::Presumed), root("b", Source::Presumed)],
            chains,
            waiting: BTreeMap::new(),
            answers: BTreeMap::new(),
            next_use: 1,
            now: 0,
            last_time: 0,
            random,
            out: Overlaps::new(),
        }
    }

    fn prompt(&mut self) -> Vec<u64> {
        let mut prompt = self.chains[self.random.below(self.chains.len() as u64) as usize].clone();
        prompt.truncate(1 + self.random.below(prompt.len() as u64) as usize);
        prompt
    }

    fn presume(&mut self) {
        let worker = self.random.below(WORKERS.len() as u64) as usize;
        let which = self.random.below(2) as usize;
        let prompt = self.prompt();
        let spans: Vec<_> = prompt.iter().map(|&digest| span(digest)).collect();
        let at = Micros(self.now);
        self.last_time = self.now;
        let handle = self.index.presume(HolderId(WORKERS[worker]), self.roots[which], &spans, at).unwrap();
        self.caches[worker].presume(which as u64, &prompt, self.next_use);
        self.waiting.insert(self.next_use, (worker, self.now, handle));
        self.next_use += 1;
    }

    /// Confirms or withdraws one of the last twenty requests.
    fn decide(&mut self) {
        let id = self.next_use.saturating_sub(1 + self.random.below(20));
        let Some((worker, _, handle)) = self.waiting.remove(&id) else { return };
        if self.random.one_in(3) {
            self.index.withdraw(handle);
            self.caches[worker].withdraw(id);
        } else {
            self.index.confirm(handle);
            self.caches[worker].confirm(id, self.next_use);
            self.answers.insert(self.next_use, (worker, self.last_time));
            self.next_use += 1;
        }
        // A second outcome for the same request has no effect.
        self.index.withdraw(handle);
        self.index.confirm(handle);
    }

    fn expire(&mut self) {
        self.now += self.random.below(TTL);
        self.last_time = self.now;
        let (now, caches) = (self.now, &mut self.caches);
        self.waiting.retain(|&id, &mut (worker, at, _)| {
            let is_old = now - at >= TTL;
            is_old.then(|| caches[worker].withdraw(id)).is_none()
        });
        self.answers.retain(|&order, &mut (worker, at)| {
            let is_old = now - at >= TTL;
            is_old.then(|| caches[worker].expire(order)).is_none()
        });
        self.index.expire(Micros(self.now));
    }

    fn resize(&mut self) {
        let worker = self.random.below(WORKERS.len() as u64) as usize;
        let tokens = self.random.below(2 * self.caches[worker].capacity_tokens + 10);
        self.caches[worker].capacity_tokens = tokens;
        self.caches[worker].fit();
        self.index.set_capacity(HolderId(WORKERS[worker]), tokens).unwrap();
    }

    fn cut(&mut self) {
        let worker = self.random.below(WORKERS.len() as u64) as usize;
        let which = self.random.below(2) as usize;
        let prompt = self.prompt();
        let keep = self.random.below(prompt.len() as u64 * 2) as u32;
        if let Some(place) = first_beyond(which as u64, &prompt, keep) {
            self.caches[worker].cut(&place);
        }
        self.index.cut(HolderId(WORKERS[worker]), self.roots[which], Prompt::Chunks(&prompt), keep);
    }

    fn clear(&mut self) {
        let worker = self.random.below(WORKERS.len() as u64) as usize;
        self.caches[worker].blocks.clear();
        // A cleared cache loses its answered and its unanswered requests.
        self.index.clear(HolderId(WORKERS[worker]));
    }

    fn step(&mut self) {
        self.now += self.random.below(3);
        match self.random.below(100) {
            0..50 => self.presume(),
            50..90 => self.decide(),
            90..93 => self.expire(),
            93..96 => self.cut(),
            96..98 => self.resize(),
            _ => self.clear(),
        }
    }

    fn check(&mut self) {
        let which = self.random.below(2) as usize;
        let prompt = self.prompt();
        self.index.lookup(self.roots[which], Prompt::Chunks(&prompt), &mut self.out);
        for (&id, cache) in WORKERS.iter().zip(&self.caches) {
            let expected = reach(which as u64, &prompt, |path| cache.blocks.contains_key(path));
            let found = self.out.of(HolderId(id));
            assert_eq!((found.spans, found.bytes, found.tokens), expected, "worker {id}");
            assert_eq!(self.index.presumed_tokens(HolderId(id)), cache.tokens(), "worker {id}");
        }
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
            self.check();
        }
        assert_eq!(
            self.index.stats().held,
            self.caches.iter().map(|cache| cache.blocks.len()).sum::<usize>()
        );
        self.index.expire(Micros(self.now + TTL));
        let stats = self.index.stats();
        assert_eq!((stats.spans, stats.held, stats.nodes, stats.uses), (0, 0, 0, 0));
    }
}

#[test]
fn equals_the_model_on_short_and_long_chains_with_small_and_large_caches() {
    for seed in 0..24 {
        for (length, capacity) in [(4, 10), (20, 60), (150, 150), (150, 1_000)] {
            World::new(seed * 1_000 + length, length, capacity).run(500);
        }
    }
}

fn presume(index: &Index, worker: u16, digests: &[u64], now: u64) -> Presumption {
    let spans: Vec<_> = digests.iter().map(|&digest| span(digest)).collect();
    index.presume(HolderId(worker), root("a", Source::Presumed), &spans, Micros(now)).unwrap()
}

fn held(index: &Index, worker: u16, digests: &[u64]) -> u32 {
    let mut out = Overlaps::new();
    index.lookup(root("a", Source::Presumed), Prompt::Chunks(digests), &mut out);
    out.of(HolderId(worker)).spans
}

#[test]
fn a_withdrawn_request_leaves_the_spans_of_an_unanswered_sibling() {
    let index = Index::new(&Config::default());
    let first = presume(&index, 0, &[1, 2, 3, 4], 0);
    let second = presume(&index, 0, &[1, 2, 3], 1);
    index.withdraw(first);
    assert_eq!(held(&index, 0, &[1, 2, 3, 4]), 3);
    index.withdraw(second);
    assert_eq!(held(&index, 0, &[1, 2, 3, 4]), 0);
    assert_eq!(index.stats().nodes, 0);
}

#[test]
fn a_confirmed_prompt_survives_a_sibling_that_fails() {
    let index = Index::new(&Config::default());
    let first = presume(&index, 0, &[1, 2, 3], 0);
    let second = presume(&index, 0, &[1, 2, 3, 4], 1);
    index.confirm(first);
    index.withdraw(second);
    assert_eq!(held(&index, 0, &[1, 2, 3, 4]), 3);
}

#[test]
fn the_least_recently_used_chain_is_evicted_first_from_its_end() {
    let index = Index::new(&Config { presumed_tokens: 12, ..Config::default() });
    // Digest 3 weighs three tokens: each chain weighs six.
    index.confirm(presume(&index, 0, &[3, 7], 0));
    index.confirm(presume(&index, 0, &[11, 15], 1));
    assert_eq!((held(&index, 0, &[3, 7]), held(&index, 0, &[11, 15])), (2, 2));
    index.confirm(presume(&index, 0, &[19], 2));
    assert_eq!((held(&index, 0, &[3, 7]), held(&index, 0, &[11, 15]), held(&index, 0, &[19])), (1, 2, 1));
    assert_eq!(index.stats().evicted_by_capacity, 1);
}

#[test]
fn an_unanswered_request_evicts_nothing_and_is_not_evicted() {
    let index = Index::new(&Config { presumed_tokens: 12, ..Config::default() });
    index.confirm(presume(&index, 0, &[3, 7], 0));
    // As large as the whole cache. The requests after it are answered first.
    let large = presume(&index, 0, &[23, 27, 31, 35], 1);
    assert_eq!((held(&index, 0, &[3, 7]), held(&index, 0, &[23, 27, 31, 35])), (2, 4));
    index.confirm(presume(&index, 0, &[11, 15], 2));
    index.confirm(presume(&index, 0, &[43, 47], 3));
    let all = [&[3, 7][..], &[11, 15], &[43, 47], &[23, 27, 31, 35]];
    assert_eq!(all.map(|chain| held(&index, 0, chain)), [0, 2, 2, 4]);
    index.confirm(large);
    assert_eq!(all.map(|chain| held(&index, 0, chain)), [0, 0, 0, 4], "answered, it takes its room");
    assert_eq!(index.presumed_tokens(HolderId(0)), 12);
}

#[test]
fn a_prompt_longer_than_the_cache_is_presumed_up_to_the_capacity() {
    let index = Index::new(&Config { presumed_tokens: 7, ..Config::default() });
    let long = presume(&index, 0, &[3, 7, 11, 15], 0);
    assert_eq!(held(&index, 0, &[3, 7, 11, 15]), 2);
    index.withdraw(long);
    assert_eq!(index.stats().nodes, 0);
}

#[test]
fn the_budget_spares_unanswered_requests_and_then_refuses_new_prompts() {
    let config = Config { budget_bytes: 1 << 19, presumed_tokens: u64::MAX, ..Config::default() };
    let index = Index::new(&config);
    let prompt = |number: u64| -> Vec<u64> { (0..64).map(|at| number * 64 + at).collect() };
    (0..200).for_each(|number| index.confirm(presume(&index, 0, &prompt(number), number)));
    let waiting: Vec<Presumption> = (200..1_000).map(|n| presume(&index, 1, &prompt(n), n)).collect();
    let is_whole = |number: &u64| held(&index, 1, &prompt(*number)) == 64;
    let kept = (200..1_000).take_while(is_whole).count() as u64;
    let stats = index.stats();
    assert_eq!((0..200).filter(|&number| held(&index, 0, &prompt(number)) > 0).count(), 0, "they left first");
    assert!(kept > 200 && stats.unpresumed == 800 - kept, "{kept} {stats:?}");
    assert!(stats.bytes.total() <= config.budget_bytes + (1 << 15), "one prompt too many at most: {stats:?}");
    waiting.into_iter().for_each(|handle| index.withdraw(handle));
    index.expire(Micros(1_000));
    assert_eq!(index.stats().held, 0);
}

#[test]
fn the_budget_holds_and_its_evictions_are_counted() {
    let config = Config { budget_bytes: 1 << 20, presumed_tokens: u64::MAX, ..Config::default() };
    let index = Index::new(&config);
    for prompt in 0..20_000u64 {
        let digests: Vec<u64> = (0..32).map(|at| prompt * 64 + at + 5).collect();
        index.confirm(presume(&index, (prompt % 8) as u16, &digests, prompt));
        assert!(index.bytes() <= config.budget_bytes, "{:?}", index.stats().bytes);
    }
    let stats = index.stats();
    assert!(stats.evicted_by_budget > 500_000 && stats.spans > 10_000, "{stats:?}");
    let last: Vec<u64> = (0..32).map(|at| 19_999 * 64 + at + 5).collect();
    assert_eq!(held(&index, 7, &last), 32, "the snapshot_newest is kept");
}

#[test]
fn a_clock_that_steps_back_does_no_harm() {
    let index = Index::new(&Config { presumed_ttl: Micros(100), ..Config::default() });
    let _ = presume(&index, 0, &[5], 1_000);
    let _ = presume(&index, 0, &[6], 900);
    index.expire(Micros(0));
    assert_eq!((held(&index, 0, &[5]), held(&index, 0, &[6])), (1, 1));
    index.expire(Micros(1_100));
    assert_eq!((held(&index, 0, &[5]), held(&index, 0, &[6])), (0, 0));
}

#[test]
fn reported_spans_do_not_wait_for_unanswered_requests_to_make_room() {
    let config = Config { budget_bytes: 1 << 19, presumed_tokens: u64::MAX, ..Config::default() };
    let index = Index::new(&config);
    let waiting: Vec<Presumption> =
        (0..2_000u64).map(|n| presume(&index, 0, &[n * 8, n * 8 + 1, n * 8 + 2], n)).collect();
    let spans: Vec<_> = (0..6_000).map(|digest| model::named(digest, digest)).collect();
    let store = || index.store(HolderId(1), Parent::Root(root("a", Source::Reported)), &spans).unwrap();
    let stored = store();
    assert!(stored.refused > 0 && stored.placed + stored.refused == 6_000, "{stored:?}");
    waiting.into_iter().for_each(|handle| index.withdraw(handle));
    assert_eq!(store().placed, 6_000, "now there is room");
}

/// While another thread writes, presumptions wait. Lookups find them at once, each holder with its longest overlap, and the
/// writer applies them in order before it releases the lock.
#[test]
fn presumptions_made_while_another_thread_writes_are_found_and_applied_in_order() {
    let index = Index::new(&Config::default());
    let root =
        RootKey::of(&Namespace { model: "m", lora: None, salt: None, cut: 64, source: Source::Presumed });
    let spans = |count: u64| -> Vec<Span> {
        (1..=count).map(|digest| Span { digest, bytes: 64, tokens: 16 }).collect()
    };
    let digests: Vec<u64> = (1..=9).collect();
    let reach = |holder: u16| {
        let mut found = Overlaps::new();
        index.lookup(root, Prompt::Chunks(&digests), &mut found);
        let of_holder = found.as_slice().iter().filter(|overlap| overlap.holder == HolderId(holder));
        assert!(of_holder.count() <= 1, "a holder is reported once");
        found.of(HolderId(holder)).spans
    };
    let kept = index.presume(HolderId(1), root, &spans(2), Micros(1)).unwrap();
    let (long, withdrawn) = index.while_writing(|| {
        let long = index.presume(HolderId(1), root, &spans(5), Micros(2)).unwrap();
        let other = index.presume(HolderId(2), root, &spans(3), Micros(3)).unwrap();
        assert_eq!((reach(1), reach(2)), (5, 3), "found before they are applied");
        index.confirm(long);
        index.withdraw(other);
        (long, other)
    });
    assert_eq!((reach(1), reach(2)), (5, 0), "the second was withdrawn");
    assert_eq!(index.stats().uses, 2, "one is confirmed and one waits");
    index.confirm(kept);
    // Neither is known any more.
    index.withdraw(long);
    index.withdraw(withdrawn);
    assert_eq!(reach(1), 5);
}
