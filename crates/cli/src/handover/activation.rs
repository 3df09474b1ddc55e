//! Listeners that systemd opened for us: `LISTEN_FDS`, `LISTEN_PID` and `LISTEN_FDNAMES`.
//!
//! It holds them too, so between two processes of ours clients wait instead of being refused. Their names say what they are for
//! (`FileDescriptorName=clients`, `admin`, `events`, `mesh`). One without such a name, one too many or one that nothing here would use is
//! refused: whoever connected to it would wait for ever, and a guess could open the admin side to everybody.

use std::net::SocketAddr;

use anyhow::Context;
use listenfd::ListenFd;

use super::{Listeners, Opener, Purpose};

/// systemd passes its sockets from this one on.
const FIRST_SOCKET: usize = 3;

/// What systemd gave us, usually nothing; what is listened for here is said with where it would be.
pub fn activated(wanted: &[(Purpose, Option<SocketAddr>)]) -> anyhow::Result<Listeners> {
    let mut given = ListenFd::from_env();
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let used = wanted.iter().filter(|(_, at)| at.is_some()).map(|(purpose, _)| *purpose);
    let mut free: Vec<Purpose> = used.collect();
    let mut listeners = Listeners::default();
    for (at, name) in names.split(':').chain(std::iter::repeat("")).take(given.len()).enumerate() {
        let socket = FIRST_SOCKET + at;
        let listener = given.take_tcp_listener(at).ok().flatten();
        let listener = listener
            .with_context(|| format!("socket {socket} from systemd (`{name}`) is not a TCP listener"))?;
        let address = listener.local_addr()?;
        let purpose = judge(name, &mut free)
            .with_context(|| format!("socket {socket} from systemd at {address} has the name `{name}`"))?;
        listener.set_nonblocking(true)?;
        tracing::info!(listener = purpose.name(), %address, "using the listener from systemd");
        listeners.add(purpose, listener, Opener::Systemd);
    }
    Ok(listeners)
}

/// What a socket of this name is for, if there is anything left that it could be.
fn judge(name: &str, free: &mut Vec<Purpose>) -> anyhow::Result<Purpose> {
    let names = Purpose::ALL.map(Purpose::name).join(", ");
    let purpose =
        Purpose::named(name).with_context(|| format!("FileDescriptorName= must be one of {names}"))?;
    let at = free.iter().position(|free| *free == purpose);
    let at = at.with_context(|| match purpose {
        Purpose::Events => {
            "another socket has this FileDescriptorName=, or kv-events-bind is not set to an address"
        }
        Purpose::Mesh => "another socket has this FileDescriptorName=, or share is not mesh",
        _ => "another socket has this FileDescriptorName=; a unit may have only one ListenStream=",
    })?;
    Ok(free.swap_remove(at))
}

#[cfg(test)]
mod tests {
    use super::Purpose::{Admin, Clients, Mesh};
    use super::*;

    fn judged(names: &[&str]) -> Result<Vec<Purpose>, String> {
        let mut free = vec![Clients, Admin, Mesh];
        let judged = names.iter().map(|name| judge(name, &mut free));
        judged.collect::<anyhow::Result<_>>().map_err(|error| error.to_string())
    }

    #[test]
    fn names_are_obeyed_and_nothing_is_guessed() {
        assert_eq!(judged(&[]), Ok(vec![]));
        assert_eq!(judged(&["admin", "clients", "mesh"]), Ok(vec![Admin, Clients, Mesh]));
        for unnamed in ["", "unknown", "warmroute.socket"] {
            let why = judged(&["clients", unnamed]).unwrap_err();
            assert!(why.contains("must be one of clients, admin, events, mesh"), "{why}");
        }
        assert!(judged(&["clients", "clients"]).unwrap_err().contains("another socket has this"));
        assert!(judged(&["events"]).unwrap_err().contains("kv-events-bind"), "nobody would accept there");
    }
}
