//! What is remembered, as a file: so that a new process does not begin cold.
//!
//! It is written when a process begins to drain, when it ends, and when it is about to leave its place to another; whole or not at all, for nobody else to read. A file that
//! cannot be used costs a line in the log and a cold start, nothing else.

use std::fs::{File, OpenOptions, metadata, remove_file, rename};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use parking_lot::Mutex;
use warmroute_gateway::Gateway;
use warmroute_router::SavedState;
use warmroute_types::Micros;

/// What was kept, and how long ago.
pub struct Kept {
    /// What it is.
    pub memory: SavedState,
    /// How long nobody was there to see what happened.
    pub away: Micros,
}

/// What is in the file, if it can be used; where prompts must be digested by a certain seed, only if they were.
pub fn read(path: &Path, config: &warmroute_index::Config, seed: Option<u64>) -> Option<Kept> {
    let since = Instant::now();
    match try_read(path, config, seed) {
        Ok(Some(kept)) => {
            let (requests, spans, workers) = kept.memory.extent();
            let (age_s, took) = (kept.away.as_secs_f64(), since.elapsed());
            tracing::info!(requests, spans, workers, age_s, ?took, "state read from {}", path.display());
            Some(kept)
        }
        Ok(None) => {
            tracing::info!("no saved state at {} yet", path.display());
            None
        }
        Err(why) => {
            let why = format!("{why:#}");
            tracing::warn!(why, "cannot use the saved state in {}; starting cold", path.display());
            None
        }
    }
}

fn try_read(
    path: &Path,
    config: &warmroute_index::Config,
    seed: Option<u64>,
) -> anyhow::Result<Option<Kept>> {
    // One that is no file may never end, or not even begin.
    let is_file = metadata(path).map_or(true, |there| there.is_file());
    anyhow::ensure!(is_file, "not a regular file");
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.context("cannot open the file")?,
    };
    // What does not fit the index is not worth reading.
    let bytes_max = config.budget_bytes as u64;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).context("cannot read the file")?;
    anyhow::ensure!(
        bytes.len() as u64 <= bytes_max,
        "the file is larger than the index limit (max-tree-size)"
    );
    let memory = SavedState::decode(&bytes)?;
    let is_readable = seed.is_none_or(|seed| seed == memory.seed());
    anyhow::ensure!(is_readable, "the file was written with another secret (share-secret-file)");
    let age_s = memory.age_s(config, unix_s())?;
    Ok(Some(Kept { memory, away: Micros::from_secs(age_s) }))
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// Keeps what a gateway knows.
#[derive(Clone)]
pub struct Keeper {
    gateway: Arc<Gateway>,
    path: Option<PathBuf>,
    /// Held by whoever writes: a successor may come while we are told to stop.
    turn: Arc<Mutex<()>>,
}

impl Keeper {
    /// In this file; `None`: nowhere.
    pub fn new(gateway: Arc<Gateway>, path: Option<PathBuf>) -> Keeper {
        Keeper { gateway, path, turn: Arc::default() }
    }

    /// Writes what is known at this moment.
    pub fn keep(&self) {
        let Some(path) = &self.path else { return };
        let _turn = self.turn.lock();
        let since = Instant::now();
        let memory = self.gateway.router().save(self.gateway.now(), unix_s());
        let (requests, spans, workers) = memory.extent();
        let bytes = memory.encode();
        match replace(path, &bytes) {
            Ok(()) => {
                let (bytes, took) = (bytes.len(), since.elapsed());
                tracing::info!(requests, spans, workers, bytes, ?took, "state written to {}", path.display());
            }
            Err(error) => tracing::error!(%error, "cannot write the state to {}", path.display()),
        }
    }
}

/// All of it or nothing, and nobody else's to read at any time.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut unfinished = path.to_owned().into_os_string();
    unfinished.push(format!(".{}", std::process::id()));
    let unfinished = PathBuf::from(unfinished);
    // One of this name is left from a process that was killed while it wrote.
    _ = remove_file(&unfinished);
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        rename(&unfinished, path)
    };
    let written = write();
    if written.is_err() {
        _ = remove_file(&unfinished);
    }
    written
}
