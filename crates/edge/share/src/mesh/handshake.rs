//! Mutual authentication of two routers on a new connection.

use std::io;
use std::time::Duration;

use ring::hmac;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use warmroute_types::RouterId;

use crate::Versions;
use crate::frame::{FrameReader, FrameWriter};
use crate::mesh::handshake_message::{
    HEAD_BYTES, HandshakeMessage, Hello, MESSAGE_BYTES_MAX, PROOF_BYTES, Purpose, Refusal,
};
use crate::seal::{self, Opener, Sealer};

/// This router's identity in all handshakes.
#[derive(Clone, Debug)]
pub(crate) struct LocalIdentity {
    pub me: RouterId,
    pub address: String,
    pub versions: Versions,
    /// The first is used, all are accepted.
    pub secrets: Vec<Vec<u8>>,
    pub purpose: Purpose,
}

/// The side of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Dialer,
    Acceptor,
}

/// An authenticated connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub peer: RouterId,
    pub address: String,
    pub version: u8,
    pub dialed_by: RouterId,
    /// Why the other router connected.
    pub purpose: Purpose,
    pub writer: FrameWriter,
    pub reader: FrameReader,
}

/// Why a connection to a router failed.
#[derive(Debug, thiserror::Error)]
pub enum MeshFailure {
    /// The name does not resolve.
    #[error("the name does not resolve: {0}")]
    Unresolved(io::Error),
    /// The connection could not be opened.
    #[error("unreachable: {0}")]
    Unreachable(io::Error),
    /// A timeout expired.
    #[error("it did not answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The connection closed during the handshake.
    #[error("it closed the connection during the handshake: check that it is a router")]
    Closed,
    /// Another I/O error.
    #[error("{0}")]
    Io(io::Error),
    /// Another service answered.
    #[error("another service answers at this address: use the mesh-listen port of a router")]
    NotARouter,
    /// The dialed address is this router's own, as happens with a name that resolves to all routers.
    #[error("the address is this router's own")]
    SelfDial,
    /// Another connection to the router exists.
    #[error("it is already connected")]
    AlreadyConnected(RouterId),
    /// The secrets differ.
    #[error("its secret differs: use the same share-secret-file on all routers")]
    WrongSecret,
    /// No common version.
    #[error("it supports version {theirs}, this router {ours}: upgrade the older one")]
    IncompatibleVersions {
        /// This router's versions.
        ours: Versions,
        /// The other router's versions.
        theirs: Versions,
    },
}

impl From<io::Error> for MeshFailure {
    fn from(error: io::Error) -> MeshFailure {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::UnexpectedEof | Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe => {
                MeshFailure::Closed
            }
            Kind::ConnectionRefused | Kind::TimedOut | Kind::HostUnreachable | Kind::NetworkUnreachable => {
                MeshFailure::Unreachable(error)
            }
            _ => MeshFailure::Io(error),
        }
    }
}

impl MeshFailure {
    /// Whether another attempt soon would fail in the same way.
    pub(crate) fn is_final(&self) -> bool {
        matches!(
            self,
            MeshFailure::WrongSecret | MeshFailure::IncompatibleVersions { .. } | MeshFailure::SelfDial
        )
    }

    /// Whether the router may just not be running, or not yet.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, MeshFailure::Unreachable(_) | MeshFailure::TimedOut(_) | MeshFailure::Unresolved(_))
    }
}

/// The dialing side. It stops before the proof if the router is already connected, so that the existing
/// connection is not disturbed.
pub(crate) async fn dial(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    identity: &LocalIdentity,
    connected: impl Fn(RouterId) -> bool,
) -> Result<Session, MeshFailure> {
    let ours = send(stream, &HandshakeMessage::Hello(identity.hello())).await?;
    let (message, received) = receive(stream).await?;
    let theirs = match message {
        HandshakeMessage::Hello(theirs) => theirs,
        HandshakeMessage::Refusal(refusal) => return Err(identity.failure_of(refusal)),
        HandshakeMessage::Proof(_) => return Err(MeshFailure::NotARouter),
    };
    let version = identity.negotiate(&theirs)?;
    if connected(theirs.router) {
        return Err(MeshFailure::AlreadyConnected(theirs.router));
    }
    let (transcript, secret) = (Transcript::of(&ours, &received), identity.primary_secret());
    send(stream, &HandshakeMessage::Proof(transcript.proof(secret, Side::Dialer))).await?;
    match receive(stream).await?.0 {
        HandshakeMessage::Proof(proof) if transcript.verify(secret, Side::Acceptor, &proof) => {}
        HandshakeMessage::Proof(_) => return Err(MeshFailure::WrongSecret),
        HandshakeMessage::Refusal(refusal) => return Err(identity.failure_of(refusal)),
        HandshakeMessage::Hello(_) => return Err(MeshFailure::NotARouter),
    }
    Ok(transcript.session(identity, theirs, Side::Dialer, version, secret))
}

