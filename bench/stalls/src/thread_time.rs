//! The time of one thread, as the kernel counts it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::time::{ClockId, clock_gettime};

/// Time that this thread has spent on a core, in nanoseconds.
pub fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The kernel's counters of one thread.
pub struct ThreadCounters {
    schedstat: File,
    status: File,
}

impl ThreadCounters {
    pub fn of_this_thread() -> ThreadCounters {
        let open = |name: &str| File::open(format!("/proc/thread-self/{name}")).expect("Linux has it");
        ThreadCounters { schedstat: open("schedstat"), status: open("status") }
    }

    /// Time that the thread has waited for a core, in nanoseconds.
    pub fn queued_ns(&self) -> u64 {
        read(&self.schedstat).split_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0)
    }

    /// How often the thread has waited for something else than a core.
    pub fn blocked(&self) -> u64 {
        let status = read(&self.status);
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

fn read(file: &File) -> String {
    let mut text = [0; 4_096];
    let len = file.read_at(&mut text, 0).expect("it can be read");
    String::from_utf8_lossy(&text[..len]).into_owned()
}
