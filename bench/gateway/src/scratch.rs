//! A folder for generated configurations and logs, gone at the end.

use std::io;
use std::path::{Path, PathBuf};

/// A folder of this run's own.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes one.
    pub fn new() -> io::Result<Scratch> {
        let path = std::env::temp_dir().join(format!("warmroute-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Scratch { path })
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("{} was left behind: {error}", self.path.display());
        }
    }
}
