//! Lookups over bytes compared with a naive search: texts cut into spans in several ways, by workers that disagree.
#![allow(clippy::unwrap_used)] // Tests may: a panic here is the report.

mod model;

use std::collections::BTreeSet;

use model::Random;
use warmroute_index::{
    Config, HolderId, Index, NamedSpan, Namespace, Overlaps, Parent, Prompt, RootKey, Source, Span,
};

fn root() -> RootKey {
    RootKey::of(&Namespace { model: "m", lora: None, salt: None, cut: 0, source: Source::Reported })
}

/// Cuts a text into spans in one of several ways. Lengths depend on the text so far, as with real tokens.
fn cut(text: &[u8], way: u64) -> Vec<&[u8]> {
    let mut spans = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let at = text.len() - rest.len();
        let length = 1 + (Random(way * 1_000_003 + (at as u64 / 3)).next() % (4 + way)) as usize;
        if length > rest.len() {
            break;
        }
        let (span, left) = rest.split_at(length);
        spans.push(span);
        rest = left;
    }
    spans
}

/// The name of a chain: a hash of its spans, so that other cuts have other names.
fn name(spans: &[&[u8]]) -> u64 {
    spans.iter().fold(1, |key, span| {
        span.iter()
            .fold(Random(key ^ span.len() as u64).next(), |key, &byte| Random(key ^ u64::from(byte)).next())
    })
}

struct World {
    index: Index,
    /// By worker: the chains that it holds, each as the spans that lead to it.
    held: Vec<BTreeSet<Vec<Vec<u8>>>>,
    random: Random,
}

impl World {
    fn text(&mut self) -> Vec<u8> {
        // Few texts with long common beginnings, so that chains fork inside spans and inside nodes.
        let length = self.random.below(180) as usize;
        let fork = self.random.below(180);
        let branch = self.random.below(3);
        let letter =
            |at: u64| b'a' + (Random(at * 31 + if at >= fork { branch * 7_919 } else { 0 }).next() % 2) as u8;
        (0..length as u64).map(letter).collect()
    }

    fn store(&mut self) {
        let worker = self.random.below(self.held.len() as u64) as usize;
        let way = if self.random.one_in(8) { self.random.below(3) } else { worker as u64 % 3 };
        let text = self.text();
        let spans = cut(&text, way);
        let named: Vec<NamedSpan> = (0..spans.len())
            .map(|at| {
                let digest = self.index.digester().digest(spans[at]);
                let span = Span { digest, bytes: spans[at].len() as u32, tokens: 1 };
                NamedSpan { name: name(&spans[..=at]), span }
            })
            .collect();
        // Spans that are held already would be counted twice: store only the rest.
        let owned: Vec<Vec<u8>> = spans.iter().map(|span| span.to_vec()).collect();
        let known = (1..=owned.len()).take_while(|&at| self.held[worker].contains(&owned[..at])).count();
        let parent = if known == 0 { Parent::Root(root()) } else { Parent::Name(named[known - 1].name) };
        for at in known..owned.len() {
            if self.held[worker].insert(owned[..=at].to_vec()) {
                let parent = if at == 0 { parent } else { Parent::Name(named[at - 1].name) };
                self.index.store(HolderId(worker as u16), parent, &named[at..=at]).unwrap();
            }
        }
    }

    fn remove(&mut self) {
        let worker = self.random.below(self.held.len() as u64) as usize;
        let count = self.held[worker].len() as u64;
        if count == 0 {
            return;
        }
        let victim = self.held[worker].iter().nth(self.random.below(count) as usize).unwrap().clone();
        self.held[worker].remove(&victim);
        let spans: Vec<&[u8]> = victim.iter().map(Vec::as_slice).collect();
        assert_eq!(self.index.remove(HolderId(worker as u16), &[name(&spans)]).known, 1);
    }

    /// The longest beginning of the prompt that a worker holds without a hole, in any cut.
    fn longest(&self, worker: usize, prompt: &[u8]) -> usize {
        let held = &self.held[worker];
        let is_whole = |chain: &Vec<Vec<u8>>| (1..chain.len()).all(|at| held.contains(&chain[..at]));
        let begins = |chain: &[Vec<u8>]| {
            chain.iter().try_fold(prompt, |rest, span| rest.strip_prefix(span.as_slice())).is_some()
        };
        let length = |chain: &Vec<Vec<u8>>| chain.iter().map(Vec::len).sum();
        held.iter().filter(|chain| begins(chain) && is_whole(chain)).map(length).max().unwrap_or(0)
    }

    fn cut_view(&mut self) {
        let worker = self.random.below(self.held.len() as u64) as usize;
        let prompt = self.text();
        let keep = self.random.below(40) as usize;
        // One token a span: every chain goes whose first `keep + 1` spans begin the prompt.
        self.held[worker]
            .retain(|chain| !(chain.len() > keep && prompt.starts_with(&chain[..=keep].concat())));
        self.index.cut(HolderId(worker as u16), root(), Prompt::Bytes(&prompt), keep as u32);
    }
}

