//! One worker's feed among several routers: which process sends it, and what each router has received.
//!
//! Some feeds have one listener: a reporter posts to one router, an engine connects to one router. That router relays
//! the batches with their numbers, and its peers apply them as their own. So a stream has a *source*, a number for
//! the sending process: two batches of one source with one number are the same, whichever router relays them, in any
//! order.

use warmroute_types::{EventBatch, Micros};

use crate::config::Config;
use crate::feed::Feed;
use crate::state::Doubt;
use crate::step::{Extent, Moment, ReplayEnd, Step};

/// A post up to this far ahead may have been overtaken; one further ahead has lost its predecessors.
const WINDOW: u64 = 64;

/// How a batch relates to the batches before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It continues them.
    Next,
    /// It begins a new stream: nothing before it counts.
    Begins,
}

/// The identity of a batch, the same for all routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchId {
    /// The sending process.
    pub source: u64,
    /// The batch's sequence number.
    pub seq: u64,
    /// Whether it continues or begins the stream.
    pub arrival: Arrival,
}

/// Which router received the last batch from the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HeardBy {
    #[default]
    ThisRouter,
    Peer,
}

/// A feed and its source.
#[derive(Debug)]
pub struct Stream {
    /// The feed.
    pub feed: Feed,
    source: u64,
    previous_source: u64,
    heard_by: HeardBy,
    /// The number up to which peers have received the stream.
    peer_next: u64,
    history: History,
}

/// Whether everything is known that this process sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum History {
    #[default]
    Complete,
    /// A peer received the beginning and has not sent it yet: what is known is true, but incomplete.
    Partial,
}

impl Stream {
    /// A stream that has received nothing.
    pub fn new(config: Config) -> Stream {
        Stream {
            feed: Feed::new(config),
            source: 0,
            previous_source: 0,
            heard_by: HeardBy::ThisRouter,
            peer_next: 0,
            history: History::Complete,
        }
    }

    /// The sending process; 0 where none has sent, or where every router listens itself.
    pub fn source(&self) -> u64 {
        self.source
    }

    /// The process before it.
    pub fn previous_source(&self) -> u64 {
        self.previous_source
    }

    /// Whether a peer receives the stream and relays it.
    pub fn is_relayed(&self) -> bool {
        self.heard_by == HeardBy::Peer && self.feed.is_up()
    }

    /// How far everything known is true, for peers to continue from.
    pub fn extent(&self) -> Option<(u64, Extent)> {
        let extent = self.feed.extent().filter(|_| self.history == History::Complete)?;
        Some((self.source, extent))
    }

    /// Handles a reporter's post. Returns how to relay it, or the number that is expected instead.
    pub fn posted(
        &mut self,
        post: BatchId,
        batch: EventBatch,
        peers: PeerPresence,
        at: Moment,
        steps: &mut Vec<Step>,
    ) -> Result<Option<Arrival>, u64> {
        let BatchId { source, seq, arrival } = post;
        let is_known = self.source == source;
        let next = self.feed.counters().next_seq.filter(|_| is_known);
        let has_lost = self.is_incomplete();
        let is_awaited = is_known && peers == PeerPresence::Present && self.feed.is_up();
        match next {
            _ if arrival == Arrival::Begins => self.begin(source, seq, batch, at, steps),
            Some(next) if seq < next => return Ok(None),
            // No router has the missing batches: only a snapshot repairs the stream.
            Some(_) if has_lost => return Err(0),
            Some(next) if seq == next => self.continue_with(seq, batch, at, steps),
            Some(next) if is_awaited && seq - next <= WINDOW => self.continue_with(seq, batch, at, steps),
            Some(expected) => return Err(expected),
            None if seq == 0 => self.begin(source, seq, batch, at, steps),
            // A peer is being asked for everything before.
            None if is_awaited && self.feed.is_awaiting_replay() => self.continue_with(seq, batch, at, steps),
            None => return Err(0),
        }
        self.heard_by = HeardBy::ThisRouter;
        let begins = arrival == Arrival::Begins || seq == 0;
        Ok(Some(if begins { Arrival::Begins } else { Arrival::Next }))
    }

    fn continue_with(&mut self, seq: u64, batch: EventBatch, at: Moment, steps: &mut Vec<Step>) {
        self.feed.received_live(seq, batch, at, steps);
    }

    /// The driver knows that a new process sends the stream, and it alone receives it. The next batch identifies the
    /// process.
    pub fn restarted(&mut self, now: Micros, steps: &mut Vec<Step>) {
        self.feed.restarted(now, steps);
        self.set_source(0);
    }

    /// Handles a live batch of an engine that only this router receives. Returns the source; 0 while it is unknown.
    pub fn received(&mut self, seq: u64, batch: EventBatch, at: Moment, steps: &mut Vec<Step>) -> u64 {
        let (restarts, print) = (self.feed.counters().restarts, batch.print.max(1));
        self.feed.received_live(seq, batch, at, steps);
        let is_unknown = self.source == 0 && !self.feed.is_awaiting_replay();
        if is_unknown || self.feed.counters().restarts != restarts {
            // Engines do not identify themselves: the first batch of a process identifies it, unless peers may know
            // the process.
            self.set_source(print);
        }
        self.heard_by = HeardBy::ThisRouter;
        self.source
    }

