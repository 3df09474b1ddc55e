//! A running replica, as held by its process.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use warmroute_zmtp::Endpoint;

use crate::config::Config;
use crate::error::Error;
use crate::fault::{Fault, FaultError};
use crate::server::{Life, Server};
use crate::stats::Stats;

/// A simulated engine that serves HTTP. Dropping it stops it and resets its connections.
pub struct Replica {
    server: Arc<Server>,
    address: SocketAddr,
    url: String,
}

/// Starts a replica on this listener. It runs on the current tokio runtime.
pub async fn serve(config: Config, listener: std::net::TcpListener) -> Result<Replica, Error> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let address = listener.local_addr()?;
    let server = Arc::new(Server::start(config).await?);
    accept(Arc::clone(&server), listener);
    Ok(Replica { server, address, url: format!("http://{address}") })
}

/// Not inside `serve`, whose future the caller's crate compiles, and with it all that it spawns.
fn accept(server: Arc<Server>, listener: TcpListener) {
    tokio::spawn(server.accept(listener));
}

impl Replica {
    /// Its base URL, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The publisher and replay endpoints of each rank.
    pub fn event_endpoints(&self) -> Vec<(Endpoint, Option<Endpoint>)> {
        self.server
            .ranks
            .iter()
            .filter_map(|rank| rank.events.as_ref().map(|events| events.endpoints()))
            .collect()
    }

    /// Applies a fault; returns when it is in effect.
    pub async fn fault(&self, fault: Fault) -> Result<(), FaultError> {
        fault.validate()?;
        self.server.fault(fault, None).await;
        Ok(())
    }

    /// The present statistics.
    pub fn stats(&self) -> Stats {
        Stats::of(self.server.boards())
    }

    /// Returns when the replica has died of [`Fault::Die`]. A process that only runs this replica should then end.
    pub async fn died(&self) {
        // This cannot fail: the sender is part of the server.
        let _ = self.server.life.subscribe().wait_for(|life| *life == Life::Died).await;
    }

    /// Stops accepting, finishes the responses in progress, and returns when all connections are closed. A hanging
    /// replica never finishes, so callers need a time limit; dropping the future resets the remaining connections.
    pub async fn shutdown(self) {
        self.server.life.send_replace(Life::Stopped);
        self.server.lines.finish_all().await;
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if *self.server.life.borrow() != Life::Died {
            self.server.end(Life::Stopped);
        }
    }
}
