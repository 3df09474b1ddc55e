//! Defects seen in other indexes of this kind, one test each.
#![allow(clippy::unwrap_used)] // Tests may: a panic here is the report.

mod model;

use model::{Random, named, root, span};
use warmroute_index::{
    Config, HOLDERS_MAX, HolderId, Index, IndexError, NamedSpan, Overlaps, Parent, Prompt, RootKey, Source,
    Span,
};
use warmroute_types::Micros;

fn key() -> RootKey {
    root("a", Source::Reported)
}

/// A chain of `length` spans; names are digests plus one.
fn chain(length: u64) -> (Vec<u64>, Vec<NamedSpan>) {
    let digests: Vec<u64> = (0..length).map(|at| 1_000 + at).collect();
    let spans = digests.iter().map(|&digest| named(digest + 1, digest)).collect();
    (digests, spans)
}

fn spans_held(index: &Index, prompt: &[u64], worker: u16) -> u32 {
    let mut out = Overlaps::new();
    index.lookup(key(), Prompt::Chunks(prompt), &mut out);
    out.of(HolderId(worker)).spans
}

#[test]
fn a_block_evicted_in_the_middle_ends_the_overlap_there() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(200);
    for worker in 0..6 {
        index.store(HolderId(worker), Parent::Root(key()), &spans).unwrap();
    }
    for (worker, hole) in [(0, 0), (1, 1), (2, 63), (3, 64), (4, 199)] {
        assert_eq!(index.remove(HolderId(worker), &[spans[hole].name]).known, 1);
        assert_eq!(spans_held(&index, &digests, worker), hole as u32);
    }
    assert_eq!(spans_held(&index, &digests, 5), 200);
    for (worker, hole) in [(1, 1), (2, 63), (3, 64), (4, 199)] {
        let again = index.store(HolderId(worker), Parent::Name(spans[hole - 1].name), &spans[hole..=hole]);
        assert_eq!(again.unwrap().placed, 1);
        assert_eq!(spans_held(&index, &digests, worker), 200, "stored again, the chain is whole");
    }
}

#[test]
fn a_worker_with_one_of_65_blocks_scores_one() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(65);
    index.store(HolderId(0), Parent::Root(key()), &spans).unwrap();
    index.store(HolderId(1), Parent::Root(key()), &spans[..1]).unwrap();
    assert_eq!((spans_held(&index, &digests, 0), spans_held(&index, &digests, 1)), (65, 1));
}

#[test]
fn orphans_are_not_inserted_at_the_root() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(10);
    let stored = index.store(HolderId(0), Parent::Name(spans[4].name), &spans[5..]).unwrap();
    assert_eq!((stored.placed, stored.parked), (0, 5));
    assert_eq!(spans_held(&index, &digests[5..], 0), 0);
    assert_eq!(spans_held(&index, &digests, 0), 0);
    index.store(HolderId(0), Parent::Root(key()), &spans[..5]).unwrap();
    assert_eq!(spans_held(&index, &digests, 0), 10, "grafted when the parent came");
    assert_eq!(index.stats().orphans, 0);
}

#[test]
fn a_long_chain_of_orphans_is_inserted_at_once() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(60_000);
    for at in (1..spans.len()).rev() {
        let stored = index.store(HolderId(0), Parent::Name(spans[at - 1].name), &spans[at..=at]).unwrap();
        assert_eq!(stored.parked, 1);
    }
    index.store(HolderId(0), Parent::Root(key()), &spans[..1]).unwrap();
    assert_eq!(spans_held(&index, &digests, 0), 60_000);
    assert_eq!(index.stats().orphans, 0);
}

#[test]
fn a_parent_of_another_worker_does_not_count() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(10);
    index.store(HolderId(0), Parent::Root(key()), &spans[..5]).unwrap();
    index.store(HolderId(1), Parent::Name(spans[4].name), &spans[5..]).unwrap();
    assert_eq!((spans_held(&index, &digests, 0), spans_held(&index, &digests, 1)), (5, 0));
}

