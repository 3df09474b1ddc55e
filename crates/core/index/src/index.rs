//! The public interface of the index.
//!
//! Readers take no lock. Writers take one lock for a bounded time: an operation that may touch many spans (a clear, a
//! cut, a long chain, an expiry) runs in pieces, and waiting writers run in between. Other callers therefore see such
//! an operation half done, node by node. Callers must put operations on one holder in order themselves.
//!
//! Presumptions never wait for the lock: the thread that holds it applies them (`pending.rs`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use warmroute_types::Micros;

use crate::chain::ChainSlice;
use crate::children::Children;
use crate::config::{Config, IndexError};
use crate::digest::Digester;
use crate::holder_bits::{HOLDERS_MAX, HolderBits, HolderPosition};
use crate::holder_id::HolderId;
use crate::lookup::LookupContext;
use crate::node::Pinned;
use crate::operation::{Parent, Prompt, Removed, Stored};
use crate::overlap::Overlaps;
use crate::pending::{Operation, PresumedPrompt};
use crate::prefix_heads::{HeadSurvey, PrefixHead, Survey};
use crate::presumed::{PastUse, Work};
use crate::root::{RootKey, Source};
use crate::snapshot::{BoundedSnapshot, Snapshot, SnapshotBuilder};
use crate::span::{NamedSpan, Span};
use crate::stats::Stats;
use crate::table_hash::TableHash;
use crate::writer::{NODES_A_HOLD, SPANS_A_HOLD, Writer};
use crate::writer_lock::{WriterGuard, WriterLock};

/// A presumption that is not confirmed or withdrawn yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a presumption that is neither confirmed nor withdrawn is believed until it ages"]
pub struct Presumption(u64);

/// A snapshot that is being merged into an index.
#[derive(Debug)]
pub struct PendingRestore {
    snapshot: Snapshot,
    now: Micros,
    away: Micros,
}

/// The index: which holder holds which prefix.
pub struct Index {
    children: Arc<Children>,
    holder_bits: Arc<HolderBits>,
    path_overflows: AtomicU64,
    digester: Digester,
    table_hash: TableHash,
    writer: WriterLock,
    long_work: OnceLock<LongWork>,
}

/// Runs work of milliseconds.
pub type LongWork = fn(&mut dyn FnMut());

impl Index {
    /// An empty index. Limits that [`Config::validate`] rejects are applied as far as possible.
    pub fn new(config: &Config) -> Index {
        let table_hash = TableHash::new(config.table_seed);
        let children = Arc::new(Children::new(table_hash));
        let holder_bits = Arc::new(HolderBits::new());
        let writer = Writer::new(Arc::clone(&children), Arc::clone(&holder_bits), config);
        Index {
            holder_bits,
            path_overflows: AtomicU64::new(0),
            digester: Digester::new(config.hash, config.seed),
            table_hash,
            writer: WriterLock::new(writer),
            children,
            long_work: OnceLock::new(),
        }
    }

    /// Has work of milliseconds, such as clearing a large cache, done by `run`: a thread that serves sockets hands its other
    /// tasks over first. Only the first call counts.
    pub fn run_long_work_with(&self, run: LongWork) {
        self.long_work.get_or_init(|| run);
    }

