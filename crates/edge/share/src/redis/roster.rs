//! Who is there, by letters alone. Pure: time and questions are arguments.
//!
//! A letter that opens was written by one of ours, but perhaps long ago, and sent again by somebody else. So whoever writes under a salt that is
//! not known yet is asked to repeat sixteen random bytes, and is heard from its answer on. From then on its numbers must
//! rise. Clocks are not needed, and nothing is heard twice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warmroute_types::RouterId;

use crate::redis::letter::{self, Head, Kind, Question, Salt};
use crate::seal::Opener;
use crate::{Incoming, MAX_MESSAGE_BYTES, Versions};

/// Those who were asked and have not answered; the oldest question is forgotten first.
const ASKED_MAX: usize = 256;

/// Those who are there.
const PRESENT_MAX: usize = 256;

/// What follows from a letter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Our own came back: the server lives.
    Own,
    Message(Incoming),
    Ask(RouterId, Question),
    Answer(RouterId, Question),
    Joined(RouterId, u8),
    /// It has said goodbye.
    Left(RouterId),
    /// One of ours, that we share no version with.
    Stranger(RouterId, Versions),
    /// A message of one that has not answered yet.
    Unproven,
    /// Somebody says to be there whom we cannot read.
    OtherSecret,
    /// Not of ours, or not new.
    Refused,
}

/// Who somebody must be to belong to us.
#[derive(Clone, Debug)]
pub(crate) struct Circle {
    pub me: RouterId,
    pub salt: Salt,
    /// The first is spoken, all are understood.
    pub secrets: Vec<Vec<u8>>,
    pub prefix: String,
    pub versions: Versions,
}

#[derive(Debug)]
struct Present {
    salt: Salt,
    opener: Opener,
    number: u64,
    heard: Instant,
    version: u8,
}

#[derive(Debug)]
struct Asked {
    opener: Opener,
    question: Question,
    at: Option<Instant>,
}

/// All who are there, and all who may be.
#[derive(Debug)]
pub(crate) struct Roster {
    circle: Circle,
    present: BTreeMap<RouterId, Present>,
    asked: BTreeMap<(RouterId, Salt), Asked>,
    ask_again_after: Duration,
}

impl Roster {
    pub(crate) fn new(circle: Circle, ask_again_after: Duration) -> Roster {
        Roster { circle, present: BTreeMap::new(), asked: BTreeMap::new(), ask_again_after }
    }

    /// Takes in a letter. `question` is what its writer is asked, if it must be.
    pub(crate) fn read(&mut self, letter: &[u8], now: Instant, question: Question) -> Vec<Step> {
        let Some((head, sealed)) = Head::parse(letter) else { return vec![Step::Refused] };
        if sealed.len() > MAX_MESSAGE_BYTES + crate::seal::TAG_BYTES {
            return vec![Step::Refused];
        }
        if head.from == self.circle.me {
            return if head.salt == self.circle.salt { vec![Step::Own] } else { vec![Step::Refused] };
        }
        if head.to.is_some_and(|to| to != self.circle.me) {
            return vec![Step::Refused];
        }
        match self.present.get(&head.from) {
            Some(present) if present.salt == head.salt => self.read_known(&head, sealed, now),
            _ => self.read_unknown(&head, sealed, now, question),
        }
    }

    fn read_known(&mut self, head: &Head, sealed: &[u8], now: Instant) -> Vec<Step> {
        let Some(present) = self.present.get_mut(&head.from) else { return vec![Step::Refused] };
        if head.number <= present.number {
            return vec![Step::Refused];
        }
        let Some(body) = head.open(&present.opener, sealed) else { return vec![Step::Refused] };
        (present.number, present.heard) = (head.number, now);
        match head.kind {
            Kind::Message if self.circle.understands(head.version) => {
                vec![Step::Message(Incoming { from: head.from, bytes: body })]
            }
            Kind::Message => vec![Step::Refused],
            Kind::Ask => answer(head.from, &body).into_iter().collect(),
            Kind::Here | Kind::Answer => Vec::new(),
            Kind::Goodbye => {
                self.present.remove(&head.from);
                vec![Step::Left(head.from)]
            }
        }
    }

    fn read_unknown(&mut self, head: &Head, sealed: &[u8], now: Instant, question: Question) -> Vec<Step> {
        // One who was never here cannot leave, and one who only looks does not stay.
        if head.kind == Kind::Goodbye {
            return Vec::new();
        }
        let key = (head.from, head.salt);
        let Some((opener, body)) = self.open_unknown(head, sealed) else {
            return vec![if head.kind == Kind::Here { Step::OtherSecret } else { Step::Refused }];
        };
        // Taken only now: somebody may write nonsense under the name of one who was asked, and the question stands.
        let asked = self.asked.remove(&key).unwrap_or(Asked { opener, question, at: None });
        if head.kind == Kind::Message {
            let mut steps = vec![Step::Unproven];
            steps.extend(self.ask(key, asked, now));
            return steps;
        }
        let Some((versions, repeated)) = letter::introduction(&body) else { return vec![Step::Refused] };
        let Some(version) = self.circle.versions.agree(versions) else {
            return vec![Step::Stranger(head.from, versions)];
        };
        if head.kind == Kind::Answer && asked.at.is_some() && repeated == Some(asked.question) {
            return self.join(head, asked.opener, version, now);
        }
        let mut steps: Vec<Step> = Vec::new();
        if head.kind == Kind::Ask {
            steps.extend(answer(head.from, &body));
        }
        steps.extend(self.ask(key, asked, now));
        steps
    }

