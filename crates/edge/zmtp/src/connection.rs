//! One connection: handshake, messages in and out, commands answered on the way.

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

/// What may wait to be written when a heartbeat is to be answered.
const UNREAD_BYTES_MAX: usize = 4 << 20;

/// Anything that carries bytes both ways.
pub trait Carrier: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Carrier for T {}

/// What kind of socket we are.
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

/// What a connection brings.
#[derive(Debug)]
pub enum Arrived {
    Message(Message),
    Subscribed(Bytes),
    Cancelled(Bytes),
    /// Nothing arrived, but all that was queued has been written: there is room for more.
    Drained,
}

/// A connection after its handshake.
pub struct Connection {
    role: Role,
    reader: ReadHalf<Box<dyn Carrier>>,
    writer: WriteHalf<Box<dyn Carrier>>,
    decoder: Decoder,
    /// Written by whoever waits for the next arrival.
    out: BytesMut,
    heartbeat: Heartbeat,
    timeout: std::time::Duration,
    peer_minor: u8,
}

impl Connection {
    /// Shakes hands.
    pub async fn open(carrier: Box<dyn Carrier>, role: Role, options: &Options) -> Result<Connection, Error> {
        let limit = options.handshake_timeout;
        let shaken = tokio::time::timeout(limit, Connection::shake_hands(carrier, role, options)).await;
        shaken.unwrap_or(Err(Error::Late(limit)))
    }

    async fn shake_hands(
        mut carrier: Box<dyn Carrier>,
        role: Role,
        options: &Options,
    ) -> Result<Connection, Error> {
        carrier.write_all(&greeting::ours()).await?;
        let mut theirs = [0; GREETING_BYTES];
        // Judged by its first part, because a stranger may never send the rest.
        carrier.read_exact(&mut theirs[..10]).await.map_err(ended)?;
        if theirs[0] != 0xff || theirs[9] & 1 != 1 {
            return Err(Error::Protocol("the greeting has no signature"));
        }
        carrier.read_exact(&mut theirs[10..]).await.map_err(ended)?;
        let peer_minor = greeting::read(&theirs)?;
        let (reader, writer) = tokio::io::split(carrier);
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
            return Err(Error::Protocol("a message before READY"));
        };
        match Command::read(body)? {
            Command::Ready { socket_type, .. } if self.role.goes_with(&socket_type) => Ok(()),
            Command::Ready { socket_type, .. } => {
                Err(Error::Mismatch { ours: self.role.name(), theirs: socket_type })
            }
            Command::Error(reason) => Err(Error::Refused(reason)),
            _ => Err(Error::Protocol("a command before READY")),
        }
    }

    /// The next arrival. Meanwhile what is queued is written and heartbeats go to and fro; nothing is lost when the future
    /// is dropped.
    pub async fn receive(&mut self) -> Result<Arrived, Error> {
        loop {
            match self.next_item().await? {
                None => return Ok(Arrived::Drained),
                Some(Item::Message(message)) => return Ok(self.arrival(message)),
                Some(Item::Command(body)) => {
                    if let Some(arrived) = self.obey(Command::read(body)?)? {
                        return Ok(arrived);
                    }
                }
            }
        }
    }

    /// Until ZMTP 3.0 subscriptions were messages, and libzmq still takes them so.
    fn arrival(&self, message: Message) -> Arrived {
        match (self.role, message.first().and_then(|part| part.first())) {
            (Role::Pub, Some(1)) => Arrived::Subscribed(message[0].slice(1..)),
            (Role::Pub, Some(0)) => Arrived::Cancelled(message[0].slice(1..)),
            _ => Arrived::Message(message),
        }
    }

    fn obey(&mut self, command: Command) -> Result<Option<Arrived>, Error> {
        match command {
            Command::Ping { context } => {
                if self.out.len() > UNREAD_BYTES_MAX {
                    return Err(Error::Protocol("the peer asks and does not read our answers"));
                }
                command::put("PONG", &context, &mut self.out);
                Ok(None)
            }
            Command::Subscribe(topic) => Ok(Some(Arrived::Subscribed(topic))),
            Command::Cancel(topic) => Ok(Some(Arrived::Cancelled(topic))),
            Command::Error(reason) => Err(Error::Refused(reason)),
            Command::Ready { .. } => Err(Error::Protocol("a second READY")),
            Command::Pong | Command::Unknown => Ok(None),
        }
    }

    /// The next item, or nothing when the queue has been written.
    async fn next_item(&mut self) -> Result<Option<Item>, Error> {
        loop {
            if let Some(item) = self.decoder.next()? {
                return Ok(Some(item));
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
                    _ => self.heartbeat.heard(),
                },
                () = sleep_until(due.unwrap_or_else(tokio::time::Instant::now)), if due.is_some() => {
                    self.heartbeat.look()?;
                    command::put_ping(self.timeout, &mut self.out);
                }
            }
        }
    }

    /// Queues a message; it is written by the next [`receive`](Connection::receive) or [`flush`](Connection::flush).
    pub fn queue<P: AsRef<[u8]>>(&mut self, parts: &[P]) {
        put_message(parts, &mut self.out);
    }

    /// Queues a subscription, in the peer's way.
    pub fn subscribe(&mut self, topic: &[u8]) {
        match self.peer_minor {
            0 => {
                let message = [[&[1], topic].concat()];
                put_message(&message, &mut self.out);
            }
            _ => command::put("SUBSCRIBE", topic, &mut self.out),
        }
    }

    /// Bytes that are queued.
    pub fn queued(&self) -> usize {
        self.out.len()
    }

    /// Writes all that is queued.
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