/// The accepting side. A rejected router is told the reason.
pub(crate) async fn accept(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    identity: &LocalIdentity,
) -> Result<Session, MeshFailure> {
    let accepted = try_accept(stream, identity).await;
    let refusal = match &accepted {
        Err(MeshFailure::WrongSecret) => Refusal::WrongSecret,
        Err(MeshFailure::SelfDial) => Refusal::SelfDial,
        Err(MeshFailure::IncompatibleVersions { .. }) => Refusal::IncompatibleVersions(identity.versions),
        _ => return accepted,
    };
    _ = send(stream, &HandshakeMessage::Refusal(refusal)).await;
    accepted
}

async fn try_accept(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    identity: &LocalIdentity,
) -> Result<Session, MeshFailure> {
    let (HandshakeMessage::Hello(theirs), received) = receive(stream).await? else {
        return Err(MeshFailure::NotARouter);
    };
    let version = identity.negotiate(&theirs)?;
    let ours = send(stream, &HandshakeMessage::Hello(identity.hello())).await?;
    let transcript = Transcript::of(&received, &ours);
    let proof = match receive(stream).await?.0 {
        HandshakeMessage::Proof(proof) => proof,
        HandshakeMessage::Refusal(refusal) => return Err(identity.failure_of(refusal)),
        HandshakeMessage::Hello(_) => return Err(MeshFailure::NotARouter),
    };
    // The other router may use any of the accepted secrets, while one replaces another.
    let proves_secret = |secret: &&Vec<u8>| transcript.verify(secret, Side::Dialer, &proof);
    let secret = identity.secrets.iter().find(proves_secret).ok_or(MeshFailure::WrongSecret)?;
    send(stream, &HandshakeMessage::Proof(transcript.proof(secret, Side::Acceptor))).await?;
    Ok(transcript.session(identity, theirs, Side::Acceptor, version, secret))
}

impl LocalIdentity {
    fn hello(&self) -> Hello {
        let nonce = seal::random();
        let (address, purpose) = (self.address.clone(), self.purpose);
        Hello { versions: self.versions, router: self.me, nonce, address, purpose }
    }

    fn primary_secret(&self) -> &[u8] {
        self.secrets.first().map(Vec::as_slice).unwrap_or_default()
    }

    /// The version to use with the sender of this hello.
    fn negotiate(&self, theirs: &Hello) -> Result<u8, MeshFailure> {
        if theirs.router == self.me {
            return Err(MeshFailure::SelfDial);
        }
        let version = self.versions.agree(theirs.versions);
        version.ok_or(MeshFailure::IncompatibleVersions { ours: self.versions, theirs: theirs.versions })
    }

    fn failure_of(&self, refusal: Refusal) -> MeshFailure {
        match refusal {
            Refusal::WrongSecret => MeshFailure::WrongSecret,
            Refusal::SelfDial => MeshFailure::SelfDial,
            Refusal::IncompatibleVersions(theirs) => {
                MeshFailure::IncompatibleVersions { ours: self.versions, theirs }
            }
        }
    }
}

/// Both hellos as sent, the dialer's first. Raw bytes, because a later version may append fields.
struct Transcript(Vec<u8>);

impl Transcript {
    fn of(dialer: &[u8], acceptor: &[u8]) -> Transcript {
        Transcript([dialer, acceptor].concat())
    }

    fn signed_bytes(&self, side: Side) -> Vec<u8> {
        let who: &[u8] = if side == Side::Dialer { b"warmroute dials" } else { b"warmroute accepts" };
        [who, &self.0].concat()
    }

