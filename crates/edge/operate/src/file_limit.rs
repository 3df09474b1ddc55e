//! The limit of open files.
//!
//! Every client and every request to a worker is an open file. Where the limit is reached, nothing can be accepted and
//! no worker reached. So the soft limit is raised to the hard one, and clients get no more connections than leave room
//! for as many connections to workers and for everything else.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Files for listeners, the admin listener, probes, event streams, peers, models and logs.
const RESERVE: u64 = 256;

/// Raises the soft limit of open files to the hard limit. Returns the limit in force; `None` if there is none.
fn raised() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return limit.current;
    }
    let before = limit.current;
    limit.current = limit.maximum;
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.current,
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of open files");
            before
        }
    }
}

/// Raises the limit of open files, and returns how many of `wanted` client connections fit.
pub(crate) fn connections_within_limit(wanted: usize) -> usize {
    let Some(limit) = raised() else { return wanted };
    let fitting = fitting(limit);
    if fitting < wanted {
        tracing::warn!(
            wanted,
            fitting,
            limit,
            "max-client-connections is lowered to what the limit of open files allows; raise the limit (ulimit -n, LimitNOFILE)"
        );
    }
    wanted.min(fitting)
}

/// Client connections that fit, with as many connections to workers.
fn fitting(limit: u64) -> usize {
    let half = limit.saturating_sub(RESERVE.min(limit / 2)) / 2;
    usize::try_from(half.max(1)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_room_for_workers_and_for_the_rest() {
        assert_eq!([1_024, 20_000, 64, 1].map(fitting), [384, 9_872, 16, 1]);
    }
}