#[test]
fn a_lookup_finds_the_longest_held_prefix_in_any_cut() {
    let mut overflowed = 0;
    for seed in 0..12 {
        let mut world = World {
            index: Index::new(&Config { seed, ..Config::default() }),
            held: vec![BTreeSet::new(); 5],
            random: Random(seed),
        };
        let mut out = Overlaps::new();
        for _ in 0..120 {
            match world.random.below(20) {
                0..10 => world.store(),
                10..19 => world.remove(),
                _ => world.cut_view(),
            }
            let prompt = world.text();
            world.index.lookup(root(), Prompt::Bytes(&prompt), &mut out);
            overflowed += out.overflows();
            for worker in 0..world.held.len() {
                let (found, expected) =
                    (out.of(HolderId(worker as u16)).bytes as usize, world.longest(worker, &prompt));
                if out.overflows() == 0 {
                    assert_eq!(found, expected, "worker {worker}");
                } else {
                    assert!(found <= expected, "worker {worker}");
                }
            }
        }
    }
    assert!(overflowed < 100, "few lookups have more than four ways: {overflowed}");
}

#[test]
fn a_fifth_path_is_abandoned_and_counted() {
    let index = Index::new(&Config::default());
    let text = b"aaaaaaaaaaaaaaaa";
    for length in 1..=6usize {
        let digest = index.digester().digest(&text[..length]);
        let span = Span { digest, bytes: length as u32, tokens: 1 };
        let named = NamedSpan { name: length as u64, span };
        index.store(HolderId(length as u16), Parent::Root(root()), &[named]).unwrap();
    }
    let mut out = Overlaps::new();
    index.lookup(root(), Prompt::Bytes(text), &mut out);
    assert_eq!((out.as_slice().len(), out.overflows()), (4, 2));
    assert_eq!(index.stats().path_overflows, 2);
}

#[test]
fn a_prompt_that_ends_inside_a_span_does_not_hold_it() {
    let index = Index::new(&Config::default());
    let text = b"hello world, this is a block";
    let span = Span { digest: index.digester().digest(text), bytes: text.len() as u32, tokens: 7 };
    index.store(HolderId(0), Parent::Root(root()), &[NamedSpan { name: 1, span }]).unwrap();
    let mut out = Overlaps::new();
    index.lookup(root(), Prompt::Bytes(&text[..text.len() - 1]), &mut out);
    assert!(out.as_slice().is_empty());
    index.lookup(root(), Prompt::Bytes(b"hello world, this is a block and more"), &mut out);
    assert_eq!(out.of(HolderId(0)).tokens, 7);
}

/// Stores a text in spans of these lengths, in turn, on one worker.
fn store_text(index: &Index, worker: u16, text: &[u8], lengths: &[usize]) {
    let mut spans = Vec::new();
    let mut from = 0;
    for &length in lengths.iter().cycle().take_while(|&&length| length > 0) {
        let Some(piece) = text.get(from..from + length) else { break };
        let span = Span { digest: index.digester().digest(piece), bytes: length as u32, tokens: 16 };
        from += length;
        spans.push(NamedSpan { name: Random(from as u64 ^ u64::from(worker) << 40).next(), span });
    }
    assert_eq!(
        index.store(HolderId(worker), Parent::Root(root()), &spans).unwrap().placed,
        spans.len(),
        "there is room for all"
    );
}

/// Text without repetition, and text of one letter.
fn texts(length: usize) -> [Vec<u8>; 2] {
    [(0..length as u64).map(|at| b'a' + (Random(at).next() % 26) as u8).collect(), vec![b'x'; length]]
}

#[test]
fn all_spans_of_a_few_bytes_are_found() {
    for text in texts(40_000) {
        for lengths in [&[16][..], &[1], &[1, 2, 3], &[7, 16, 5, 16, 16]] {
            let index = Index::new(&Config::default());
            store_text(&index, 0, &text, lengths);
            store_text(&index, 8_191, &text[..20_000], lengths);
            let mut out = Overlaps::new();
            for prompt in [&text[..], &text[..39_999], &text[..100], &text[..1]] {
                index.lookup(root(), Prompt::Bytes(prompt), &mut out);
                for (worker, held) in [(0, 40_000), (8_191, 20_000)] {
                    let expected = whole(prompt.len().min(held), lengths);
                    assert_eq!(out.of(HolderId(worker)).bytes as usize, expected, "{lengths:?}");
                }
            }
        }
    }
}

/// How many of these bytes are covered by whole spans of these lengths.
fn whole(bytes: usize, lengths: &[usize]) -> usize {
    let mut end = 0;
    for length in lengths.iter().cycle() {
        if end + length > bytes {
            break;
        }
        end += length;
    }
    end
}

#[test]
fn a_megabyte_prompt_is_found_to_its_end() {
    for text in texts(1 << 20) {
        let index = Index::new(&Config::default());
        store_text(&index, 3, &text, &[64, 61, 70]);
        store_text(&index, 4, &text, &[64, 61, 70]);
        index.cut(HolderId(4), root(), Prompt::Bytes(&text), 16_000);
        let mut out = Overlaps::new();
        index.lookup(root(), Prompt::Bytes(&text), &mut out);
        assert_eq!(out.of(HolderId(3)).bytes as usize, whole(1 << 20, &[64, 61, 70]));
        assert_eq!(out.of(HolderId(4)).tokens, 16_000);
        let copied =
            index.copy_prefix(HolderId(3), HolderId(4), root(), Prompt::Bytes(&text), u32::MAX).unwrap();
        index.lookup(root(), Prompt::Bytes(&text), &mut out);
        assert_eq!(out.of(HolderId(4)), out.of(HolderId(3)), "{copied} spans");
    }
}

#[test]
fn an_unknown_first_span_ends_the_lookup() {
    let index = Index::new(&Config::default());
    let [mut text, _] = texts(10_000);
    store_text(&index, 0, &text, &[64]);
    text[0] = b'!';
    let mut out = Overlaps::new();
    index.lookup(root(), Prompt::Bytes(&text), &mut out);
    assert!(out.as_slice().is_empty());
}
