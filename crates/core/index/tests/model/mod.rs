//! The index as a naive model: slow, and correct by inspection.
//!
//! A span's address is a path: the root and the digests that lead to it. A worker's reported spans are its names,
//! each with one path and a count. Its presumed spans are paths with the uses that hold them.
#![allow(clippy::unwrap_used)] // Tests may: a panic here is the report.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};

use warmroute_index::{NamedSpan, Namespace, RootKey, Source, Span};

pub type Path = Vec<u64>;

/// The size of a span is a function of its digest, as in real prompts.
pub fn span(digest: u64) -> Span {
    Span { digest, bytes: 1 + (digest % 5) as u32, tokens: (digest % 4) as u32 }
}

pub fn named(name: u64, digest: u64) -> NamedSpan {
    NamedSpan { name, span: span(digest) }
}

pub fn root(salt: &str, source: Source) -> RootKey {
    RootKey::of(&Namespace { model: "m", lora: None, salt: Some(salt), cut: 0, source })
}

/// A small seeded random generator, so that a failure can be repeated.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

#[derive(Clone, Debug)]
pub struct Parked {
    pub name: u64,
    pub digest: u64,
    pub count: u32,
}

#[derive(Clone, Debug)]
struct Group {
    parent: u64,
    spans: Vec<Parked>,
}

/// The reported spans of one worker.
#[derive(Clone, Default)]
pub struct Reports {
    /// From a name to its path and count.
    pub names: BTreeMap<u64, (Path, u32)>,
    /// From a path to its names.
    names_by_path: BTreeMap<Path, BTreeSet<u64>>,
    groups: Vec<Group>,
}

impl Reports {
    pub fn holds(&self, path: &[u64]) -> bool {
        self.names_by_path.contains_key(path)
    }

    pub fn store(&mut self, parent: Result<u64, u64>, spans: &[(u64, u64)]) {
        let spans: Vec<Parked> =
            spans.iter().map(|&(name, digest)| Parked { name, digest, count: 1 }).collect();
        match parent {
            Ok(root) => self.place(vec![root], &spans),
            Err(name) => match self.names.get(&name) {
                Some((path, _)) => self.place(path.clone(), &spans),
                None => self.park(name, spans),
            },
        }
    }

    fn place(&mut self, mut path: Path, spans: &[Parked]) {
        for span in spans {
            path.push(span.digest);
            if span.count > 0 {
                self.settle(span, &path);
            }
        }
        for span in spans {
            self.graft(span.name);
        }
    }

    fn settle(&mut self, span: &Parked, path: &Path) {
        if let Some((held, count)) = self.names.get_mut(&span.name)
            && held == path
        {
            *count += span.count;
            return;
        }
        self.drop_name(span.name);
        self.unpark(span.name);
        self.names.insert(span.name, (path.clone(), span.count));
        self.names_by_path.entry(path.clone()).or_default().insert(span.name);
    }

    fn graft(&mut self, name: u64) {
        while let Some((path, _)) = self.names.get(&name).cloned()
            && let Some(at) = self.groups.iter().position(|group| group.parent == name)
        {
            let group = self.groups.remove(at);
            self.place(path, &group.spans);
        }
    }

    fn drop_name(&mut self, name: u64) {
        if let Some((path, _)) = self.names.remove(&name) {
            let names = self.names_by_path.get_mut(&path).unwrap();
            names.remove(&name);
            if names.is_empty() {
                self.names_by_path.remove(&path);
            }
        }
    }

    fn park(&mut self, mut parent: u64, mut spans: Vec<Parked>) {
        for span in &spans {
            self.drop_name(span.name);
        }
        while let Some(first) = spans.first() {
            let Some(known) = self.parked_after(parent, first) else { break };
            known.count += 1;
            parent = spans.remove(0).name;
        }
        if spans.is_empty() {
            return;
        }
        for at in 0..spans.len() {
            let name = spans[at].name;
            self.groups
                .iter_mut()
                .flat_map(|group| &mut group.spans)
                .filter(|s| s.name == name)
                .for_each(|s| s.count = 0);
            spans[..at].iter_mut().filter(|s| s.name == name).for_each(|s| s.count = 0);
        }
        self.groups.push(Group { parent, spans });
        self.drop_hollow();
    }

    fn parked_after(&mut self, parent: u64, span: &Parked) -> Option<&mut Parked> {
        for group in &mut self.groups {
            for at in 0..group.spans.len() {
                let before = if at == 0 { group.parent } else { group.spans[at - 1].name };
                let here = &group.spans[at];
                if here.count > 0 && here.name == span.name {
                    let is_same = before == parent && here.digest == span.digest;
                    return is_same.then_some(&mut group.spans[at]);
                }
            }
        }
        None
    }

    fn parked(&mut self, name: u64) -> Option<&mut Parked> {
        self.groups
            .iter_mut()
            .flat_map(|group| &mut group.spans)
            .find(|span| span.name == name && span.count > 0)
    }

    fn unpark(&mut self, name: u64) {
        if let Some(span) = self.parked(name) {
            span.count = 0;
            self.drop_hollow();
        }
    }

    fn drop_hollow(&mut self) {
        self.groups.retain(|group| group.spans.iter().any(|span| span.count > 0));
    }

    pub fn remove(&mut self, name: u64) -> bool {
        if let Some(span) = self.parked(name) {
            span.count -= 1;
            self.drop_hollow();
            return true;
        }
        let Some((_, count)) = self.names.get_mut(&name) else { return false };
        *count -= 1;
        if *count == 0 {
            self.drop_name(name);
        }
        true
    }

