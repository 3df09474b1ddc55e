//! The largest prefix heads, compared with what was put in.
#![allow(clippy::unwrap_used, dead_code)] // Tests may: a panic here is the report.

mod model;

use model::{root, span};
use warmroute_index::{Config, HolderId, Index, PrefixHead, Source, Span};
use warmroute_types::Micros;

/// Presumes a prompt that begins with `head` and goes on with spans of its own.
fn presume(index: &Index, worker: u16, head: u64, own: std::ops::Range<u64>) {
    let spans: Vec<Span> = std::iter::once(head).chain(own).map(span).collect();
    let presumed = index.presume(HolderId(worker), root("m", Source::Presumed), &spans, Micros(1)).unwrap();
    index.confirm(presumed);
}

fn tokens(own: std::ops::Range<u64>) -> u64 {
    own.map(|digest| u64::from(span(digest).tokens)).sum()
}

fn heads(index: &Index) -> Vec<PrefixHead> {
    index.prefix_heads(8)
}

#[test]
fn heads_are_listed_by_size_with_their_holders_and_vanish_with_them() {
    let index = Index::new(&Config { presumed_tokens: u64::MAX, ..Config::default() });
    assert_eq!(heads(&index), []);
    presume(&index, 3, 7, 1_000..1_010);
    presume(&index, 9, 8, 2_000..2_100);
    presume(&index, 9, 7, 3_000..3_010);
    let found = heads(&index);
    let seen: Vec<_> = found.iter().map(|head| (head.digest, head.holders.clone())).collect();
    assert_eq!(seen, [(8, vec![HolderId(9)]), (7, vec![HolderId(3), HolderId(9)])]);
    assert_eq!(found[0].tokens, tokens(8..9) + tokens(2_000..2_100));
    assert_eq!(found[1].tokens, tokens(7..8) + tokens(1_000..1_010) + tokens(3_000..3_010));
    assert!(found[1].branches >= 1, "{found:?}");
    assert_eq!(index.prefix_heads(1).len(), 1);
    index.clear(HolderId(9));
    let digests: Vec<u64> = heads(&index).iter().map(|head| head.digest).collect();
    assert_eq!(digests, [7]);
}

#[test]
fn sizes_in_an_index_with_many_nodes_are_close() {
    let index = Index::new(&Config { presumed_tokens: u64::MAX, ..Config::default() });
    // Three of four prompts begin with 1, the others with 2: 20,000 nodes, of which one in ten is looked at.
    for prompt in 0..20_000_u64 {
        let own = (prompt + 1) * 1_000..(prompt + 1) * 1_000 + 3;
        presume(&index, 1, if prompt % 4 == 0 { 2 } else { 1 }, own);
    }
    let found = heads(&index);
    let all: u64 = found.iter().map(|head| head.tokens).sum();
    assert_eq!(found.iter().map(|head| head.digest).collect::<Vec<_>>(), [1, 2]);
    let share = found[0].tokens as f64 / all as f64;
    assert!((0.65..0.85).contains(&share), "{share}");
    let expected: u64 = (0..20_000_u64).map(|p| tokens((p + 1) * 1_000..(p + 1) * 1_000 + 3)).sum();
    assert!((0.8..1.2).contains(&(all as f64 / expected as f64)), "{all} of {expected}");
}
