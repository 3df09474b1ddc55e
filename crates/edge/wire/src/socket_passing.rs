//! Passes listening sockets to another process over a Unix socket, together with a line of text.
//!
//! A listening socket shared by two processes has one accept queue: clients wait in it until either process accepts. So
//! the new process can start before the old one stops, and no client is refused.

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

/// Largest number of sockets in a message.
pub const SOCKETS_MAX: usize = 8;

/// Longest line.
const LINE_BYTES_MAX: usize = 512;

/// Sends listeners and a line.
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
    // A line always fits into the socket's buffer, so a partial write is an error.
    if sent.await? == line.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives listeners and a line. An empty line means that the sender has closed the connection.
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
    // Child processes must not inherit the sockets.
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
        return Err(io::Error::other("received a socket that does not listen"));
    }
    let listener = TcpListener::from(socket);
    // Fails for sockets other than TCP.
    listener.local_addr()?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_passed_listener_accepts_clients_that_connected_before() {
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
        assert_eq!(receive(&there).await.unwrap().0, "", "the sender has closed the connection");
    }

    #[tokio::test]
    async fn a_socket_that_does_not_listen_is_refused() {
        let (here, there) = UnixStream::pair().unwrap();
        let ours = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(ours.local_addr().unwrap()).unwrap();
        let no_listener = TcpListener::from(OwnedFd::from(client));
        send(&here, "x", &[&no_listener]).await.unwrap();
        assert!(receive(&there).await.unwrap_err().to_string().contains("does not listen"));
    }
}