    /// Reports a name once more, without its path.
    pub fn store_by_name(&mut self, name: u64) -> bool {
        let counts = match self.parked(name) {
            Some(span) => Some(&mut span.count),
            None => self.names.get_mut(&name).map(|(_, count)| count),
        };
        counts.map(|count| *count += 1).is_some()
    }

    /// Copies the spans of a chain that another worker holds, from the start without a hole, up to so many tokens,
    /// with the same names and counts. Known names stay as they are.
    pub fn copy_prefix(&mut self, of: &Reports, root: u64, digests: &[u64], upto_tokens: u32) {
        let mut path = vec![root];
        let mut tokens = 0;
        let mut copied = Vec::new();
        for &digest in digests {
            path.push(digest);
            tokens += span(digest).tokens;
            let Some(names) = of.names_by_path.get(&path).filter(|_| tokens <= upto_tokens) else { break };
            for &name in names {
                if self.names.get(&name).is_none_or(|(held, _)| *held != path) {
                    self.settle(&Parked { name, digest, count: of.names[&name].1 }, &path);
                    copied.push(name);
                }
            }
        }
        copied.into_iter().for_each(|name| self.graft(name));
    }

    /// Removes every name at or below a path.
    pub fn cut(&mut self, from: &[u64]) {
        self.cut_unless(from, &Reports::default());
    }

    /// Removes every name at or below a path, except spans that another worker holds.
    pub fn cut_unless(&mut self, from: &[u64], spared_by: &Reports) {
        let gone: Vec<u64> = self
            .names
            .iter()
            .filter(|(_, (path, _))| path.starts_with(from) && !spared_by.holds(path))
            .map(|(&name, _)| name)
            .collect();
        for name in gone {
            self.drop_name(name);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.groups.is_empty()
    }

    pub fn waiting(&self) -> usize {
        self.groups.iter().map(|group| group.spans.len()).sum()
    }
}

/// A presumed span.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The last answer that used the span, if any.
    pub last_use: Option<u64>,
    /// Unanswered requests that use it.
    pub waiting: BTreeSet<u64>,
}

/// The presumed spans of one worker.
#[derive(Default)]
pub struct Cache {
    pub blocks: BTreeMap<Path, Block>,
    pub capacity_tokens: u64,
}

fn tokens_of(path: &Path) -> u64 {
    u64::from(span(*path.last().unwrap()).tokens)
}

impl Cache {
    pub fn tokens(&self) -> u64 {
        self.blocks.keys().map(tokens_of).sum()
    }

    /// Tokens of spans that an answer has used.
    pub fn answered_tokens(&self) -> u64 {
        self.blocks
            .iter()
            .filter(|(_, block)| block.last_use.is_some())
            .map(|(path, _)| tokens_of(path))
            .sum()
    }

    pub fn presume(&mut self, root: u64, digests: &[u64], id: u64) {
        let mut path = vec![root];
        let mut tokens = 0;
        for &digest in digests {
            path.push(digest);
            tokens += tokens_of(&path);
            if tokens > self.capacity_tokens {
                break;
            }
            self.blocks.entry(path.clone()).or_default().waiting.insert(id);
        }
    }

    /// The least recently used answered span that no unanswered request uses; of one request's spans the deepest.
    fn oldest(&self) -> Option<Path> {
        let is_free = |(_, block): &(&Path, &Block)| block.waiting.is_empty() && block.last_use.is_some();
        let key = |(path, block): &(&Path, &Block)| (block.last_use, usize::MAX - path.len());
        self.blocks.iter().filter(is_free).min_by_key(key).map(|(path, _)| path.clone())
    }

    pub fn fit(&mut self) {
        while self.answered_tokens() > self.capacity_tokens {
            let Some(oldest) = self.oldest() else { break };
            self.blocks.remove(&oldest);
        }
    }

    /// Confirms `id` as the `order`th answer.
    pub fn confirm(&mut self, id: u64, order: u64) {
        for block in self.blocks.values_mut().filter(|block| block.waiting.contains(&id)) {
            block.waiting.remove(&id);
            block.last_use = Some(order);
        }
        self.fit();
    }

    pub fn withdraw(&mut self, id: u64) {
        self.blocks.values_mut().for_each(|block| _ = block.waiting.remove(&id));
        self.drop_unheld();
    }

    /// Removes an answer that expired.
    pub fn expire(&mut self, order: u64) {
        for block in self.blocks.values_mut().filter(|block| block.last_use == Some(order)) {
            block.last_use = None;
        }
        self.drop_unheld();
    }

    fn drop_unheld(&mut self) {
        self.blocks.retain(|_, block| block.last_use.is_some() || !block.waiting.is_empty());
    }

    pub fn cut(&mut self, from: &[u64]) {
        self.blocks.retain(|path, _| !path.starts_with(from));
    }
}

/// How far a prompt is held: spans, bytes and tokens.
pub fn reach(root: u64, digests: &[u64], holds: impl Fn(&[u64]) -> bool) -> (u32, u32, u32) {
    let mut path = vec![root];
    let mut reach = (0, 0, 0);
    for &digest in digests {
        path.push(digest);
        if !holds(&path) {
            break;
        }
        let span = span(digest);
        reach = (reach.0 + 1, reach.1 + span.bytes, reach.2 + span.tokens);
    }
    reach
}

/// The path of the first span of a chain that ends beyond this many tokens.
pub fn first_beyond(root: u64, digests: &[u64], keep_tokens: u32) -> Option<Path> {
    let mut tokens = 0;
    for (at, &digest) in digests.iter().enumerate() {
        tokens += span(digest).tokens;
        if tokens > keep_tokens {
            return Some(std::iter::once(root).chain(digests[..=at].iter().copied()).collect());
        }
    }
    None
}
