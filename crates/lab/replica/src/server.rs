//! The listening socket and the connections behind it.

use std::convert::Infallible;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::config::Config;
use crate::connection_control::{ConnectionControl, OpenConnections, Order};
use crate::error::Error;
use crate::events::Channel;
use crate::fault::{Fault, Faults};
use crate::meter::Board;
use crate::rank::Rank;
use crate::routes;

/// Pause before accepting again when the system has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The state that all connections of a replica share.
pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) ranks: Vec<Arc<Rank>>,
    pub(crate) faults: Faults,
    pub(crate) lines: OpenConnections,
    pub(crate) life: watch::Sender<Life>,
    pub(crate) started_s: u64,
    ids: AtomicU64,
    id_seed: u64,
}

/// The life cycle of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It accepts connections.
    Serving,
    /// The replica was stopped.
    Stopped,
    /// The replica died of a fault.
    Died,
}

impl Server {
    /// Starts the ranks.
    pub(crate) async fn start(config: Config) -> Result<Server, Error> {
        config.validate()?;
        let faults = Faults::new();
        let mut ranks = Vec::new();
        for rank in 0..config.ranks {
            let channel = match &config.events {
                Some(events) => Some(Channel::open(events, rank, faults.watch()).await?),
                None => None,
            };
            ranks.push(Arc::new(Rank::start(&config, faults.watch(), channel.map(Arc::new))?));
        }
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Server {
            config,
            ranks,
            faults,
            lines: OpenConnections::default(),
            life: watch::Sender::new(Life::Serving),
            started_s: since_epoch.as_secs(),
            ids: AtomicU64::new(0),
            id_seed: since_epoch.as_nanos() as u64,
        })
    }

    /// The time of day, in seconds.
    pub(crate) fn now_s(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    /// An id for a request that has none.
    pub(crate) fn new_id(&self) -> String {
        let number = self.ids.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}", xxh3_64_with_seed(&number.to_le_bytes(), self.id_seed))
    }

    /// `GET /kv_event_sources`, as vLLM has it since 0.31: where each rank publishes.
    pub(crate) fn event_sources(&self) -> Value {
        let Some(events) = &self.config.events else { return json!({}) };
        let ranks = self.ranks.iter().enumerate().filter_map(|(rank, of)| Some((rank, of.events.as_ref()?)));
        let sources = ranks.map(|(rank, channel)| (rank.to_string(), channel.describe(events)));
        Value::Object(sources.collect())
    }

    /// Submitted requests that have not ended, on all ranks.
    pub(crate) fn in_flight(&self) -> u32 {
        self.ranks.iter().map(|rank| rank.in_flight()).sum()
    }

    /// The statistics of every rank.
    pub(crate) fn boards(&self) -> impl Iterator<Item = Board> {
        self.ranks.iter().map(|rank| rank.board())
    }

    /// Empties every rank's prefix cache; false if one was in use.
    pub(crate) async fn clear_cache(&self) -> bool {
        let mut all = true;
        for rank in &self.ranks {
            all &= rank.clear().await;
        }
        all
    }

    /// Applies a fault. The connection that requested it is spared.
    pub(crate) async fn fault(&self, fault: Fault, asked_by: Option<&ConnectionControl>) {
        self.faults.set(fault);
        match fault {
            Fault::Die => self.end(Life::Died),
            Fault::Restart => {
                self.lines.cut_all_but(asked_by);
                for rank in &self.ranks {
                    rank.restart().await;
                }
            }
            Fault::None
            | Fault::Hang
            | Fault::Slow { .. }
            | Fault::Status { .. }
            | Fault::Reset { .. }
            | Fault::Events(_) => {}
        }
    }

    /// Stops accepting and resets every connection.
    pub(crate) fn end(&self, life: Life) {
        self.life.send_replace(life);
        self.lines.cut_all_but(None);
        self.ranks.iter().filter_map(|rank| rank.events.as_ref()).for_each(|events| events.close());
    }

    /// Accepts connections until the replica ends.
    pub(crate) async fn accept(self: Arc<Server>, listener: TcpListener) {
        let mut life = self.life.subscribe();
        loop {
            let accepted = tokio::select! {
                biased;
                _ = life.wait_for(|life| *life != Life::Serving) => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => self.welcome(stream),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn welcome(self: &Arc<Server>, stream: TcpStream) {
        let line = self.lines.open();
        // Checked after the connection is listed: either `end` finds the connection, or this check finds the end.
        if *self.life.borrow() != Life::Serving {
            self.lines.close(&line);
            return reset(&stream);
        }
        tokio::spawn(Arc::clone(self).converse(stream, line));
    }

    async fn converse(self: Arc<Server>, stream: TcpStream, line: Arc<ConnectionControl>) {
        // Without it the second event of a stream waits for the client's acknowledgement of the first.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        self.serve_requests(stream, &line).await;
        self.lines.close(&line);
        if line.is_last() {
            self.end(Life::Died);
        }
    }

    async fn serve_requests(self: &Arc<Server>, stream: TcpStream, line: &Arc<ConnectionControl>) {
        let service = service_fn(|request| {
            let answer = routes::answer(Arc::clone(self), Arc::clone(line), request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let mut http = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        loop {
            let order = tokio::select! {
                // In this order, so that written bytes are flushed before a reset.
                biased;
                // A client may disconnect at any time.
                _ = &mut http => return,
                order = line.order() => order,
            };
            match order {
                Order::Finish => Pin::new(&mut http).graceful_shutdown(),
                Order::Cut => return reset(http.into_parts().io.inner()),
            }
        }
    }
}

/// Makes the socket end with a TCP reset instead of an orderly close. With a linger time of zero, closing it discards
/// what was not sent and resets.
fn reset(stream: &TcpStream) {
    if let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "cannot reset a connection; closing it");
        let _ = SockRef::from(stream).shutdown(Shutdown::Both);
    }
}
