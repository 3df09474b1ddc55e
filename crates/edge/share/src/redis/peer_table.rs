//! The routers that are present, according to their envelopes. Pure: time and challenges are arguments.
//!
//! An envelope that opens was written with the secret, but it may be a recording. So a router with an unknown
//! salt must repeat sixteen random bytes before its messages count. From then on its numbers must rise. This
//! needs no clocks, and no message counts twice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warmroute_types::RouterId;

use crate::redis::envelope::{self, Challenge, EnvelopeHeader, EnvelopeKind, Salt};
use crate::seal::Opener;
use crate::{MAX_MESSAGE_BYTES, ReceivedMessage, Versions};

/// Routers that were challenged and have not responded; the oldest challenge is dropped first.
const CHALLENGED_MAX: usize = 256;

/// Routers that are present.
const PRESENT_MAX: usize = 256;

/// What follows from an envelope.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PeerEvent {
    /// Our own envelope came back, so the server works.
    Echo,
    Message(ReceivedMessage),
    Challenge(RouterId, Challenge),
    Respond(RouterId, Challenge),
    Joined(RouterId, u8),
    /// The router said goodbye.
    Left(RouterId),
    /// The router has the secret, but no common version.
    Incompatible(RouterId, Versions),
    /// A message from a router that has not responded to a challenge.
    Unproven,
    /// An announcement that no accepted secret opens.
    OtherSecret,
    /// Forged, malformed, or not new.
    Refused,
}

/// This router's identity and secrets.
#[derive(Clone, Debug)]
pub(crate) struct LocalRouter {
    pub me: RouterId,
    pub salt: Salt,
    /// The first is used, all are accepted.
    pub secrets: Vec<Vec<u8>>,
    pub prefix: String,
    pub versions: Versions,
}

#[derive(Debug)]
struct PresentPeer {
    salt: Salt,
    opener: Opener,
    number: u64,
    last_received: Instant,
    version: u8,
}

#[derive(Debug)]
struct Challenged {
    opener: Opener,
    challenge: Challenge,
    at: Option<Instant>,
}

/// The routers that are present, and those that were challenged.
#[derive(Debug)]
pub(crate) struct PeerTable {
    local: LocalRouter,
    present: BTreeMap<RouterId, PresentPeer>,
    challenged: BTreeMap<(RouterId, Salt), Challenged>,
    challenge_again_after: Duration,
}

impl PeerTable {
    pub(crate) fn new(local: LocalRouter, challenge_again_after: Duration) -> PeerTable {
        PeerTable { local, present: BTreeMap::new(), challenged: BTreeMap::new(), challenge_again_after }
    }

    /// Processes an envelope. `challenge` is sent if the sender must prove itself.
    pub(crate) fn read(&mut self, envelope: &[u8], now: Instant, challenge: Challenge) -> Vec<PeerEvent> {
        let Some((header, sealed)) = EnvelopeHeader::parse(envelope) else { return vec![PeerEvent::Refused] };
        if sealed.len() > MAX_MESSAGE_BYTES + crate::seal::TAG_BYTES {
            return vec![PeerEvent::Refused];
        }
        if header.from == self.local.me {
            return if header.salt == self.local.salt {
                vec![PeerEvent::Echo]
            } else {
                vec![PeerEvent::Refused]
            };
        }
        if header.to.is_some_and(|to| to != self.local.me) {
            return vec![PeerEvent::Refused];
        }
        match self.present.get(&header.from) {
            Some(present) if present.salt == header.salt => self.read_known(&header, sealed, now),
            _ => self.read_unknown(&header, sealed, now, challenge),
        }
    }

    fn read_known(&mut self, header: &EnvelopeHeader, sealed: &[u8], now: Instant) -> Vec<PeerEvent> {
        let Some(present) = self.present.get_mut(&header.from) else { return vec![PeerEvent::Refused] };
        if header.number <= present.number {
            return vec![PeerEvent::Refused];
        }
        let Some(body) = header.open(&present.opener, sealed) else { return vec![PeerEvent::Refused] };
        (present.number, present.last_received) = (header.number, now);
        match header.kind {
            EnvelopeKind::Message if self.local.supports(header.version) => {
                vec![PeerEvent::Message(ReceivedMessage { from: header.from, bytes: body })]
            }
            EnvelopeKind::Message => vec![PeerEvent::Refused],
            EnvelopeKind::Challenge => respond(header.from, &body).into_iter().collect(),
            EnvelopeKind::Announce | EnvelopeKind::Response => Vec::new(),
            EnvelopeKind::Goodbye => {
                self.present.remove(&header.from);
                vec![PeerEvent::Left(header.from)]
            }
        }
    }

