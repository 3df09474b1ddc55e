//! The conversation of routers: what to say when, and what to make of what is heard.
//!
//! Everybody tells everybody what is new, a few times in a tenth of a second, in numbered batches. Who misses one asks for it; what
//! the teller has no longer it makes good by telling all that is open. Who is not heard for a while is taken for dead, and its
//! requests with it; should it speak again within minutes, it is asked for what was missed, and what it had open is open again. One that
//! is met for the first time is asked for what it has open, and somebody for what is presumed of caches; never for what is past.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use warmroute_types::{Micros, RouterId, To};

use crate::answers::Answers;
use crate::clock::Clock;
use crate::fetches::Around;
use crate::history::{HOLES_MAX, History, Lost};
use crate::parts::ANSWER_BYTES_MAX;
use crate::peer::Peer;
use crate::questions::Questions;
use crate::relay::Relay;
use crate::round_trip::RoundTrip;
use crate::trips::Told;
use crate::views::Coming;
use crate::{
    BadMessage, Effect, Ledger, Message, News, Part, PeerView, Question, Reach, Relayed, Report, ReportKind,
    Want, Wanted,
};

/// A question for batches of which no answer comes for so long is put anew: others may be missing by now.
const ASKED_ANEW_AFTER: Micros = Micros::from_secs(5);

/// What was heard of one that fell silent is kept for so long, and of no more than these. Less than presumptions usually live: what is told
/// after a silence is taken for news.
const AWAY_FOR: Micros = Micros::from_secs(300);
const AWAY_MAX: usize = 64;

/// Peers that are listened to.
const PEERS_MAX: usize = 256;

/// Answers are counted from 1 on. This is to whoever asked for nothing.
const NO_ANSWER: u64 = 0;

/// So often it is tried how far away a peer is.
const GREETED_EVERY: Micros = Micros::from_secs(1);

/// When to speak, and when to stop waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// News are told this often.
    pub batch_interval: Micros,
    /// Where there are none, that is told this often.
    pub beat_interval: Micros,
    /// A batch that has not come so long after a later one is asked for.
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

/// One router among its peers.
#[derive(Debug)]
pub struct Peers {
    me: RouterId,
    config: Config,
    clock: Clock,
    history: History,
    spoken: Option<Micros>,
    peers: BTreeMap<RouterId, Peer>,
    /// Those that fell silent a while ago.
    away: BTreeMap<RouterId, Peer>,
    /// What is asked of others, and what they ask.
    questions: Questions,
    answers: Answers,
    /// What is being heard of all caches.
    coming: Coming,
    /// Engines' events that are passed on.
    relay: Relay,
    /// Messages that could not be read.
    pub bad_messages: u64,
    /// Batches that were asked for.
    pub asked: u64,
    /// Peers that fell silent.
    pub lost_peers: u64,
    /// Answers of which some was left out: there was more than can be told.
    pub cut_answers: u64,
    /// Prompts of others' open requests that were forgotten for want of room.
    pub forgotten_prompts: u64,
}

impl Peers {
    /// A router that has heard nobody yet.
    pub fn new(me: RouterId, config: Config) -> Peers {
        Peers {
            me,
            config,
            // Whoever did not look for so long was stopped, and the others were not.
            clock: Clock::new(config.batch_interval, Micros(config.silence_max.0 / 2)),
            history: History::default(),
            spoken: None,
            peers: BTreeMap::new(),
            away: BTreeMap::new(),
            questions: Questions::default(),
            answers: Answers::new(me),
            coming: Coming::default(),
            relay: Relay::default(),
            bad_messages: 0,
            asked: 0,
            lost_peers: 0,
            cut_answers: 0,
            forgotten_prompts: 0,
        }
    }

    /// What is to be said now, with what is new here. To be asked every [`Config::batch_interval`].
    pub fn speak(&mut self, mut news: News, now: Micros) -> Vec<Letter> {
        let now = self.clock.tick(now);
        let mut letters = Vec::new();
        while let Some(some) = news.next() {
            self.history.told += 1;
            let (number, open_from) = (self.history.told, some.open_from);
            let bytes = self.batch(number, some);
            self.history.keep(number, open_from, Arc::clone(&bytes));
            letters.push(Letter { to: To::Everyone, bytes });
        }
        let is_due = self.spoken.is_none_or(|spoken| now.since(spoken) >= self.config.beat_interval);
        if letters.is_empty() && is_due {
            // Nobody has to have heard it: it says only how far everything is.
            letters.push(Letter { to: To::Everyone, bytes: self.batch(self.history.told, news.nothing()) });
        }
        if !letters.is_empty() {
            self.spoken = Some(now);
        }
        letters.extend(self.relay.speak(self.me, now));
        letters.extend(self.answers.take_ready());
        letters.extend(self.ask(now));
        letters.extend(self.greet(now));
        letters
    }

