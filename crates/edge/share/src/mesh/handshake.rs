//! Two routers prove to each other that they belong together, over a fresh connection.

use std::io;
use std::time::Duration;

use ring::hmac;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use warmroute_types::RouterId;
use warmroute_wire::is_plain;

use crate::Versions;
use crate::frame::{FrameReader, FrameWriter};
use crate::mesh::hello::{Errand, HEAD_BYTES, Hello, MESSAGE_BYTES_MAX, Message, PROOF_BYTES, Refusal};
use crate::seal::{self, Opener, Sealer};

/// Who we are, for all handshakes.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub me: RouterId,
    pub address: String,
    pub versions: Versions,
    /// The first is spoken, all are understood. Where certificates alone decide, one that is empty.
    pub secrets: Vec<Vec<u8>>,
    pub errand: Errand,
}

/// Who keeps what is said from being changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// We seal each frame.
    Seal,
    /// TLS does.
    Tls,
}

/// Which end of the connection we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Dials,
    Accepts,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Session {
    pub peer: RouterId,
    pub address: String,
    pub version: u8,
    pub dialed_by: RouterId,
    /// What the other came for.
    pub errand: Errand,
    pub writer: FrameWriter,
    pub reader: FrameReader,
}

/// Why nothing came of dialing a router, or of one that dialed.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// No such name.
    #[error("its name cannot be resolved: {0}")]
    Unresolved(io::Error),
    /// There is no connection to be had.
    #[error("nobody answers there: {0}")]
    Nobody(io::Error),
    /// Nothing in time.
    #[error("it did not answer within {} ms", .0.as_millis())]
    Late(Duration),
    /// Somebody, but not for long.
    #[error(
        "it closed the connection before it had said who it is: is it a router, and has it certificates (mesh-tls-cert) as this one has them, or \
         neither?"
    )]
    HungUp,
    /// A certificate, mostly.
    #[error("{0}")]
    Io(io::Error),
    /// Certificates at the other end only.
    #[error(
        "it speaks TLS and this router does not: give all routers of a mesh mesh-tls-cert, mesh-tls-key and mesh-tls-ca, or none"
    )]
    Tls,
    /// Certificates at this end only.
    #[error(
        "it does not speak TLS and this router does: give all routers of a mesh mesh-tls-cert, mesh-tls-key and mesh-tls-ca, or none"
    )]
    Plain,
    /// Something else.
    #[error("what is there is no router")]
    NoRouter,
    /// As it happens where a name stands for all.
    #[error("that is this router itself")]
    Ourselves,
    /// By another connection.
    #[error("it is connected already")]
    Connected(RouterId),
    /// Not one of ours.
    #[error("it has another secret")]
    Secret,
    /// One of ours, but too old or too new.
    #[error("it speaks version {theirs}, this router {ours}: upgrade one of them")]
    Versions {
        /// This router's.
        ours: Versions,
        /// The other's.
        theirs: Versions,
    },
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        use io::ErrorKind as Kind;
        match error.kind() {
            _ if is_plain(&error) => Failed::Plain,
            Kind::UnexpectedEof | Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe => {
                Failed::HungUp
            }
            Kind::ConnectionRefused | Kind::TimedOut | Kind::HostUnreachable | Kind::NetworkUnreachable => {
                Failed::Nobody(error)
            }
            _ => Failed::Io(error),
        }
    }
}

impl Failed {
    /// Whether trying again soon would not help.
    pub(crate) fn is_final(&self) -> bool {
        matches!(
            self,
            Failed::Secret | Failed::Versions { .. } | Failed::Ourselves | Failed::Tls | Failed::Plain
        )
    }

    /// Whether a router that is not there, or not yet, looks like this.
    pub fn is_absence(&self) -> bool {
        matches!(self, Failed::Nobody(_) | Failed::Late(_) | Failed::Unresolved(_))
    }
}

