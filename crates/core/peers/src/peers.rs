//! The conversation of routers: what to say when, and what to make of what is heard.
//!
//! Everybody tells everybody what is new, a few times in a tenth of a second, in numbered batches. Who misses one asks for it; what
//! the teller has no longer it makes good by telling all that is open. Who is not heard for a while is taken for dead, and its
//! requests with it; should it speak again, it is asked for everything like a newcomer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use warmroute_types::{Micros, RouterId, To};

use crate::clock::Clock;
use crate::peer::Peer;
use crate::relay::Relay;
use crate::views::{Coming, Going};
use crate::{
    BadMessage, Effect, Ledger, Message, OwnLedger, PeerView, Reach, Relayed, Report, ReportKind, Wanted,
};

/// Bytes of batches that are kept for those who missed them.
const HISTORY_BYTES: usize = 4 << 20;

/// Holes that are asked for, and told of, at once.
const HOLES_MAX: usize = 16;

/// All that is presumed is told to the same peer no more often than this.
const VIEW_AGAIN: Micros = Micros::from_secs(2);

/// Peers that are listened to.
const PEERS_MAX: usize = 256;

/// When to speak, and when to stop waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// News are told this often.
    pub batch_interval: Micros,
    /// Where there are none, that is told this often.
    pub beat_interval: Micros,
    /// A batch that has not come so long after a later one is asked for, and again after as long.
    pub patience: Micros,
    /// A router that is not heard for so long is taken for dead.
    pub silence_max: Micros,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            batch_interval: Micros::from_millis(20),
            beat_interval: Micros::from_millis(200),
            patience: Micros::from_millis(100),
            silence_max: Micros::from_millis(1_500),
        }
    }
}

/// A message, addressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// To whom.
    pub to: To,
    /// What.
    pub bytes: Arc<[u8]>,
}

/// A batch that was told.
#[derive(Debug)]
struct Told {
    number: u64,
    open_from: u64,
    bytes: Arc<[u8]>,
}

/// One router among its peers.
#[derive(Debug)]
pub struct Peers {
    me: RouterId,
    config: Config,
    clock: Clock,
    /// Batches so far.
    told: u64,
    history: VecDeque<Told>,
    history_bytes: usize,
    /// Below which number trips were over with the last batch that is history no more.
    settled: u64,
    spoken: Option<Micros>,
    peers: BTreeMap<RouterId, Peer>,
    /// What others are being told of all caches, and what is being heard.
    going: Going,
    coming: Coming,
    /// Engines' events that are passed on.
    relay: Relay,
    /// Messages that could not be read.
    pub bad_messages: u64,
    /// Batches that were asked for.
    pub asked: u64,
    /// Peers that fell silent.
    pub lost_peers: u64,
}

impl Peers {
    /// A router that has heard nobody yet.
    pub fn new(me: RouterId, config: Config) -> Peers {
        Peers {
            me,
            config,
            // Whoever did not look for so long was stopped, and the others were not.
            clock: Clock::new(config.batch_interval, Micros(config.silence_max.0 / 2)),
            told: 0,
            history: VecDeque::new(),
            history_bytes: 0,
            settled: 0,
            spoken: None,
            peers: BTreeMap::new(),
            going: Going::default(),
            coming: Coming::default(),
            relay: Relay::default(),
            bad_messages: 0,
            asked: 0,
            lost_peers: 0,
        }
    }

    /// What is to be said now. To be asked every [`Config::batch_interval`].
    pub fn speak(&mut self, own: &mut OwnLedger, now: Micros) -> Vec<Letter> {
        let now = self.clock.tick(now);
        let mut letters = Vec::new();
        while let Some(news) = own.take() {
            self.told += 1;
            let open_from = news.open_from;
            let bytes = self.batch(self.told, news);
            self.keep(Told { number: self.told, open_from, bytes: Arc::clone(&bytes) });
            letters.push(Letter { to: To::Everyone, bytes });
        }
        let is_due = self.spoken.is_none_or(|spoken| now.since(spoken) >= self.config.beat_interval);
        if letters.is_empty() && is_due {
            // Nobody has to have heard it: it says only how far everything is.
            letters.push(Letter { to: To::Everyone, bytes: self.batch(self.told, own.nothing()) });
        }
        if !letters.is_empty() {
            self.spoken = Some(now);
        }
        letters.extend(self.relay.speak(self.me, now));
        letters.extend(self.ask(now));
        letters.extend(self.ask_replays(now));
        letters.extend(self.going.some());
        let is_here = |router: RouterId| self.peers.contains_key(&router);
        if let Some(router) = self.coming.whom_to_ask(is_here, now) {
            let bytes = Message::AskView { from: self.me }.encode().into();
            letters.push(Letter { to: To::One(router), bytes });
        }
        letters
    }

