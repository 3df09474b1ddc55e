//! The process at the other end of a handover, described so that an operator can act.

use std::fmt;

use tokio::net::UnixStream;

/// The other process.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// `None`: the process is in another PID namespace, or the kernel does not tell.
    pub id: Option<i32>,
}

impl Process {
    /// The process at the other end of the socket.
    pub fn peer_of(stream: &UnixStream) -> Process {
        Process { id: stream.peer_cred().ok().and_then(|peer| peer.pid()).filter(|&id| id > 0) }
    }

    /// Whether the process is stopped (`SIGSTOP` or a debugger), as far as `/proc` shows.
    fn is_stopped(self) -> bool {
        let stat = self.id.and_then(|id| std::fs::read_to_string(format!("/proc/{id}/stat")).ok());
        stat.is_some_and(|stat| state_in(&stat).is_some_and(|state| matches!(state, 'T' | 't')))
    }
}

/// The state follows the command name, which is in brackets and may contain any character.
fn state_in(stat: &str) -> Option<char> {
    stat.rsplit(')').next()?.trim_start().chars().next()
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id {
            Some(id) if self.is_stopped() => {
                write!(f, "process {id}, which is stopped (kill -CONT {id} lets it go on)")
            }
            Some(id) => write!(f, "process {id}"),
            None => f.write_str("a process that cannot be seen from here"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_and_its_state_is_read_behind_its_name() {
        let ours = i32::try_from(std::process::id()).unwrap();
        assert_eq!(Process { id: Some(ours) }.to_string(), format!("process {ours}"));
        assert_eq!(state_in("7 (a) T (b)) S 1 7"), Some('S'));
        assert_eq!(state_in("7 (warmroute) T 1 7"), Some('T'));
    }
}
