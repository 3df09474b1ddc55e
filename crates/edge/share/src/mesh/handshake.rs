//! Two routers prove to each other that they belong together, over a fresh connection.

use std::io;
use std::time::Duration;

use ring::hmac;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use warmroute_types::RouterId;

use crate::Versions;
use crate::frame::{FrameReader, FrameWriter};
use crate::mesh::hello::{HEAD_BYTES, Hello, MESSAGE_BYTES_MAX, Message, PROOF_BYTES, Refusal};
use crate::seal::{self, Opener, Sealer};

/// Who we are, for all handshakes.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub me: RouterId,
    pub address: String,
    pub versions: Versions,
    /// Empty where certificates alone decide.
    pub secret: Vec<u8>,
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
    pub writer: FrameWriter,
    pub reader: FrameReader,
}

/// Why nothing came of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("what is there is no router")]
    NoRouter,
    #[error("that is this router itself")]
    Ourselves,
    #[error("it is connected already")]
    Connected(RouterId),
    #[error("it did not answer within {} ms", .0.as_millis())]
    Late(Duration),
    #[error("it has another secret")]
    Secret,
    #[error("it speaks version {theirs}, this router {ours}: upgrade one of them")]
    Versions { ours: Versions, theirs: Versions },
}

impl Failed {
    /// Whether trying again soon could help.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Failed::Secret | Failed::Versions { .. } | Failed::Ourselves)
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
    let transcript = Transcript::of(&ours, &heard);
    say(stream, &Message::Proof(transcript.proof(&card.secret, End::Dials))).await?;
    match hear(stream).await?.0 {
        Message::Proof(proof) => transcript.check(&card.secret, End::Accepts, &proof)?,
        Message::Refusal(refusal) => return Err(card.refused(refusal)),
        Message::Hello(_) => return Err(Failed::NoRouter),
    }
    Ok(transcript.session(card, theirs, End::Dials, version, guard))
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
    transcript.check(&card.secret, End::Dials, &proof)?;
    say(stream, &Message::Proof(transcript.proof(&card.secret, End::Accepts))).await?;
    Ok(transcript.session(card, theirs, End::Accepts, version, guard))
}

impl Card {
    fn hello(&self) -> Hello {
        let nonce = seal::random();
        Hello { versions: self.versions, router: self.me, nonce, address: self.address.clone() }
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
    fn check(&self, secret: &[u8], end: End, proof: &[u8]) -> Result<(), Failed> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        hmac::verify(&key, &self.signed(end), proof).map_err(|_| Failed::Secret)
    }

    fn session(self, card: &Card, theirs: Hello, end: End, version: u8, guard: Guard) -> Session {
        let seals = guard == Guard::Seal;
        let (ours, other): (&[u8], &[u8]) = match end {
            End::Dials => (b"frames of the dialer", b"frames of the acceptor"),
            End::Accepts => (b"frames of the acceptor", b"frames of the dialer"),
        };
        let sealer = seals.then(|| Sealer::new(&card.secret, &self.0, &[ours]));
        let opener = seals.then(|| Opener::new(&card.secret, &self.0, &[other]));
        Session {
            peer: theirs.router,
            address: theirs.address,
            version,
            dialed_by: if end == End::Dials { card.me } else { theirs.router },
            writer: FrameWriter(sealer),
            reader: FrameReader::new(opener),
        }
    }
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
        Card { me: RouterId(me), address, versions: Versions::OURS, secret: secret.into() }
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
            transcript.check(b"secret", End::Accepts, &proof)
        };
        let ours = card(2, "secret");
        let (proved, accepted) = tokio::join!(later, accept(&mut far, &ours, Guard::Seal));
        assert!(proved.is_ok() && accepted.is_ok());
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
