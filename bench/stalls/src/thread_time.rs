//! The time of one thread, as the kernel counts it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::time::{ClockId, clock_gettime};

/// Time that this thread has spent on a core, in nanoseconds.
pub fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The time that one thread has waited for a core.
pub struct RunQueue(File);

impl RunQueue {
    pub fn of_this_thread() -> RunQueue {
        RunQueue(File::open("/proc/thread-self/schedstat").expect("the kernel has schedstat"))
    }

    /// Nanoseconds so far.
    pub fn ns(&self) -> u64 {
        let mut line = [0; 96];
        let len = self.0.read_at(&mut line, 0).expect("schedstat can be read");
        let line = String::from_utf8_lossy(&line[..len]);
        line.split_whitespace()
            .nth(1)
            .and_then(|field| field.parse().ok())
            .expect("the second field is a number")
    }
}