    /// By whichever secret it was sealed with.
    fn open_unknown(&self, head: &Head, sealed: &[u8]) -> Option<(Opener, Vec<u8>)> {
        self.circle.secrets.iter().find_map(|secret| {
            let opener = letter::opener(secret, &self.circle.prefix, &head.salt);
            head.open(&opener, sealed).map(|body| (opener, body))
        })
    }

    fn ask(&mut self, key: (RouterId, Salt), mut asked: Asked, now: Instant) -> Option<Step> {
        let again = asked.at.is_none_or(|at| now.duration_since(at) >= self.ask_again_after);
        let step = again.then_some(Step::Ask(key.0, asked.question));
        if again {
            asked.at = Some(now);
        }
        self.remember(key, asked);
        step
    }

    fn remember(&mut self, key: (RouterId, Salt), asked: Asked) {
        // Nobody is remembered who was never asked: that takes a letter of ours.
        if asked.at.is_none() {
            return;
        }
        while self.asked.len() >= ASKED_MAX {
            let Some(oldest) = self.asked.iter().min_by_key(|(_, asked)| asked.at).map(|(key, _)| *key)
            else {
                break;
            };
            self.asked.remove(&oldest);
        }
        self.asked.insert(key, asked);
    }

    fn join(&mut self, head: &Head, opener: Opener, version: u8, now: Instant) -> Vec<Step> {
        if self.present.len() >= PRESENT_MAX && !self.present.contains_key(&head.from) {
            return vec![Step::Unproven];
        }
        let present = Present { salt: head.salt, opener, number: head.number, heard: now, version };
        self.present.insert(head.from, present);
        vec![Step::Joined(head.from, version)]
    }

    /// Forgets those who said nothing for so long; who they are.
    pub(crate) fn expire(&mut self, silence: Duration, now: Instant) -> Vec<RouterId> {
        let silent = |present: &Present| now.duration_since(present.heard) > silence;
        let gone = self.present.iter().filter(|(_, present)| silent(present)).map(|(router, _)| *router);
        let gone: Vec<RouterId> = gone.collect();
        gone.iter().for_each(|router| _ = self.present.remove(router));
        self.asked.retain(|_, asked| asked.at.is_some_and(|at| now.duration_since(at) <= silence));
        gone
    }

    /// Forgets everybody; who was there.
    pub(crate) fn clear(&mut self) -> Vec<RouterId> {
        self.asked.clear();
        std::mem::take(&mut self.present).into_keys().collect()
    }

    /// The version in which to write, to one or to all; `None` when there is nobody to read it.
    pub(crate) fn version(&self, to: Option<RouterId>) -> Option<u8> {
        match to {
            Some(router) => self.present.get(&router).map(|present| present.version),
            None => self.present.values().map(|present| present.version).min(),
        }
    }
}

impl Circle {
    fn understands(&self, version: u8) -> bool {
        (self.versions.oldest..=self.versions.newest).contains(&version)
    }
}

