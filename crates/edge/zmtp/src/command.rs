//! Commands: frames that sockets exchange below the messages of their users.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::decoder::{COMMAND, put_frame_head};
use crate::error::Error;

/// The most that a PONG repeats of a PING.
const CONTEXT_BYTES_MAX: usize = 16;

/// What sockets tell each other beside messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The end of the handshake, with the socket's type and identity.
    Ready { socket_type: String, identity: Bytes },
    /// The peer refuses the connection.
    Error(String),
    /// A heartbeat. The PONG repeats its context.
    Ping { context: Bytes },
    /// The reply to a heartbeat.
    Pong,
    /// Subscribes to messages that begin with this.
    Subscribe(Bytes),
    /// Ends that subscription.
    Cancel(Bytes),
    /// An unknown command. Later versions may have more, so it is not an error.
    Unknown,
}

impl Command {
    /// Reads the body of a command frame.
    pub fn read(mut body: Bytes) -> Result<Command, Error> {
        let name = take_short(&mut body).ok_or(Error::Protocol("a command has no name"))?;
        match &name[..] {
            b"READY" => read_ready(body),
            b"ERROR" => {
                let reason = take_short(&mut body).unwrap_or_default();
                Ok(Command::Error(String::from_utf8_lossy(&reason).into_owned()))
            }
            b"PING" => {
                if body.len() < 2 {
                    return Err(Error::Protocol("a PING has no time to live"));
                }
                body.advance(2);
                body.truncate(CONTEXT_BYTES_MAX);
                Ok(Command::Ping { context: body })
            }
            b"PONG" => Ok(Command::Pong),
            b"SUBSCRIBE" => Ok(Command::Subscribe(body)),
            b"CANCEL" => Ok(Command::Cancel(body)),
            _ => Ok(Command::Unknown),
        }
    }
}

fn read_ready(mut body: Bytes) -> Result<Command, Error> {
    let bad = Error::Protocol("READY has a property without a value");
    let (mut socket_type, mut identity) = (String::new(), Bytes::new());
    while !body.is_empty() {
        let Some(name) = take_short(&mut body) else { return Err(bad) };
        if body.len() < 4 {
            return Err(bad);
        }
        let length = body.get_u32() as usize;
        if body.len() < length {
            return Err(bad);
        }
        let value = body.split_to(length);
        match &name.to_ascii_lowercase()[..] {
            b"socket-type" => socket_type = String::from_utf8_lossy(&value).into_owned(),
            b"identity" => identity = value,
            _ => {}
        }
    }
    Ok(Command::Ready { socket_type, identity })
}

fn take_short(body: &mut Bytes) -> Option<Bytes> {
    let length = usize::from(*body.first()?);
    if body.len() <= length {
        return None;
    }
    body.advance(1);
    Some(body.split_to(length))
}

/// Appends a command frame.
pub fn put(name: &str, body: &[u8], out: &mut BytesMut) {
    put_frame_head(COMMAND, 1 + name.len() + body.len(), out);
    out.put_u8(name.len() as u8);
    out.put_slice(name.as_bytes());
    out.put_slice(body);
}

/// Appends READY.
pub fn put_ready(socket_type: &str, out: &mut BytesMut) {
    let mut body = BytesMut::new();
    for (name, value) in [("Socket-Type", socket_type), ("Identity", "")] {
        body.put_u8(name.len() as u8);
        body.put_slice(name.as_bytes());
        body.put_u32(value.len() as u32);
        body.put_slice(value.as_bytes());
    }
    put("READY", &body, out);
}

/// Appends a PING; its time to live is in tenths of a second.
pub fn put_ping(ttl: std::time::Duration, out: &mut BytesMut) {
    let tenths = u16::try_from(ttl.as_millis() / 100).unwrap_or(u16::MAX);
    put("PING", &tenths.to_be_bytes(), out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_of_libzmq_is_answered_with_its_context() {
        let command = Command::read(Bytes::from_static(b"\x04PING\x00\x64ctx")).unwrap();
        assert_eq!(command, Command::Ping { context: Bytes::from_static(b"ctx") });
    }

    #[test]
    fn broken_commands_are_errors_and_unknown_ones_are_not() {
        for broken in [
            &b""[..],
            b"\x09READY",
            b"\x05READY\x0bSocket-Type",
            b"\x05READY\x01a\x00\x00\x00\x09b",
            b"\x04PING\x00",
        ] {
            assert!(Command::read(Bytes::copy_from_slice(broken)).is_err(), "{broken:?}");
        }
        assert_eq!(Command::read(Bytes::from_static(b"\x04LATE")).unwrap(), Command::Unknown);
    }

    #[test]
    fn ready_contains_the_socket_type() {
        let mut out = BytesMut::new();
        put_ready("SUB", &mut out);
        let ready = Command::read(out.freeze().slice(2..)).unwrap();
        assert_eq!(ready, Command::Ready { socket_type: "SUB".to_owned(), identity: Bytes::new() });
    }
}
