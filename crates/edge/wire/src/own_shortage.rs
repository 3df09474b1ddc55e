//! Errors of this machine that look like errors of another.

use std::io;

/// Whether a connection failed because this process or machine lacks file descriptors, memory, buffers or local ports.
/// The other side has no part in it.
pub fn is_own_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    const SHORTAGES: [Errno; 5] =
        [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::ADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|code| SHORTAGES.iter().any(|errno| errno.raw_os_error() == code))
}
