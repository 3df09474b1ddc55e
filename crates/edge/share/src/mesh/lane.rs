//! One connection to one router: what waits for it goes out, what comes is handed on, and silence ends it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use warmroute_types::RouterId;
use warmroute_wire::Stream;

use crate::frame::{BadFrame, FrameReader, FrameWriter, Kind};
use crate::link::{Ends, Incoming, ROOM};
use crate::mesh::MeshPace;
use crate::mesh::election::Standing;
use crate::mesh::handshake::Session;
use crate::mesh::hub::Event;
use crate::queue::{Queue, Room, Weigh};
use crate::version;

/// What is written at once, where more than one frame waits.
const BATCH_BYTES: usize = 64 << 10;

/// Read at once.
const READ_BYTES: usize = 16 << 10;

/// Gossip repeats itself.
const GOSSIP_ROOM: Room = Room { items: 64, bytes: 1 << 20 };

impl Weigh for Arc<[u8]> {
    fn bytes(&self) -> usize {
        self.len()
    }
}

/// What waits to go out to one router.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub messages: Queue<Arc<[u8]>>,
    /// Goes first: it is small, and a router must not be taken for dead because much is shared with it.
    pub gossip: Queue<Arc<[u8]>>,
    /// Goes last.
    goodbye: Notify,
}

/// The hub's end of it. Dropped, the connection ends.
#[derive(Debug)]
pub(crate) struct Lane {
    pub serial: u64,
    pub waiting: Arc<Waiting>,
    dialed_by: RouterId,
    version: u8,
    heard: Arc<Heard>,
    task: AbortHandle,
}

