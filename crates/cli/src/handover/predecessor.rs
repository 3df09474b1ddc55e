//! The process whose place we take.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use warmroute_wire::passing;

use super::{GREETING, Listeners, Purpose, READY, REFUSED, YOURS, check_owner};

/// It may have another successor at the moment, or save much.
const PATIENCE: Duration = Duration::from_secs(120);
const RETRY_EVERY: Duration = Duration::from_millis(50);
/// It stops accepting at once; should it hang, it does not hold us up.
const LEAVES_WITHIN: Duration = Duration::from_secs(5);

/// A process that runs, and has given us its listeners.
pub struct Predecessor {
    stream: UnixStream,
    /// How many requests it might still have sent again. Ours are its clients', and a process that has served nobody yet has
    /// earned none: with a worker that fails, the first of them would be lost.
    pub retries_left: u64,
}

impl Predecessor {
    /// Asks whoever waits at the path for its listeners; `None`: nobody does.
    pub async fn find(path: &Path) -> anyhow::Result<Option<(Predecessor, Listeners)>> {
        let since = Instant::now();
        loop {
            let Some(stream) = connect(path).await? else { return Ok(None) };
            check_owner(&stream)?;
            let received = timeout(PATIENCE, passing::receive(&stream)).await;
            let (line, sockets) = received.context("it gives us nothing")??;
            if !line.is_empty() {
                let (retries_left, listeners) = understood(&line, sockets)?;
                return Ok(Some((Predecessor { stream, retries_left }, listeners)));
            }
            // It is leaving: somebody else, or nobody, waits there in a moment.
            anyhow::ensure!(since.elapsed() < PATIENCE, "it gives us nothing");
            sleep(RETRY_EVERY).await;
        }
    }

    /// Tells it that we are ready; returns when it accepts nobody any more.
    pub async fn release(mut self) {
        let leaving = async {
            self.stream.write_all(READY).await?;
            let mut said = [0; YOURS.len()];
            self.stream.read_exact(&mut said).await
        };
        match timeout(LEAVES_WITHIN, leaving).await {
            Ok(Ok(_)) => tracing::info!("the gateway that was here leaves; its place is ours"),
            // Then it is gone, or will go on for a while; either way its sockets are ours as well.
            Ok(Err(error)) => tracing::warn!(%error, "the gateway that was here is gone"),
            Err(_) => tracing::warn!("the gateway that was here does not answer"),
        }
    }
}

async fn connect(path: &Path) -> anyhow::Result<Option<UnixStream>> {
    match UnixStream::connect(path).await {
        Ok(stream) => Ok(Some(stream)),
        // A socket file outlives its process.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(error).context("cannot connect"),
    }
}

fn understood(line: &str, sockets: Vec<TcpListener>) -> anyhow::Result<(u64, Listeners)> {
    anyhow::ensure!(line.as_bytes() != REFUSED, "it belongs to another user, and gives us nothing");
    let mut words = line.split_whitespace();
    anyhow::ensure!(words.next() == Some(GREETING), "it speaks another version of this");
    let retries_left = words.next().and_then(|word| word.parse().ok()).context("it says something else")?;
    let mut listeners = Listeners::default();
    for (name, socket) in words.zip(sockets) {
        // A newer version may have listeners that we know nothing of.
        if let Some(purpose) = Purpose::named(name) {
            listeners.add(purpose, socket);
        }
    }
    Ok((retries_left, listeners))
}
