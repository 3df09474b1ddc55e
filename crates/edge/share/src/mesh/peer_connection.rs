//! The connection to one router: sends queued messages, delivers received ones, and closes after a silence.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use warmroute_types::RouterId;

use crate::frame::{FrameReader, FrameWriter, Kind};
use crate::link::{QUEUE_LIMITS, ReceivedMessage, TransportEnd};
use crate::mesh::config::MeshTimings;
use crate::mesh::election::ExistingConnection;
use crate::mesh::event::{CloseReason, Event};
use crate::mesh::handshake::Session;
use crate::queue::{ByteSize, Queue, QueueLimits};
use crate::version;

/// Bytes of frames that are combined into one write.
const BATCH_BYTES: usize = 64 << 10;

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;

/// Small limits, because gossip is repeated.
const GOSSIP_LIMITS: QueueLimits = QueueLimits { items: 64, bytes: 1 << 20 };

impl ByteSize for Arc<[u8]> {
    fn bytes(&self) -> usize {
        self.len()
    }
}

/// Messages that wait to be sent to one router.
#[derive(Debug)]
pub(crate) struct SendQueues {
    pub messages: Queue<Arc<[u8]>>,
    /// Sent first: gossip is small, and a busy router must not be declared gone.
    pub gossip: Queue<Arc<[u8]>>,
    /// Sent last.
    goodbye: Notify,
}

/// The coordinator's handle of a connection. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct PeerConnection {
    pub serial: u64,
    pub queues: Arc<SendQueues>,
    dialed_by: RouterId,
    version: u8,
    last_received: Arc<LastReceived>,
    task: AbortHandle,
}

/// Time of the last received bytes.
#[derive(Debug)]
struct LastReceived {
    began: Instant,
    after_ms: AtomicU64,
}

/// Everything that a connection's task needs.
pub(crate) struct ConnectionContext {
    pub serial: u64,
    pub queues: Arc<SendQueues>,
    pub transport: TransportEnd,
    pub timings: MeshTimings,
    pub events: mpsc::Sender<Event>,
}

impl SendQueues {
    pub(crate) fn new() -> SendQueues {
        SendQueues {
            messages: Queue::new(QUEUE_LIMITS),
            gossip: Queue::new(GOSSIP_LIMITS),
            goodbye: Notify::new(),
        }
    }
}

