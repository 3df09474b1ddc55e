//! Accepts connections on the mesh port, from routers and from unknown clients.
//!
//! A pending handshake holds one of a few slots until it times out. When all slots are taken, the oldest
//! handshake is aborted: silent clients cannot block routers, whose handshakes take milliseconds. A router
//! that still cannot connect is dialed from this side.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::link::TransportEnd;
use crate::mesh::event::Event;
use crate::mesh::handshake::{self, LocalIdentity, MeshFailure};
use crate::mesh::handshake_message::Purpose;

/// Handshakes in progress.
const PENDING_MAX: usize = 64;

/// Pause after `accept` fails because the system has no more sockets.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The accepting side of a mesh.
#[derive(Clone)]
pub(crate) struct MeshAcceptor {
    pub identity: LocalIdentity,
    pub handshake_timeout: Duration,
    pub transport: TransportEnd,
    pub events: mpsc::Sender<Event>,
}

impl MeshAcceptor {
    /// Runs until it is aborted.
    pub(crate) async fn run(self, listener: TcpListener) {
        let mut handshakes = JoinSet::new();
        let mut pending: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            };
            while handshakes.try_join_next().is_some() {}
            pending.retain(|task| !task.is_finished());
            if pending.len() >= PENDING_MAX {
                pending.pop_front().inspect(AbortHandle::abort);
                self.transport.status.count(|counters| &counters.refused, 1);
            }
            pending.push_back(handshakes.spawn(self.clone().handshake(stream, from)));
        }
    }

    async fn handshake(self, mut stream: TcpStream, from: SocketAddr) {
        let result = timeout(self.handshake_timeout, async {
            stream.set_nodelay(true)?;
            let session = handshake::accept(&mut stream, &self.identity).await?;
            Ok((session, stream))
        });
        match result.await {
            // The probe has its result; the connection closes.
            Ok(Ok((session, _))) if session.purpose == Purpose::Probe => {
                tracing::debug!(%from, "a probe completed the handshake");
            }
            Ok(Ok((session, stream))) => _ = self.events.send(Event::Accepted(session, stream)).await,
            Ok(Err(MeshFailure::SelfDial)) => {}
            Ok(Err(failure)) => self.reject(from, &failure),
            Err(_) => self.transport.status.count(|counters| &counters.refused, 1),
        }
    }

    /// Counts a failed handshake, and reports it unless the client just disconnected, as health checks and
    /// port scans do.
    fn reject(&self, from: SocketAddr, failure: &MeshFailure) {
        self.transport.status.count(|counters| &counters.refused, 1);
        if !matches!(failure, MeshFailure::Io(_) | MeshFailure::Closed | MeshFailure::Unreachable(_)) {
            self.transport.status.report_problem(format!("{} was rejected: {failure}", from.ip()));
        }
    }
}
