//! Open sockets, passed from one process to another over a Unix socket, with a line that says what they are.
//!
//! A listening socket that two processes hold is one socket with one queue: whoever connects waits in it until either accepts. So
//! one can begin before the other ends, and nobody who connects notices.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// More are neither sent nor taken.
pub const SOCKETS_MAX: usize = 8;

/// Longer lines are not taken.
const LINE_BYTES_MAX: usize = 512;

/// Sends listeners along with a line.
pub async fn send(to: &UnixStream, line: &str, listeners: &[&TcpListener]) -> io::Result<()> {
    let sockets: Vec<BorrowedFd<'_>> = listeners.iter().map(|listener| listener.as_fd()).collect();
    let sent = to.async_io(Interest::WRITABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&sockets)) {
            return Err(io::Error::other("too many sockets"));
        }
        Ok(sendmsg(to, &[IoSlice::new(line.as_bytes())], &mut control, SendFlags::NOSIGNAL)?)
    });
    // A line fits into any socket's buffer.
    if sent.await? == line.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Takes the listeners that come along with a line. An empty line: nobody is there any more. What is no TCP listener is an error.
pub async fn receive(from: &UnixStream) -> io::Result<(String, Vec<TcpListener>)> {
    let (line, sockets) = from.async_io(Interest::READABLE, || receive_now(from)).await?;
    let line = String::from_utf8(line).map_err(io::Error::other)?;
    let listeners: io::Result<Vec<TcpListener>> = sockets.into_iter().map(listener).collect();
    Ok((line, listeners?))
}

fn receive_now(from: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut line = vec![0; LINE_BYTES_MAX];
    // They are no business of whatever this process may start.
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(from, &mut [IoSliceMut::new(&mut line)], &mut control, flags)?;
    line.truncate(received.bytes);
    let sockets = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
        _ => None,
    });
    Ok((line, sockets.flatten().collect()))
}

fn listener(socket: OwnedFd) -> io::Result<TcpListener> {
    if !rustix::net::sockopt::socket_acceptconn(&socket)? {
        return Err(io::Error::other("a socket came that does not listen"));
    }
    let listener = TcpListener::from(socket);
    // It may be of another kind, and must not block.
    listener.local_addr()?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listener_that_was_passed_on_accepts_who_connected_before() {
        let (here, there) = UnixStream::pair().unwrap();
        let ours = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(ours.local_addr().unwrap()).unwrap();
        send(&here, "two", &[&ours, &ours]).await.unwrap();
        drop(ours);
        let (line, theirs) = receive(&there).await.unwrap();
        assert_eq!((line.as_str(), theirs.len()), ("two", 2));
        let listener = tokio::net::TcpListener::from_std(theirs.into_iter().next().unwrap()).unwrap();
        let (_, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        drop(here);
        assert_eq!(receive(&there).await.unwrap().0, "", "nobody is there");
    }

    #[tokio::test]
    async fn what_does_not_listen_is_refused() {
        let (here, there) = UnixStream::pair().unwrap();
        let ours = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(ours.local_addr().unwrap()).unwrap();
        let no_listener = TcpListener::from(OwnedFd::from(client));
        send(&here, "x", &[&no_listener]).await.unwrap();
        assert!(receive(&there).await.unwrap_err().to_string().contains("does not listen"));
    }
}
