//! Something to send requests to: the engine itself, or a proxy in front of it.

use std::error::Error;
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::case::Case;
use crate::process::Process;
use crate::usage::Usage;
use crate::wire::{Answer, Connection};

/// Some proxies look for their workers for a while before they take requests.
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is measured.
pub struct Target {
    /// How the table calls it.
    pub name: String,
    /// Where it listens on the loopback address.
    pub port: u16,
    role: Role,
    process: Process,
}

/// What a target is there for.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// The baseline: its CPU time is not overhead.
    Engine,
    Proxy,
}

impl Target {
    /// The engine, reached directly.
    pub fn engine(port: u16, process: Process) -> Result<Target, Box<dyn Error>> {
        Target { name: "direct".to_owned(), port, role: Role::Engine, process }.ready()
    }

    /// A proxy in front of it.
    pub fn proxy(name: &str, port: u16, process: Process) -> Result<Target, Box<dyn Error>> {
        Target { name: name.to_owned(), port, role: Role::Proxy, process }.ready()
    }

    /// A proxy of which no answer is awaited, because its clients are not those of this crate.
    pub fn unchecked_proxy(name: &str, port: u16, process: Process) -> Target {
        Target { name: name.to_owned(), port, role: Role::Proxy, process }
    }

    /// Whether this is what the others are compared with.
    pub fn is_baseline(&self) -> bool {
        self.role == Role::Engine
    }

    /// CPU time of the proxy so far; 0 for the engine.
    pub fn cpu_us(&self) -> io::Result<u64> {
        Ok(self.usage()?.cpu_us)
    }

    /// Memory of the proxy; 0 for the engine.
    pub fn rss_bytes(&self) -> io::Result<u64> {
        Ok(self.usage()?.rss_bytes)
    }

    /// What the proxy has used and uses; nothing for the engine.
    pub fn usage(&self) -> io::Result<Usage> {
        match self.role {
            Role::Engine => Ok(Usage::default()),
            Role::Proxy => self.process.usage(),
        }
    }

    /// The processes of the target.
    pub fn family(&self) -> io::Result<Vec<u32>> {
        self.process.family()
    }

    /// Returns when it has given a sound answer.
    fn ready(self) -> Result<Target, Box<dyn Error>> {
        let deadline = Instant::now() + READY_WITHIN;
        while let Err(reason) = self.try_once() {
            if Instant::now() > deadline {
                let log = fs::read_to_string(&self.process.log).unwrap_or_default();
                return Err(format!("{} did not become ready: {reason}\n{log}", self.name).into());
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(self)
    }

    fn try_once(&self) -> Result<(), String> {
        let (case, mut answer) = (Case::tiny(), Answer::default());
        let mut connection = Connection::open(self.port).map_err(|error| error.to_string())?;
        connection.exchange(&case.request(self.port), &mut answer).map_err(|error| error.to_string())?;
        case.check(&answer)
    }
}