#[test]
fn a_restarted_engine_starts_empty_and_the_others_keep_their_spans() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(130);
    for worker in [0, 1, 4_095] {
        index.store(HolderId(worker), Parent::Root(key()), &spans).unwrap();
    }
    index.clear(HolderId(1));
    assert_eq!(spans_held(&index, &digests, 1), 0);
    assert_eq!((spans_held(&index, &digests, 0), spans_held(&index, &digests, 4_095)), (130, 130));
    assert_eq!(index.remove(HolderId(1), &[spans[0].name]).known, 0, "its old names mean nothing");
    // The new process has other names for the same content.
    let renamed: Vec<_> = digests.iter().map(|&digest| named(digest + 5_000, digest)).collect();
    index.store(HolderId(1), Parent::Root(key()), &renamed[..70]).unwrap();
    assert_eq!(spans_held(&index, &digests, 1), 70);
}

#[test]
fn a_span_may_have_any_number_of_holders() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(100);
    for worker in 0..HOLDERS_MAX as u16 {
        let depth = 1 + usize::from(worker) % 100;
        index.store(HolderId(worker), Parent::Root(key()), &spans[..depth]).unwrap();
    }
    let mut out = Overlaps::new();
    index.lookup(key(), Prompt::Chunks(&digests), &mut out);
    assert_eq!(out.as_slice().len(), HOLDERS_MAX);
    for overlap in out.as_slice() {
        assert_eq!(overlap.reach.spans, 1 + u32::from(overlap.holder.0) % 100);
    }
    for worker in (0..HOLDERS_MAX as u16).step_by(2) {
        index.clear(HolderId(worker));
    }
    index.lookup(key(), Prompt::Chunks(&digests), &mut out);
    assert_eq!(out.as_slice().len(), HOLDERS_MAX / 2);
}

#[test]
fn each_rank_is_a_separate_worker() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(10);
    let (rank_0, rank_1) = (HolderId(0), HolderId(1));
    index.store(rank_0, Parent::Root(key()), &spans).unwrap();
    let mut out = Overlaps::new();
    index.lookup(key(), Prompt::Chunks(&digests), &mut out);
    assert_eq!((out.of(rank_0).spans, out.of(rank_1).spans), (10, 0));
}

#[test]
fn a_block_stored_three_times_stays_until_it_is_removed_three_times() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(6);
    index.store(HolderId(0), Parent::Root(key()), &spans).unwrap();
    for _ in 0..2 {
        index.store(HolderId(0), Parent::Name(spans[4].name), &spans[5..]).unwrap();
    }
    for left in [6, 6, 5, 5] {
        index.remove(HolderId(0), &[spans[5].name]);
        assert_eq!(spans_held(&index, &digests, 0), left);
    }
}

#[test]
fn engines_that_name_the_same_content_differently_share_its_spans() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(100);
    let other: Vec<_> = digests.iter().map(|&digest| named(!digest, digest)).collect();
    index.store(HolderId(0), Parent::Root(key()), &spans).unwrap();
    index.store(HolderId(1), Parent::Root(key()), &other).unwrap();
    assert_eq!(index.stats().spans, 100);
    assert_eq!(index.remove(HolderId(1), &[spans[50].name]).known, 0, "the name of another worker");
    assert_eq!(index.remove(HolderId(1), &[other[50].name]).known, 1);
    assert_eq!((spans_held(&index, &digests, 0), spans_held(&index, &digests, 1)), (100, 50));
    index.clear(HolderId(0));
    assert_eq!(spans_held(&index, &digests, 1), 50, "its names outlive the first owner's");
}

#[test]
fn model_lora_and_salt_keep_chains_apart() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(10);
    index.store(HolderId(0), Parent::Root(root("a", Source::Reported)), &spans).unwrap();
    let mut out = Overlaps::new();
    index.lookup(root("b", Source::Reported), Prompt::Chunks(&digests), &mut out);
    assert!(out.as_slice().is_empty());
}