    /// Does all of an operation, piece by piece. Others that wait for the lock go first between its pieces.
    fn finish(&self, mut writer: WriterGuard<'_>, mut piece: impl FnMut(&mut WriterGuard<'_>) -> Work) {
        if piece(&mut writer) == Work::Done {
            return;
        }
        let mut rest = || {
            writer.pass_on();
            while piece(&mut writer) == Work::Left {
                writer.pass_on();
            }
        };
        match self.long_work.get() {
            Some(run) => run(&mut rest),
            None => rest(),
        }
    }

    /// The keyed hash of this index's tables, for callers' own tables of block names.
    pub fn table_hash(&self) -> TableHash {
        self.table_hash
    }

    /// The digester for spans under roots that are looked up by bytes.
    pub fn digester(&self) -> &Digester {
        &self.digester
    }

    /// Writes to `out` how far from its start each holder holds the prompt. Takes no lock except while presumptions wait for a writer, and allocates nothing once
    /// `out` has grown. During a concurrent write, each node of up to 64 spans is seen before or after the change.
    pub fn lookup(&self, root: RootKey, prompt: Prompt<'_>, out: &mut Overlaps) {
        out.begin();
        // Before the walk: a presumption that is applied meanwhile is found by the walk, one that still waits here.
        self.writer.pending.find(root, prompt, out);
        let guard = crossbeam_epoch::pin();
        let context = LookupContext {
            children: &self.children,
            digester: &self.digester,
            holder_bits: &self.holder_bits,
            pinned: Pinned::by(&guard),
        };
        context.lookup(root.digest(), prompt, out);
        out.join_pending();
        if out.overflows() > 0 {
            self.path_overflows.fetch_add(out.overflows().into(), Ordering::Relaxed);
        }
    }

    /// Stores a chain of spans that a holder reported after `parent`. A chain with an unknown parent waits for it.
    pub fn store(&self, holder: HolderId, parent: Parent, spans: &[NamedSpan]) -> Result<Stored, IndexError> {
        if let Parent::Root(root) = parent {
            expect_source(root, Source::Reported)?;
        }
        let mut writer = self.writer.lock();
        let position = self.assign_position(holder)?;
        let mut all = Stored::default();
        let mut grafts = Vec::new();
        let mut after = parent;
        for (at, piece) in spans.chunks(SPANS_A_HOLD).enumerate() {
            while writer.make_room_for(piece.len()) == Work::Left {
                writer.pass_on();
            }
            let stored = writer.store(position, after, piece, &mut grafts);
            all.placed += stored.placed;
            all.parked += stored.parked;
            if stored.refused > 0 {
                all.refused = spans.len() - all.placed - all.parked;
                writer.refuse(spans.len() - at * SPANS_A_HOLD - piece.len());
                break;
            }
            after = piece.last().map_or(after, |last| Parent::Name(last.name));
            if all.placed + all.parked < spans.len() {
                writer.pass_on();
            }
        }
        all.grafted = self.graft(&mut writer, position, grafts);
        Ok(all)
    }

    /// Inserts the chains of a holder that wait for these names.
    fn graft(&self, writer: &mut WriterGuard<'_>, position: HolderPosition, mut names: Vec<u64>) -> usize {
        let mut grafted = 0;
        names.reverse();
        while !names.is_empty() {
            grafted += writer.graft(position, &mut names);
            if !names.is_empty() {
                writer.pass_on();
            }
        }
        grafted
    }

    /// Removes spans that a holder reported as removed: each name once.
    pub fn remove(&self, holder: HolderId, names: &[u64]) -> Removed {
        let Some(position) = self.holder_bits.find(holder) else {
            return Removed { known: 0, unknown: names.len() };
        };
        let known = self.in_pieces(names, |writer, piece| writer.remove(position, piece));
        Removed { known, unknown: names.len() - known }
    }

    /// Applies a change to all names, in pieces. Waiting writers run in between.
    fn in_pieces(&self, names: &[u64], mut change: impl FnMut(&mut Writer, &[u64]) -> usize) -> usize {
        let mut writer = self.writer.lock();
        let mut changed = 0;
        for piece in names.chunks(SPANS_A_HOLD) {
            changed += change(&mut writer, piece);
            writer.pass_on();
        }
        changed
    }

    /// Gives the spans of a prompt that `from` holds to `to` as well: from the start, without a hole, up to
    /// `upto_tokens`. Both then hold them under the same names with the same counts, so a removal applies to both.
    /// Chains of `to` that waited for these names are inserted. Returns the number of spans that `to` did not hold
    /// before. For reported roots.
    pub fn copy_prefix(
        &self,
        from: HolderId,
        to: HolderId,
        root: RootKey,
        prompt: Prompt<'_>,
        upto_tokens: u32,
    ) -> Result<usize, IndexError> {
        expect_source(root, Source::Reported)?;
        let mut writer = self.writer.lock();
        let (to, from) = (self.assign_position(to)?, self.holder_bits.find(from));
        let Some(from) = from.filter(|&from| from != to) else { return Ok(0) };
        let nodes = writer.held_by(&self.digester, from, root, prompt, upto_tokens);
        let (mut copied, mut grafts) = (0, Vec::new());
        for piece in nodes.chunks(NODES_A_HOLD / 2) {
            copied += writer.copy_prefix(from, to, piece, &mut grafts);
            writer.pass_on();
        }
        self.graft(&mut writer, to, grafts);
        Ok(copied)
    }

    /// Replaces what `to` holds by a copy of what `from` holds and has waiting, with the same names and counts.
    /// Returns the number of spans. Runs in pieces; the caller must not change either holder meanwhile.
    pub fn copy_all(&self, from: HolderId, to: HolderId) -> Result<usize, IndexError> {
        if from == to {
            return Ok(0);
        }
        self.clear(to);
        let mut writer = self.writer.lock();
        let (to, from) = (self.assign_position(to)?, self.holder_bits.find(from));
        let Some(from) = from else { return Ok(0) };
        let mut copied = 0;
        // Last partition first: a concurrent removal may join the last partition with one that is still to come.
        for part in (0..writer.reported.partitions_of(from)).rev() {
            let nodes = writer.nodes_in_partition(from, part);
            for piece in nodes.chunks(NODES_A_HOLD / 2) {
                copied += writer.copy_prefix(from, to, piece, &mut Vec::new());
                writer.pass_on();
            }
        }
        writer.reported.orphans.copy(from, to);
        Ok(copied)
    }

    /// Counts spans once more that a holder reported again by name only. Returns how many of the names the holder
    /// holds or has waiting; other names are ignored.
    pub fn store_by_name(&self, holder: HolderId, names: &[u64]) -> usize {
        let Some(position) = self.holder_bits.find(holder) else { return 0 };
        self.in_pieces(names, |writer, piece| writer.store_by_name(position, piece))
    }

    /// Whether a holder holds any of these names or has it waiting.
    pub fn knows_any(&self, holder: HolderId, names: &[u64]) -> bool {
        let Some(position) = self.holder_bits.find(holder) else { return false };
        names.chunks(SPANS_A_HOLD).any(|piece| self.writer.lock().knows_any(position, piece))
    }

    /// Removes everything that one holder holds, reported and presumed. Its capacity stays.
    pub fn clear(&self, holder: HolderId) {
        let Some(position) = self.holder_bits.find(holder) else { return };
        let writer = self.writer.lock();
        let horizon = writer.presumed.horizon();
        self.finish(writer, |writer| writer.clear_some(position, horizon));
    }

    /// Removes what one holder is presumed to hold, and keeps what it reported.
    pub fn clear_presumed(&self, holder: HolderId) {
        let Some(position) = self.holder_bits.find(holder) else { return };
        let writer = self.writer.lock();
        let horizon = writer.presumed.horizon();
        self.finish(writer, |writer| writer.clear_presumed_some(position, horizon));
    }

    /// Presumes that a holder will hold a prompt that is being sent to it. Lookups see it at once. A presumption
    /// evicts nothing that an unanswered request uses, and nothing for the sake of the holder's capacity.
    pub fn presume(
        &self,
        holder: HolderId,
        root: RootKey,
        spans: &[Span],
        now: Micros,
    ) -> Result<Presumption, IndexError> {
        let presumption = self.presume_later(holder, root, &Arc::new(spans.to_vec()), now);
        self.apply_pending();
        presumption
    }

    /// Like [`Index::presume`], but leaves the work to [`Index::apply_pending`], which the caller calls afterwards: it
    /// waits for no other writer and allocates nothing. Lookups see the presumption at once.
    pub fn presume_later(
        &self,
        holder: HolderId,
        root: RootKey,
        spans: &Arc<Vec<Span>>,
        now: Micros,
    ) -> Result<Presumption, IndexError> {
        expect_source(root, Source::Presumed)?;
        if holder.index() >= HOLDERS_MAX {
            return Err(IndexError::HolderIdTooLarge(holder));
        }
        let prompt = PresumedPrompt { holder, root, spans: Arc::clone(spans), now };
        Ok(Presumption(self.writer.presume(prompt)))
    }

    /// Applies presumptions that were left for later, unless another thread is writing: that thread applies them.
    pub fn apply_pending(&self) {
        self.writer.apply_pending();
    }

    /// Confirms a presumption after the first token: it counts until it expires. Spans beyond the holder's capacity
    /// are evicted, least recently used first. Waits for no other writer.
    pub fn confirm(&self, presumption: Presumption) {
        self.writer.settle(Operation::Confirm(presumption.0));
    }

    /// Withdraws a presumption because the request failed before its first token. Spans that only it held are
    /// removed. Waits for no other writer.
    pub fn withdraw(&self, presumption: Presumption) {
        self.writer.settle(Operation::Withdraw(presumption.0));
    }

    /// Runs `work` while the writer lock is held, to show what does not wait for it.
    #[doc(hidden)]
    pub fn while_writing<T>(&self, work: impl FnOnce() -> T) -> T {
        let _writer = self.writer.lock();
        work()
    }

    /// Sets a holder's cache capacity in tokens. Presumed spans beyond it are evicted, least recently used first.
    pub fn set_capacity(&self, holder: HolderId, tokens: u64) -> Result<(), IndexError> {
        let mut writer = self.writer.lock();
        let position = self.assign_position(holder)?;
        writer.presumed.set_capacity(position, tokens);
        self.finish(writer, |writer| writer.fit(position));
        Ok(())
    }

    /// The cache capacity of a holder, in tokens.
    pub fn capacity_tokens(&self, holder: HolderId) -> u64 {
        let position = self.holder_bits.find(holder);
        let writer = self.writer.lock();
        writer.presumed.capacity_tokens(position)
    }

    /// Tokens that a holder is presumed to hold, including those of unanswered requests.
    pub fn presumed_tokens(&self, holder: HolderId) -> u64 {
        self.holder_bits.find(holder).map_or(0, |position| self.writer.lock().presumed.tokens(position))
    }

    /// All presumed spans of answered requests, for another index with the same digester.
    pub fn snapshot(&self, now: Micros) -> Snapshot {
        self.snapshot_newest(now, usize::MAX).snapshot
    }

    /// The most recently used of them, up to about `bytes_max` encoded bytes.
    pub fn snapshot_newest(&self, now: Micros, bytes_max: usize) -> BoundedSnapshot {
        let (mut builder, mut from) = (SnapshotBuilder::new(bytes_max), Some(u64::MAX));
        while let Some(id) = from {
            from = self.writer.lock().save_some(id, now, &mut builder);
        }
        builder.finish()
    }

    /// Prepares a snapshot that was taken `away` before `now`. [`Index::restore`] then restores its holders one by
    /// one.
    pub fn begin_restore(&self, snapshot: Snapshot, now: Micros, away: Micros) -> PendingRestore {
        PendingRestore { snapshot, now, away }
    }

    /// Gives a holder what `saved_id` held in the snapshot. Set the holder's capacity first.
    pub fn restore(
        &self,
        pending: &PendingRestore,
        saved_id: HolderId,
        holder: HolderId,
    ) -> Result<(), IndexError> {
        self.merge(pending, saved_id, holder, || true)
    }

    /// Adds what `saved_id` held in the snapshot to what a holder is presumed to hold, as far as it fits and has not
    /// expired. Each use keeps its own time, so merging makes nothing older or younger. `goes_on` is called before
    /// each use and stops the merge when it returns false, for a holder that has left meanwhile.
    pub fn merge(
        &self,
        pending: &PendingRestore,
        saved_id: HolderId,
        holder: HolderId,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<(), IndexError> {
        let PendingRestore { snapshot, now, away } = pending;
        let (mut digests, mut sizes, mut after) = (Vec::new(), Vec::new(), 0);
        let (position, ttl) = {
            let writer = self.writer.lock();
            (self.assign_position(holder)?, writer.ttl())
        };
        for one in snapshot.uses_of(saved_id) {
            let age = Micros(one.age.0.saturating_add(away.0));
            if age >= ttl {
                continue;
            }
            if !goes_on() {
                break;
            }
            let root = snapshot.chain(one, &mut digests, &mut sizes);
            let past = PastUse { holder: position, root, at: Micros(now.0.saturating_sub(age.0)), after };
            after = self.writer.lock().add_past_use(past, ChainSlice { digests: &digests, sizes: &sizes });
        }
        Ok(())
    }

    /// Corrects a holder's view after an engine found only `keep_tokens` of the prompt cached: removes the rest of
    /// the prompt and everything that continues it.
    pub fn cut(&self, holder: HolderId, root: RootKey, prompt: Prompt<'_>, keep_tokens: u32) {
        if let Some(position) = self.holder_bits.find(holder) {
            self.cut_position(position, root, prompt, keep_tokens, None);
        }
    }

    /// Like [`Index::cut`], but keeps the spans that `spared_by` holds too. For reported roots, where holes are
    /// possible.
    pub fn cut_unless(
        &self,
        holder: HolderId,
        root: RootKey,
        prompt: Prompt<'_>,
        keep_tokens: u32,
        spared_by: HolderId,
    ) -> Result<(), IndexError> {
        expect_source(root, Source::Reported)?;
        if let Some(position) = self.holder_bits.find(holder) {
            self.cut_position(position, root, prompt, keep_tokens, self.holder_bits.find(spared_by));
        }
        Ok(())
    }

    fn cut_position(
        &self,
        position: HolderPosition,
        root: RootKey,
        prompt: Prompt<'_>,
        keep_tokens: u32,
        spared_by: Option<HolderPosition>,
    ) {
        let mut writer = self.writer.lock();
        let mut cut = writer.cut(&self.digester, root, prompt, keep_tokens);
        while !cut.is_empty() {
            writer.cut_some(position, root.source(), &mut cut, spared_by);
            if !cut.is_empty() {
                writer.pass_on();
            }
        }
    }

    /// Evicts expired presumed spans and frees retired memory. Call it periodically.
    pub fn expire(&self, now: Micros) {
        self.finish(self.writer.lock(), |writer| writer.expire(now));
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.writer.lock().bytes().total()
    }

    /// The largest beginnings of prompts and their holders, largest first. The cost is bounded and does not grow with
    /// the index; of a large one, sizes are estimates.
    pub fn prefix_heads(&self, count_max: usize) -> Vec<PrefixHead> {
        let mut survey = HeadSurvey::default();
        let mut writer = self.writer.lock();
        while survey.go_on(&mut writer.tree) == Survey::Goes {
            writer.pass_on();
        }
        let found = survey.finish(&mut writer.tree, count_max);
        drop(writer);
        let name = |(head, positions): (PrefixHead, Vec<HolderPosition>)| {
            let mut holders: Vec<HolderId> =
                positions.into_iter().map(|position| self.holder_bits.holder(position)).collect();
            holders.sort_unstable();
            PrefixHead { holders, ..head }
        };
        found.into_iter().map(name).collect()
    }

    /// Counts and sizes for metrics.
    pub fn stats(&self) -> Stats {
        let path_overflows = self.path_overflows.load(Ordering::Relaxed);
        Stats { path_overflows, ..self.writer.lock().stats() }
    }

    /// The holder's bit position, assigned on first use. The caller holds the writer's lock.
    fn assign_position(&self, holder: HolderId) -> Result<HolderPosition, IndexError> {
        self.holder_bits.take(holder).ok_or(IndexError::HolderIdTooLarge(holder))
    }
}

fn expect_source(root: RootKey, source: Source) -> Result<(), IndexError> {
    if root.source() == source { Ok(()) } else { Err(IndexError::OtherSource) }
}
