//! Clients that encrypt.

use std::error::Error;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};
use warmroute_bench_gateway::case::Case;
use warmroute_bench_gateway::wire::{Answer, Connection, connect};

/// The name in the servers' certificate.
pub const SERVER_NAME: &str = "localhost";

const READY_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// When clients make a TLS handshake.
#[derive(Clone, Copy, PartialEq)]
pub enum Handshakes {
    /// Once for each connection, which stays open.
    Once,
    /// For each request, in full.
    Full,
    /// For each request, resumed with a ticket of an earlier one.
    Resumed,
}

/// Clients of one server.
pub struct Client {
    port: u16,
    handshakes: Handshakes,
    /// It keeps the tickets, for all threads.
    config: Arc<ClientConfig>,
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

impl Client {
    /// Clients that trust this certificate and offer one cipher suite and one key exchange.
    pub fn new(
        certificate: &CertificateDer<'static>,
        port: u16,
        handshakes: Handshakes,
    ) -> Result<Client, Box<dyn Error>> {
        let provider = CryptoProvider {
            cipher_suites: vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256],
            kx_groups: vec![ring::kx_group::X25519],
            ..ring::default_provider()
        };
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone())?;
        let config =
            ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions()?;
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        if handshakes == Handshakes::Full {
            config.resumption = Resumption::disabled();
        }
        Ok(Client { port, handshakes, config: Arc::new(config) })
    }

    /// Waits until the server answers a request.
    pub fn wait_until_ready(&self, case: &Case) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + READY_WITHIN;
        let (request, mut answer) = (case.request(self.port), Answer::default());
        while let Err(error) = self.send(&mut None, case, &request, &mut answer) {
            if Instant::now() > deadline {
                return Err(error);
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Sends requests one after another; how many were answered, the connections, those resumed, and failures.
    pub fn send_until(&self, case: &Case, deadline: Instant) -> (u64, u64, u64, u64) {
        let request = case.request(self.port);
        let (mut answer, mut open) = (Answer::default(), None);
        let (mut answered, mut connections, mut resumed, mut errors) = (0, 0, 0, 0);
        while Instant::now() < deadline {
            match self.send(&mut open, case, &request, &mut answer) {
                Ok(Sent::OnOpen) => answered += 1,
                Ok(Sent::OnNew(kind)) => {
                    answered += 1;
                    connections += 1;
                    resumed += u64::from(kind == Some(HandshakeKind::Resumed));
                }
                Err(error) => {
                    if errors == 0 {
                        eprintln!("port {}, {}: {error}", self.port, case.name);
                    }
                    errors += 1;
                }
            }
        }
        (answered, connections, resumed, errors)
    }

    fn send(
        &self,
        open: &mut Option<Connection<Tls>>,
        case: &Case,
        request: &[u8],
        answer: &mut Answer,
    ) -> Result<Sent, Box<dyn Error>> {
        let (mut connection, is_new) = match open.take() {
            Some(connection) => (connection, false),
            None => (self.connect()?, true),
        };
        connection.exchange(request, answer)?;
        case.check(answer)?;
        let kind = connection.stream().conn.handshake_kind();
        if self.handshakes == Handshakes::Once && !answer.closes {
            *open = Some(connection);
        } else {
            connection.stream().conn.send_close_notify();
            let Tls { conn, sock } = connection.stream();
            conn.write_tls(sock)?;
        }
        Ok(if is_new { Sent::OnNew(kind) } else { Sent::OnOpen })
    }

    fn connect(&self) -> io::Result<Connection<Tls>> {
        let name = ServerName::try_from(SERVER_NAME).expect("the name is valid");
        let tls = ClientConnection::new(Arc::clone(&self.config), name).map_err(io::Error::other)?;
        Ok(Connection::over(StreamOwned::new(tls, connect(self.port)?)))
    }
}

/// How a request was sent.
enum Sent {
    OnOpen,
    OnNew(Option<HandshakeKind>),
}
