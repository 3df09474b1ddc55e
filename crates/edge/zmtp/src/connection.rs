//! One connection: handshake, messages in both directions, and replies to commands.

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::sleep_until;

use crate::Message;
use crate::command::{self, Command};
use crate::decoder::{Decoder, Item, put_message};
use crate::error::Error;
use crate::greeting::{self, GREETING_BYTES};
use crate::heartbeat::Heartbeat;
use crate::options::Options;

/// Most unsent bytes when a heartbeat must be answered.
const UNREAD_BYTES_MAX: usize = 4 << 20;

/// A bidirectional byte stream.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// The type of our socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Sub,
    Pub,
    Dealer,
    Router,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Sub => "SUB",
            Role::Pub => "PUB",
            Role::Dealer => "DEALER",
            Role::Router => "ROUTER",
        }
    }

    fn goes_with(self, theirs: &str) -> bool {
        match self {
            Role::Sub => matches!(theirs, "PUB" | "XPUB"),
            Role::Pub => matches!(theirs, "SUB" | "XSUB"),
            Role::Dealer => matches!(theirs, "ROUTER" | "DEALER" | "REP"),
            Role::Router => matches!(theirs, "DEALER" | "REQ" | "ROUTER"),
        }
    }
}

/// The result of a read.
#[derive(Debug)]
pub enum Received {
    Message(Message),
    Subscribed(Bytes),
    Cancelled(Bytes),
    /// Nothing arrived, but everything queued has been written: there is room for more.
    Drained,
}

/// A connection after its handshake.
pub struct Connection {
    role: Role,
    reader: ReadHalf<Box<dyn ByteStream>>,
    writer: WriteHalf<Box<dyn ByteStream>>,
    decoder: Decoder,
    /// The outgoing bytes, written while waiting for the next arrival.
    out: BytesMut,
    heartbeat: Heartbeat,
    timeout: std::time::Duration,
    peer_minor: u8,
}

impl Connection {
    /// Performs the handshake.
    pub async fn open(
        stream: Box<dyn ByteStream>,
        role: Role,
        options: &Options,
    ) -> Result<Connection, Error> {
        let limit = options.handshake_timeout;
        let shaken = tokio::time::timeout(limit, Connection::shake_hands(stream, role, options)).await;
        shaken.unwrap_or(Err(Error::Late(limit)))
    }

    async fn shake_hands(
        mut stream: Box<dyn ByteStream>,
        role: Role,
        options: &Options,
    ) -> Result<Connection, Error> {
        stream.write_all(&greeting::ours()).await?;
        let mut theirs = [0; GREETING_BYTES];
        // The first part decides, because another protocol's peer may never send the rest.
        stream.read_exact(&mut theirs[..10]).await.map_err(ended)?;
        if theirs[0] != 0xff || theirs[9] & 1 != 1 {
            return Err(Error::Protocol("the greeting has no signature"));
        }
        stream.read_exact(&mut theirs[10..]).await.map_err(ended)?;
        let peer_minor = greeting::read(&theirs)?;
        let (reader, writer) = tokio::io::split(stream);
        let mut connection = Connection {
            role,
            reader,
            writer,
            decoder: Decoder::new(options),
            out: BytesMut::new(),
            heartbeat: Heartbeat::off(options),
            timeout: options.heartbeat_timeout,
            peer_minor,
        };
        command::put_ready(role.name(), &mut connection.out);
        connection.flush().await?;
        connection.await_ready().await?;
        connection.heartbeat.begin(peer_minor);
        Ok(connection)
    }

    async fn await_ready(&mut self) -> Result<(), Error> {
        let Some(Item::Command(body)) = self.next_item().await? else {
            return Err(Error::Protocol("a message arrived before READY"));
        };
        match Command::read(body)? {
            Command::Ready { socket_type, .. } if self.role.goes_with(&socket_type) => Ok(()),
            Command::Ready { socket_type, .. } => {
                Err(Error::Mismatch { ours: self.role.name(), theirs: socket_type })
            }
            Command::Error(reason) => Err(Error::Refused(reason)),
            _ => Err(Error::Protocol("a command arrived before READY")),
        }
    }