#[test]
fn one_live_chain_does_not_grow_under_split_and_remove() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(100);
    index.store(HolderId(0), Parent::Root(key()), &spans).unwrap();
    let before = index.bytes();
    let mut random = Random(3);
    for cycle in 0..20_000u64 {
        let fork = random.below(100) as usize;
        let parent = if fork == 0 { Parent::Root(key()) } else { Parent::Name(spans[fork - 1].name) };
        let side = [named(1 << 40 | cycle, 1 << 41 | cycle), named(1 << 42 | cycle, 1 << 43 | cycle)];
        let worker = HolderId(if fork == 0 { 1 } else { 0 });
        index.store(worker, parent, &side).unwrap();
        assert_eq!(index.remove(worker, &[side[1].name, side[0].name]).known, 2);
    }
    assert_eq!(spans_held(&index, &digests, 0), 100);
    let after = index.bytes();
    assert!(after <= before + before / 10, "{before} {after}");
}

#[test]
fn a_million_children_under_one_root_are_still_found() {
    let index = Index::new(&Config::default());
    for digest in 0..100_000u64 {
        index.store(HolderId((digest % 7) as u16), Parent::Root(key()), &[named(digest, digest)]).unwrap();
    }
    for digest in (0..100_000).step_by(997) {
        assert_eq!(spans_held(&index, &[digest, 5], (digest % 7) as u16), 1);
    }
    let names: Vec<u64> = (0..100_000).collect();
    for worker in 0..7 {
        index.remove(HolderId(worker), &names);
    }
    assert_eq!(index.stats().nodes, 0);
}

#[test]
fn excess_orphans_are_dropped_oldest_first_and_counted() {
    let index = Index::new(&Config { orphans_max: 100, ..Config::default() });
    for parent in 0..300u64 {
        index.store(HolderId(0), Parent::Name(parent), &[named(1_000 + parent, parent)]).unwrap();
    }
    let stats = index.stats();
    assert_eq!((stats.orphans, stats.orphans_dropped), (100, 200));
}

#[test]
fn a_full_index_refuses_and_counts_reported_spans() {
    let index = Index::new(&Config { budget_bytes: 1 << 18, ..Config::default() });
    let mut refused = 0;
    for digest in 0..20_000u64 {
        let stored = index.store(HolderId(0), Parent::Root(key()), &[named(digest, digest)]).unwrap();
        refused += stored.refused;
    }
    let stats = index.stats();
    assert!(refused > 10_000 && stats.refused == refused as u64);
    assert!(stats.bytes.total() < 3 << 17, "{:?}", stats.bytes);
}

#[test]
fn presumed_spans_make_room_for_reported_ones() {
    let config = Config { budget_bytes: 1 << 20, presumed_tokens: u64::MAX, ..Config::default() };
    let index = Index::new(&config);
    for prompt in 0..2_000u64 {
        let spans: Vec<_> = (0..30).map(|at| span(prompt * 32 + at)).collect();
        let handle = index.presume(HolderId(0), root("a", Source::Presumed), &spans, Micros(prompt)).unwrap();
        index.confirm(handle);
    }
    let (digests, spans) = chain(5_000);
    assert_eq!(index.store(HolderId(0), Parent::Root(key()), &spans).unwrap().placed, 5_000);
    assert_eq!(spans_held(&index, &digests, 0), 5_000);
}

#[test]
fn sources_do_not_mix_and_worker_ids_are_bounded() {
    let index = Index::new(&Config::default());
    let (_, spans) = chain(1);
    let presumed = root("a", Source::Presumed);
    assert_eq!(index.store(HolderId(0), Parent::Root(presumed), &spans), Err(IndexError::OtherSource));
    let wrong = index.presume(HolderId(0), key(), &[span(1)], Micros(0));
    assert_eq!(wrong, Err(IndexError::OtherSource));
    let beyond = HolderId(HOLDERS_MAX as u16);
    assert_eq!(index.store(beyond, Parent::Root(key()), &spans), Err(IndexError::HolderIdTooLarge(beyond)));
}

