//! The answering end of dealers: what a simulated engine replays with.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::Message;
use crate::connection::{Arrived, Connection, Role};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::listener::{Incoming, Listener};
use crate::options::Options;
use crate::peers::{Number, OUT_BYTES_MAX, Peers, Shared};

/// Questions that may wait.
const QUESTIONS_MAX: usize = 1_024;
/// How long accepting pauses when the system has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerId(Number);

/// A bound router. Dropping it closes its connections.
pub struct Router {
    peers: Shared,
    endpoint: Endpoint,
    questions: mpsc::Receiver<(PeerId, Message)>,
    task: JoinHandle<()>,
}

impl Router {
    /// Binds.
    pub async fn bind(endpoint: &Endpoint, options: Options) -> Result<Router, Error> {
        let listener = Listener::bind(endpoint).await?;
        let (peers, endpoint) = (Shared::default(), listener.endpoint().clone());
        let (asked, questions) = mpsc::channel(QUESTIONS_MAX);
        let task = tokio::spawn(accept(listener, Arc::clone(&peers), options, asked));
        Ok(Router { peers, endpoint, questions, task })
    }

    /// Where it is bound.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The next message, and whose it is.
    pub async fn receive(&mut self) -> Result<(PeerId, Message), Error> {
        self.questions.recv().await.ok_or(Error::Closed)
    }

    /// Answers; waits while the peer's queue is full.
    pub async fn send(&self, to: PeerId, message: Message) -> Result<(), Error> {
        let queue = self.peers.lock().get(&to.0).map(|peer| peer.queue.clone()).ok_or(Error::Gone)?;
        queue.send(message).await.map_err(|_| Error::Gone)
    }

    /// Cuts all connections, as a dying process does.
    pub fn cut_all(&self) {
        self.peers.cut_all();
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.task.abort();
        self.peers.cut_all();
    }
}

async fn accept(listener: Listener, peers: Shared, options: Options, asked: mpsc::Sender<(PeerId, Message)>) {
    loop {
        match listener.accept().await {
            Ok(incoming) => welcome(incoming, &peers, &options, asked.clone()),
            Err(error) => {
                tracing::debug!(%error, "cannot accept a dealer");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn welcome(incoming: Incoming, peers: &Shared, options: &Options, asked: mpsc::Sender<(PeerId, Message)>) {
    let (number, queue) = peers.join(options.queue_max);
    let (shared, options) = (Arc::clone(peers), options.clone());
    let task = tokio::spawn(async move {
        if let Err(error) = serve(incoming, number, queue, &options, &asked).await {
            tracing::debug!(%error, "a dealer has gone");
        }
        Peers::leave(&shared, number);
    });
    peers.serve_by(number, task.abort_handle());
}

async fn serve(
    incoming: Incoming,
    number: Number,
    mut queue: mpsc::Receiver<Message>,
    options: &Options,
    asked: &mpsc::Sender<(PeerId, Message)>,
) -> Result<(), Error> {
    let mut connection = Connection::open(incoming.carrier, Role::Router, options).await?;
    loop {
        tokio::select! {
            answer = queue.recv(), if connection.queued() < OUT_BYTES_MAX => match answer {
                Some(answer) => connection.queue(&answer),
                None => return Ok(()),
            },
            arrived = connection.receive() => {
                if let Arrived::Message(message) = arrived?
                    && asked.send((PeerId(number), message)).await.is_err()
                {
                    return Ok(());
                }
            }
        }
    }
}