    /// Handles a batch that a peer received. A known batch changes nothing.
    pub fn relayed(&mut self, which: BatchId, events: EventBatch, at: Moment, steps: &mut Vec<Step>) {
        let BatchId { source, seq, arrival } = which;
        let next = self.feed.counters().next_seq;
        let is_known = source == self.source && next.is_some_and(|next| seq < next);
        let is_previous = source != self.source && self.is_previous(source, events.at_unix_s);
        if is_known || is_previous {
            return;
        }
        match source == self.source {
            _ if arrival == Arrival::Begins => self.begin(source, seq, events, at, steps),
            true => {
                self.reconnect(at.now, steps);
                self.feed.received_live(seq, events, at, steps);
            }
            false => {
                self.request_beginning(source, at.now, steps);
                self.feed.received_live(seq, events, at, steps);
            }
        }
        self.heard_by = HeardBy::Peer;
    }

    /// A peer has received everything before `next`; the engine's clock said `at_unix_ms` at the last of it.
    pub fn reached(&mut self, source: u64, next: u64, at_unix_ms: u64, now: Micros, steps: &mut Vec<Step>) {
        let known = self.feed.counters().next_seq;
        match source {
            0 => return,
            _ if source == self.source && known.is_some_and(|known| known > next) => return,
            _ if source == self.source && self.is_incomplete() => self.feed.request_everything(steps),
            _ if source == self.source && known == Some(next) => {}
            _ if source == self.source && self.feed.is_up() => self.feed.request_missing(steps),
            _ if source == self.source => self.reconnect(now, steps),
            _ if self.source != 0 && at_unix_ms <= self.at_unix_ms() => return,
            _ => self.request_beginning(source, now, steps),
        }
        if source == self.source && known.is_none_or(|known| known < next) {
            (self.heard_by, self.peer_next) = (HeardBy::Peer, self.peer_next.max(next));
        }
    }

    /// Whether the requested batches have arrived by other ways.
    pub fn has_caught_up(&self) -> bool {
        self.feed.is_filled() && self.feed.counters().next_seq.is_some_and(|next| next >= self.peer_next)
    }

    /// The engine's clock at the last known batch.
    pub fn at_unix_ms(&self) -> u64 {
        (self.feed.at_unix_s() * 1e3) as u64
    }

    /// Handles a peer's complete state, in reply to a request.
    pub fn restored(&mut self, source: u64, seq: u64, batch: EventBatch, now: Micros, steps: &mut Vec<Step>) {
        if self.source != 0 && source != self.source {
            // The request concerned an earlier process.
            return self.feed.replay_ended(ReplayEnd::Failed, now, steps);
        }
        self.set_source(source);
        if self.feed.restored(seq, batch, now, steps) {
            self.history = History::Complete;
        }
    }

    /// The same, where the peer has the batches themselves.
    pub fn replayed(&mut self, which: BatchId, events: EventBatch, at: Moment, steps: &mut Vec<Step>) {
        let BatchId { source, seq, arrival } = which;
        if source != self.source {
            return;
        }
        match arrival {
            Arrival::Begins if self.feed.counters().next_seq.is_none_or(|next| seq >= next) => {
                self.begin(source, seq, events, at, steps);
            }
            // An earlier batch began a new stream, which ended the request.
            _ if !self.feed.is_awaiting_replay() => self.relayed(which, events, at, steps),
            _ => self.feed.replayed(seq, events, at.now, steps),
        }
    }

    /// Whether only a peer or the source itself can complete the stream.
    fn is_incomplete(&self) -> bool {
        self.feed.doubt() == Some(Doubt::Lost) || self.history == History::Partial
    }

    /// A new process or a snapshot of its own: what was known is forgotten, and the stream begins here.
    fn begin(&mut self, source: u64, seq: u64, batch: EventBatch, at: Moment, steps: &mut Vec<Step>) {
        match self.source {
            0 => self.feed.begin(at.now, steps),
            same if same == source => {
                steps.push(Step::Forget);
                self.feed.begin(at.now, steps);
            }
            _ => self.feed.restarted(at.now, steps),
        }
        self.set_source(source);
        self.history = History::Complete;
        self.feed.replayed(seq, batch, at.now, steps);
        self.feed.replay_ended(ReplayEnd::Complete, at.now, steps);
        // The beginning is in this batch, so no replay is needed.
        steps.retain(|step| !matches!(step, Step::AskReplay { .. }));
    }

    /// A peer has received a new process from its beginning: asks that peer for everything before.
    fn request_beginning(&mut self, source: u64, now: Micros, steps: &mut Vec<Step>) {
        match self.source {
            0 => self.feed.begin(now, steps),
            _ => self.feed.restarted(now, steps),
        }
        self.set_source(source);
        self.history = History::Partial;
    }

    /// The stream was lost here, and a peer receives it.
    fn reconnect(&mut self, now: Micros, steps: &mut Vec<Step>) {
        if !self.feed.is_up() {
            self.feed.connected(now, steps);
        }
    }

    /// Whether `source` came before the present process. The engine's clock decides; without one, a source is old if
    /// it was the previous one.
    fn is_previous(&self, source: u64, at_unix_s: f64) -> bool {
        if at_unix_s > 0.0 { at_unix_s < self.feed.at_unix_s() } else { source == self.previous_source }
    }

    fn set_source(&mut self, source: u64) {
        if self.source != source {
            let before = std::mem::replace(&mut self.source, source);
            if before != 0 {
                self.previous_source = before;
            }
            (self.peer_next, self.history) = (0, History::Complete);
        }
    }
}

/// Whether peers may have received what this router has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerPresence {
    /// There are peers.
    Present,
    /// Peers may exist: it is too early to tell.
    Unknown,
    /// There are no peers.
    Absent,
}