    fn proof(&self, secret: &[u8], side: Side) -> [u8; PROOF_BYTES] {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &self.signed_bytes(side));
        tag.as_ref().try_into().expect("HMAC-SHA-256 has 32 bytes")
    }

    /// Takes constant time.
    fn verify(&self, secret: &[u8], side: Side, proof: &[u8]) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        hmac::verify(&key, &self.signed_bytes(side), proof).is_ok()
    }

    fn session(
        self,
        identity: &LocalIdentity,
        theirs: Hello,
        side: Side,
        version: u8,
        secret: &[u8],
    ) -> Session {
        let (ours, other): (&[u8], &[u8]) = match side {
            Side::Dialer => (b"frames of the dialer", b"frames of the acceptor"),
            Side::Acceptor => (b"frames of the acceptor", b"frames of the dialer"),
        };
        let sealer = Sealer::new(secret, &self.0, &[ours]);
        let opener = Opener::new(secret, &self.0, &[other]);
        Session {
            peer: theirs.router,
            address: theirs.address,
            version,
            dialed_by: if side == Side::Dialer { identity.me } else { theirs.router },
            purpose: theirs.purpose,
            writer: FrameWriter(sealer),
            reader: FrameReader::new(opener),
        }
    }
}

/// Sends a message; returns its bytes.
async fn send(stream: &mut (impl AsyncWrite + Unpin), message: &HandshakeMessage) -> io::Result<Vec<u8>> {
    let bytes = message.encode();
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    Ok(bytes)
}

