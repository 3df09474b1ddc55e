//! Connecting and accepting, over TCP and Unix sockets.

use std::net::IpAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::connection::{ByteStream, Connection, Role};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::options::Options;

/// How soon and how often TCP probes a silent peer.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// A bound socket.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    endpoint: Endpoint,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// An accepted connection before its handshake. Perform the handshake in a separate task: the peer may be slow.
pub struct IncomingConnection {
    pub(crate) stream: Box<dyn ByteStream>,
    peer: String,
    address: Option<IpAddr>,
}

impl IncomingConnection {
    /// The peer's IP address; `None` over a Unix socket.
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The peer's address, for messages.
    pub fn peer(&self) -> &str {
        &self.peer
    }
}

fn taken(endpoint: &Endpoint, error: std::io::Error) -> Error {
    Error::Listen { endpoint: endpoint.to_string(), error }
}

impl Listener {
    /// Binds the endpoint. Its port 0 is a free one, which [`Listener::endpoint`] names.
    pub async fn bind(endpoint: &Endpoint) -> Result<Listener, Error> {
        match endpoint {
            Endpoint::Tcp { host, port } => {
                let host = if host == "*" { "0.0.0.0" } else { host };
                let listener =
                    TcpListener::bind((host, *port)).await.map_err(|error| taken(endpoint, error))?;
                let port = listener.local_addr()?.port();
                let endpoint = Endpoint::Tcp { host: host.to_owned(), port };
                Ok(Listener { socket: Socket::Tcp(listener), endpoint })
            }
            Endpoint::Ipc(path) => {
                // A socket file outlives its process. As in libzmq, the last process to bind takes it.
                match std::fs::remove_file(path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(taken(endpoint, error));
                    }
                    _ => {}
                }
                let listener = UnixListener::bind(path).map_err(|error| taken(endpoint, error))?;
                Ok(Listener { socket: Socket::Unix(listener), endpoint: endpoint.clone() })
            }
        }
    }

    /// Uses a socket that listens already.
    pub fn on(listener: TcpListener) -> Result<Listener, Error> {
        let address = listener.local_addr()?;
        let endpoint = Endpoint::Tcp { host: address.ip().to_string(), port: address.port() };
        Ok(Listener { socket: Socket::Tcp(listener), endpoint })
    }

    /// The bound endpoint, with its actual port.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The next connection.
    pub async fn accept(&self) -> Result<IncomingConnection, Error> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                prepare(&stream)?;
                let address = Some(peer.ip().to_canonical());
                Ok(IncomingConnection { stream: Box::new(stream), peer: peer.to_string(), address })
            }
            Socket::Unix(listener) => {
                let stream = listener.accept().await?.0;
                let peer = self.endpoint.to_string();
                Ok(IncomingConnection { stream: Box::new(stream), peer, address: None })
            }
        }
    }
}

/// Connects and performs the handshake, both within the handshake timeout.
pub async fn connect(endpoint: &Endpoint, role: Role, options: &Options) -> Result<Connection, Error> {
    let limit = options.handshake_timeout;
    let connecting = async { Connection::open(dial(endpoint).await?, role, options).await };
    tokio::time::timeout(limit, connecting).await.unwrap_or(Err(Error::Late(limit)))
}

async fn dial(endpoint: &Endpoint) -> Result<Box<dyn ByteStream>, Error> {
    match endpoint {
        Endpoint::Tcp { host, port } => {
            let host = if host == "*" { "127.0.0.1" } else { host };
            let stream = TcpStream::connect((host, *port)).await?;
            prepare(&stream)?;
            Ok(Box::new(stream))
        }
        Endpoint::Ipc(path) => Ok(Box::new(UnixStream::connect(path).await?)),
    }
}

fn prepare(stream: &TcpStream) -> Result<(), Error> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_INTERVAL);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)?;
    Ok(())
}
