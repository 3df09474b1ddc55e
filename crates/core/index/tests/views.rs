//! Several worker ids for one engine: what it certainly holds, what it may hold, what lies in any tier of its cache.
#![allow(clippy::unwrap_used)] // Tests may: a panic here is the report.

mod model;

use model::{named, root, span};
use warmroute_index::{
    Config, HOLDERS_MAX, HolderId, Index, IndexError, NamedSpan, Overlaps, Parent, Prompt, Removed, RootKey,
    Source,
};
use warmroute_types::MAX_WORKERS;

const SURE: HolderId = HolderId(7);
const MAYBE: HolderId = HolderId(MAX_WORKERS as u16 + 7);
const ANY_TIER: HolderId = HolderId(2 * MAX_WORKERS as u16 + 7);

fn key() -> RootKey {
    root("a", Source::Reported)
}

/// A chain of `length` spans of one token each; names are digests plus one.
fn chain(length: u64) -> (Vec<u64>, Vec<NamedSpan>) {
    let digests: Vec<u64> = (0..length).map(|at| 1_001 + at * 4).collect();
    let spans = digests.iter().map(|&digest| named(digest + 1, digest)).collect();
    (digests, spans)
}

fn held(index: &Index, prompt: &[u64]) -> [u32; 3] {
    let mut out = Overlaps::new();
    index.lookup(key(), Prompt::Chunks(prompt), &mut out);
    [SURE, MAYBE, ANY_TIER].map(|id| out.of(id).spans)
}

#[test]
fn one_lookup_answers_for_all_ids_of_an_engine() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(100);
    for (id, depth) in [(SURE, 10), (MAYBE, 70), (ANY_TIER, 100)] {
        index.store(id, Parent::Root(key()), &spans[..depth]).unwrap();
    }
    assert_eq!(held(&index, &digests), [10, 70, 100]);
    assert_eq!(HOLDERS_MAX, 3 * MAX_WORKERS);
}

#[test]
fn copied_spans_have_the_same_names() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(100);
    index.store(MAYBE, Parent::Root(key()), &spans).unwrap();
    index.store(MAYBE, Parent::Name(spans[9].name), &spans[10..11]).unwrap();
    let copy_prefix = |upto| index.copy_prefix(MAYBE, SURE, key(), Prompt::Chunks(&digests), upto).unwrap();
    assert_eq!((copy_prefix(70), copy_prefix(70), copy_prefix(0)), (70, 0, 0));
    assert_eq!(held(&index, &digests), [70, 100, 0]);
    let extra_counts = [spans[10].name; 3];
    assert_eq!(index.remove(SURE, &extra_counts[..1]), Removed { known: 1, unknown: 0 });
    assert_eq!(held(&index, &digests)[0], 70, "stored extra_counts there, so extra_counts here");
    assert_eq!(index.remove(SURE, &extra_counts), Removed { known: 1, unknown: 2 });
    assert_eq!(held(&index, &digests), [10, 100, 0]);
    assert_eq!(copy_prefix(100), 31, "the hole and the rest");
    assert_eq!(held(&index, &digests)[0], 100);
}

#[test]
fn copying_ends_at_a_hole_and_inserts_waiting_chains() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(100);
    index.store(MAYBE, Parent::Root(key()), &spans[..80]).unwrap();
    assert_eq!(index.store(SURE, Parent::Name(spans[49].name), &spans[50..]).unwrap().parked, 50);
    index.remove(MAYBE, &[spans[60].name]);
    assert_eq!(index.copy_prefix(MAYBE, SURE, key(), Prompt::Chunks(&digests), 1_000).unwrap(), 60);
    assert_eq!(held(&index, &digests), [100, 60, 0]);
    let stats = index.stats();
    assert_eq!((stats.orphans, stats.orphans_parked), (0, 50));
    assert!(stats.orphans_grafted > 0, "{stats:?}");
}

#[test]
fn a_cut_spares_what_another_id_holds() {
    let index = Index::new(&Config::default());
    let (digests, spans) = chain(100);
    index.store(SURE, Parent::Root(key()), &spans[..40]).unwrap();
    index.store(MAYBE, Parent::Root(key()), &spans).unwrap();
    let cut = |keep| index.cut_unless(MAYBE, key(), Prompt::Chunks(&digests), keep, SURE);
    assert_eq!(cut(20), Ok(()));
    assert_eq!(held(&index, &digests), [40, 40, 0]);
    index.clear(SURE);
    assert_eq!(cut(20), Ok(()));
    assert_eq!(held(&index, &digests), [0, 20, 0]);
    assert_eq!(index.remove(MAYBE, &[spans[19].name, spans[30].name]), Removed { known: 1, unknown: 1 });
}

#[test]
fn operations_on_reported_spans_refuse_presumed_roots() {
    let index = Index::new(&Config::default());
    let presumed = root("a", Source::Presumed);
    let prompt = Prompt::Chunks(&[1, 2]);
    assert_eq!(index.copy_prefix(SURE, MAYBE, presumed, prompt, 9), Err(IndexError::OtherSource));
    assert_eq!(index.cut_unless(SURE, presumed, prompt, 9, MAYBE), Err(IndexError::OtherSource));
    let beyond = HolderId(HOLDERS_MAX as u16);
    assert_eq!(index.copy_prefix(SURE, beyond, key(), prompt, 9), Err(IndexError::HolderIdTooLarge(beyond)));
    assert_eq!(index.remove(beyond, &[1]), Removed { known: 0, unknown: 1 });
    assert_eq!(index.presumed_tokens(beyond), 0);
    assert!(index.presume(beyond, presumed, &[span(1)], warmroute_types::Micros(0)).is_err());
}

#[test]
fn long_chains_are_copied_in_pieces_and_completely() {
    let index = Index::new(&Config::default());
    let (digests, mut spans) = chain(10_000);
    let stored = index.store(MAYBE, Parent::Name(5), &spans).unwrap();
    assert_eq!((stored.placed, stored.parked), (0, 10_000));
    let first = [named(5, 99)];
    let grafted = index.store(MAYBE, Parent::Root(key()), &first).unwrap();
    assert_eq!((grafted.placed, grafted.grafted), (1, 10_000));
    let prompt: Vec<u64> = std::iter::once(99).chain(digests).collect();
    assert_eq!(held(&index, &prompt)[1], 10_001);
    let names: Vec<u64> = spans.iter().rev().map(|named| named.name).collect();
    assert_eq!(index.remove(MAYBE, &names).known, 10_000);
    spans[7_000].span.bytes = 0;
    let stored = index.store(MAYBE, Parent::Name(5), &spans).unwrap();
    assert_eq!((stored.placed, stored.refused), (7_000, 3_000));
    assert_eq!(index.stats().refused, 3_000);
}
