//! Exchanges messages with peers: sends what the router has for them, and applies what they send.

mod unknown_workers;

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
use unknown_workers::UnknownWorkers;

/// Bound of the errand queue. Errands are few, because peers that ask for the same state share one.
const ERRANDS_MAX: usize = 16;

/// A transport's figures for the admin listener.
struct TransportView {
    transport: &'static str,
    status: Arc<TransportStatus>,
    news: Arc<Notify>,
}

/// Starts to share. Returns the task that exchanges messages and the handle to leave. The mesh transport uses
/// `listener`.
pub fn start(
    plan: SharePlan,
    gateway: Arc<Gateway>,
    listener: Option<TcpListener>,
) -> anyhow::Result<(impl Future<Output = ()>, LeaveHandle)> {
    let me = random_router_id();
    for file in &plan.exposed {
        tracing::warn!("all users of this machine can read {}: run chmod o-r", file.display());
    }
    let (transport, link) = match plan.transport {
        Transport::Mesh(config) => match listener {
            Some(listener) => ("mesh", mesh_on(listener, *config, me)?),
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
    gateway.router().peering().start(me, config);
    let news = Arc::new(Notify::new());
    gateway.set_peer_transport(Arc::new(TransportView { transport, status, news: Arc::clone(&news) }));
    let every = Duration::from_micros(config.batch_interval.0);
    Ok((exchange_messages(gateway, news, outgoing, incoming, every), leave))
}

/// Sends at every tick, or at once when there is news after a silence, and receives in between.
async fn exchange_messages(
    gateway: Arc<Gateway>,
    news: Arc<Notify>,
    outgoing: MessageOutbox,
    mut incoming: MessageInbox,
    every: Duration,
) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut unknown = UnknownWorkers::new(Instant::now());
    let errands = run_errands(Arc::clone(&gateway));
    loop {
        let messages = tokio::select! {
            // Ticks come first: a router flooded with messages must not fall silent.
            biased;
            _ = ticks.tick() => gateway.router().peering().compose_messages(gateway.now()),
            () = news.notified() => gateway.router().peering().compose_urgent(gateway.now()),
            message = incoming.recv() => {
                // Unreadable messages are counted; nothing else can be done about them here.
                let Received { answers, tasks: new } = receive(&gateway, &message).unwrap_or_default();
                new.into_iter().for_each(|errand| queue_errand(&errands, &gateway, errand));
                answers
            }
        };
        messages.into_iter().for_each(|message| send(&outgoing, message));
        warn_of_unknown_workers(&mut unknown, &gateway);
    }
}

/// Applies a message. Messages that take long, such as a whole view, run outside the request threads.
fn receive(gateway: &Gateway, message: &ReceivedMessage) -> Result<Received, BadMessage> {
    let apply = || gateway.router().peering().receive_from(message.from, &message.bytes, gateway.now());
    if PeerMessage::is_expensive(&message.bytes) { block_in_place(apply) } else { apply() }
}

/// Runs errands, which take seconds, one by one in a task of their own: peers give up a router that is silent for so
/// long. The task ends when the sender is dropped.
fn run_errands(gateway: Arc<Gateway>) -> mpsc::Sender<PeerTask> {
    let (errands, mut queue) = mpsc::channel(ERRANDS_MAX);
    tokio::spawn(async move {
        while let Some(errand) = queue.recv().await {
            let gateway = Arc::clone(&gateway);
            let run = spawn_blocking(move || gateway.router().peering().run(errand, gateway.now()));
            if run.await.is_err() {
                tracing::error!("a state exchange with a peer failed");
            }
        }
    });
    errands
}

/// Queues an errand. If the queue is full, the errand runs at once, because none may be lost.
fn queue_errand(errands: &mpsc::Sender<PeerTask>, gateway: &Gateway, errand: PeerTask) {
    if let Err(TrySendError::Full(errand) | TrySendError::Closed(errand)) = errands.try_send(errand) {
        block_in_place(|| gateway.router().peering().run(errand, gateway.now()));
    }
}

/// Warns about workers that peers name and this router does not know.
fn warn_of_unknown_workers(unknown: &mut UnknownWorkers, gateway: &Gateway) {
    let now = Instant::now();
    let sharing = unknown.is_due(now).then(|| gateway.router().peering().view(gateway.now())).flatten();
    let warnings = sharing.map(|sharing| unknown.warnings(&sharing.peers, now));
    warnings.into_iter().flatten().for_each(|warning| tracing::warn!("{warning}"));
}

fn send(outgoing: &MessageOutbox, Envelope { to, bytes }: Envelope) {
    // Messages are far below a transport's size limit.
    _ = outgoing.send(to, bytes);
}

impl PeerTransport for TransportView {
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
            troubles: self.status.problems().into_iter().map(with_age).collect(),
        }
    }
}

fn with_age(problem: Problem) -> (String, f64) {
    (problem.text, Instant::now().duration_since(problem.at).as_secs_f64())
}
