//! A running replica, as the process it runs in holds it.

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
    tokio::spawn(Arc::clone(&server).accept(listener));
    Ok(Replica { server, address, url: format!("http://{address}") })
}

impl Replica {
    /// Its base URL, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where each rank publishes its KV events and where it answers questions about the past, by rank.
    pub fn event_endpoints(&self) -> Vec<(Endpoint, Option<Endpoint>)> {
        self.server
            .ranks
            .iter()
            .filter_map(|rank| rank.events.as_ref().map(|events| events.endpoints()))
            .collect()
    }

    /// Lets this go wrong; returns when it does.
    pub async fn fault(&self, fault: Fault) -> Result<(), FaultError> {
        fault.validate()?;
        self.server.fault(fault, None).await;
        Ok(())
    }

    /// The figures of this moment.
    pub fn stats(&self) -> Stats {
        Stats::of(self.server.boards())
    }

    /// Returns when the replica has died of [`Fault::Die`]; a process that is nothing but this replica should then end.
    pub async fn died(&self) {
        // It cannot fail: the sender is part of the server.
        let _ = self.server.life.subscribe().wait_for(|life| *life == Life::Died).await;
    }

    /// Accepts nothing more, finishes what was asked, and returns when all connections are closed. A replica that hangs
    /// never finishes, so callers put a time limit on it; dropping the future resets what is left.
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
