//! Exchanges messages with peers: sends what the router has for them, and applies what they send.

mod share_settings;
mod unknown_workers;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::boxed_task::BoxedTask;
use sha2::{Digest, Sha256};
pub use share_settings::ShareSettings;
use tokio::net::TcpListener;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};
use tokio::task::{block_in_place, spawn_blocking};
use tokio::time::{Sleep, sleep};
use unknown_workers::UnknownWorkers;
use warmroute_gateway::{Gateway, PeerTransport, TrafficCounts, TransportStats};
use warmroute_peers::{BadMessage, Config, Envelope, PeerMessage};
use warmroute_router::{PeerTask, Received};
use warmroute_share::{
    LeaveHandle, Link, MeshConfig, MessageInbox, MessageOutbox, Problem, ReceivedMessage, RedisConfig,
    Secrets, TransportStatus, mesh, mesh_on, random_router_id, redis,
};

/// Bound of the queue of peer tasks. They are few, because peers that ask for the same state share one.
const TASKS_MAX: usize = 16;

/// How state is shared with other routers, validated.
pub struct SharePlan {
    /// Connections to each peer, or a Redis server between them.
    pub transport: Transport,
    /// Key of prompt digests. Routers with the same secret have the same key.
    pub seed: u64,
    /// Secret files that all users of this machine can read.
    pub exposed: Vec<PathBuf>,
}

impl SharePlan {
    /// Derives the seed from the secret, and checks who can read the files of secrets.
    pub fn new(transport: Transport, secrets: &Secrets, files: &[&Path]) -> SharePlan {
        let exposed = files.iter().filter(|file| is_exposed(file)).map(|file| file.to_path_buf()).collect();
        let seed = secrets.primary().map_or(0, |primary| seed(primary.reveal()));
        SharePlan { transport, seed, exposed }
    }

    /// Address of the mesh listener, if any.
    pub fn listen(&self) -> Option<SocketAddr> {
        match &self.transport {
            Transport::Mesh(config) => Some(config.listen),
            Transport::Redis(_) => None,
        }
    }
}

/// Whether all users of this machine can read the file.
fn is_exposed(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|there| there.permissions().mode() & 0o004 != 0)
}

/// The key of prompt digests, derived from the secret separately from the keys of messages.
fn seed(secret: &str) -> u64 {
    let hash = Sha256::new().chain_update(b"warmroute prompts\0").chain_update(secret).finalize();
    hash.iter().take(8).fold(0, |seed, &byte| seed << 8 | u64::from(byte))
}

/// The transport between routers.
pub enum Transport {
    /// Direct connections between routers.
    Mesh(Box<MeshConfig>),
    /// A Redis or Valkey server.
    Redis(Box<RedisConfig>),
}

/// A transport's figures for the admin listener.
struct TransportView {
    transport: &'static str,
    status: Arc<TransportStatus>,
    news: Arc<Notify>,
    outgoing: MessageOutbox,
}

/// Starts to share. Returns the task that exchanges messages and the handle to leave. The mesh transport uses
/// `listener`.
pub fn exchange_with_peers(
    plan: SharePlan,
    gateway: Arc<Gateway>,
    listener: Option<TcpListener>,
) -> anyhow::Result<(BoxedTask, LeaveHandle)> {
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
    gateway.share_limits(me, plan.seed);
    let news = Arc::new(Notify::new());
    gateway.set_peer_transport(Arc::new(TransportView {
        transport,
        status,
        news: Arc::clone(&news),
        outgoing: outgoing.clone(),
    }));
    Ok((Box::pin(exchange_messages(gateway, news, outgoing, incoming)), leave))
}

