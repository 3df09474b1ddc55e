//! Work that is too long for a thread that serves sockets.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Smaller messages are read at once. One of this size takes a millisecond or two.
const AT_ONCE_BYTES_MAX: usize = 16 << 10;

/// Does the work of a message of so many bytes. The thread's other tasks go on elsewhere if it is large.
pub(crate) fn work_on<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let is_threaded =
        || Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes > AT_ONCE_BYTES_MAX && is_threaded() { tokio::task::block_in_place(work) } else { work() }
}
