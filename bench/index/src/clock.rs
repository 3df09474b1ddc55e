//! CPU time, because other work on the machine must not count.

use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

/// CPU nanoseconds that the calling thread has used.
pub fn thread_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU nanoseconds that another thread has used.
pub fn other_thread_ns<T>(thread: &JoinHandle<T>) -> u64 {
    let mut clock = 0;
    // SAFETY: the thread is alive as long as its handle was not joined, and `clock` outlives the call.
    let failed = unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &mut clock) };
    assert_eq!(failed, 0, "the thread has a CPU clock");
    read(clock)
}

/// Lets the calling thread go before others, where that is allowed.
pub fn hurry() {
    // SAFETY: plain numbers in and out. Zero is the calling thread; without the right to do so, nothing happens.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
}

/// The CPU clock of one thread, to be read by another.
#[derive(Clone, Copy)]
pub struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// The calling thread's clock. It is valid while that thread lives.
    pub fn mine() -> ThreadClock {
        let mut clock = 0;
        // SAFETY: the calling thread is alive, and `clock` outlives the call.
        let failed = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
        assert_eq!(failed, 0, "the thread has a CPU clock");
        ThreadClock(clock)
    }

    /// CPU nanoseconds that the thread has used.
    pub fn ns(self) -> u64 {
        read(self.0)
    }
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call.
    let failed = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(failed, 0, "the clock exists");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU nanoseconds of one call.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let start = thread_ns();
    let result = work();
    (result, thread_ns() - start)
}
