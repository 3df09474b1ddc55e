//! A trace on disk: FILE, and earlier recordings beside it under dated names.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::earlier_files::set_aside;
use crate::key::FileKey;

/// The first line of every file, which identifies the format.
const HEADER: &[u8] = b"{\"warmroute_trace\":1}\n";

/// The file being written.
#[derive(Debug)]
pub struct TraceFile {
    path: PathBuf,
    bytes_max: u64,
    file: File,
    bytes: u64,
    /// A write has failed, maybe in the middle of a line.
    is_torn: bool,
    /// The key of this file only.
    pub key: FileKey,
}

impl TraceFile {
    /// Starts a file. An existing file that is not empty is set aside: it has another key.
    pub fn begin(path: PathBuf, bytes_max: u64) -> io::Result<TraceFile> {
        let file = open(&path)?;
        Ok(TraceFile { path, bytes_max, file, bytes: 0, is_torn: false, key: FileKey::default() })
    }

    /// Whether nothing has been written yet.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether this many more bytes would exceed the limit.
    pub fn is_full_with(&self, more_bytes: usize) -> bool {
        self.bytes.max(HEADER.len() as u64) + more_bytes as u64 > self.bytes_max
    }

    /// Continues in a new file.
    pub fn rotate(&mut self) -> io::Result<()> {
        self.file = open(&self.path)?;
        (self.bytes, self.is_torn, self.key) = (0, false, FileKey::default());
        Ok(())
    }

    /// Appends whole lines.
    pub fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut whole = Vec::with_capacity(HEADER.len() + 1 + lines.len());
        if self.is_torn {
            whole.push(b'\n');
        }
        if self.is_empty() {
            whole.extend_from_slice(HEADER);
        }
        whole.extend_from_slice(lines);
        self.is_torn = true;
        self.file.write_all(&whole)?;
        self.is_torn = false;
        self.bytes += whole.len() as u64;
        Ok(())
    }
}

/// Opens an empty file that only its owner can read. Devices and pipes are written to directly.
fn open(path: &Path) -> io::Result<File> {
    set_aside(path)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