    /// Whether nothing was said for a while: something new is said at once then, and else with what follows it.
    pub fn is_quiet(&self, now: Micros) -> bool {
        let passed = self.clock.read(now);
        self.spoken.is_none_or(|spoken| passed.since(spoken) >= self.config.batch_interval)
    }

    /// Tells all that is presumed to those who have asked for it. Nothing: they are to ask others.
    pub fn tell_view(&mut self, bytes: Arc<[u8]>) {
        self.answers.tell_view(bytes, self.clock.passed());
    }

    /// Tells a peer who asked for what is not kept any more all that is open.
    pub fn tell_state(&mut self, to: RouterId, up_to: u64, state: Ledger) {
        let (now, from) = (self.clock.passed(), self.me);
        for (ticket, want) in self.answers.waiting(to) {
            let Want::Batches(missing) = want else { continue };
            let write = |state| self.history.write(&missing, Some(&Message::State { from, up_to, state }));
            let mut answer = write(state.clone());
            if answer.len() > ANSWER_BYTES_MAX {
                self.cut_answers += 1;
                answer = write(state.clone().without_prompts());
            }
            self.answers.tell(to, ticket, answer, now);
        }
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
            self.relay.fetches.want(wanted, of, now + self.config.patience, &mut self.questions);
        }
        !self.peers.is_empty()
    }

    /// It has come.
    pub fn call_off(&mut self, worker: u64) {
        self.relay.fetches.call_off(worker, &mut self.questions);
    }

    /// The reports that a peer wants, where all are still there.
    pub fn kept(&self, wanted: Wanted) -> Option<Vec<Report>> {
        let is_exact = wanted.source != 0 && wanted.from_seq > 0;
        let kept = self.relay.kept_from(wanted.worker, wanted.source, wanted.from_seq);
        kept.filter(|reports| is_exact && reports.iter().all(|report| report.kind != ReportKind::Known))
    }

    /// Tells a peer what it wants of a worker's stream. Nothing: it is to ask another.
    pub fn tell_replay(&mut self, to: RouterId, worker: u64, reports: &[Report]) {
        let now = self.clock.passed();
        self.relay.counted.given += u64::from(!reports.is_empty());
        let is_it = |want: &Want| matches!(want, Want::Stream(wanted) if wanted.worker == worker);
        let waiting = self.answers.waiting(to).into_iter().filter(|(_, want)| is_it(want));
        waiting.for_each(|(ticket, _)| self.answers.tell(to, ticket, Report::write_all(reports), now));
    }

    /// What was passed on, in numbers.
    pub fn relayed(&self) -> Relayed {
        self.relay.counted
    }

    /// Who is there.
    pub fn others(&self) -> impl Iterator<Item = RouterId> {
        self.peers.keys().copied()
    }

    fn batch(&self, number: u64, news: Ledger) -> Arc<[u8]> {
        Message::Batch { from: self.me, number, news }.encode().into()
    }

    fn trips(&self) -> BTreeMap<RouterId, RoundTrip> {
        self.peers.iter().map(|(&id, peer)| (id, peer.trip)).collect()
    }

    /// Asks for all that is missing, as far as it is time to.
    fn ask(&mut self, now: Micros) -> Vec<Letter> {
        self.ask_batches(now);
        let others = self.trips();
        let around = Around { others: &others, now };
        self.relay.counted.asked += self.relay.fetches.ask(&around, &mut self.questions);
        self.coming.ask(|router| others.contains_key(&router), now, &mut self.questions);
        let trip_to = |of: RouterId| others.get(&of).copied().unwrap_or_default();
        let asked = self.questions.ask(trip_to, now);
        let letter = |(to, question)| Letter::to_one(to, &Message::Ask { from: self.me, question });
        asked.into_iter().map(letter).collect()
    }

    /// Asks everybody for nothing, now and then: so it is known how long what they tell is under way. If it is lost the next one will do.
    fn greet(&mut self, now: Micros) -> Vec<Letter> {
        let is_due = |greeted: Option<Micros>| greeted.is_none_or(|at| now.since(at) >= GREETED_EVERY);
        let question = Question { ticket: 0, asked_at_us: now.0, want: Want::Nothing, parts: vec![0] };
        let greeting = Message::Ask { from: self.me, question };
        let due = self.peers.iter_mut().filter(|(_, peer)| is_due(peer.greeted));
        due.map(|(&id, peer)| {
            peer.greeted = Some(now);
            Letter::to_one(id, &greeting)
        })
        .collect()
    }

    /// Asks those of whom something has been missing for too long.
    fn ask_batches(&mut self, now: Micros) {
        let patience = self.config.patience;
        for (&id, peer) in &mut self.peers {
            let is_late = peer.missing_since.is_some_and(|since| now.since(since) >= patience);
            let is_quiet = |ticket| self.questions.is_quiet(ticket, ASKED_ANEW_AFTER, now);
            if is_late && peer.asked.is_none_or(is_quiet) {
                peer.asked.take().into_iter().for_each(|ticket| self.questions.drop(ticket));
                let missing: Vec<_> = peer.batches.holes().take(HOLES_MAX).collect();
                self.asked += missing.len() as u64;
                peer.asked = Some(self.questions.put(id, Want::Batches(missing), now));
            }
        }
    }

    /// Takes in a message: what it changes here, and what is to be answered.
    pub fn hear(
        &mut self,
        bytes: &[u8],
        now: Micros,
        effects: &mut Vec<Effect>,
    ) -> Result<Vec<Letter>, BadMessage> {
        let now = self.clock.look(now);
        let message = Message::decode(bytes).inspect_err(|_| self.bad_messages += 1)?;
        let Some(message) = message.filter(|message| message.from() != self.me) else {
            return Ok(Vec::new());
        };
        let from = message.from();
        let Some(peer) = self.meet(from, now, effects) else { return Ok(Vec::new()) };
        (peer.heard, peer.language) = (now, Message::spoken(bytes));
        let answers = match message {
            Message::Ask { question, .. } => self.answer(from, question, now, effects),
            Message::Answer { part, bytes, .. } => {
                self.take_part(from, part, bytes, now, effects);
                Vec::new()
            }
            message => {
                self.take_news(from, message, Told::Live, now, effects);
                Vec::new()
            }
        };
        let told = self.peers.get_mut(&from).and_then(|peer| peer.mind_holes(now));
        told.into_iter().for_each(|ticket| self.questions.drop(ticket));
        Ok(answers)
    }

    /// The one who speaks: known, back, or new. Nothing where there are too many.
    fn meet(&mut self, from: RouterId, now: Micros, effects: &mut Vec<Effect>) -> Option<&mut Peer> {
        if !self.peers.contains_key(&from) && self.peers.len() >= PEERS_MAX {
            return None;
        }
        let away = &mut self.away;
        Some(self.peers.entry(from).or_insert_with(|| match away.remove(&from) {
            Some(mut peer) => {
                peer.heard = now;
                peer.rejoin(effects);
                peer
            }
            None => Peer::new(from, now),
        }))
    }

    /// Takes in what somebody says unasked, or says again.
    fn take_news(
        &mut self,
        from: RouterId,
        message: Message,
        told: Told,
        now: Micros,
        effects: &mut Vec<Effect>,
    ) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        match message {
            Message::Batch { number, news, .. } => {
                let lacked_past = peer.batches.lack_past();
                peer.take_batch(number, news, told, effects);
                if peer.batches.lack_past() && !lacked_past {
                    // It has a past that was not heard here.
                    self.coming.want(from, number, now);
                }
                self.forgotten_prompts += std::mem::take(&mut peer.trips.forgotten);
            }
            Message::State { up_to, state, .. } => {
                if peer.batches.lack_any_of(up_to) {
                    // What was presumed by those batches is told by nobody else.
                    self.coming.want(from, up_to, now);
                }
                peer.take_state(up_to, state, effects);
                self.forgotten_prompts += std::mem::take(&mut peer.trips.forgotten);
            }
            Message::Relay { reports, .. } => {
                self.relay.heard(&reports);
                effects.extend(reports.into_iter().map(|report| Effect::Reported { router: from, report }));
            }
            Message::Reach { reaches, .. } => {
                effects.extend(reaches.into_iter().map(|reach| Effect::Reached { router: from, reach }));
            }
            Message::Ask { .. } | Message::Answer { .. } => {}
        }
    }

    /// Tells what is asked for, or lets it be put together.
    fn answer(
        &mut self,
        by: RouterId,
        question: Question,
        now: Micros,
        effects: &mut Vec<Effect>,
    ) -> Vec<Letter> {
        let (ticket, want) = (question.ticket, question.want.clone());
        if want == Want::Nothing {
            let part = Part { ticket, asked_at_us: question.asked_at_us, answer: NO_ANSWER, at: 0, of: 1 };
            return vec![Letter::to_one(by, &Message::Answer { from: self.me, part, bytes: Vec::new() })];
        }
        if let Some(parts) = self.answers.asked(by, question, now) {
            return parts;
        }
        match want {
            Want::Batches(missing) => self.answer_batches(by, ticket, &missing, now, effects),
            Want::View => effects.push(Effect::ViewAsked),
            Want::Stream(wanted) => effects.push(Effect::ReplayAsked { router: by, wanted }),
            Want::Nothing => {}
        }
        self.answers.take_ready()
    }

    /// What was missed, if it is still there; everything that is open, where some of it is not.
    fn answer_batches(
        &mut self,
        by: RouterId,
        ticket: u64,
        missing: &[RangeInclusive<u64>],
        now: Micros,
        effects: &mut Vec<Effect>,
    ) {
        match self.history.lost(missing) {
            Some(Lost { up_to, open_from }) => {
                effects.push(Effect::StateAsked { router: by, up_to, open_from });
            }
            None => self.answers.tell(by, ticket, self.history.write(missing, None), now),
        }
    }

    /// A part of an answer: what follows, where it was the last one.
    fn take_part(
        &mut self,
        from: RouterId,
        part: Part,
        bytes: Vec<u8>,
        now: Micros,
        effects: &mut Vec<Effect>,
    ) {
        let asked_at = Micros(part.asked_at_us);
        if let Some(peer) = self.peers.get_mut(&from).filter(|_| asked_at <= now) {
            let trip = if part.answer == NO_ANSWER { &mut peer.way } else { &mut peer.trip };
            trip.note(now.since(asked_at));
        }
        match self.questions.take(from, part, bytes, now) {
            Some((Want::Batches(missing), bytes)) => {
                self.take_batches(from, &missing, &bytes, now, effects);
            }
            Some((Want::View, bytes)) => {
                let view = self.coming.take(bytes, now);
                effects.extend(view.map(|(bytes, age)| Effect::View { bytes, age }));
            }
            Some((Want::Stream(Wanted { worker, .. }), bytes)) => {
                let reports = self.relay.fetches.take(worker, &bytes, &mut self.questions);
                effects.extend(reports.map(|reports| Effect::Replayed { worker, reports }));
            }
            Some((Want::Nothing, _)) | None => {}
        }
    }

    /// What was missed, of its own router.
    fn take_batches(
        &mut self,
        from: RouterId,
        missing: &[RangeInclusive<u64>],
        bytes: &[u8],
        now: Micros,
        effects: &mut Vec<Effect>,
    ) {
        let (messages, bad) = History::read(bytes);
        self.bad_messages += bad;
        for message in messages.into_iter().filter(|message| message.from() == from) {
            self.take_news(from, message, Told::Late, now, effects);
        }
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.asked = None;
        // That is all that its router has of them, read or not: asked again it would say the same.
        peer.give_up(missing.last().map_or(0, |last| *last.end()), effects);
    }

    /// Gives up those who have been silent for too long, and what nobody has answered.
    pub fn expire(&mut self, now: Micros, effects: &mut Vec<Effect>) {
        let now = self.clock.look(now);
        let silence_max = self.config.silence_max;
        for (id, mut peer) in self.peers.extract_if(.., |_, peer| now.since(peer.heard) > silence_max) {
            peer.part(effects);
            peer.asked.take().into_iter().for_each(|ticket| self.questions.drop(ticket));
            self.away.insert(id, peer);
            self.lost_peers += 1;
        }
        self.away.retain(|_, peer| now.since(peer.heard) < AWAY_FOR);
        while self.away.len() > AWAY_MAX
            && let Some(longest) = self.away.iter().min_by_key(|(_, peer)| peer.heard).map(|(&id, _)| id)
        {
            self.away.remove(&longest);
        }
        let others = self.trips();
        self.answers.expire(|router| others.contains_key(&router), now);
        let around = Around { others: &others, now };
        for worker in self.relay.fetches.give_up(&around, &mut self.questions) {
            self.relay.counted.unanswered += 1;
            effects.push(Effect::Replayed { worker, reports: Vec::new() });
        }
    }

    /// These workers are here: peers may send to others.
    pub fn compare(&mut self, members: &BTreeSet<u64>, now: Micros) {
        let now = self.clock.read(now);
        self.peers.values_mut().for_each(|peer| peer.named.compare(members, now));
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

    /// How long what others tell is under way, as far as that is known.
    pub fn lag(&self) -> Micros {
        let trips: Vec<u64> = self.peers.values().filter_map(|peer| Some(peer.way.usual()?.0)).collect();
        Micros(trips.iter().sum::<u64>() / 2 / trips.len().max(1) as u64)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Writer;
    use crate::{Advice, Health};

    const OTHER: RouterId = RouterId(2);

    fn batch(number: u64, worker: u64) -> Vec<u8> {
        let advice = Advice { version: number, health: Health::Failing, emptied: 0 };
        let news = Ledger { advice: [(worker, advice)].into(), ..Ledger::default() };
        Message::Batch { from: OTHER, number, news }.encode()
    }

    /// What is asked for in so long.
    fn asked(peers: &mut Peers, from: Micros, long: Micros) -> Vec<Question> {
        let mut questions = Vec::new();
        for step in 0..long.0 / 20_000 {
            let now = Micros(from.0 + step * 20_000);
            peers.hear(&batch(1, 1), now, &mut Vec::new()).unwrap();
            for letter in peers.speak(News::default(), now) {
                if let Ok(Some(Message::Ask { question, .. })) = Message::decode(&letter.bytes)
                    && question.want != Want::Nothing
                {
                    questions.push(question);
                }
            }
        }
        questions
    }

    fn answer(peers: &mut Peers, question: &Question, of: u32, bytes: Vec<u8>, now: Micros) {
        let (ticket, asked_at_us) = (question.ticket, question.asked_at_us);
        let part = Part { ticket, asked_at_us, answer: 1, at: 0, of };
        let message = Message::Answer { from: OTHER, part, bytes };
        peers.hear(&message.encode(), now, &mut Vec::new()).unwrap();
    }

    #[test]
    fn what_cannot_be_read_is_missed_once_and_what_can_is_taken() {
        let second = Micros::from_secs;
        // One that needs a later version, and one of a thousand million parts.
        let mut later = batch(2, 2);
        later[0] = 9;
        let mut writer = Writer::default();
        [&later, &batch(3, 3)].into_iter().for_each(|bytes| writer.text(bytes));
        for (of, bytes, failing) in [(1, writer.bytes, 3), (1 << 30, Vec::new(), 2), (1, vec![200], 2)] {
            let mut peers = Peers::new(RouterId(1), Config::default());
            for number in [1, 4] {
                peers.hear(&batch(number, number), second(1), &mut Vec::new()).unwrap();
            }
            let question = asked(&mut peers, second(1), Micros::from_millis(400)).remove(0);
            assert_eq!(question.want, Want::Batches(vec![2..=3]));
            answer(&mut peers, &question, of, bytes, second(2));
            assert_eq!(asked(&mut peers, second(2), second(10)), [], "it would be the same again");
            let view = peers.views(second(12))[0];
            assert_eq!((view.missing, view.failing), (0, failing));
        }
    }

    /// What is asked of one that has told two batches and then, so long after them, a fifth.
    fn asked_after(silence: Micros) -> Vec<RangeInclusive<u64>> {
        let (mut peers, mut now) = (Peers::new(RouterId(1), Config::default()), Micros::from_secs(1));
        let hear = |peers: &mut Peers, number, now| {
            peers.hear(&batch(number, 7), now, &mut Vec::new()).unwrap();
        };
        [1, 2].into_iter().for_each(|number| hear(&mut peers, number, now));
        while now < Micros::from_secs(1) + silence {
            now = now + Micros::from_millis(20);
            peers.speak(News::default(), now);
            peers.expire(now, &mut Vec::new());
        }
        hear(&mut peers, 5, now);
        assert_eq!(peers.lost_peers, 1);
        peers.peers[&OTHER].batches.holes().collect()
    }

    #[test]
    fn one_that_was_silent_for_minutes_is_another() {
        assert_eq!(asked_after(Micros::from_secs(10)), [3..=4]);
        assert_eq!(asked_after(AWAY_FOR + Micros::from_secs(1)), [0..=0]);
    }

    #[test]
    fn of_those_that_were_silent_for_longest_nothing_is_kept() {
        let mut peers = Peers::new(RouterId(1), Config::default());
        for step in 0..400 {
            let now = Micros::from_millis(1_000 + 20 * step);
            let beat = Message::Batch { from: RouterId(2 + step), number: 1, news: Ledger::default() };
            peers.hear(&beat.encode(), now, &mut Vec::new()).unwrap();
            peers.speak(News::default(), now);
            peers.expire(now, &mut Vec::new());
        }
        assert_eq!(peers.away.len(), AWAY_MAX);
        assert_eq!(peers.away.last_key_value().unwrap().0.0 + 1, peers.peers.first_key_value().unwrap().0.0);
    }
}