impl LastReceived {
    fn record(&self) {
        self.after_ms.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn silence(&self) -> Duration {
        let after = Duration::from_millis(self.after_ms.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(after)
    }
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl PeerConnection {
    /// The facts that the election needs.
    pub(crate) fn existing(&self) -> ExistingConnection {
        ExistingConnection { dialed_by: self.dialed_by, silence: self.last_received.silence() }
    }

    /// Sends a goodbye after all queued messages; the other side then closes the connection. Returns false if
    /// its version does not support goodbyes.
    pub(crate) fn start_goodbye(&self) -> bool {
        let is_supported = self.version >= version::GOODBYE;
        if is_supported {
            self.queues.goodbye.notify_one();
        }
        is_supported
    }

    /// Starts the connection's task with `spawn`.
    pub(crate) fn spawn(
        session: Session,
        stream: TcpStream,
        context: ConnectionContext,
        spawn: impl FnOnce(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>) -> AbortHandle,
    ) -> PeerConnection {
        let last_received = Arc::new(LastReceived { began: Instant::now(), after_ms: AtomicU64::new(0) });
        let (serial, queues) = (context.serial, Arc::clone(&context.queues));
        let (dialed_by, version) = (session.dialed_by, session.version);
        let task = spawn(Box::pin(run(session, stream, context, Arc::clone(&last_received))));
        PeerConnection { serial, queues, dialed_by, version, last_received, task }
    }
}

async fn run(
    session: Session,
    stream: TcpStream,
    context: ConnectionContext,
    last_received: Arc<LastReceived>,
) {
    let (reads, writes) = tokio::io::split(stream);
    let reason = tokio::select! {
        reason = read(reads, session.reader, session.peer, &context, &last_received) => reason,
        reason = write(writes, session.writer, &context) => reason,
    };
    _ = context.events.send(Event::Closed { router: session.peer, serial: context.serial, reason }).await;
}

async fn read(
    mut stream: ReadHalf<TcpStream>,
    mut frames: FrameReader,
    from: RouterId,
    context: &ConnectionContext,
    last_received: &LastReceived,
) -> CloseReason {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ_BYTES);
        match timeout(context.timings.dead_after, stream.read_buf(&mut buffer)).await {
            Err(_) => return CloseReason::Silent(context.timings.dead_after),
            Ok(Err(error)) => return CloseReason::Io(error),
            Ok(Ok(0)) => return CloseReason::Closed,
            Ok(Ok(bytes)) => context.transport.status.count(|counters| &counters.bytes_in, bytes as u64),
        }
        last_received.record();
        loop {
            match frames.read(&mut buffer) {
                Ok(Some((Kind::Goodbye, _))) => return CloseReason::Goodbye,
                Ok(Some((kind, body))) => handle_frame(kind, &body, from, context),
                Ok(None) => break,
                Err(bad) => return CloseReason::BadFrame(bad),
            }
        }
    }
}

fn handle_frame(kind: Kind, body: &[u8], from: RouterId, context: &ConnectionContext) {
    match kind {
        Kind::Alive | Kind::Goodbye => {}
        Kind::Payload => context.transport.deliver(ReceivedMessage { from, bytes: body.to_vec() }),
        // If the coordinator is behind, gossip is lost, like a datagram.
        Kind::Gossip => _ = context.events.try_send(Event::Gossip(body.to_vec())),
    }
}

async fn write(
    mut stream: WriteHalf<TcpStream>,
    mut frames: FrameWriter,
    context: &ConnectionContext,
) -> CloseReason {
    let mut buffer = Vec::new();
    loop {
        let first = tokio::select! {
            biased;
            gossip = context.queues.gossip.pop() => (Kind::Gossip, Some(gossip)),
            message = context.queues.messages.pop() => (Kind::Payload, Some(message)),
            () = context.queues.goodbye.notified() => (Kind::Goodbye, None),
            () = tokio::time::sleep(context.timings.alive_every) => (Kind::Alive, None),
        };
        let messages = fill_buffer(first, &mut frames, &mut buffer, &context.queues);
        if let Err(reason) = write_all(&mut stream, &buffer, context.timings.dead_after).await {
            context.transport.status.count(|counters| &counters.dropped_out, messages);
            return reason;
        }
        context.transport.status.count(|counters| &counters.messages_out, messages);
        context.transport.status.count(|counters| &counters.bytes_out, buffer.len() as u64);
        buffer.clear();
        buffer.shrink_to(BATCH_BYTES * 2);
    }
}

/// Fills one write with queued frames, up to a limit; returns the number of messages.
fn fill_buffer(
    first: (Kind, Option<Arc<[u8]>>),
    frames: &mut FrameWriter,
    buffer: &mut Vec<u8>,
    queues: &SendQueues,
) -> u64 {
    let mut messages = 0;
    let mut next = Some(first);
    while let Some((kind, body)) = next {
        frames.write(kind, body.as_deref().unwrap_or_default(), buffer);
        messages += u64::from(kind == Kind::Payload);
        let gossip = || queues.gossip.try_pop().map(|gossip| (Kind::Gossip, Some(gossip)));
        let message = || queues.messages.try_pop().map(|message| (Kind::Payload, Some(message)));
        next = if buffer.len() < BATCH_BYTES { gossip().or_else(message) } else { None };
    }
    messages
}

/// Writes all bytes. Each partial write must make progress within the timeout.
async fn write_all(
    stream: &mut WriteHalf<TcpStream>,
    mut bytes: &[u8],
    stall_timeout: Duration,
) -> Result<(), CloseReason> {
    while !bytes.is_empty() {
        let written = timeout(stall_timeout, stream.write(bytes))
            .await
            .map_err(|_| CloseReason::Stalled(stall_timeout))??;
        if written == 0 {
            return Err(CloseReason::Closed);
        }
        bytes = &bytes[written..];
    }
    timeout(stall_timeout, stream.flush()).await.map_err(|_| CloseReason::Stalled(stall_timeout))??;
    Ok(())
}
