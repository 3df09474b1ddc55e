//! Saves the router's state in a file, so that a new process does not start cold.
//!
//! The file is written every minute, when a process starts to drain, when it ends, and before a handover. It is replaced
//! atomically and readable only by its owner. A file that cannot be used causes a log line and a cold start, nothing
//! else.

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

use crate::paths::temporary;

/// Pause after a write, as a multiple of its duration: a large state takes at most 2 % of a core.
const PAUSE_FACTOR: u32 = 50;

/// The saved state and its age.
pub struct AgedState {
    pub state: SavedState,
    /// Time since the state was saved.
    pub age: Micros,
}

/// Reads the file, if it can be used. With a `seed`, the file must use the same one to digest prompts.
pub fn read(path: &Path, config: &warmroute_index::Config, seed: Option<u64>) -> Option<AgedState> {
    let since = Instant::now();
    match try_read(path, config, seed) {
        Ok(Some(saved)) => {
            let (requests, spans, workers) = saved.state.extent();
            let (age_s, took) = (saved.age.as_secs_f64(), since.elapsed());
            tracing::info!(requests, spans, workers, age_s, ?took, "state read from {}", path.display());
            Some(saved)
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
) -> anyhow::Result<Option<AgedState>> {
    // A device or pipe may block the open, or never end.
    let is_file = metadata(path).map_or(true, |there| there.is_file());
    anyhow::ensure!(is_file, "not a regular file");
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.context("cannot open the file")?,
    };
    // A file larger than the index limit would not fit.
    let bytes_max = config.budget_bytes as u64;
    let length = file.metadata().context("cannot read the file")?.len();
    anyhow::ensure!(length <= bytes_max, "the file is larger than the index limit (max-tree-size)");
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
    Ok(Some(AgedState { state: memory, age: Micros::from_secs(age_s) }))
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// Saves a gateway's state.
#[derive(Clone)]
pub struct StateWriter {
    gateway: Arc<Gateway>,
    path: Option<PathBuf>,
    /// Allows one write at a time: a handover may start while a signal stops the process.
    writing: Arc<Mutex<()>>,
}

impl StateWriter {
    /// `None`: state is not saved.
    pub fn new(gateway: Arc<Gateway>, path: Option<PathBuf>) -> StateWriter {
        StateWriter { gateway, path, writing: Arc::default() }
    }

    /// Writes the current state.
    pub fn save(&self) {
        let Some(path) = &self.path else { return };
        if let Some(Written { extent: (requests, spans, workers), bytes, took }) = self.write(path) {
            tracing::info!(requests, spans, workers, bytes, ?took, "state written to {}", path.display());
        }
    }

    /// Writes the state at intervals, on a thread of its own: a crash loses what was learned since the last time.
    pub async fn save_every(self, interval: Duration) {
        if self.path.is_none() {
            return;
        }
        let mut pause = interval;
        loop {
            tokio::time::sleep(pause).await;
            let writer = self.clone();
            let written = tokio::task::spawn_blocking(move || writer.write(writer.path.as_deref()?)).await;
            let took = written.ok().flatten().map_or(Duration::ZERO, |written| written.took);
            pause = interval.max(took * PAUSE_FACTOR);
        }
    }

    fn write(&self, path: &Path) -> Option<Written> {
        let _writing = self.writing.lock();
        let since = Instant::now();
        let memory = self.gateway.router().inspect().saved_state(self.gateway.now(), unix_s());
        let extent = memory.extent();
        let bytes = memory.encode();
        match replace(path, &bytes) {
            Ok(()) => Some(Written { extent, bytes: bytes.len(), took: since.elapsed() }),
            Err(error) => {
                tracing::error!(%error, "cannot write the state to {}", path.display());
                None
            }
        }
    }
}

/// A state that was written.
struct Written {
    /// Requests, spans and workers.
    extent: (usize, usize, usize),
    bytes: usize,
    took: Duration,
}

/// Removes the temporary files of processes that were killed while they wrote: `NAME.PID` of this process, and of
/// processes that no longer exist.
fn remove_leftovers(path: &Path) {
    let Some((folder, name)) = path.parent().zip(path.file_name().and_then(|name| name.to_str())) else {
        return;
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let rest = file.to_str().and_then(|file| file.strip_prefix(name)?.strip_prefix('.'));
        let Some(pid) = rest.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        let is_running = || Path::new(&format!("/proc/{pid}")).exists();
        if pid == std::process::id() || !is_running() {
            _ = remove_file(entry.path());
        }
    }
}

/// Replaces the file atomically, readable only by its owner at any time.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = temporary(path);
    remove_leftovers(path);
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        rename(&temporary, path)
    };
    let written = write();
    if written.is_err() {
        _ = remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_dead_processes_are_removed_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("warmroute-leftovers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        // No process has this number: the kernel's limit is 4,194,304.
        let dead = 4_294_967_295_u32;
        let names = [format!("state.{dead}"), "state.1".into(), "state.old".into(), format!("other.{dead}")];
        names.iter().for_each(|name| std::fs::write(folder.join(name), "x").unwrap());
        replace(&folder.join("state"), b"new").unwrap();
        let mut left: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort_unstable();
        assert_eq!(left, [&names[3], "state", "state.1", "state.old"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Bytes that this process has read so far.
    fn bytes_read() -> u64 {
        let counters = std::fs::read_to_string("/proc/self/io").unwrap();
        counters.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).unwrap()
    }

    #[test]
    fn a_file_that_is_too_large_is_refused_before_it_is_read() {
        let path = std::env::temp_dir().join(format!("warmroute-large-state-{}", std::process::id()));
        // Sparse: it takes no place on the disk.
        File::create(&path).unwrap().set_len(1 << 30).unwrap();
        let config =
            warmroute_index::Config { budget_bytes: 256 << 20, ..warmroute_index::Config::default() };
        let before = bytes_read();
        let refused = try_read(&path, &config, None).err().unwrap().to_string();
        assert!(refused.contains("larger than the index limit"), "{refused}");
        // Other tests of this process read a little.
        assert!(bytes_read() - before < 128 << 20, "{}", bytes_read() - before);
        std::fs::remove_file(&path).unwrap();
    }
}