    /// Something new happened: it is said at once where nothing was said for a while, and else with what follows it.
    pub fn speak_up(&mut self, own: &mut OwnLedger, now: Micros) -> Vec<Letter> {
        let passed = self.clock.read(now);
        let is_quiet = self.spoken.is_none_or(|spoken| passed.since(spoken) >= self.config.batch_interval);
        if is_quiet { self.speak(own, now) } else { Vec::new() }
    }

    /// Tells a peer all that is presumed, in pieces and in time.
    pub fn tell_view(&mut self, to: RouterId, bytes: &[u8]) {
        self.going.add(self.me, to, bytes);
    }

    /// Passes on what was heard of an engine.
    pub fn relay(&mut self, report: Report) {
        self.relay.tell(report);
    }

    /// How far streams that are passed on were heard here without a hole: all of them.
    pub fn set_reaches(&mut self, reaches: Vec<Reach>) {
        self.relay.set_reaches(reaches);
    }

    /// Something of a stream is missing, and that peer may have it. False where there is nobody to ask.
    pub fn want(&mut self, wanted: Wanted, of: Option<RouterId>, now: Micros) -> bool {
        let now = self.clock.look(now);
        if !self.peers.is_empty() {
            // It may only be late.
            self.relay.fetches.want(wanted, of, now + self.config.patience);
        }
        !self.peers.is_empty()
    }

    /// It has come.
    pub fn call_off(&mut self, worker: u64) {
        self.relay.fetches.call_off(worker);
    }

    /// The reports that a peer wants, where all are still there.
    pub fn kept(&self, wanted: Wanted) -> Option<Vec<Report>> {
        let is_exact = wanted.source != 0 && wanted.from_seq > 0;
        let kept = self.relay.kept_from(wanted.worker, wanted.source, wanted.from_seq);
        kept.filter(|reports| is_exact && reports.iter().all(|report| report.kind != ReportKind::Known))
    }

    /// Tells a peer what it wants, in pieces and in time. Nothing: it is to ask another.
    pub fn tell_replay(&mut self, to: RouterId, worker: u64, reports: &[Report]) {
        self.relay.counted.given += u64::from(!reports.is_empty());
        self.going.add_replay(self.me, to, worker, &Report::write_all(reports));
    }

    /// What was passed on, in numbers.
    pub fn relayed(&self) -> Relayed {
        self.relay.counted
    }

    /// Who is there.
    pub fn others(&self) -> impl Iterator<Item = RouterId> {
        self.peers.keys().copied()
    }

    fn ask_replays(&mut self, now: Micros) -> Vec<Letter> {
        let others: Vec<RouterId> = self.others().collect();
        let asked = self.relay.fetches.ask(&others, now);
        self.relay.counted.asked += asked.len() as u64;
        let letter = |(to, wanted)| Letter {
            to: To::One(to),
            bytes: Message::AskReplay { from: self.me, wanted }.encode().into(),
        };
        asked.into_iter().map(letter).collect()
    }

    fn batch(&self, number: u64, news: Ledger) -> Arc<[u8]> {
        Message::Batch { from: self.me, number, news }.encode().into()
    }

    fn keep(&mut self, told: Told) {
        self.history_bytes += told.bytes.len();
        self.history.push_back(told);
        while self.history_bytes > HISTORY_BYTES
            && let Some(told) = self.history.pop_front()
        {
            self.history_bytes -= told.bytes.len();
            self.settled = told.open_from;
        }
    }

    /// Asks those of whom something has been missing for too long.
    fn ask(&mut self, now: Micros) -> Vec<Letter> {
        let patience = self.config.patience;
        let is_late = |since: Option<Micros>| since.is_some_and(|since| now.since(since) >= patience);
        let mut letters = Vec::new();
        for (&id, peer) in &mut self.peers {
            if is_late(peer.missing_since) && peer.asked.is_none_or(|asked| now.since(asked) >= patience) {
                let missing: Vec<_> = peer.batches.holes().take(HOLES_MAX).collect();
                peer.asked = Some(now);
                self.asked += missing.len() as u64;
                let bytes = Message::Ask { from: self.me, missing }.encode().into();
                letters.push(Letter { to: To::One(id), bytes });
            }
        }
        letters
    }

