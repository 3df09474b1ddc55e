//! The index as others see it.
//!
//! Readers take no lock. Changes take one, and none holds it long: what may touch many spans (a clear, a cut, a long
//! chain, an expiry) is done in pieces, and whoever else waits goes in between. Beside such a change others therefore
//! see it half done, node by node. Calls about one worker are the caller's to put in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use warmroute_types::{Micros, WorkerId};

use crate::chain::Links;
use crate::children::Children;
use crate::config::{Config, IndexError};
use crate::digest::Digester;
use crate::holdings::Holdings;
use crate::orphans::Waiting;
use crate::overlap::Overlaps;
use crate::presumed::{Past, Work};
use crate::reported::Export;
use crate::root::{RootKey, Source};
use crate::seats::Seats;
use crate::snapshot::{Newest, Snapshot, Taking};
use crate::span::{NamedSpan, Span};
use crate::stats::Stats;
use crate::walk::Ground;
use crate::writer::{NODES_A_HOLD, SPANS_A_HOLD, Writer};

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

/// What became of a store. The first three add up to what was offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Spans that are now in the index.
    pub placed: usize,
    /// Spans that wait for their parent, which this worker has not stored.
    pub parked: usize,
    /// Spans for which there was no room, or that have no size that can be indexed, and all behind them.
    pub refused: usize,
    /// Spans that had waited for one of these and are now in the index too.
    pub grafted: usize,
}

/// What became of a removal. The two add up to the names given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Names that the worker held, or that waited for their parent.
    pub known: usize,
    /// Names that mean nothing: never stored, or removed as often as stored.
    pub unknown: usize,
}

/// A presumption that has not been confirmed or withdrawn yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a presumption that is neither confirmed nor withdrawn is believed until it ages"]
pub struct Presumption(u64);

/// A snapshot on its way into an index.
#[derive(Debug)]
pub struct Recalled {
    snapshot: Snapshot,
    now: Micros,
    away: Micros,
}

/// Who holds which prefix.
pub struct Index {
    children: Arc<Children>,
    seats: Seats,
    way_overflows: AtomicU64,
    digester: Digester,
    writer: Mutex<Writer>,
}

