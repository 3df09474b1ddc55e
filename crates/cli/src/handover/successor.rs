//! Whoever will take our place.

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
use super::{Estate, GREETING, Listeners, READY, REFUSED, TAKEN, YOURS, check_owner};

/// One that takes longer to become ready is given up.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// So many may try at once; more wait to be accepted.
const ATTENDED_MAX: usize = 8;
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);

/// Whoever may come to take our place. Dropped, nobody may any more.
pub struct Successors {
    ready: mpsc::Receiver<Successor>,
    _waiting: JoinSet<()>,
}

/// A process that has our listeners and is ready to accept.
pub struct Successor {
    stream: UnixStream,
}

/// What is done for a successor before it gets anything; tells what is left to it.
type Prepare = Arc<dyn Fn() -> Estate + Send + Sync>;

struct Desk {
    listeners: Listeners,
    prepare: Prepare,
}

/// A socket that nobody knows of yet: whatever can fail has been done when a predecessor leaves.
pub struct Post {
    socket: UnixListener,
    unseen: PathBuf,
    path: PathBuf,
}

impl Post {
    /// Private before anybody can find it.
    pub fn bind(path: &Path) -> anyhow::Result<Post> {
        if let Ok(there) = symlink_metadata(path) {
            anyhow::ensure!(there.file_type().is_socket(), "the path exists and is not a socket");
        }
        let mut unseen = path.to_owned().into_os_string();
        unseen.push(format!(".{}", std::process::id()));
        let unseen = PathBuf::from(unseen);
        // One of this name is left from a process that was killed while it started: in a container all have the same number.
        _ = remove_file(&unseen);
        let socket = UnixListener::bind(&unseen)?;
        set_permissions(&unseen, Permissions::from_mode(0o600))?;
        Ok(Post { socket, unseen, path: path.to_owned() })
    }

    /// In one step in the place of a predecessor's, whose successors come to us from now on.
    pub fn await_successors(self, listeners: Listeners, prepare: Prepare) -> Successors {
        if let Err(error) = rename(&self.unseen, &self.path) {
            tracing::error!(%error, "cannot move the handover socket into place; handovers will not work");
        }
        let (tell, ready) = mpsc::channel(1);
        let mut waiting = JoinSet::new();
        waiting.spawn(serve(self, Desk { listeners, prepare }, tell));
        Successors { ready, _waiting: waiting }
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        // One that was never taken is left to nobody; the other has this name no more.
        _ = remove_file(&self.unseen);
    }
}

impl Successors {
    /// The next one that is ready.
    pub async fn next(&mut self) -> Option<Successor> {
        self.ready.recv().await
    }
}

impl Successor {
    /// Who it is.
    pub fn process(&self) -> Process {
        Process::behind(&self.stream)
    }

    /// Tells it that another one has our place. One that is gone need not be told.
    async fn refuse(mut self) {
        _ = self.stream.write_all(&TAKEN).await;
    }

    /// Tells it that we accept nobody any more.
    pub async fn accede(mut self) {
        if let Err(error) = self.stream.write_all(YOURS).await {
            tracing::warn!(%error, "the new process exited during the handover");
        }
    }
}

/// All who come, each by itself: one that says nothing holds up nobody. The first that is ready has our place.
async fn serve(post: Post, desk: Desk, tell: mpsc::Sender<Successor>) {
    let (desk, is_taken) = (Arc::new(desk), watch::Sender::new(false));
    let mut attended = JoinSet::new();
    let successor = loop {
        tokio::select! {
            accepted = post.socket.accept(), if attended.len() < ATTENDED_MAX => match accepted {
                Ok((stream, _)) => _ = attended.spawn(Arc::clone(&desk).attend(stream, is_taken.subscribe())),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a successor");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(attended) = attended.join_next() => match attended.map_err(anyhow::Error::from).flatten() {
                Ok(successor) => break successor,
                Err(why) => tracing::warn!(why = format!("{why:#}"), "handover failed; this process continues"),
            },
        }
    };
    // Nobody else gets anything: those who wait come to our successor, those who have our listeners must not use them.
    is_taken.send_replace(true);
    while let Some(attended) = attended.join_next().await {
        if let Ok(Ok(late)) = attended {
            late.refuse().await;
        }
    }
    _ = tell.send(successor).await;
}

impl Desk {
    async fn attend(
        self: Arc<Desk>,
        mut stream: UnixStream,
        mut is_taken: watch::Receiver<bool>,
    ) -> anyhow::Result<Successor> {
        tokio::select! {
            offered = self.offer(&mut stream) => offered?,
            () = taken(&mut is_taken) => anyhow::bail!("another process has already taken over"),
        }
        tokio::select! {
            ready = timeout(READY_WITHIN, hear_ready(&mut stream)) => ready.context("the new process did not become ready in time")??,
            () = taken(&mut is_taken) => {
                Successor { stream }.refuse().await;
                anyhow::bail!("another process has already taken over");
            }
        }
        Ok(Successor { stream })
    }

    async fn offer(&self, stream: &mut UnixStream) -> anyhow::Result<()> {
        if let Err(why) = check_owner(stream) {
            _ = stream.write_all(REFUSED).await;
            return Err(why).context("refused a handover");
        }
        tracing::info!(new = %Process::behind(stream), "handing over to a new process");
        let prepare = Arc::clone(&self.prepare);
        let estate =
            tokio::task::spawn_blocking(move || prepare()).await.context("cannot prepare the handover")?;
        let estate = Estate { activated: self.listeners.activated(), ..estate };
        let (retries_left, names) = (estate.retries_left, self.listeners.names().join(" "));
        let line = format!("{GREETING} {retries_left} {names}{estate}\n");
        socket_passing::send(stream, &line, &self.listeners.sockets())
            .await
            .context("cannot pass the listeners")
    }
}

/// Returns when another one has our place.
async fn taken(is_taken: &mut watch::Receiver<bool>) {
    _ = is_taken.wait_for(|is_taken| *is_taken).await;
}

async fn hear_ready(stream: &mut UnixStream) -> anyhow::Result<()> {
    let mut said = [0; READY.len()];
    stream.read_exact(&mut said).await.context("the new process exited")?;
    anyhow::ensure!(said == READY, "invalid handover message");
    Ok(())
}