    fn read_unknown(
        &mut self,
        header: &EnvelopeHeader,
        sealed: &[u8],
        now: Instant,
        challenge: Challenge,
    ) -> Vec<PeerEvent> {
        // A router that is not present cannot leave, and a probe does not stay.
        if header.kind == EnvelopeKind::Goodbye {
            return Vec::new();
        }
        let key = (header.from, header.salt);
        let Some((opener, body)) = self.open_unknown(header, sealed) else {
            return vec![if header.kind == EnvelopeKind::Announce {
                PeerEvent::OtherSecret
            } else {
                PeerEvent::Refused
            }];
        };
        // The entry is removed only after the envelope opened, so that garbage in a router's name does not
        // discard its challenge.
        let challenged = self.challenged.remove(&key).unwrap_or(Challenged { opener, challenge, at: None });
        if header.kind == EnvelopeKind::Message {
            let mut events = vec![PeerEvent::Unproven];
            events.extend(self.challenge(key, challenged, now));
            return events;
        }
        let Some((versions, repeated)) = envelope::parse_introduction(&body) else {
            return vec![PeerEvent::Refused];
        };
        let Some(version) = self.local.versions.agree(versions) else {
            return vec![PeerEvent::Incompatible(header.from, versions)];
        };
        if header.kind == EnvelopeKind::Response
            && challenged.at.is_some()
            && repeated == Some(challenged.challenge)
        {
            return self.join(header, challenged.opener, version, now);
        }
        let mut events: Vec<PeerEvent> = Vec::new();
        if header.kind == EnvelopeKind::Challenge {
            events.extend(respond(header.from, &body));
        }
        events.extend(self.challenge(key, challenged, now));
        events
    }

    /// Opens an envelope with any of the accepted secrets.
    fn open_unknown(&self, header: &EnvelopeHeader, sealed: &[u8]) -> Option<(Opener, Vec<u8>)> {
        self.local.secrets.iter().find_map(|secret| {
            let opener = envelope::opener(secret, &self.local.prefix, &header.salt);
            header.open(&opener, sealed).map(|body| (opener, body))
        })
    }

    fn challenge(
        &mut self,
        key: (RouterId, Salt),
        mut challenged: Challenged,
        now: Instant,
    ) -> Option<PeerEvent> {
        let again = challenged.at.is_none_or(|at| now.duration_since(at) >= self.challenge_again_after);
        let event = again.then_some(PeerEvent::Challenge(key.0, challenged.challenge));
        if again {
            challenged.at = Some(now);
        }
        self.remember(key, challenged);
        event
    }

    fn remember(&mut self, key: (RouterId, Salt), challenged: Challenged) {
        // Only challenged routers are remembered; a challenge requires a sealed envelope.
        if challenged.at.is_none() {
            return;
        }
        while self.challenged.len() >= CHALLENGED_MAX {
            let Some(oldest) =
                self.challenged.iter().min_by_key(|(_, challenged)| challenged.at).map(|(key, _)| *key)
            else {
                break;
            };
            self.challenged.remove(&oldest);
        }
        self.challenged.insert(key, challenged);
    }

    fn join(&mut self, header: &EnvelopeHeader, opener: Opener, version: u8, now: Instant) -> Vec<PeerEvent> {
        if self.present.len() >= PRESENT_MAX && !self.present.contains_key(&header.from) {
            return vec![PeerEvent::Unproven];
        }
        let present =
            PresentPeer { salt: header.salt, opener, number: header.number, last_received: now, version };
        self.present.insert(header.from, present);
        vec![PeerEvent::Joined(header.from, version)]
    }

    /// Removes routers that were silent for this long, and returns them.
    pub(crate) fn expire(&mut self, silence: Duration, now: Instant) -> Vec<RouterId> {
        let silent = |present: &PresentPeer| now.duration_since(present.last_received) > silence;
        let gone = self.present.iter().filter(|(_, present)| silent(present)).map(|(router, _)| *router);
        let gone: Vec<RouterId> = gone.collect();
        gone.iter().for_each(|router| _ = self.present.remove(router));
        self.challenged
            .retain(|_, challenged| challenged.at.is_some_and(|at| now.duration_since(at) <= silence));
        gone
    }

