//! Takes connections of other routers, and of whoever finds the port.
//!
//! A stranger costs one of a few places for as long as a handshake may take. Where all are taken the oldest goes: strangers who say nothing
//! keep nobody out, because one of ours is done in milliseconds. And whoever cannot come in is dialed by us.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use warmroute_wire::Acceptor;

use crate::link::Ends;
use crate::mesh::handshake::{self, Card, Failed, Guard};
use crate::mesh::hello::Errand;
use crate::mesh::hub::Event;

/// Connections that have not proved anything yet.
const STRANGERS_MAX: usize = 64;

/// When the system has no more sockets to give, it does not help to ask again at once.
const OUT_OF_SOCKETS: Duration = Duration::from_millis(100);

/// What the door needs.
#[derive(Clone)]
pub(crate) struct Door {
    pub acceptor: Acceptor,
    pub card: Card,
    pub guard: Guard,
    pub patience: Duration,
    pub ends: Ends,
    pub events: mpsc::Sender<Event>,
}

impl Door {
    /// Until it is aborted.
    pub(crate) async fn watch(self, listener: TcpListener) {
        let mut handshakes = JoinSet::new();
        let mut strangers: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                tokio::time::sleep(OUT_OF_SOCKETS).await;
                continue;
            };
            while handshakes.try_join_next().is_some() {}
            strangers.retain(|stranger| !stranger.is_finished());
            if strangers.len() >= STRANGERS_MAX {
                strangers.pop_front().inspect(AbortHandle::abort);
                self.ends.status.count(|counts| &counts.refused, 1);
            }
            strangers.push_back(handshakes.spawn(self.clone().meet(stream, from)));
        }
    }

    async fn meet(self, stream: TcpStream, from: SocketAddr) {
        let met = timeout(self.patience, async {
            let mut stream = self.acceptor.accept(stream).await?;
            let session = handshake::accept(&mut stream, &self.card, self.guard).await?;
            Ok((session, stream))
        });
        match met.await {
            // It has seen what it wanted to see.
            Ok(Ok((session, _))) if session.errand == Errand::Visit => {
                tracing::debug!(%from, "somebody looked whether it could join");
            }
            Ok(Ok((session, stream))) => _ = self.events.send(Event::Accepted(session, stream)).await,
            Ok(Err(Failed::Ourselves)) => {}
            Ok(Err(failed)) => self.turned_away(from, &failed),
            Err(_) => self.ends.status.count(|counts| &counts.refused, 1),
        }
    }

    /// A connection that just ends is a health check, or a port scan: counted, not told.
    fn turned_away(&self, from: SocketAddr, failed: &Failed) {
        self.ends.status.count(|counts| &counts.refused, 1);
        if !matches!(failed, Failed::Io(_) | Failed::HungUp | Failed::Nobody(_)) {
            self.ends.status.troubled(format!("{} was turned away: {failed}", from.ip()));
        }
    }
}
