//! One worker's feed among several routers: who speaks in it, and what each router has heard of it.
//!
//! Some feeds have one listener: a reporter posts to one router, an engine connects to one. That router passes on what it hears, with
//! its numbers, and the others take it as if they had heard it themselves. So a stream has a *source*, a number for the process that
//! speaks: two batches of one source with one number are the same, whoever brings them, and in whatever order.

use warmroute_types::{EventBatch, Micros};

use crate::config::Config;
use crate::feed::Feed;
use crate::state::Doubt;
use crate::step::{Extent, Moment, ReplayEnd, Step};

/// A post that is so far ahead may have been overtaken; one that is further has lost its predecessors.
const WINDOW: u64 = 64;

/// How a batch stands to what was before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the next one.
    Next,
    /// Nothing before it counts.
    Begins,
}

/// Which batch it is, for all routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// The process that speaks.
    pub source: u64,
    /// Its number.
    pub seq: u64,
    /// How it stands to what was before.
    pub arrival: Arrival,
}

/// By whom the last batch was heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Heard {
    #[default]
    Here,
    Elsewhere,
}

/// A feed, and who speaks in it.
#[derive(Debug)]
pub struct Stream {
    /// What is made of it.
    pub feed: Feed,
    source: u64,
    former: u64,
    heard: Heard,
    /// Up to where others have heard it.
    goal: u64,
    beginning: Beginning,
}

/// Whether all is known that was told of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Beginning {
    #[default]
    Known,
    /// Others have heard it, and none of them has told yet: what is known is true, and too little.
    Missed,
}

impl Stream {
    /// A stream in which nobody has spoken.
    pub fn new(config: Config) -> Stream {
        Stream {
            feed: Feed::new(config),
            source: 0,
            former: 0,
            heard: Heard::Here,
            goal: 0,
            beginning: Beginning::Known,
        }
    }

    /// The process that speaks; 0 where nobody has, or where every router listens itself.
    pub fn source(&self) -> u64 {
        self.source
    }

    /// The one before it.
    pub fn former(&self) -> u64 {
        self.former
    }

    /// Whether others hear it for us.
    pub fn is_relayed(&self) -> bool {
        self.heard == Heard::Elsewhere && self.feed.is_up()
    }

    /// Up to where all that is known is true, for others to go on from.
    pub fn extent(&self) -> Option<(u64, Extent)> {
        let extent = self.feed.extent().filter(|_| self.beginning == Beginning::Known)?;
        Some((self.source, extent))
    }

    /// A post of a reporter: what there is to pass on, or the number that is expected instead.
    pub fn posted(
        &mut self,
        post: Numbered,
        batch: EventBatch,
        others: Others,
        at: Moment,
        steps: &mut Vec<Step>,
    ) -> Result<Option<Arrival>, u64> {
        let Numbered { source, seq, arrival } = post;
        let is_known = self.source == source;
        let next = self.feed.counters().next_seq.filter(|_| is_known);
        let has_lost = self.lacks_something();
        let is_awaited = is_known && others == Others::Are && self.feed.is_up();
        match next {
            _ if arrival == Arrival::Begins => self.begin(source, seq, batch, at, steps),
            Some(next) if seq < next => return Ok(None),
            // Nobody has what is missing: only a snapshot mends it.
            Some(_) if has_lost => return Err(0),
            Some(next) if seq == next => self.go_on(seq, batch, at, steps),
            Some(next) if is_awaited && seq - next <= WINDOW => self.go_on(seq, batch, at, steps),
            Some(expected) => return Err(expected),
            None if seq == 0 => self.begin(source, seq, batch, at, steps),
            // Another router is being asked for all that was before.
            None if is_awaited && self.feed.is_asking() => self.go_on(seq, batch, at, steps),
            None => return Err(0),
        }
        self.heard = Heard::Here;
        let begins = arrival == Arrival::Begins || seq == 0;
        Ok(Some(if begins { Arrival::Begins } else { Arrival::Next }))
    }

    fn go_on(&mut self, seq: u64, batch: EventBatch, at: Moment, steps: &mut Vec<Step>) {
        self.feed.heard(seq, batch, at, steps);
    }

    /// The driver knows that another process speaks, and hears it alone: its next batch names it.
    pub fn restarted(&mut self, now: Micros, steps: &mut Vec<Step>) {
        self.feed.restarted(now, steps);
        self.succeed(0);
    }

    /// A live batch of an engine that nobody else hears. Who it turns out to be; 0 while that is not known.
    pub fn received(&mut self, seq: u64, batch: EventBatch, at: Moment, steps: &mut Vec<Step>) -> u64 {
        let (restarts, print) = (self.feed.counters().restarts, batch.print.max(1));
        self.feed.heard(seq, batch, at, steps);
        let is_nobody = self.source == 0 && !self.feed.is_asking();
        if is_nobody || self.feed.counters().restarts != restarts {
            // Engines do not say who they are: the first batch that was heard of a process names it, unless others may know it.
            self.succeed(print);
        }
        self.heard = Heard::Here;
        self.source
    }