/// As the one who has dialed. One that is connected already is left before anything is proved, so that no connection of its is disturbed.
pub(crate) async fn dial(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    card: &Card,
    guard: Guard,
    connected: impl Fn(RouterId) -> bool,
) -> Result<Session, Failed> {
    let ours = say(stream, &Message::Hello(card.hello())).await?;
    let (message, heard) = hear(stream).await?;
    let theirs = match message {
        Message::Hello(theirs) => theirs,
        Message::Refusal(refusal) => return Err(card.refused(refusal)),
        Message::Proof(_) => return Err(Failed::NoRouter),
    };
    let version = card.suits(&theirs)?;
    if connected(theirs.router) {
        return Err(Failed::Connected(theirs.router));
    }
    let (transcript, secret) = (Transcript::of(&ours, &heard), card.spoken());
    say(stream, &Message::Proof(transcript.proof(secret, End::Dials))).await?;
    match hear(stream).await?.0 {
        Message::Proof(proof) if transcript.is_proved(secret, End::Accepts, &proof) => {}
        Message::Proof(_) => return Err(Failed::Secret),
        Message::Refusal(refusal) => return Err(card.refused(refusal)),
        Message::Hello(_) => return Err(Failed::NoRouter),
    }
    Ok(transcript.session(card, theirs, End::Dials, version, seals(guard, secret)))
}

/// As the one who was dialed. Whoever is turned away is told why.
pub(crate) async fn accept(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    card: &Card,
    guard: Guard,
) -> Result<Session, Failed> {
    let accepted = try_accept(stream, card, guard).await;
    let refusal = match &accepted {
        Err(Failed::Secret) => Refusal::Secret,
        Err(Failed::Ourselves) => Refusal::Ourselves,
        Err(Failed::Versions { .. }) => Refusal::Versions(card.versions),
        // Whoever speaks TLS does not understand this, which tells it all that it needs to know.
        Err(Failed::Tls) => Refusal::Secret,
        _ => return accepted,
    };
    _ = say(stream, &Message::Refusal(refusal)).await;
    accepted
}

async fn try_accept(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    card: &Card,
    guard: Guard,
) -> Result<Session, Failed> {
    let (Message::Hello(theirs), heard) = hear(stream).await? else { return Err(Failed::NoRouter) };
    let version = card.suits(&theirs)?;
    let ours = say(stream, &Message::Hello(card.hello())).await?;
    let transcript = Transcript::of(&heard, &ours);
    let proof = match hear(stream).await?.0 {
        Message::Proof(proof) => proof,
        Message::Refusal(refusal) => return Err(card.refused(refusal)),
        Message::Hello(_) => return Err(Failed::NoRouter),
    };
    // In the secret that the other speaks: it may be the older or the newer one of two that we understand.
    let is_spoken = |secret: &&Vec<u8>| transcript.is_proved(secret, End::Dials, &proof);
    let secret = card.secrets.iter().find(is_spoken).ok_or(Failed::Secret)?;
    say(stream, &Message::Proof(transcript.proof(secret, End::Accepts))).await?;
    Ok(transcript.session(card, theirs, End::Accepts, version, seals(guard, secret)))
}

impl Card {
    fn hello(&self) -> Hello {
        let nonce = seal::random();
        let (address, errand) = (self.address.clone(), self.errand);
        Hello { versions: self.versions, router: self.me, nonce, address, errand }
    }

    fn spoken(&self) -> &[u8] {
        self.secrets.first().map(Vec::as_slice).unwrap_or_default()
    }

    /// The version to speak with whoever says this.
    fn suits(&self, theirs: &Hello) -> Result<u8, Failed> {
        if theirs.router == self.me {
            return Err(Failed::Ourselves);
        }
        let version = self.versions.agree(theirs.versions);
        version.ok_or(Failed::Versions { ours: self.versions, theirs: theirs.versions })
    }

    fn refused(&self, refusal: Refusal) -> Failed {
        match refusal {
            Refusal::Secret => Failed::Secret,
            Refusal::Ourselves => Failed::Ourselves,
            Refusal::Versions(theirs) => Failed::Versions { ours: self.versions, theirs },
        }
    }
}

/// Both hellos, the dialer's first, byte for byte: a later version may have said more than this one understands.
struct Transcript(Vec<u8>);

impl Transcript {
    fn of(dialer: &[u8], acceptor: &[u8]) -> Transcript {
        Transcript([dialer, acceptor].concat())
    }

    fn signed(&self, end: End) -> Vec<u8> {
        let who: &[u8] = if end == End::Dials { b"warmroute dials" } else { b"warmroute accepts" };
        [who, &self.0].concat()
    }

