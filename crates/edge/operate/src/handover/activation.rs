//! Listeners that systemd opened for us: `LISTEN_FDS`, `LISTEN_PID` and `LISTEN_FDNAMES`.
//!
//! systemd keeps these listeners open, so clients wait between two processes instead of being refused. The name of a
//! listener states its purpose (`FileDescriptorName=clients`, `admin`, `events`, `mesh`, `picker`; `pool-0` for the first of `picker-pools`). A listener without such a
//! name, a duplicate or one that is not needed is refused: its clients would wait forever, and a guess could expose
//! the admin listener.

use std::net::SocketAddr;

use anyhow::Context;
use listenfd::ListenFd;

use super::{Listeners, Opener, Purpose};

/// The first file descriptor that systemd passes.
const FIRST_SOCKET: usize = 3;

/// The listeners from systemd, usually none. `wanted` lists the configured listeners and their addresses.
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
        let purpose = assign(name, &mut free)
            .with_context(|| format!("socket {socket} from systemd at {address} has the name `{name}`"))?;
        listener.set_nonblocking(true)?;
        tracing::info!(listener = %purpose.name(), %address, "using the listener from systemd");
        listeners.add(purpose, listener, Opener::Systemd);
    }
    Ok(listeners)
}

/// The purpose that a socket's name states, if that purpose is still free.
fn assign(name: &str, free: &mut Vec<Purpose>) -> anyhow::Result<Purpose> {
    let names = Purpose::SINGLE.map(Purpose::name).join(", ");
    let purpose =
        Purpose::named(name).with_context(|| format!("FileDescriptorName= must be one of {names}"))?;
    let at = free.iter().position(|free| *free == purpose);
    let at = at.with_context(|| match purpose {
        Purpose::Events => {
            "another socket has this FileDescriptorName=, or kv-events-bind is not set to an address"
        }
        Purpose::Picker => "another socket has this FileDescriptorName=, or picker-port is not set",
        Purpose::Pool(_) => "another socket has this FileDescriptorName=, or picker-pools has fewer entries",
        Purpose::Mesh => "another socket has this FileDescriptorName=, or share is not mesh",
        _ => "another socket has this FileDescriptorName=; a unit may have only one ListenStream=",
    })?;
    Ok(free.swap_remove(at))
}

#[cfg(test)]
mod tests {
    use super::Purpose::{Admin, Clients, Mesh};
    use super::*;

    fn assigned(names: &[&str]) -> Result<Vec<Purpose>, String> {
        let mut free = vec![Clients, Admin, Mesh];
        let assigned = names.iter().map(|name| assign(name, &mut free));
        assigned.collect::<anyhow::Result<_>>().map_err(|error| error.to_string())
    }

    #[test]
    fn a_socket_gets_the_purpose_its_name_states_and_nothing_is_guessed() {
        assert_eq!(assigned(&[]), Ok(vec![]));
        assert_eq!(assigned(&["admin", "clients", "mesh"]), Ok(vec![Admin, Clients, Mesh]));
        for unnamed in ["", "unknown", "warmroute.socket"] {
            let why = assigned(&["clients", unnamed]).unwrap_err();
            assert!(why.contains("must be one of clients, admin, events, mesh, picker"), "{why}");
        }
        assert!(assigned(&["clients", "clients"]).unwrap_err().contains("another socket has this"));
        assert!(assigned(&["events"]).unwrap_err().contains("kv-events-bind"), "events are not bound");
    }
}