    /// What another router has heard. One that is known already changes nothing.
    pub fn relayed(&mut self, which: Numbered, events: EventBatch, at: Moment, steps: &mut Vec<Step>) {
        let Numbered { source, seq, arrival } = which;
        let next = self.feed.counters().next_seq;
        let is_known = source == self.source && next.is_some_and(|next| seq < next);
        let is_past = source != self.source && self.is_past(source, events.at_unix_s);
        if is_known || is_past {
            return;
        }
        match source == self.source {
            _ if arrival == Arrival::Begins => self.begin(source, seq, events, at, steps),
            true => {
                self.look_up(at.now, steps);
                self.feed.heard(seq, events, at, steps);
            }
            false => {
                self.catch_up(source, at.now, steps);
                self.feed.heard(seq, events, at, steps);
            }
        }
        self.heard = Heard::Elsewhere;
    }

    /// Another router has heard all before this number; the last of it was told at this moment, by the engine's clock.
    pub fn reached(&mut self, source: u64, next: u64, at_unix_ms: u64, now: Micros, steps: &mut Vec<Step>) {
        let known = self.feed.counters().next_seq;
        match source {
            0 => return,
            _ if source == self.source && known.is_some_and(|known| known > next) => return,
            _ if source == self.source && self.lacks_something() => self.feed.mend(steps),
            _ if source == self.source && known == Some(next) => {}
            _ if source == self.source && self.feed.is_up() => self.feed.behind(steps),
            _ if source == self.source => self.look_up(now, steps),
            _ if self.source != 0 && at_unix_ms <= self.at_unix_ms() => return,
            _ => self.catch_up(source, now, steps),
        }
        if source == self.source && known.is_none_or(|known| known < next) {
            (self.heard, self.goal) = (Heard::Elsewhere, self.goal.max(next));
        }
    }

    /// Whether what was asked for has come by another way.
    pub fn has_caught_up(&self) -> bool {
        self.feed.is_filled() && self.feed.counters().next_seq.is_some_and(|next| next >= self.goal)
    }

    /// The engine's clock when it told what is known.
    pub fn at_unix_ms(&self) -> u64 {
        (self.feed.at_unix_s() * 1e3) as u64
    }

    /// All that a sibling knows, in answer to what was asked.
    pub fn restored(&mut self, source: u64, seq: u64, batch: EventBatch, now: Micros, steps: &mut Vec<Step>) {
        if self.source != 0 && source != self.source {
            // It was asked for in another life.
            return self.feed.replay_ended(ReplayEnd::Failed, now, steps);
        }
        self.succeed(source);
        if self.feed.restored(seq, batch, now, steps) {
            self.beginning = Beginning::Known;
        }
    }

    /// The same, where it has the batches themselves.
    pub fn replayed(&mut self, which: Numbered, events: EventBatch, at: Moment, steps: &mut Vec<Step>) {
        let Numbered { source, seq, arrival } = which;
        if source != self.source {
            return;
        }
        match arrival {
            Arrival::Begins if self.feed.counters().next_seq.is_none_or(|next| seq >= next) => {
                self.begin(source, seq, events, at, steps);
            }
            // One before it has begun anew, and ended what was asked for.
            _ if !self.feed.is_asking() => self.relayed(which, events, at, steps),
            _ => self.feed.replayed(seq, events, at.now, steps),
        }
    }

    /// Whether only somebody else, or the source itself, can make it whole.
    fn lacks_something(&self) -> bool {
        self.feed.doubt() == Some(Doubt::Lost) || self.beginning == Beginning::Missed
    }

    /// A new process, or a snapshot of its own: what was known is forgotten, and this is the beginning.
    fn begin(&mut self, source: u64, seq: u64, batch: EventBatch, at: Moment, steps: &mut Vec<Step>) {
        match self.source {
            0 => self.feed.begin(at.now, steps),
            same if same == source => {
                steps.push(Step::Forget);
                self.feed.begin(at.now, steps);
            }
            _ => self.feed.restarted(at.now, steps),
        }
        self.succeed(source);
        self.beginning = Beginning::Known;
        self.feed.replayed(seq, batch, at.now, steps);
        self.feed.replay_ended(ReplayEnd::Complete, at.now, steps);
        // The beginning is told here and now; there is nobody to ask for more.
        steps.retain(|step| !matches!(step, Step::AskReplay { .. }));
    }

    /// A process that another router has heard from its beginning: that one is asked for what was before.
    fn catch_up(&mut self, source: u64, now: Micros, steps: &mut Vec<Step>) {
        match self.source {
            0 => self.feed.begin(now, steps),
            _ => self.feed.restarted(now, steps),
        }
        self.succeed(source);
        self.beginning = Beginning::Missed;
    }

    /// The stream was lost here, and is heard elsewhere.
    fn look_up(&mut self, now: Micros, steps: &mut Vec<Step>) {
        if !self.feed.is_up() {
            self.feed.connected(now, steps);
        }
    }

    /// Whether the process that speaks now came after this one: of two lives the later one counts, by the engine's own clock, or by
    /// the number of the life where an engine has none. One that says neither is past when it was here before.
    fn is_past(&self, source: u64, at_unix_s: f64) -> bool {
        if at_unix_s > 0.0 { at_unix_s < self.feed.at_unix_s() } else { source == self.former }
    }

    fn succeed(&mut self, source: u64) {
        if self.source != source {
            let before = std::mem::replace(&mut self.source, source);
            if before != 0 {
                self.former = before;
            }
            (self.goal, self.beginning) = (0, Beginning::Known);
        }
    }
}

/// Whether there are other routers that may have heard what was not heard here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// There are.
    Are,
    /// There may be: it is too early to say.
    Awaited,
    /// There are none.
    AreNot,
}