impl Index {
    /// An empty index. Bounds that [`Config::validate`] refuses work as well as they can.
    pub fn new(config: &Config) -> Index {
        let children = Arc::new(Children::new());
        Index {
            seats: Seats::new(),
            way_overflows: AtomicU64::new(0),
            digester: Digester::new(config.hash, config.seed),
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
        let ground = Ground { children: &self.children, digester: &self.digester, seats: &self.seats };
        let _pinned = crossbeam_epoch::pin();
        ground.lookup(root.digest(), prompt, out);
        if out.overflows() > 0 {
            self.way_overflows.fetch_add(out.overflows().into(), Ordering::Relaxed);
        }
    }

    /// A worker reported that it stored a chain of spans after `parent`. An unknown parent lets the chain wait for it.
    pub fn store(&self, worker: WorkerId, parent: Parent, spans: &[NamedSpan]) -> Result<Stored, IndexError> {
        if let Parent::Root(root) = parent {
            expect_source(root, Source::Reported)?;
        }
        let mut writer = self.writer.lock();
        let seat = self.seat(worker)?;
        let mut all = Stored::default();
        let mut grafts = Vec::new();
        let mut after = parent;
        for (at, piece) in spans.chunks(SPANS_A_HOLD).enumerate() {
            while writer.make_room_for(piece.len()) == Work::Left {
                MutexGuard::bump(&mut writer);
            }
            let stored = writer.store(seat, after, piece, &mut grafts);
            all.placed += stored.placed;
            all.parked += stored.parked;
            if stored.refused > 0 {
                all.refused = spans.len() - all.placed - all.parked;
                writer.refuse(spans.len() - at * SPANS_A_HOLD - piece.len());
                break;
            }
            after = piece.last().map_or(after, |last| Parent::Name(last.name));
            if all.placed + all.parked < spans.len() {
                MutexGuard::bump(&mut writer);
            }
        }
        all.grafted = self.graft(&mut writer, seat, grafts);
        Ok(all)
    }

    /// Places what a worker has waiting for these names.
    fn graft(&self, writer: &mut MutexGuard<'_, Writer>, seat: u16, mut names: Vec<u64>) -> usize {
        let mut grafted = 0;
        names.reverse();
        while !names.is_empty() {
            grafted += writer.graft(seat, &mut names);
            if !names.is_empty() {
                MutexGuard::bump(writer);
            }
        }
        grafted
    }

    /// A worker reported that it removed spans: each name once.
    pub fn remove(&self, worker: WorkerId, names: &[u64]) -> Removed {
        let Some(seat) = self.seats.find(worker) else {
            return Removed { known: 0, unknown: names.len() };
        };
        let pieces = names.chunks(SPANS_A_HOLD);
        let known = pieces.map(|piece| self.writer.lock().remove(seat, piece)).sum();
        Removed { known, unknown: names.len() - known }
    }

    /// What `of` holds of a prompt, from its start without a hole and up to so many tokens, `by` holds from now on too:
    /// under the same names, as often stored, so that removals can be told to both. Chains of `by` that waited for one of
    /// those names are placed. Returns how many spans `by` did not hold before. For reported roots.
    pub fn adopt(
        &self,
        of: WorkerId,
        by: WorkerId,
        root: RootKey,
        prompt: Prompt<'_>,
        upto_tokens: u32,
    ) -> Result<usize, IndexError> {
        expect_source(root, Source::Reported)?;
        let mut writer = self.writer.lock();
        let (by, of) = (self.seat(by)?, self.seats.find(of));
        let Some(of) = of.filter(|&of| of != by) else { return Ok(0) };
        let nodes = writer.held_by(&self.digester, of, root, prompt, upto_tokens);
        let (mut adopted, mut grafts) = (0, Vec::new());
        for piece in nodes.chunks(NODES_A_HOLD / 2) {
            adopted += writer.adopt(of, by, piece, &mut grafts);
            MutexGuard::bump(&mut writer);
        }
        self.graft(&mut writer, by, grafts);
        Ok(adopted)
    }

    /// `by` begins anew with all that `of` holds and has waiting: under the same names, as often stored. Returns how many
    /// spans that are. In pieces; what is told of either of the two meanwhile is the caller's to put in order.
    pub fn adopt_all(&self, of: WorkerId, by: WorkerId) -> Result<usize, IndexError> {
        if of == by {
            return Ok(0);
        }
        self.clear(by);
        let mut writer = self.writer.lock();
        let (by, of) = (self.seat(by)?, self.seats.find(of));
        let Some(of) = of else { return Ok(0) };
        let mut adopted = 0;
        // From the last part on: a cut meanwhile may join it with one that is still to come.
        for part in (0..writer.reported.parts_of(of)).rev() {
            let nodes = writer.reported.nodes_in(&writer.tree, of, part);
            for piece in nodes.chunks(NODES_A_HOLD / 2) {
                adopted += writer.adopt(of, by, piece, &mut Vec::new());
                MutexGuard::bump(&mut writer);
            }
        }
        writer.reported.orphans.copy(of, by);
        Ok(adopted)
    }

    /// A worker reported again that it stored spans, by their names alone: each counts once more. Returns how many of them
    /// it holds or has waiting; the others mean nothing.
    pub fn store_again(&self, worker: WorkerId, names: &[u64]) -> usize {
        let Some(seat) = self.seats.find(worker) else { return 0 };
        names.chunks(SPANS_A_HOLD).map(|piece| self.writer.lock().store_again(seat, piece)).sum()
    }

    /// The same for names that were stored so many times more.
    pub(crate) fn count_again(&self, worker: WorkerId, names: &[(u64, u32)]) {
        let Some(seat) = self.seats.find(worker) else { return };
        names.chunks(SPANS_A_HOLD).for_each(|piece| self.writer.lock().count_again(seat, piece));
    }

    /// Whether a worker holds any of these names, or has it waiting.
    pub fn knows_any(&self, worker: WorkerId, names: &[u64]) -> bool {
        let Some(seat) = self.seats.find(worker) else { return false };
        names.chunks(SPANS_A_HOLD).any(|piece| self.writer.lock().knows_any(seat, piece))
    }

    /// All that a worker has reported and holds, or has waiting, to be brought into another index with the same digester. In pieces;
    /// that nothing is told of it meanwhile is the caller's to see to.
    pub fn holdings(&self, worker: WorkerId) -> Holdings {
        let Some(seat) = self.seats.find(worker) else { return Holdings::default() };
        let mut writer = self.writer.lock();
        let mut export = Export::default();
        for part in (0..writer.reported.parts_of(seat)).rev() {
            for (id, _, mask) in writer.reported.nodes_in(&writer.tree, seat, part) {
                export.need(&writer.tree, id, mask);
            }
            MutexGuard::bump(&mut writer);
        }
        for piece in export.nodes().chunks(NODES_A_HOLD) {
            for &id in piece {
                let Writer { tree, reported, .. } = &*writer;
                export.write(tree, reported, seat, id);
            }
            MutexGuard::bump(&mut writer);
        }
        export.finish(&writer.reported, seat)
    }

    /// These chains wait for their parents, as they did elsewhere.
    pub(crate) fn wait(&self, worker: WorkerId, chains: &[(u64, Vec<Waiting>)]) -> Result<(), IndexError> {
        let mut writer = self.writer.lock();
        let seat = self.seat(worker)?;
        for (parent, spans) in chains {
            writer.reported.orphans.take_in(seat, *parent, spans);
        }
        Ok(())
    }

    /// Forgets all that one worker holds, reported and presumed, and nothing else. Its capacity stays.
    pub fn clear(&self, worker: WorkerId) {
        let Some(seat) = self.seats.find(worker) else { return };
        let mut writer = self.writer.lock();
        let horizon = writer.presumed.horizon();
        while writer.clear_some(seat, horizon) == Work::Left {
            MutexGuard::bump(&mut writer);
        }
    }

    /// Forgets what one worker is presumed to hold, and nothing that it has reported.
    pub fn clear_presumed(&self, worker: WorkerId) {
        let Some(seat) = self.seats.find(worker) else { return };
        let mut writer = self.writer.lock();
        let horizon = writer.presumed.horizon();
        while writer.clear_presumed_some(seat, horizon) == Work::Left {
            MutexGuard::bump(&mut writer);
        }
    }

    /// Presumes that a worker will hold a prompt that is being sent to it. Visible to lookups at once. It evicts nothing
    /// that an unanswered request uses, and nothing for the sake of the worker's capacity.
    pub fn presume(
        &self,
        worker: WorkerId,
        root: RootKey,
        spans: &[Span],
        now: Micros,
    ) -> Result<Presumption, IndexError> {
        expect_source(root, Source::Presumed)?;
        let mut writer = self.writer.lock();
        let seat = self.seat(worker)?;
        Ok(Presumption(writer.presume(seat, root, spans, now)))
    }

    /// The first token came: the presumption is believed until it ages, and what no longer fits the worker's cache goes,
    /// longest unused first.
    pub fn confirm(&self, presumption: Presumption) {
        self.writer.lock().confirm(presumption.0);
    }

    /// The request failed before its first token: what only this presumption held is given up.
    pub fn withdraw(&self, presumption: Presumption) {
        let mut writer = self.writer.lock();
        let Writer { tree, presumed, .. } = &mut *writer;
        presumed.withdraw(tree, presumption.0);
    }

    /// Says how many tokens a worker's cache holds. What is presumed beyond them is evicted, longest unused first.
    pub fn set_capacity(&self, worker: WorkerId, tokens: u64) -> Result<(), IndexError> {
        let mut writer = self.writer.lock();
        let seat = self.seat(worker)?;
        writer.presumed.set_capacity(seat, tokens);
        while writer.fit(seat) == Work::Left {
            MutexGuard::bump(&mut writer);
        }
        Ok(())
    }

    /// Tokens that a worker's cache is believed to hold at most.
    pub fn capacity_tokens(&self, worker: WorkerId) -> u64 {
        let seat = self.seats.find(worker);
        let writer = self.writer.lock();
        writer.presumed.capacity_tokens(seat)
    }

    /// Tokens that a worker is presumed to hold, those of unanswered requests among them.
    pub fn presumed_tokens(&self, worker: WorkerId) -> u64 {
        self.seats.find(worker).map_or(0, |seat| self.writer.lock().presumed.tokens(seat))
    }

    /// All that is presumed and answered, to be brought into another index with the same digester.
    pub fn snapshot(&self, now: Micros) -> Snapshot {
        self.newest(now, usize::MAX).snapshot
    }

    /// What was used last of it, as far as it takes about so many bytes to write down.
    pub fn newest(&self, now: Micros, bytes_max: usize) -> Newest {
        let (mut taking, mut from) = (Taking::new(bytes_max), Some(u64::MAX));
        while let Some(id) = from {
            let writer = self.writer.lock();
            from = writer.presumed.save_some(&writer.tree, id, now, NODES_A_HOLD, &mut taking);
        }
        taking.finish(|seat| self.seats.worker(seat).0)
    }

    /// Takes a snapshot, which was taken so long before `now`. Its workers are brought back one by one by [`Index::restore`].
    pub fn recall(&self, snapshot: Snapshot, now: Micros, away: Micros) -> Recalled {
        Recalled { snapshot, now, away }
    }

    /// A worker holds what `of` held when a snapshot was taken. Its capacity is to be told before.
    pub fn restore(&self, recalled: &Recalled, of: WorkerId, worker: WorkerId) -> Result<(), IndexError> {
        self.learn(recalled, of, worker, || true)
    }

    /// A worker holds, beside what is presumed of it, what `of` held when a snapshot was taken, as far as it is not too old and fits: each
    /// use at its own time, so that what is known here is neither older nor younger afterwards, and nothing lives longer because it is
    /// told. `goes_on` is asked before each of them: whether it is still that worker.
    pub fn learn(
        &self,
        recalled: &Recalled,
        of: WorkerId,
        worker: WorkerId,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<(), IndexError> {
        let Recalled { snapshot, now, away } = recalled;
        let (mut digests, mut sizes, mut after) = (Vec::new(), Vec::new(), 0);
        let (seat, ttl) = {
            let writer = self.writer.lock();
            (self.seat(worker)?, writer.ttl())
        };
        for one in snapshot.uses_of(of.0) {
            let age = Micros(one.age.0.saturating_add(away.0));
            if age >= ttl {
                continue;
            }
            if !goes_on() {
                break;
            }
            let root = snapshot.chain(one, &mut digests, &mut sizes);
            let past = Past { worker: seat, root, at: Micros(now.0.saturating_sub(age.0)), after };
            after = self.writer.lock().recall(past, Links { digests: &digests, sizes: &sizes });
        }
        Ok(())
    }

    /// An engine found only `keep_tokens` of this prompt in its cache: cuts the worker's view there, with everything
    /// that continues it.
    pub fn cut(&self, worker: WorkerId, root: RootKey, prompt: Prompt<'_>, keep_tokens: u32) {
        if let Some(seat) = self.seats.find(worker) {
            self.cut_seat(seat, root, prompt, keep_tokens, None);
        }
    }

    /// Like [`Index::cut`], but leaves the spans that `spared_by` holds too. For reported roots: there a hole may be.
    pub fn cut_unless(
        &self,
        worker: WorkerId,
        root: RootKey,
        prompt: Prompt<'_>,
        keep_tokens: u32,
        spared_by: WorkerId,
    ) -> Result<(), IndexError> {
        expect_source(root, Source::Reported)?;
        if let Some(seat) = self.seats.find(worker) {
            self.cut_seat(seat, root, prompt, keep_tokens, self.seats.find(spared_by));
        }
        Ok(())
    }

    fn cut_seat(
        &self,
        seat: u16,
        root: RootKey,
        prompt: Prompt<'_>,
        keep_tokens: u32,
        spared_by: Option<u16>,
    ) {
        let mut writer = self.writer.lock();
        let mut cut = writer.cut(&self.digester, root, prompt, keep_tokens);
        while !cut.is_over() {
            writer.cut_some(seat, root.source(), &mut cut, spared_by);
            if !cut.is_over() {
                MutexGuard::bump(&mut writer);
            }
        }
    }

    /// Evicts what is presumed and too old, and frees what waits to be freed. To be called every now and then.
    pub fn expire(&self, now: Micros) {
        let mut writer = self.writer.lock();
        while writer.expire(now) == Work::Left {
            MutexGuard::bump(&mut writer);
        }
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

    /// The worker's seat; from now on lookups look for it. The caller holds the writer's lock.
    fn seat(&self, worker: WorkerId) -> Result<u16, IndexError> {
        self.seats.take(worker).ok_or(IndexError::NoSuchSeat(worker))
    }
}

fn expect_source(root: RootKey, source: Source) -> Result<(), IndexError> {
    if root.source() == source { Ok(()) } else { Err(IndexError::OtherSource) }
}
