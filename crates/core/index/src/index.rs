//! The index as others see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use warmroute_types::{MAX_WORKERS, Micros, WorkerId};

use crate::children::Children;
use crate::config::{Config, IndexError};
use crate::cut;
use crate::digest::Digester;
use crate::overlap::Overlaps;
use crate::root::{RootKey, Source};
use crate::span::{NamedSpan, Span};
use crate::stats::Stats;
use crate::walk;
use crate::writer::Writer;

/// What a stored chain continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// Nothing: it begins a prompt.
    Root(RootKey),
    /// The span that the same worker stored under this name.
    Name(u64),
}

/// A prompt to look up.
#[derive(Clone, Copy, Debug)]
pub enum Prompt<'a> {
    /// Digests of its chunks, for roots whose spans were cut the same way.
    Chunks(&'a [u64]),
    /// Its bytes, for roots whose spans are of any length. They are digested with [`Index::digester`].
    Bytes(&'a [u8]),
}

/// What became of a store. The three add up to what was offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Spans that are now in the index.
    pub placed: usize,
    /// Spans that wait for their parent.
    pub parked: usize,
    /// Spans for which there was no room, or that have no size that can be indexed, and all behind them.
    pub refused: usize,
}

/// A presumption that has not been confirmed or withdrawn yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a presumption that is neither confirmed nor withdrawn is believed until it ages"]
pub struct Presumption(u64);

/// Who holds which prefix.
pub struct Index {
    children: Arc<Children>,
    /// Words of a worker set that can have a bit.
    words: AtomicUsize,
    way_overflows: AtomicU64,
    digester: Digester,
    writer: Mutex<Writer>,
}

impl Index {
    /// An empty index. Bounds that [`Config::validate`] refuses work as well as they can.
    pub fn new(config: &Config) -> Index {
        let children = Arc::new(Children::new());
        Index {
            words: AtomicUsize::new(0),
            way_overflows: AtomicU64::new(0),
            digester: Digester::new(config.seed),
            writer: Mutex::new(Writer::new(Arc::clone(&children), config)),
            children,
        }
    }

    /// What digests the spans of roots that are looked up by bytes.
    pub fn digester(&self) -> &Digester {
        &self.digester
    }

    /// How far from its start each worker holds a prompt, into `out`. Takes no lock and, once `out` has grown, allocates
    /// nothing. Beside a write, each node of up to 64 spans is seen as it was before it or as it is after.
    pub fn lookup(&self, root: RootKey, prompt: Prompt<'_>, out: &mut Overlaps) {
        out.begin();
        let words = self.words.load(Ordering::Acquire);
        let _pinned = crossbeam_epoch::pin();
        match prompt {
            Prompt::Chunks(digests) => walk::chunks(&self.children, words, root.digest(), digests, out),
            Prompt::Bytes(bytes) => {
                walk::bytes(&self.children, &self.digester, words, root.digest(), bytes, out)
            }
        }
        if out.overflows() > 0 {
            self.way_overflows.fetch_add(out.overflows().into(), Ordering::Relaxed);
        }
    }

    /// A worker reported that it stored a chain of spans after `parent`. An unknown parent lets the chain wait for it.
    pub fn store(&self, worker: WorkerId, parent: Parent, spans: &[NamedSpan]) -> Result<Stored, IndexError> {
        if let Parent::Root(root) = parent {
            expect_source(root, Source::Reported)?;
        }
        let worker = self.seat(worker)?;
        Ok(self.writer.lock().store(worker, parent, spans))
    }

    /// A worker reported that it removed spans: each name once. Returns how many of them it held.
    pub fn remove(&self, worker: WorkerId, names: &[u64]) -> usize {
        self.writer.lock().remove(worker.0, names)
    }

    /// Forgets all that one worker holds, reported and presumed, and nothing else. Its capacity stays.
    pub fn clear(&self, worker: WorkerId) {
        self.writer.lock().clear(worker.0);
    }

    /// Presumes that a worker will hold a prompt that is being sent to it. Visible to lookups at once.
    pub fn presume(
        &self,
        worker: WorkerId,
        root: RootKey,
        spans: &[Span],
        now: Micros,
    ) -> Result<Presumption, IndexError> {
        expect_source(root, Source::Presumed)?;
        let worker = self.seat(worker)?;
        Ok(Presumption(self.writer.lock().presume(worker, root, spans, now)))
    }

    /// The first token came: the presumption is believed until it ages.
    pub fn confirm(&self, presumption: Presumption) {
        let mut writer = self.writer.lock();
        let Writer { tree, presumed, .. } = &mut *writer;
        presumed.confirm(tree, presumption.0);
    }

    /// The request failed before its first token: what only this presumption held is given up.
    pub fn withdraw(&self, presumption: Presumption) {
        let mut writer = self.writer.lock();
        let Writer { tree, presumed, .. } = &mut *writer;
        presumed.withdraw(tree, presumption.0);
    }

    /// Says how many tokens a worker's cache holds. What is presumed beyond them is evicted, longest unused first.
    pub fn set_capacity(&self, worker: WorkerId, tokens: u64) -> Result<(), IndexError> {
        let worker = self.seat(worker)?;
        let mut writer = self.writer.lock();
        let Writer { tree, presumed, .. } = &mut *writer;
        presumed.set_capacity(tree, worker, tokens);
        Ok(())
    }

    /// Tokens that a worker is presumed to hold.
    pub fn presumed_tokens(&self, worker: WorkerId) -> u64 {
        self.writer.lock().presumed.tokens(worker.0)
    }

    /// An engine found only `keep_tokens` of this prompt in its cache: cuts the worker's view there, with everything
    /// that continues it.
    pub fn cut(&self, worker: WorkerId, root: RootKey, prompt: Prompt<'_>, keep_tokens: u32) {
        let mut writer = self.writer.lock();
        let tree = &writer.tree;
        let Some(node) = tree.root(root.digest()) else { return };
        let spans = match prompt {
            Prompt::Chunks(digests) => cut::chunks(tree, worker.0, node, digests, keep_tokens),
            Prompt::Bytes(bytes) => cut::bytes(tree, &self.digester, worker.0, node, bytes, keep_tokens),
        };
        writer.forget(worker.0, root.source(), &spans);
    }

    /// Evicts what is presumed and too old, and frees what waits to be freed. To be called every now and then.
    pub fn expire(&self, now: Micros) {
        self.writer.lock().expire(now);
    }

    /// Live bytes.
    pub fn bytes(&self) -> usize {
        self.writer.lock().bytes().total()
    }

    /// Everything in numbers.
    pub fn stats(&self) -> Stats {
        let way_overflows = self.way_overflows.load(Ordering::Relaxed);
        Stats { way_overflows, ..self.writer.lock().stats() }
    }

    /// The worker as a small number; from now on lookups look for it.
    fn seat(&self, worker: WorkerId) -> Result<u16, IndexError> {
        if worker.index() >= MAX_WORKERS {
            return Err(IndexError::NoSuchSeat(worker));
        }
        self.words.fetch_max(worker.index() / 64 + 1, Ordering::Release);
        Ok(worker.0)
    }
}

fn expect_source(root: RootKey, source: Source) -> Result<(), IndexError> {
    if root.source() == source { Ok(()) } else { Err(IndexError::OtherSource) }
}