    fn proof(&self, secret: &[u8], end: End) -> [u8; PROOF_BYTES] {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &self.signed(end));
        tag.as_ref().try_into().expect("HMAC-SHA-256 has 32 bytes")
    }

    /// Takes as long whatever is right of it.
    fn is_proved(&self, secret: &[u8], end: End, proof: &[u8]) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        hmac::verify(&key, &self.signed(end), proof).is_ok()
    }

    /// `seals`: with this secret, or not at all.
    fn session(self, card: &Card, theirs: Hello, end: End, version: u8, seals: Option<&[u8]>) -> Session {
        let (ours, other): (&[u8], &[u8]) = match end {
            End::Dials => (b"frames of the dialer", b"frames of the acceptor"),
            End::Accepts => (b"frames of the acceptor", b"frames of the dialer"),
        };
        let sealer = seals.map(|secret| Sealer::new(secret, &self.0, &[ours]));
        let opener = seals.map(|secret| Opener::new(secret, &self.0, &[other]));
        Session {
            peer: theirs.router,
            address: theirs.address,
            version,
            dialed_by: if end == End::Dials { card.me } else { theirs.router },
            errand: theirs.errand,
            writer: FrameWriter(sealer),
            reader: FrameReader::new(opener),
        }
    }
}

fn seals(guard: Guard, secret: &[u8]) -> Option<&[u8]> {
    (guard == Guard::Seal).then_some(secret)
}

/// A record of TLS begins with its kind, a handshake's or an alert's, and with the version's upper half.
fn is_tls(head: &[u8]) -> bool {
    matches!(head, [0x15 | 0x16, 0x03, ..])
}

/// As it went over the wire.
async fn say(stream: &mut (impl AsyncWrite + Unpin), message: &Message) -> io::Result<Vec<u8>> {
    let bytes = message.encode();
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    Ok(bytes)
}