    /// Takes in a message: what it changes here, and what is to be answered.
    pub fn hear(
        &mut self,
        bytes: &[u8],
        own: &OwnLedger,
        now: Micros,
        effects: &mut Vec<Effect>,
    ) -> Result<Vec<Letter>, BadMessage> {
        let now = self.clock.look(now);
        let message = Message::decode(bytes).inspect_err(|_| self.bad_messages += 1)?;
        let Some(message) = message.filter(|message| message.from() != self.me) else {
            return Ok(Vec::new());
        };
        let from = message.from();
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&from) {
            return Ok(Vec::new());
        }
        let is_new = !self.peers.contains_key(&from);
        let peer = self.peers.entry(from).or_insert_with(|| Peer::new(from, now));
        peer.heard = now;
        let mut answers = Vec::new();
        if let (true, Message::Batch { number, .. }) = (is_new, &message)
            && *number > 1
        {
            // It has a past that was not heard here.
            self.coming.want(from, now);
        }
        match message {
            Message::Batch { number, news, .. } => peer.take_batch(number, news, effects),
            Message::State { up_to, state, .. } => peer.take_state(up_to, state, effects),
            Message::Ask { missing, .. } => answers = self.answer(from, &missing, own),
            Message::AskView { .. } => {
                if peer.view_told.is_none_or(|told| now.since(told) >= VIEW_AGAIN) {
                    peer.view_told = Some(now);
                    effects.push(Effect::ViewAsked { router: from });
                }
            }
            Message::View { part, bytes, .. } => {
                let whole = self.coming.take(from, part, bytes, now);
                effects.extend(whole.map(|bytes| Effect::View { bytes }));
            }
            Message::Relay { reports, .. } => {
                self.relay.heard(&reports);
                effects.extend(reports.into_iter().map(|report| Effect::Reported { router: from, report }));
            }
            Message::Reach { reaches, .. } => {
                effects.extend(reaches.into_iter().map(|reach| Effect::Reached { router: from, reach }));
            }
            Message::AskReplay { wanted, .. } => {
                effects.push(Effect::ReplayAsked { router: from, wanted });
            }
            Message::Replay { worker, part, bytes, .. } => {
                let whole = self.relay.fetches.take(from, worker, part, bytes, now);
                effects.extend(whole.map(|reports| Effect::Replayed { worker, reports }));
            }
        }
        self.peers.entry(from).and_modify(|peer| peer.mind_holes(now));
        Ok(answers)
    }

    /// What was missed, if it is still there; everything that is open, where some of it is not.
    fn answer(&self, to: RouterId, missing: &[RangeInclusive<u64>], own: &OwnLedger) -> Vec<Letter> {
        let to = To::One(to);
        let missing = &missing[..missing.len().min(HOLES_MAX)];
        let oldest = self.history.front().map_or(self.told + 1, |told| told.number);
        let is_missing = |told: &&Told| missing.iter().any(|hole| hole.contains(&told.number));
        let kept = self.history.iter().filter(is_missing);
        let mut letters: Vec<Letter> =
            kept.map(|told| Letter { to, bytes: Arc::clone(&told.bytes) }).collect();
        if missing.iter().any(|hole| *hole.start() < oldest) {
            // What the batches that are kept say is over they say themselves, and how.
            let state = own.state(self.settled);
            let parts = state.len();
            letters.extend(state.into_iter().enumerate().map(|(part, state)| {
                // Only with the last one is all said.
                let up_to = if part + 1 == parts { oldest - 1 } else { 0 };
                Letter { to, bytes: Message::State { from: self.me, up_to, state }.encode().into() }
            }));
        }
        letters
    }

    /// Gives up those who have been silent for too long, and what nobody has answered.
    pub fn expire(&mut self, now: Micros, effects: &mut Vec<Effect>) {
        let now = self.clock.look(now);
        let silence_max = self.config.silence_max;
        let before = self.peers.len();
        self.peers.retain(|_, peer| {
            let is_here = now.since(peer.heard) <= silence_max;
            if !is_here {
                peer.close(effects);
            }
            is_here
        });
        self.lost_peers += (before - self.peers.len()) as u64;
        let others: Vec<RouterId> = self.others().collect();
        for worker in self.relay.fetches.give_up(&others, now) {
            self.relay.counted.unanswered += 1;
            effects.push(Effect::Replayed { worker, reports: Vec::new() });
        }
    }

    /// Members of the fleet that peers find failing.
    pub fn failing<'a>(&'a self, members: &'a BTreeSet<u64>) -> impl Iterator<Item = u64> + 'a {
        self.peers.values().flat_map(move |peer| peer.failing(members))
    }

    /// Who is there.
    pub fn views(&self, now: Micros) -> Vec<PeerView> {
        let now = self.clock.read(now);
        self.peers.values().map(|peer| peer.view(now)).collect()
    }

    /// How many of those who are there have a lower number.
    pub fn place(&self) -> usize {
        self.peers.range(..self.me).count()
    }

    /// This router's own number.
    pub fn me(&self) -> RouterId {
        self.me
    }
}
