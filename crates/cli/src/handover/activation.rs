//! Listeners that systemd opened for us: `LISTEN_FDS`, `LISTEN_PID` and `LISTEN_FDNAMES`.
//!
//! It holds them too, so between two processes of ours clients wait instead of being refused. A unit may name them `clients`, `admin`,
//! `events` and `mesh` (`FileDescriptorName=`); those with other names are for clients and operators, in this order.

use anyhow::Context;
use listenfd::ListenFd;

use super::{Listeners, Purpose};

/// What systemd gave us, usually nothing.
pub fn activated() -> anyhow::Result<Listeners> {
    let mut given = ListenFd::from_env();
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut listeners = Listeners::default();
    for (at, purpose) in purposes(&names, given.len()).into_iter().enumerate() {
        let listener = given.take_tcp_listener(at);
        let listener = listener.with_context(|| format!("socket {at} from systemd is no TCP listener"))?;
        if let (Some(purpose), Some(listener)) = (purpose, listener) {
            listener.set_nonblocking(true)?;
            tracing::info!(listener = purpose.name(), address = %listener.local_addr()?, "opened by systemd");
            listeners.add(purpose, listener);
        }
    }
    Ok(listeners)
}

/// What each of so many sockets is for; `None`: one too many.
fn purposes(names: &str, sockets: usize) -> Vec<Option<Purpose>> {
    let named: Vec<Option<Purpose>> =
        names.split(':').map(Purpose::named).chain(std::iter::repeat(None)).take(sockets).collect();
    let free =
        [Purpose::Clients, Purpose::Admin].into_iter().filter(|purpose| !named.contains(&Some(*purpose)));
    let mut free = free.collect::<Vec<_>>().into_iter();
    named.iter().map(|purpose| purpose.or_else(|| free.next())).collect()
}

#[cfg(test)]
mod tests {
    use super::Purpose::{Admin, Clients, Events};
    use super::purposes;

    #[test]
    fn names_are_obeyed_and_the_rest_goes_by_order() {
        assert_eq!(purposes("", 0), []);
        assert_eq!(purposes("", 1), [Some(Clients)]);
        assert_eq!(purposes("warmroute.socket:warmroute.socket", 2), [Some(Clients), Some(Admin)]);
        assert_eq!(purposes("admin:clients", 2), [Some(Admin), Some(Clients)]);
        assert_eq!(purposes("admin:web:events", 3), [Some(Admin), Some(Clients), Some(Events)]);
        assert_eq!(purposes("unknown", 3), [Some(Clients), Some(Admin), None]);
    }
}
