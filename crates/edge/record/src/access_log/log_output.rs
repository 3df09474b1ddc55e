//! Where the access log is written: the standard error stream, or a file that is set aside when it is full.
//!
//! Two processes may append to one file during a handover, and other programs may rename or remove it. So a file is
//! opened again whenever its path leads elsewhere: `logrotate` needs no signal, and no `copytruncate`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::earlier_files::set_aside;

pub(super) enum LogOutput {
    Stderr,
    File(LogFile),
}

pub(super) struct LogFile {
    path: PathBuf,
    bytes_max: u64,
    file: File,
}

impl LogOutput {
    /// Opens a file to append to.
    pub fn file(path: PathBuf, bytes_max: u64) -> io::Result<LogOutput> {
        let file = open(&path)?;
        Ok(LogOutput::File(LogFile { path, bytes_max, file }))
    }

    /// Writes whole lines at once, so that lines of several processes do not mix.
    pub fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            LogOutput::Stderr => io::stderr().lock().write_all(lines),
            LogOutput::File(file) => file.append(lines),
        }
    }
}

impl LogFile {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if !self.is_at_path() {
            self.file = open(&self.path)?;
        }
        let bytes = self.file.metadata()?.len();
        if bytes > 0 && bytes + lines.len() as u64 > self.bytes_max {
            set_aside(&self.path)?;
            self.file = open(&self.path)?;
        }
        self.file.write_all(lines)
    }

    /// Whether the path still leads to the open file.
    fn is_at_path(&self) -> bool {
        let place = |there: fs::Metadata| (there.dev(), there.ino());
        match (fs::metadata(&self.path), self.file.metadata()) {
            (Ok(at_path), Ok(open)) => place(at_path) == place(open),
            _ => false,
        }
    }
}

/// Opens a file to append to. Its group may read it, as is usual for logs.
fn open(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo()) {
        // To open one waits for a reader.
        let why = "it is a named pipe; name a file, or `stderr`";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    OpenOptions::new().append(true).create(true).mode(0o640).open(path)
}