    /// The next arrival. Meanwhile queued bytes are written and heartbeats exchanged. Dropping the future loses
    /// nothing.
    pub async fn receive(&mut self) -> Result<Received, Error> {
        loop {
            match self.next_item().await? {
                None => return Ok(Received::Drained),
                Some(Item::Message(message)) => return Ok(self.arrival(message)),
                Some(Item::Command(body)) => {
                    if let Some(arrived) = self.obey(Command::read(body)?)? {
                        return Ok(arrived);
                    }
                }
            }
        }
    }

    /// Before ZMTP 3.1 subscriptions were messages, and libzmq still accepts them.
    fn arrival(&self, message: Message) -> Received {
        match (self.role, message.first().and_then(|part| part.first())) {
            (Role::Pub, Some(1)) => Received::Subscribed(message[0].slice(1..)),
            (Role::Pub, Some(0)) => Received::Cancelled(message[0].slice(1..)),
            _ => Received::Message(message),
        }
    }

    fn obey(&mut self, command: Command) -> Result<Option<Received>, Error> {
        match command {
            Command::Ping { context } => {
                if self.out.len() > UNREAD_BYTES_MAX {
                    return Err(Error::Protocol("the peer sends heartbeats and does not read the replies"));
                }
                command::put("PONG", &context, &mut self.out);
                Ok(None)
            }
            Command::Subscribe(topic) => Ok(Some(Received::Subscribed(topic))),
            Command::Cancel(topic) => Ok(Some(Received::Cancelled(topic))),
            Command::Error(reason) => Err(Error::Refused(reason)),
            Command::Ready { .. } => Err(Error::Protocol("READY arrived twice")),
            Command::Pong | Command::Unknown => Ok(None),
        }
    }

    /// The next item, or `None` when the queue has been written.
    async fn next_item(&mut self) -> Result<Option<Item>, Error> {
        loop {
            if let Some(item) = self.decoder.next()? {
                return Ok(Some(item));
            }
            // Not in the select: a peer that sends without a pause must not starve it.
            if self.heartbeat.take_due_ping() {
                command::put_ping(self.timeout, &mut self.out);
            }
            let due = self.heartbeat.due();
            tokio::select! {
                biased;
                written = self.writer.write_buf(&mut self.out), if !self.out.is_empty() => {
                    if written? == 0 {
                        return Err(Error::Closed);
                    }
                    if self.out.is_empty() {
                        return Ok(None);
                    }
                }
                read = self.reader.read_buf(self.decoder.room()) => match read? {
                    0 => return Err(Error::Closed),
                    _ => self.heartbeat.record_activity(),
                },
                () = sleep_until(due.unwrap_or_else(tokio::time::Instant::now)), if due.is_some() => {
                    self.heartbeat.check()?;
                }
            }
        }
    }

    /// Queues a message; it is written by the next [`receive`](Connection::receive) or [`flush`](Connection::flush).
    pub fn queue<P: AsRef<[u8]>>(&mut self, parts: &[P]) {
        put_message(parts, &mut self.out);
    }

    /// Queues a subscription, in the form that the peer understands.
    pub fn subscribe(&mut self, topic: &[u8]) {
        match self.peer_minor {
            0 => {
                let message = [[&[1], topic].concat()];
                put_message(&message, &mut self.out);
            }
            _ => command::put("SUBSCRIBE", topic, &mut self.out),
        }
    }

    /// Queued bytes.
    pub fn queued(&self) -> usize {
        self.out.len()
    }

    /// Writes everything that is queued.
    pub async fn flush(&mut self) -> Result<(), Error> {
        while !self.out.is_empty() {
            if self.writer.write_buf(&mut self.out).await? == 0 {
                return Err(Error::Closed);
            }
        }
        Ok(self.writer.flush().await?)
    }
}

fn ended(error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::Closed,
        _ => Error::Io(error),
    }
}
