//! System calls of some processes, counted by `perf stat`: unlike strace it does not slow them down.

use std::error::Error;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

const EVENT: &str = "raw_syscalls:sys_enter";
/// perf does not say when it has attached.
const ATTACHED_AFTER: Duration = Duration::from_millis(300);

/// Counts from its start to its end.
pub struct Counter {
    perf: Child,
}

impl Counter {
    /// Begins to count the calls of these processes and their threads.
    pub fn start(pids: &[u32]) -> Result<Counter, Box<dyn Error>> {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let mut command = Command::new("perf");
        command.args(["stat", "-x", ",", "-e", EVENT, "-p", &pids.join(",")]);
        let perf = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        let perf = perf.map_err(|error| format!("perf: {error}"))?;
        thread::sleep(ATTACHED_AFTER);
        Ok(Counter { perf })
    }

    /// Calls since then.
    pub fn stop(self) -> Result<u64, Box<dyn Error>> {
        Command::new("kill").args(["-INT", &self.perf.id().to_string()]).status()?;
        let text = String::from_utf8(self.perf.wait_with_output()?.stderr)?;
        let count = text.lines().find(|line| line.contains(EVENT)).and_then(|line| line.split(',').next());
        count
            .and_then(|count| count.parse().ok())
            .ok_or_else(|| format!("perf counted nothing: {text}").into())
    }
}