fn answer(to: RouterId, body: &[u8]) -> Option<Step> {
    let (_, question) = letter::introduction(body)?;
    question.map(|question| Step::Answer(to, question))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::letter::Pen;

    const ASKED_AGAIN: Duration = Duration::from_secs(1);
    const OURS: [u8; 2] = [1, 1];

    fn circle(me: u64) -> Circle {
        let versions = Versions { oldest: 1, newest: 1 };
        Circle {
            me: RouterId(me),
            salt: [me as u8; 16],
            secrets: vec![b"secret".to_vec(), b"older".to_vec()],
            prefix: "p".into(),
            versions,
        }
    }

    fn roster() -> (Roster, Instant) {
        (Roster::new(circle(1), ASKED_AGAIN), Instant::now())
    }

    fn pen(me: u64) -> Pen {
        let circle = circle(me);
        Pen::new(circle.me, &circle.secrets[0], &circle.prefix, circle.salt)
    }

    /// Asks, answers: it is there.
    fn join(roster: &mut Roster, pen: &mut Pen, now: Instant) {
        let here = pen.write(Kind::Here, 1, None, &[&OURS]);
        let [Step::Ask(_, question)] = roster.read(&here, now, [9; 16])[..] else { panic!("not asked") };
        let answer = pen.write(Kind::Answer, 1, Some(RouterId(1)), &[&OURS, &question]);
        assert_eq!(roster.read(&answer, now, [0; 16]), [Step::Joined(RouterId(2), 1)]);
    }

    #[test]
    fn a_router_is_heard_after_it_has_answered_and_each_letter_once() {
        let ((mut roster, now), mut pen) = (roster(), pen(2));
        let early = pen.write(Kind::Message, 1, None, &[b"early"]);
        assert_eq!(roster.read(&early, now, [9; 16]), [Step::Unproven, Step::Ask(RouterId(2), [9; 16])]);
        assert_eq!(roster.read(&early, now, [8; 16]), [Step::Unproven], "it is not asked again at once");
        roster.clear();
        join(&mut roster, &mut pen, now);
        let message = pen.write(Kind::Message, 1, None, &[b"hello"]);
        let heard = Step::Message(Incoming { from: RouterId(2), bytes: b"hello".to_vec() });
        assert_eq!(roster.read(&message, now, [0; 16]), [heard]);
        assert_eq!(roster.read(&message, now, [0; 16]), [Step::Refused], "the same again");
        assert_eq!(roster.read(&early, now, [0; 16]), [Step::Refused], "one from before");
    }

    #[test]
    fn one_that_speaks_the_older_of_two_secrets_is_heard() {
        let ((mut roster, now), circle) = (roster(), circle(2));
        let mut pen = Pen::new(circle.me, &circle.secrets[1], &circle.prefix, circle.salt);
        join(&mut roster, &mut pen, now);
        let message = pen.write(Kind::Message, 1, None, &[b"hello"]);
        assert!(matches!(roster.read(&message, now, [0; 16])[..], [Step::Message(_)]));
    }

    #[test]
    fn whoever_says_goodbye_is_gone_and_nobody_else_can_say_it_for_another() {
        let ((mut roster, now), mut friend) = (roster(), pen(2));
        join(&mut roster, &mut friend, now);
        let forged = Pen::new(RouterId(2), b"guess", "p", [2; 16]).write(Kind::Goodbye, 1, None, &[]);
        assert_eq!(roster.read(&forged, now, [0; 16]), [Step::Refused]);
        let goodbye = friend.write(Kind::Goodbye, 1, None, &[]);
        assert_eq!(roster.read(&goodbye, now, [0; 16]), [Step::Left(RouterId(2))]);
        assert_eq!(roster.read(&goodbye, now, [0; 16]), [], "of one who is not here");
        assert_eq!(roster.version(Some(RouterId(2))), None);
    }

    #[test]
    fn what_a_dead_router_once_wrote_brings_nobody_back() {
        let ((mut roster, now), mut pen) = (roster(), pen(2));
        let here = pen.write(Kind::Here, 1, None, &[&OURS]);
        let [Step::Ask(_, question)] = roster.read(&here, now, [9; 16])[..] else { panic!("not asked") };
        let answer = pen.write(Kind::Answer, 1, Some(RouterId(1)), &[&OURS, &question]);
        roster.read(&answer, now, [0; 16]);
        assert_eq!(roster.expire(ASKED_AGAIN, now + ASKED_AGAIN * 2), [RouterId(2)]);
        let later = now + ASKED_AGAIN * 2;
        assert_eq!(roster.read(&here, later, [5; 16]), [Step::Ask(RouterId(2), [5; 16])]);
        assert_eq!(roster.read(&answer, later, [6; 16]), [], "the answer to an old question");
        assert_eq!(roster.version(Some(RouterId(2))), None);
    }

    #[test]
    fn letters_for_others_of_others_and_of_ourselves_are_not_messages() {
        let ((mut roster, now), mut friend) = (roster(), pen(2));
        join(&mut roster, &mut friend, now);
        let elsewhere = friend.write(Kind::Message, 1, Some(RouterId(3)), &[b"not for us"]);
        assert_eq!(roster.read(&elsewhere, now, [0; 16]), [Step::Refused]);
        let own = pen(1).write(Kind::Message, 1, None, &[b"own"]);
        assert_eq!(roster.read(&own, now, [0; 16]), [Step::Own]);
        let forged =
            Pen::new(RouterId(2), b"guess", "p", [2; 16]).write(Kind::Message, 1, None, &[b"forged"]);
        assert_eq!(roster.read(&forged, now, [0; 16]), [Step::Refused]);
        let unknown = Pen::new(RouterId(7), b"guess", "p", [2; 16]).write(Kind::Here, 1, None, &[&OURS]);
        assert_eq!(roster.read(&unknown, now, [0; 16]), [Step::OtherSecret]);
        assert!(roster.asked.is_empty(), "strangers are not remembered");
    }

    #[test]
    fn a_newer_version_is_told_and_left_alone() {
        let ((mut roster, now), mut pen) = (roster(), pen(2));
        let here = pen.write(Kind::Here, 3, None, &[&[2, 3]]);
        let theirs = Versions { oldest: 2, newest: 3 };
        assert_eq!(roster.read(&here, now, [0; 16]), [Step::Stranger(RouterId(2), theirs)]);
    }

    #[test]
    fn letters_of_many_dead_routers_are_not_remembered_without_end() {
        let (mut roster, now) = roster();
        for number in 0..ASKED_MAX as u64 * 2 {
            let mut pen = Pen::new(RouterId(number + 2), b"secret", "p", [number as u8; 16]);
            roster.read(&pen.write(Kind::Here, 1, None, &[&OURS]), now, [0; 16]);
        }
        assert_eq!(roster.asked.len(), ASKED_MAX);
    }
}
