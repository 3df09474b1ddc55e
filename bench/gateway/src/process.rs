//! A server that this program started, and ends with it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::usage::{Usage, family};

/// How long a server may take to end before it is killed.
const END_WITHIN: Duration = Duration::from_secs(3);

/// A running server.
pub struct Process {
    child: Child,
    /// Kept open: a server that writes to a closed stdout may die of it.
    stdout: BufReader<ChildStdout>,
    /// What it wrote to stderr.
    pub log: PathBuf,
}

impl Process {
    /// Starts a command; its stderr goes to the log.
    pub fn start<S: AsRef<OsStr>>(program: &Path, args: &[S], log: PathBuf) -> io::Result<Process> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", program.display()));
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut child = command.spawn().map_err(named)?;
        let stdout = BufReader::new(child.stdout.take().expect("stdout was asked to be a pipe"));
        Ok(Process { child, stdout, log })
    }

    /// Waits for the JSON line with which the gateway and the engine announce themselves, and takes the port from it.
    pub fn announced_port(&mut self) -> io::Result<u16> {
        self.announced(["listening"]).map(|[port]| port)
    }

    /// The same of the gateway's listeners: for clients, then for the admin.
    pub fn announced_ports(&mut self) -> io::Result<[u16; 2]> {
        self.announced(["listening", "admin"])
    }

    fn announced<const N: usize>(&mut self, names: [&str; N]) -> io::Result<[u16; N]> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        let ports: Option<Vec<u16>> = names.iter().map(|name| port_of(&line, name)).collect();
        let wrong = || io::Error::other(format!("no port in {line:?}; see {}", self.log.display()));
        ports.and_then(|ports| ports.try_into().ok()).ok_or_else(wrong)
    }

    /// What it and its children have used.
    pub fn usage(&self) -> io::Result<Usage> {
        Usage::of_family(self.child.id())
    }

    /// Its process and their children, parents first.
    pub fn family(&self) -> io::Result<Vec<u32>> {
        family(self.child.id())
    }

    fn end(&mut self) -> io::Result<()> {
        // std can only kill, and a parent that is killed leaves its workers behind.
        let members = self.family()?.into_iter().map(|pid| pid.to_string());
        Command::new("kill").arg("-TERM").args(members).stderr(Stdio::null()).status()?;
        let deadline = Instant::now() + END_WITHIN;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                self.child.kill()?;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("process {} could not be ended: {error}", self.child.id());
        }
    }
}

fn port_of(line: &str, name: &str) -> Option<u16> {
    let url = line.split_once(&format!(r#""{name}":""#))?.1.split_once('"')?.0;
    url.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_that_of_the_listener_for_clients() {
        let line = r#"{"admin":"http://127.0.0.1:7","listening":"http://127.0.0.1:8080"}"#;
        assert_eq!(port_of(line, "listening"), Some(8080));
        assert_eq!(port_of(line, "admin"), Some(7));
        assert_eq!(port_of("hello", "listening"), None);
    }
}