/// When something was heard last.
#[derive(Debug)]
struct Heard {
    began: Instant,
    after_ms: AtomicU64,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error("it said goodbye")]
    Goodbye,
    #[error("it closed the connection")]
    Closed,
    #[error("nothing was heard of it for {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("it took nothing for {} ms", .0.as_millis())]
    Stuck(Duration),
    #[error(transparent)]
    BadFrame(#[from] BadFrame),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// All that a lane's task needs.
pub(crate) struct Work {
    pub serial: u64,
    pub waiting: Arc<Waiting>,
    pub ends: Ends,
    pub pace: MeshPace,
    pub events: mpsc::Sender<Event>,
}

impl Waiting {
    pub(crate) fn new() -> Waiting {
        Waiting { messages: Queue::new(ROOM), gossip: Queue::new(GOSSIP_ROOM), goodbye: Notify::new() }
    }
}

impl Heard {
    fn now(&self) {
        self.after_ms.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn quiet(&self) -> Duration {
        let after = Duration::from_millis(self.after_ms.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(after)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Lane {
    /// What the election asks.
    pub(crate) fn standing(&self) -> Standing {
        Standing { dialed_by: self.dialed_by, quiet: self.heard.quiet() }
    }

    /// Says goodbye when all that waits has gone out; the other end closes the connection then. Not so one that would not understand it.
    pub(crate) fn says_goodbye(&self) -> bool {
        let is_understood = self.version >= version::GOODBYE;
        if is_understood {
            self.waiting.goodbye.notify_one();
        }
        is_understood
    }

    /// Begins the work, as a task that `spawn` starts.
    pub(crate) fn open(
        session: Session,
        stream: Stream,
        work: Work,
        spawn: impl FnOnce(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>) -> AbortHandle,
    ) -> Lane {
        let heard = Arc::new(Heard { began: Instant::now(), after_ms: AtomicU64::new(0) });
        let (serial, waiting) = (work.serial, Arc::clone(&work.waiting));
        let (dialed_by, version) = (session.dialed_by, session.version);
        let task = spawn(Box::pin(run(session, stream, work, Arc::clone(&heard))));
        Lane { serial, waiting, dialed_by, version, heard, task }
    }
}

async fn run(session: Session, stream: Stream, work: Work, heard: Arc<Heard>) {
    let (reads, writes) = tokio::io::split(stream);
    let ended = tokio::select! {
        ended = read(reads, session.reader, session.peer, &work, &heard) => ended,
        ended = write(writes, session.writer, &work) => ended,
    };
    _ = work.events.send(Event::Ended { router: session.peer, serial: work.serial, ended }).await;
}

async fn read(
    mut stream: ReadHalf<Stream>,
    mut frames: FrameReader,
    from: RouterId,
    work: &Work,
    heard: &Heard,
) -> Ended {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ_BYTES);
        match timeout(work.pace.dead_after, stream.read_buf(&mut buffer)).await {
            Err(_) => return Ended::Silent(work.pace.dead_after),
            Ok(Err(error)) => return Ended::Io(error),
            Ok(Ok(0)) => return Ended::Closed,
            Ok(Ok(bytes)) => work.ends.status.count(|counts| &counts.bytes_in, bytes as u64),
        }
        heard.now();
        loop {
            match frames.read(&mut buffer) {
                Ok(Some((Kind::Goodbye, _))) => return Ended::Goodbye,
                Ok(Some((kind, body))) => take_in(kind, &body, from, work),
                Ok(None) => break,
                Err(bad) => return Ended::BadFrame(bad),
            }
        }
    }
}

fn take_in(kind: Kind, body: &[u8], from: RouterId, work: &Work) {
    match kind {
        Kind::Alive | Kind::Goodbye => {}
        Kind::Payload => work.ends.arrived(Incoming { from, bytes: body.to_vec() }),
        // Where the hub is behind with gossip, this one is lost, as a datagram might be.
        Kind::Gossip => _ = work.events.try_send(Event::Gossip(body.to_vec())),
    }
}

async fn write(mut stream: WriteHalf<Stream>, mut frames: FrameWriter, work: &Work) -> Ended {
    let mut buffer = Vec::new();
    loop {
        let first = tokio::select! {
            biased;
            gossip = work.waiting.gossip.pop() => (Kind::Gossip, Some(gossip)),
            message = work.waiting.messages.pop() => (Kind::Payload, Some(message)),
            () = work.waiting.goodbye.notified() => (Kind::Goodbye, None),
            () = tokio::time::sleep(work.pace.alive_every) => (Kind::Alive, None),
        };
        let messages = fill(first, &mut frames, &mut buffer, &work.waiting);
        if let Err(ended) = write_all(&mut stream, &buffer, work.pace.dead_after).await {
            work.ends.status.count(|counts| &counts.dropped_out, messages);
            return ended;
        }
        work.ends.status.count(|counts| &counts.messages_out, messages);
        work.ends.status.count(|counts| &counts.bytes_out, buffer.len() as u64);
        buffer.clear();
        buffer.shrink_to(BATCH_BYTES * 2);
    }
}

/// Puts what waits into one write, up to a bound; how many of them are messages.
fn fill(
    first: (Kind, Option<Arc<[u8]>>),
    frames: &mut FrameWriter,
    buffer: &mut Vec<u8>,
    waiting: &Waiting,
) -> u64 {
    let mut messages = 0;
    let mut next = Some(first);
    while let Some((kind, body)) = next {
        frames.write(kind, body.as_deref().unwrap_or_default(), buffer);
        messages += u64::from(kind == Kind::Payload);
        let gossip = || waiting.gossip.try_pop().map(|gossip| (Kind::Gossip, Some(gossip)));
        let message = || waiting.messages.try_pop().map(|message| (Kind::Payload, Some(message)));
        next = if buffer.len() < BATCH_BYTES { gossip().or_else(message) } else { None };
    }
    messages
}

/// A large message may take long, as long as it gets on.
async fn write_all(stream: &mut WriteHalf<Stream>, mut bytes: &[u8], stuck: Duration) -> Result<(), Ended> {
    while !bytes.is_empty() {
        let written = timeout(stuck, stream.write(bytes)).await.map_err(|_| Ended::Stuck(stuck))??;
        if written == 0 {
            return Err(Ended::Closed);
        }
        bytes = &bytes[written..];
    }
    timeout(stuck, stream.flush()).await.map_err(|_| Ended::Stuck(stuck))??;
    Ok(())
}
