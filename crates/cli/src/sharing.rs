//! This router among others: carries what the router has to say to them, and what they say to it.

mod unknown;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};
use tokio::task::{block_in_place, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};
use warmroute_gateway::{Gateway, PeerTransport, TrafficCounts, TransportStats};
use warmroute_peers::{BadMessage, Config, Envelope, PeerMessage};
use warmroute_router::{PeerTask, Received};
use warmroute_share::{
    LeaveHandle, Link, MessageInbox, MessageOutbox, Problem, ReceivedMessage, TransportStatus, mesh, mesh_on,
    random_router_id, redis,
};

use crate::plan::{SharePlan, Transport};
use unknown::Unknown;

/// Errands that wait. Those who ask meanwhile are told the same, so there are few.
const ERRANDS_MAX: usize = 16;

/// A transport, as operators see it.
struct Shown {
    transport: &'static str,
    status: Arc<TransportStatus>,
    news: Arc<Notify>,
}

/// Begins to share, on a listener where the routers themselves carry messages: what is to run until the end, and how to leave.
pub fn begin(
    plan: SharePlan,
    gateway: Arc<Gateway>,
    bound: Option<TcpListener>,
    said: Arc<Notify>,
) -> anyhow::Result<(impl Future<Output = ()>, LeaveHandle)> {
    let me = random_router_id();
    for file in &plan.exposed {
        tracing::warn!("all users of this machine can read {}: run chmod o-r", file.display());
    }
    let (transport, link) = match plan.transport {
        Transport::Mesh(config) => match bound {
            Some(bound) => ("mesh", mesh_on(bound, *config, me)?),
            None => ("mesh", mesh(*config, me)?),
        },
        Transport::Redis(config) => ("redis", redis(*config, me)?),
    };
    let Link { outgoing, incoming, status, leave } = link;
    match status.listening() {
        Some(address) => tracing::info!(router = %me, %address, "sharing state by {transport}"),
        None => tracing::info!(router = %me, "sharing state by {transport}"),
    }
    let config = Config::default();
    gateway.router().share(me, config);
    let news = Arc::new(Notify::new());
    gateway.set_peer_transport(Arc::new(Shown { transport, status, news: Arc::clone(&news) }));
    let every = Duration::from_micros(config.batch_interval.0);
    Ok((converse(gateway, Signals { news, said }, outgoing, incoming, every), leave))
}

/// Who is to be woken.
struct Signals {
    /// This: there is news after a silence.
    news: Arc<Notify>,
    /// Engines' feeds: others may have said something of them.
    said: Arc<Notify>,
}

/// Speaks at every tick, or at once where there is news after a silence, and hears in between.
async fn converse(
    gateway: Arc<Gateway>,
    signals: Signals,
    outgoing: MessageOutbox,
    mut incoming: MessageInbox,
    every: Duration,
) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut unknown = Unknown::new(Instant::now());
    let errands = run_errands(Arc::clone(&gateway));
    loop {
        let letters = tokio::select! {
            // First: whoever is flooded with news must not fall silent.
            biased;
            _ = ticks.tick() => gateway.router().compose_messages(gateway.now()),
            () = signals.news.notified() => gateway.router().compose_urgent(gateway.now()),
            message = incoming.recv() => {
                // What cannot be read is counted, and is nobody's fault who could mend it now.
                let Received { answers, tasks: left } = hear(&gateway, &message).unwrap_or_default();
                left.into_iter().for_each(|errand| leave(&errands, &gateway, errand));
                answers
            }
        };
        letters.into_iter().for_each(|letter| post(&outgoing, letter));
        signals.said.notify_one();
        warn_of(&mut unknown, &gateway);
    }
}

/// What may take long, as when somebody has just come, is done beside the runtime's threads: those are for requests.
fn hear(gateway: &Gateway, message: &ReceivedMessage) -> Result<Received, BadMessage> {
    let hear = || gateway.router().receive_from(message.from, &message.bytes, gateway.now());
    if PeerMessage::is_expensive(&message.bytes) { block_in_place(hear) } else { hear() }
}

/// What takes seconds is done one by one beside this router's speaking: the others give up who is silent for so long. It ends with
/// whoever leaves errands.
fn run_errands(gateway: Arc<Gateway>) -> mpsc::Sender<PeerTask> {
    let (errands, mut left) = mpsc::channel(ERRANDS_MAX);
    tokio::spawn(async move {
        while let Some(errand) = left.recv().await {
            let gateway = Arc::clone(&gateway);
            let run = spawn_blocking(move || gateway.router().run(errand, gateway.now()));
            if run.await.is_err() {
                tracing::error!("a state exchange with a peer failed");
            }
        }
    });
    errands
}

/// One for which there is no room is done here and now: nothing may be lost.
fn leave(errands: &mpsc::Sender<PeerTask>, gateway: &Gateway, errand: PeerTask) {
    if let Err(TrySendError::Full(errand) | TrySendError::Closed(errand)) = errands.try_send(errand) {
        block_in_place(|| gateway.router().run(errand, gateway.now()));
    }
}

/// Workers that others name and nobody here does.
fn warn_of(unknown: &mut Unknown, gateway: &Gateway) {
    let now = Instant::now();
    let sharing = unknown.is_due(now).then(|| gateway.router().sharing(gateway.now())).flatten();
    let warnings = sharing.map(|sharing| unknown.warnings(&sharing.peers, now));
    warnings.into_iter().flatten().for_each(|warning| tracing::warn!("{warning}"));
}

fn post(outgoing: &MessageOutbox, Envelope { to, bytes }: Envelope) {
    // Letters are far below what a transport carries.
    _ = outgoing.send(to, bytes);
}

impl PeerTransport for Shown {
    fn notify(&self) {
        self.news.notify_one();
    }

    fn stats(&self) -> TransportStats {
        let traffic = self.status.traffic();
        let connected = self.status.peers().iter().map(|(id, peer)| (*id, peer.address.clone())).collect();
        TransportStats {
            transport: self.transport,
            listening: self.status.listening().map(|address| address.to_string()),
            connected,
            messages: TrafficCounts { inward: traffic.messages_in, outward: traffic.messages_out },
            bytes: TrafficCounts { inward: traffic.bytes_in, outward: traffic.bytes_out },
            dropped: TrafficCounts { inward: traffic.dropped_in, outward: traffic.dropped_out },
            refused: traffic.refused,
            reconnects: traffic.reconnects,
            troubles: self.status.problems().into_iter().map(aged).collect(),
        }
    }
}

fn aged(trouble: Problem) -> (String, f64) {
    (trouble.text, Instant::now().duration_since(trouble.at).as_secs_f64())
}