    /// Removes all routers, and returns those that were present.
    pub(crate) fn clear(&mut self) -> Vec<RouterId> {
        self.challenged.clear();
        std::mem::take(&mut self.present).into_keys().collect()
    }

    /// The version for a message to one or all routers; `None` if none is present.
    pub(crate) fn version(&self, to: Option<RouterId>) -> Option<u8> {
        match to {
            Some(router) => self.present.get(&router).map(|present| present.version),
            None => self.present.values().map(|present| present.version).min(),
        }
    }
}

impl LocalRouter {
    fn supports(&self, version: u8) -> bool {
        (self.versions.oldest..=self.versions.newest).contains(&version)
    }
}

fn respond(to: RouterId, body: &[u8]) -> Option<PeerEvent> {
    let (_, challenge) = envelope::parse_introduction(body)?;
    challenge.map(|challenge| PeerEvent::Respond(to, challenge))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::envelope::EnvelopeWriter;

    const ASKED_AGAIN: Duration = Duration::from_secs(1);
    const OURS: [u8; 2] = [1, 1];

    fn local(me: u64) -> LocalRouter {
        let versions = Versions { oldest: 1, newest: 1 };
        LocalRouter {
            me: RouterId(me),
            salt: [me as u8; 16],
            secrets: vec![b"secret".to_vec(), b"older".to_vec()],
            prefix: "p".into(),
            versions,
        }
    }

    fn peers() -> (PeerTable, Instant) {
        (PeerTable::new(local(1), ASKED_AGAIN), Instant::now())
    }

    fn writer(me: u64) -> EnvelopeWriter {
        let local = local(me);
        EnvelopeWriter::new(local.me, &local.secrets[0], &local.prefix, local.salt)
    }

    /// Lets a router join by challenge and response.
    fn join(peers: &mut PeerTable, writer: &mut EnvelopeWriter, now: Instant) {
        let here = writer.write(EnvelopeKind::Announce, 1, None, &[&OURS]);
        let [PeerEvent::Challenge(_, challenge)] = peers.read(&here, now, [9; 16])[..] else {
            panic!("not challenged")
        };
        let answer = writer.write(EnvelopeKind::Response, 1, Some(RouterId(1)), &[&OURS, &challenge]);
        assert_eq!(peers.read(&answer, now, [0; 16]), [PeerEvent::Joined(RouterId(2), 1)]);
    }

    #[test]
    fn messages_count_after_a_response_and_only_once() {
        let ((mut peers, now), mut writer) = (peers(), writer(2));
        let early = writer.write(EnvelopeKind::Message, 1, None, &[b"early"]);
        assert_eq!(
            peers.read(&early, now, [9; 16]),
            [PeerEvent::Unproven, PeerEvent::Challenge(RouterId(2), [9; 16])]
        );
        assert_eq!(
            peers.read(&early, now, [8; 16]),
            [PeerEvent::Unproven],
            "it is not challenged again at once"
        );
        peers.clear();
        join(&mut peers, &mut writer, now);
        let message = writer.write(EnvelopeKind::Message, 1, None, &[b"hello"]);
        let last_received =
            PeerEvent::Message(ReceivedMessage { from: RouterId(2), bytes: b"hello".to_vec() });
        assert_eq!(peers.read(&message, now, [0; 16]), [last_received]);
        assert_eq!(peers.read(&message, now, [0; 16]), [PeerEvent::Refused], "a repeated envelope");
        assert_eq!(peers.read(&early, now, [0; 16]), [PeerEvent::Refused], "an older envelope");
    }

    #[test]
    fn a_router_with_the_older_secret_is_accepted() {
        let ((mut peers, now), local) = (peers(), local(2));
        let mut writer = EnvelopeWriter::new(local.me, &local.secrets[1], &local.prefix, local.salt);
        join(&mut peers, &mut writer, now);
        let message = writer.write(EnvelopeKind::Message, 1, None, &[b"hello"]);
        assert!(matches!(peers.read(&message, now, [0; 16])[..], [PeerEvent::Message(_)]));
    }

    #[test]
    fn a_goodbye_removes_its_sender_and_cannot_be_forged() {
        let ((mut peers, now), mut friend) = (peers(), writer(2));
        join(&mut peers, &mut friend, now);
        let forged = EnvelopeWriter::new(RouterId(2), b"guess", "p", [2; 16]).write(
            EnvelopeKind::Goodbye,
            1,
            None,
            &[],
        );
        assert_eq!(peers.read(&forged, now, [0; 16]), [PeerEvent::Refused]);
        let goodbye = friend.write(EnvelopeKind::Goodbye, 1, None, &[]);
        assert_eq!(peers.read(&goodbye, now, [0; 16]), [PeerEvent::Left(RouterId(2))]);
        assert_eq!(peers.read(&goodbye, now, [0; 16]), [], "its sender is not present");
        assert_eq!(peers.version(Some(RouterId(2))), None);
    }

    #[test]
    fn recorded_envelopes_do_not_bring_a_router_back() {
        let ((mut peers, now), mut writer) = (peers(), writer(2));
        let here = writer.write(EnvelopeKind::Announce, 1, None, &[&OURS]);
        let [PeerEvent::Challenge(_, challenge)] = peers.read(&here, now, [9; 16])[..] else {
            panic!("not challenged")
        };
        let answer = writer.write(EnvelopeKind::Response, 1, Some(RouterId(1)), &[&OURS, &challenge]);
        peers.read(&answer, now, [0; 16]);
        assert_eq!(peers.expire(ASKED_AGAIN, now + ASKED_AGAIN * 2), [RouterId(2)]);
        let later = now + ASKED_AGAIN * 2;
        assert_eq!(peers.read(&here, later, [5; 16]), [PeerEvent::Challenge(RouterId(2), [5; 16])]);
        assert_eq!(peers.read(&answer, later, [6; 16]), [], "a response to an old challenge");
        assert_eq!(peers.version(Some(RouterId(2))), None);
    }

    #[test]
    fn envelopes_to_others_from_others_and_from_ourselves_are_not_delivered() {
        let ((mut peers, now), mut friend) = (peers(), writer(2));
        join(&mut peers, &mut friend, now);
        let elsewhere = friend.write(EnvelopeKind::Message, 1, Some(RouterId(3)), &[b"not for us"]);
        assert_eq!(peers.read(&elsewhere, now, [0; 16]), [PeerEvent::Refused]);
        let echoed = writer(1).write(EnvelopeKind::Message, 1, None, &[b"own"]);
        assert_eq!(peers.read(&echoed, now, [0; 16]), [PeerEvent::Echo]);
        let forged = EnvelopeWriter::new(RouterId(2), b"guess", "p", [2; 16]).write(
            EnvelopeKind::Message,
            1,
            None,
            &[b"forged"],
        );
        assert_eq!(peers.read(&forged, now, [0; 16]), [PeerEvent::Refused]);
        let unknown = EnvelopeWriter::new(RouterId(7), b"guess", "p", [2; 16]).write(
            EnvelopeKind::Announce,
            1,
            None,
            &[&OURS],
        );
        assert_eq!(peers.read(&unknown, now, [0; 16]), [PeerEvent::OtherSecret]);
        assert!(peers.challenged.is_empty(), "unauthenticated senders are not remembered");
    }

    #[test]
    fn an_incompatible_version_is_reported() {
        let ((mut peers, now), mut writer) = (peers(), writer(2));
        let here = writer.write(EnvelopeKind::Announce, 3, None, &[&[2, 3]]);
        let theirs = Versions { oldest: 2, newest: 3 };
        assert_eq!(peers.read(&here, now, [0; 16]), [PeerEvent::Incompatible(RouterId(2), theirs)]);
    }

    #[test]
    fn challenges_are_limited() {
        let (mut peers, now) = peers();
        for number in 0..CHALLENGED_MAX as u64 * 2 {
            let mut writer = EnvelopeWriter::new(RouterId(number + 2), b"secret", "p", [number as u8; 16]);
            peers.read(&writer.write(EnvelopeKind::Announce, 1, None, &[&OURS]), now, [0; 16]);
        }
        assert_eq!(peers.challenged.len(), CHALLENGED_MAX);
    }
}