/// What was said, and as it came.
async fn hear(stream: &mut (impl AsyncRead + Unpin)) -> Result<(Message, Vec<u8>), Failed> {
    let mut bytes = vec![0; HEAD_BYTES];
    stream.read_exact(&mut bytes).await?;
    if is_tls(&bytes) {
        return Err(Failed::Tls);
    }
    let length = usize::from(u16::from_be_bytes([bytes[1], bytes[2]]));
    if HEAD_BYTES + length > MESSAGE_BYTES_MAX {
        return Err(Failed::NoRouter);
    }
    bytes.resize(HEAD_BYTES + length, 0);
    stream.read_exact(&mut bytes[HEAD_BYTES..]).await?;
    let message = Message::decode(bytes[0], &bytes[HEAD_BYTES..]).ok_or(Failed::NoRouter)?;
    Ok((message, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Kind;
    use bytes::BytesMut;
    use tokio::io::duplex;

    fn card(me: u64, secret: &str) -> Card {
        let address = format!("host-{me}:1");
        let secrets = secret.split(' ').map(|secret| secret.as_bytes().to_vec()).collect();
        Card { me: RouterId(me), address, versions: Versions::OURS, secrets, errand: Errand::Join }
    }

    async fn meet(dials: &Card, accepts: &Card) -> (Result<Session, Failed>, Result<Session, Failed>) {
        let (mut near, mut far) = duplex(4_096);
        tokio::join!(dial(&mut near, dials, Guard::Seal, |_| false), accept(&mut far, accepts, Guard::Seal))
    }

    #[tokio::test]
    async fn two_of_ours_know_each_other_and_read_each_other() {
        let (near, far) = meet(&card(1, "secret"), &card(2, "secret")).await;
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        assert_eq!((near.peer, near.address.as_str()), (RouterId(2), "host-2:1"));
        assert_eq!((far.peer, far.dialed_by, near.dialed_by), (RouterId(1), RouterId(1), RouterId(1)));
        let mut wire = Vec::new();
        near.writer.write(Kind::Payload, b"there", &mut wire);
        let sent = far.reader.read(&mut BytesMut::from(&wire[..])).unwrap().unwrap();
        assert_eq!((sent.0, &sent.1[..]), (Kind::Payload, &b"there"[..]));
        assert!(near.reader.read(&mut BytesMut::from(&wire[..])).is_err(), "what was said comes back unread");
    }

    #[tokio::test]
    async fn another_secret_is_told_at_both_ends() {
        let (near, far) = meet(&card(1, "secret"), &card(2, "another")).await;
        assert!(matches!((near, far), (Err(Failed::Secret), Err(Failed::Secret))));
    }

    #[tokio::test]
    async fn while_one_secret_replaces_another_nobody_is_a_stranger() {
        // The three steps of docs/many-routers.md: in each, some have taken it and some have not.
        for (before, after) in [("old", "old new"), ("old new", "new old"), ("new old", "new")] {
            for (dials, accepts) in [(before, after), (after, before)] {
                let (near, far) = meet(&card(1, dials), &card(2, accepts)).await;
                let (mut near, mut far, mut wire) = (near.unwrap(), far.unwrap(), Vec::new());
                near.writer.write(Kind::Payload, b"there", &mut wire);
                assert!(far.reader.read(&mut BytesMut::from(&wire[..])).unwrap().is_some());
            }
        }
        let (near, far) = meet(&card(1, "old"), &card(2, "new")).await;
        assert!(near.is_err() && far.is_err());
    }

    #[tokio::test]
    async fn tls_is_told_from_silence_and_from_nonsense() {
        let (mut near, mut far) = duplex(4_096);
        near.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00]).await.unwrap();
        let accepted = accept(&mut far, &card(1, "secret"), Guard::Seal).await;
        assert!(matches!(accepted, Err(Failed::Tls)));
        let (mut near, mut far) = duplex(4_096);
        far.write_all(&[0x15, 0x03, 0x03, 0x00, 0x02]).await.unwrap();
        let dialed = dial(&mut near, &card(1, "secret"), Guard::Seal, |_| false).await;
        assert!(matches!(dialed, Err(Failed::Tls)));
    }

    #[tokio::test]
    async fn whoever_does_not_know_the_secret_accepts_nobody() {
        let (mut near, mut far) = duplex(4_096);
        let ours = card(1, "secret");
        let impostor = async {
            hear(&mut far).await.unwrap();
            say(&mut far, &Message::Hello(card(2, "").hello())).await.unwrap();
            let Message::Proof(proof) = hear(&mut far).await.unwrap().0 else { panic!("no proof") };
            // The only proof that it has is the one that it was just given.
            say(&mut far, &Message::Proof(proof)).await.unwrap();
        };
        let (dialed, ()) = tokio::join!(dial(&mut near, &ours, Guard::Seal, |_| false), impostor);
        assert!(matches!(dialed, Err(Failed::Secret)));
    }

    #[tokio::test]
    async fn a_router_that_reaches_itself_notices() {
        let (near, far) = meet(&card(1, "secret"), &card(1, "secret")).await;
        assert!(matches!((near, far), (Err(Failed::Ourselves), Err(Failed::Ourselves))));
    }

    #[tokio::test]
    async fn a_later_version_may_say_more_in_its_hello() {
        let (mut near, mut far) = duplex(4_096);
        let later = async {
            let mut ours = Message::Hello(card(1, "secret").hello()).encode();
            ours.extend_from_slice(b"something new");
            ours[2] += b"something new".len() as u8;
            near.write_all(&ours).await.unwrap();
            let (_, theirs) = hear(&mut near).await.unwrap();
            let transcript = Transcript::of(&ours, &theirs);
            say(&mut near, &Message::Proof(transcript.proof(b"secret", End::Dials))).await.unwrap();
            let Message::Proof(proof) = hear(&mut near).await.unwrap().0 else { panic!("refused") };
            transcript.is_proved(b"secret", End::Accepts, &proof)
        };
        let ours = card(2, "secret");
        let (proved, accepted) = tokio::join!(later, accept(&mut far, &ours, Guard::Seal));
        assert!(proved && accepted.is_ok());
    }

    #[tokio::test]
    async fn versions_that_overlap_agree_and_others_say_so_in_plain_words() {
        let speaks =
            |me, oldest, newest| Card { versions: Versions { oldest, newest }, ..card(me, "secret") };
        let (near, far) = meet(&speaks(1, 1, 2), &speaks(2, 2, 3)).await;
        assert_eq!((near.unwrap().version, far.unwrap().version), (2, 2));
        let (near, far) = meet(&speaks(1, 1, 1), &speaks(2, 2, 3)).await;
        let text = near.unwrap_err().to_string();
        assert_eq!(text, "it speaks version 2 to 3, this router 1: upgrade one of them");
        assert!(far.unwrap_err().is_final());
    }
}