#[test]
fn a_span_of_invalid_size_ends_the_chain_and_is_counted() {
    let index = Index::new(&Config::default());
    let (digests, mut spans) = chain(5);
    spans[3].span.bytes = 0;
    let stored = index.store(HolderId(0), Parent::Root(key()), &spans).unwrap();
    assert_eq!((stored.placed, stored.refused), (3, 2));
    assert_eq!(spans_held(&index, &digests, 0), 3);
}

/// The inverse of SplitMix64's finalizer, with which an attacker computes names for a hash that has no key.
fn unmixed(word: u64) -> u64 {
    let unshift = |word: u64, by: u32| {
        let mut whole = word;
        (0..64 / by).for_each(|_| whole = word ^ (whole >> by));
        whole
    };
    let word = unshift(word, 31).wrapping_mul(0x3196_42b2_d24d_8ec3);
    let word = unshift(word, 27).wrapping_mul(0x96de_1b17_3f11_9089);
    unshift(word, 30)
}

/// Time to store and to remove these names, each below a parent of its own.
fn time_of(names: &[u64]) -> std::time::Duration {
    let index = Index::new(&Config { table_seed: 5, ..Config::default() });
    let began = std::time::Instant::now();
    let spans: Vec<NamedSpan> = names
        .iter()
        .map(|&name| NamedSpan { name, span: Span { digest: !name, bytes: 1, tokens: 1 } })
        .collect();
    for piece in spans.chunks(8) {
        index.store(HolderId(1), Parent::Root(key()), piece).unwrap();
    }
    assert_eq!(index.remove(HolderId(1), names).known, names.len());
    began.elapsed()
}

/// With an unkeyed hash the chosen names took 8.4 s and the others 36 ms, on two busy cores.
#[test]
fn chosen_names_cost_no_more_than_others() {
    assert_eq!(unmixed(0xe220_a839_7b1d_cdaf), 0x9e37_79b9_7f4a_7c15, "SplitMix64's first number for seed 0");
    let honest: Vec<u64> = (1..=20_000u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let chosen: Vec<u64> = (0..20_000).map(|i| unmixed(0x1234_5678 << 32 | i)).collect();
    let chosen_low: Vec<u64> = (0..20_000).map(|i| unmixed(i << 40 | 0x1234)).collect();
    let honest = (0..3).map(|_| time_of(&honest)).max().unwrap();
    for chosen in [chosen, chosen_low] {
        let took = time_of(&chosen);
        assert!(took < honest * 30, "{took:?} against {honest:?}");
    }
}

#[test]
fn one_block_with_many_names_and_many_waiting_groups_cost_no_more_than_others() {
    let index = Index::new(&Config::default());
    let one = |name: u64| [NamedSpan { name, span: Span { digest: 7, bytes: 1, tokens: 1 } }];
    let began = std::time::Instant::now();
    (1..=20_000).for_each(|name| _ = index.store(HolderId(1), Parent::Root(key()), &one(name)).unwrap());
    let names: Vec<u64> = (1..=20_000).collect();
    let known = index.remove(HolderId(1), &names).known;
    assert!((1..=65).contains(&known), "a bounded number of names is kept: {known}");
    assert_eq!((index.stats().spans, index.stats().held), (0, 0), "and the block leaves with them");
    // 65,536 groups wait for one parent; each further one drops the oldest, and clearing drops all.
    for name in 0..100_000 {
        index.store(HolderId(1), Parent::Name(u64::MAX), &one(name)).unwrap();
    }
    index.clear(HolderId(1));
    assert_eq!(index.stats().orphans, 0);
    assert!(
        began.elapsed().as_secs() < 20,
        "{:?}: the work grew with the square of the names",
        began.elapsed()
    );
}
