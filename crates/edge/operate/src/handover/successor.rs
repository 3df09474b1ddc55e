//! Hands over to a new process.

use std::fs::{Permissions, remove_file, rename, set_permissions, symlink_metadata};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use warmroute_wire::socket_passing;

use super::process::Process;
use super::{GREETING, HandoverState, Listeners, READY, REFUSED, TAKEN, YOURS, check_owner};

/// How long a new process may take to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Handovers at once; further processes wait to be accepted.
const HANDOVERS_MAX: usize = 8;
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);

/// Waits for successors until dropped.
pub struct Successors {
    ready: mpsc::Receiver<Successor>,
    _task: JoinSet<()>,
}

/// A process that holds our listeners and is ready to accept.
pub struct Successor {
    stream: UnixStream,
}

/// Runs before a successor gets the listeners, and returns the handover state.
type Prepare = Arc<dyn Fn() -> HandoverState + Send + Sync>;

struct Offer {
    listeners: Listeners,
    prepare: Prepare,
}

/// The handover socket, bound under a temporary name, so that all steps that can fail precede the takeover.
pub struct HandoverSocket {
    socket: UnixListener,
    temporary: PathBuf,
    path: PathBuf,
}

impl HandoverSocket {
    /// Binds the socket, accessible only to its owner from the start.
    pub fn bind(path: &Path) -> anyhow::Result<HandoverSocket> {
        if let Ok(there) = symlink_metadata(path) {
            anyhow::ensure!(there.file_type().is_socket(), "the path exists and is not a socket");
        }
        let mut temporary = path.to_owned().into_os_string();
        temporary.push(format!(".{}", std::process::id()));
        let temporary = PathBuf::from(temporary);
        // A process killed during startup leaves a socket of this name. In a container, all processes may have the
        // same id.
        _ = remove_file(&temporary);
        let socket = UnixListener::bind(&temporary)?;
        set_permissions(&temporary, Permissions::from_mode(0o600))?;
        Ok(HandoverSocket { socket, temporary, path: path.to_owned() })
    }

    /// Renames the socket over the predecessor's, so that successors connect to this process from now on.
    pub fn accept_successors(self, listeners: Listeners, prepare: Prepare) -> Successors {
        if let Err(error) = rename(&self.temporary, &self.path) {
            tracing::error!(%error, "cannot move the handover socket into place; handovers will not work");
        }
        let (sender, ready) = mpsc::channel(1);
        let mut task = JoinSet::new();
        task.spawn(serve(self, Offer { listeners, prepare }, sender));
        Successors { ready, _task: task }
    }
}

impl Drop for HandoverSocket {
    fn drop(&mut self) {
        // Removes a socket that was never moved into place.
        _ = remove_file(&self.temporary);
    }
}

impl Successors {
    /// The next process that is ready.
    pub async fn next(&mut self) -> Option<Successor> {
        self.ready.recv().await
    }
}

impl Successor {
    /// The successor's process.
    pub fn process(&self) -> Process {
        Process::peer_of(&self.stream)
    }

    /// Tells the process that another one has taken over. An error means that it has exited.
    async fn refuse(mut self) {
        _ = self.stream.write_all(&TAKEN).await;
    }

    /// Tells the process that we have stopped accepting.
    pub async fn take_over(mut self) {
        if let Err(error) = self.stream.write_all(YOURS).await {
            tracing::warn!(%error, "the new process exited during the handover");
        }
    }
}

/// Serves each connecting process in a task of its own, so that a silent one blocks no other. The first to be ready
/// takes over.
async fn serve(socket: HandoverSocket, offer: Offer, ready: mpsc::Sender<Successor>) {
    let (offer, is_taken) = (Arc::new(offer), watch::Sender::new(false));
    let mut handovers = JoinSet::new();
    let successor = loop {
        tokio::select! {
            accepted = socket.socket.accept(), if handovers.len() < HANDOVERS_MAX => match accepted {
                Ok((stream, _)) => _ = handovers.spawn(Arc::clone(&offer).hand_over(stream, is_taken.subscribe())),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a successor");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(handovers) = handovers.join_next() => match handovers.map_err(anyhow::Error::from).flatten() {
                Ok(successor) => break successor,
                Err(why) => tracing::warn!(why = format!("{why:#}"), "handover failed; this process continues"),
            },
        }
    };
    // Ends the other handovers: waiting processes will connect to the successor, and those that hold the listeners
    // must not use them.
    is_taken.send_replace(true);
    while let Some(handovers) = handovers.join_next().await {
        if let Ok(Ok(late)) = handovers {
            late.refuse().await;
        }
    }
    _ = ready.send(successor).await;
}

impl Offer {
    async fn hand_over(
        self: Arc<Offer>,
        mut stream: UnixStream,
        mut is_taken: watch::Receiver<bool>,
    ) -> anyhow::Result<Successor> {
        tokio::select! {
            offered = self.send_listeners(&mut stream) => offered?,
            () = taken(&mut is_taken) => anyhow::bail!("another process has already taken over"),
        }
        tokio::select! {
            ready = timeout(READY_TIMEOUT, read_ready(&mut stream)) => ready.context("the new process did not become ready in time")??,
            () = taken(&mut is_taken) => {
                Successor { stream }.refuse().await;
                anyhow::bail!("another process has already taken over");
            }
        }
        Ok(Successor { stream })
    }

    async fn send_listeners(&self, stream: &mut UnixStream) -> anyhow::Result<()> {
        if let Err(why) = check_owner(stream) {
            _ = stream.write_all(REFUSED).await;
            return Err(why).context("refused a handover");
        }
        tracing::info!(new = %Process::peer_of(stream), "handing over to a new process");
        let prepare = Arc::clone(&self.prepare);
        let state =
            tokio::task::spawn_blocking(move || prepare()).await.context("cannot prepare the handover")?;
        let state = HandoverState { activated: self.listeners.activated(), ..state };
        let (retries_left, names) = (state.retries_left, self.listeners.names().join(" "));
        let line = format!("{GREETING} {retries_left} {names}{state}\n");
        socket_passing::send(stream, &line, &self.listeners.sockets())
            .await
            .context("cannot pass the listeners")
    }
}

/// Returns when another process has taken over.
async fn taken(is_taken: &mut watch::Receiver<bool>) {
    _ = is_taken.wait_for(|is_taken| *is_taken).await;
}

async fn read_ready(stream: &mut UnixStream) -> anyhow::Result<()> {
    let mut answer = [0; READY.len()];
    stream.read_exact(&mut answer).await.context("the new process exited")?;
    anyhow::ensure!(answer == READY, "invalid handover message");
    Ok(())
}