/// Receives a message; returns it with its bytes.
async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> Result<(HandshakeMessage, Vec<u8>), MeshFailure> {
    let mut bytes = vec![0; HEAD_BYTES];
    stream.read_exact(&mut bytes).await?;
    let length = usize::from(u16::from_be_bytes([bytes[1], bytes[2]]));
    if HEAD_BYTES + length > MESSAGE_BYTES_MAX {
        return Err(MeshFailure::NotARouter);
    }
    bytes.resize(HEAD_BYTES + length, 0);
    stream.read_exact(&mut bytes[HEAD_BYTES..]).await?;
    let message = HandshakeMessage::decode(bytes[0], &bytes[HEAD_BYTES..]).ok_or(MeshFailure::NotARouter)?;
    Ok((message, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Kind;
    use bytes::BytesMut;
    use tokio::io::duplex;

    fn identity(me: u64, secret: &str) -> LocalIdentity {
        let address = format!("host-{me}:1");
        let secrets = secret.split(' ').map(|secret| secret.as_bytes().to_vec()).collect();
        LocalIdentity { me: RouterId(me), address, versions: Versions::OURS, secrets, purpose: Purpose::Join }
    }

    async fn handshake(
        dialing: &LocalIdentity,
        accepting: &LocalIdentity,
    ) -> (Result<Session, MeshFailure>, Result<Session, MeshFailure>) {
        let (mut dialer, mut acceptor) = duplex(4_096);
        tokio::join!(dial(&mut dialer, dialing, |_| false), accept(&mut acceptor, accepting))
    }

    #[tokio::test]
    async fn two_routers_authenticate_and_read_each_others_frames() {
        let (dialer, acceptor) = handshake(&identity(1, "secret"), &identity(2, "secret")).await;
        let (mut dialer, mut acceptor) = (dialer.unwrap(), acceptor.unwrap());
        assert_eq!((dialer.peer, dialer.address.as_str()), (RouterId(2), "host-2:1"));
        assert_eq!(
            (acceptor.peer, acceptor.dialed_by, dialer.dialed_by),
            (RouterId(1), RouterId(1), RouterId(1))
        );
        let mut wire = Vec::new();
        dialer.writer.write(Kind::Payload, b"there", &mut wire);
        let sent = acceptor.reader.read(&mut BytesMut::from(&wire[..])).unwrap().unwrap();
        assert_eq!((sent.0, &sent.1[..]), (Kind::Payload, &b"there"[..]));
        assert!(
            dialer.reader.read(&mut BytesMut::from(&wire[..])).is_err(),
            "a reflected frame does not open"
        );
    }

    #[tokio::test]
    async fn a_wrong_secret_is_reported_on_both_sides() {
        let (dialer, acceptor) = handshake(&identity(1, "secret"), &identity(2, "another")).await;
        assert!(matches!((dialer, acceptor), (Err(MeshFailure::WrongSecret), Err(MeshFailure::WrongSecret))));
    }

    #[tokio::test]
    async fn routers_stay_connected_while_a_secret_is_replaced() {
        // The three steps of docs/many-routers.md; in each, some routers have the new file and some the old
        // one.
        for (before, after) in [("old", "old new"), ("old new", "new old"), ("new old", "new")] {
            for (dialing, accepting) in [(before, after), (after, before)] {
                let (dialer, acceptor) = handshake(&identity(1, dialing), &identity(2, accepting)).await;
                let (mut dialer, mut acceptor, mut wire) = (dialer.unwrap(), acceptor.unwrap(), Vec::new());
                dialer.writer.write(Kind::Payload, b"there", &mut wire);
                assert!(acceptor.reader.read(&mut BytesMut::from(&wire[..])).unwrap().is_some());
            }
        }
        let (dialer, acceptor) = handshake(&identity(1, "old"), &identity(2, "new")).await;
        assert!(dialer.is_err() && acceptor.is_err());
    }

    #[tokio::test]
    async fn an_acceptor_without_the_secret_is_rejected() {
        let (mut dialer, mut acceptor) = duplex(4_096);
        let ours = identity(1, "secret");
        let impostor = async {
            receive(&mut acceptor).await.unwrap();
            send(&mut acceptor, &HandshakeMessage::Hello(identity(2, "").hello())).await.unwrap();
            let HandshakeMessage::Proof(proof) = receive(&mut acceptor).await.unwrap().0 else {
                panic!("no proof")
            };
            // The impostor can only send back the proof that it received.
            send(&mut acceptor, &HandshakeMessage::Proof(proof)).await.unwrap();
        };
        let (dialed, ()) = tokio::join!(dial(&mut dialer, &ours, |_| false), impostor);
        assert!(matches!(dialed, Err(MeshFailure::WrongSecret)));
    }

    #[tokio::test]
    async fn a_router_notices_that_it_dialed_itself() {
        let (dialer, acceptor) = handshake(&identity(1, "secret"), &identity(1, "secret")).await;
        assert!(matches!((dialer, acceptor), (Err(MeshFailure::SelfDial), Err(MeshFailure::SelfDial))));
    }

    #[tokio::test]
    async fn unknown_bytes_at_the_end_of_a_hello_are_accepted() {
        let (mut dialer, mut acceptor) = duplex(4_096);
        let later = async {
            let mut ours = HandshakeMessage::Hello(identity(1, "secret").hello()).encode();
            ours.extend_from_slice(b"something new");
            ours[2] += b"something new".len() as u8;
            dialer.write_all(&ours).await.unwrap();
            let (_, theirs) = receive(&mut dialer).await.unwrap();
            let transcript = Transcript::of(&ours, &theirs);
            send(&mut dialer, &HandshakeMessage::Proof(transcript.proof(b"secret", Side::Dialer)))
                .await
                .unwrap();
            let HandshakeMessage::Proof(proof) = receive(&mut dialer).await.unwrap().0 else {
                panic!("refused")
            };
            transcript.verify(b"secret", Side::Acceptor, &proof)
        };
        let ours = identity(2, "secret");
        let (proved, accepted) = tokio::join!(later, accept(&mut acceptor, &ours));
        assert!(proved && accepted.is_ok());
    }

    #[tokio::test]
    async fn overlapping_versions_agree_and_others_are_reported() {
        let with_versions = |me, oldest, newest| LocalIdentity {
            versions: Versions { oldest, newest },
            ..identity(me, "secret")
        };
        let (dialer, acceptor) = handshake(&with_versions(1, 1, 2), &with_versions(2, 2, 3)).await;
        assert_eq!((dialer.unwrap().version, acceptor.unwrap().version), (2, 2));
        let (dialer, acceptor) = handshake(&with_versions(1, 1, 1), &with_versions(2, 2, 3)).await;
        let text = dialer.unwrap_err().to_string();
        assert_eq!(text, "it supports version 2 to 3, this router 1: upgrade the older one");
        assert!(acceptor.unwrap_err().is_final());
    }
}