/// Sends whenever a batch is due, or at once when there is something to send after a pause, and receives in between.
async fn exchange_messages(
    gateway: Arc<Gateway>,
    news: Arc<Notify>,
    outgoing: MessageOutbox,
    mut incoming: MessageInbox,
) {
    let due = sleep(Duration::ZERO);
    tokio::pin!(due);
    let mut unknown = UnknownWorkers::new(Instant::now());
    let tasks = run_tasks(Arc::clone(&gateway));
    loop {
        let messages = tokio::select! {
            // What is due comes first: a router flooded with messages must not fall silent.
            biased;
            () = &mut due => {
                let messages = compose(&gateway);
                due.as_mut().reset(next_compose(&gateway));
                messages
            }
            () = news.notified() => {
                // Requests wait for messages about limits, so they are sent in any case.
                if gateway.router().peering().may_send_now(gateway.now()) {
                    let messages = compose(&gateway);
                    due.as_mut().reset(next_compose(&gateway));
                    messages
                } else {
                    hasten(due.as_mut(), &gateway);
                    gateway.take_limit_messages()
                }
            }
            message = incoming.recv() => {
                // Unreadable messages are counted; nothing else can be done about them here.
                let Received { mut answers, tasks: new_tasks, limits, reports } =
                    receive(&gateway, &message).unwrap_or_default();
                reports.iter().for_each(|report| gateway.receive_report(report));
                new_tasks.into_iter().for_each(|task| queue_task(&tasks, &gateway, task));
                if !gateway.shares_limits_with(message.from) {
                    answers.extend(compose_limits(&gateway));
                }
                let about_limits = limits.into_iter();
                answers.extend(about_limits.flat_map(|(from, messages)| gateway.receive_limits(from, messages)));
                hasten(due.as_mut(), &gateway);
                answers
            }
        };
        messages.into_iter().for_each(|message| send(&outgoing, message));
        warn_of_unknown_workers(&mut unknown, &gateway);
    }
}

/// All messages that are due.
fn compose(gateway: &Gateway) -> Vec<Envelope> {
    let mut messages = gateway.router().peering().compose_messages(gateway.now());
    messages.extend(compose_limits(gateway));
    messages
}

/// When messages are due next.
fn next_compose(gateway: &Gateway) -> tokio::time::Instant {
    let wait = gateway.router().peering().next_compose_in(gateway.now());
    tokio::time::Instant::now() + Duration::from_micros(wait.0)
}

/// Messages about limits that are due, to all peers that share them.
fn compose_limits(gateway: &Gateway) -> Vec<Envelope> {
    gateway.compose_limits(gateway.router().peering().limit_sharers())
}

/// Moves the timer to when messages are due, if that is sooner. Most changes wait for the same batch, and setting a timer
/// costs more than a millisecond is worth.
fn hasten(due: Pin<&mut Sleep>, gateway: &Gateway) {
    let next = next_compose(gateway);
    if next + Duration::from_millis(1) < due.deadline() {
        due.reset(next);
    }
}

/// Applies a message. Messages that take long, such as a whole view, run outside the request threads.
fn receive(gateway: &Gateway, message: &ReceivedMessage) -> Result<Received, BadMessage> {
    let apply = || gateway.router().peering().receive_from(message.from, &message.bytes, gateway.now());
    if PeerMessage::is_expensive(&message.bytes) { block_in_place(apply) } else { apply() }
}

/// Runs peer tasks, which take seconds, one by one in the background: peers give up a router that is silent for so
/// long. Ends when the sender is dropped.
fn run_tasks(gateway: Arc<Gateway>) -> mpsc::Sender<PeerTask> {
    let (tasks, mut queue) = mpsc::channel(TASKS_MAX);
    tokio::spawn(async move {
        while let Some(task) = queue.recv().await {
            let gateway = Arc::clone(&gateway);
            let run = spawn_blocking(move || gateway.router().peering().run(task, gateway.now()));
            if run.await.is_err() {
                tracing::error!("a state exchange with a peer failed");
            }
        }
    });
    tasks
}

/// Queues a peer task. If the queue is full, the task runs at once, because none may be lost.
fn queue_task(tasks: &mpsc::Sender<PeerTask>, gateway: &Gateway, task: PeerTask) {
    if let Err(TrySendError::Full(task) | TrySendError::Closed(task)) = tasks.try_send(task) {
        block_in_place(|| gateway.router().peering().run(task, gateway.now()));
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

    fn send(&self, envelope: Envelope) {
        send(&self.outgoing, envelope);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_depends_on_the_secret_alone() {
        assert_eq!(seed("a secret that all share"), seed("a secret that all share"));
        assert_ne!(seed("a secret that all share"), seed("a secret that all shared"));
    }

    #[test]
    fn a_file_that_all_users_can_read_is_exposed() {
        let file = std::env::temp_dir().join(format!("warmroute-exposed-{}", std::process::id()));
        std::fs::write(&file, "secret").unwrap();
        for (mode, exposed) in [(0o600, false), (0o640, false), (0o644, true)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_exposed(&file), exposed, "{mode:o}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(!is_exposed(&file));
    }
}
