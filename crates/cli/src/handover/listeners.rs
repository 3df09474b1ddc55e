//! Listeners that were open before we were, by what they are for.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};

/// What a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Clients come in here.
    Clients,
    /// Operators.
    Admin,
    /// Engines that publish events.
    Events,
    /// Other routers.
    Mesh,
}

impl Purpose {
    /// All of them.
    pub const ALL: [Purpose; 4] = [Purpose::Clients, Purpose::Admin, Purpose::Events, Purpose::Mesh];

    /// As it is called between processes, and in `FileDescriptorName=`.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Clients => "clients",
            Purpose::Admin => "admin",
            Purpose::Events => "events",
            Purpose::Mesh => "mesh",
        }
    }

    /// By its name.
    pub fn named(name: &str) -> Option<Purpose> {
        Purpose::ALL.into_iter().find(|purpose| purpose.name() == name)
    }
}

/// Who opened a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opener {
    /// One of us, where it was configured.
    Gateway,
    /// systemd, which holds it too: it stays where it is, whatever is configured, or those who connect there would wait for ever.
    Systemd,
}

/// Listeners by what they are for, at most one each.
#[derive(Debug, Default)]
pub struct Listeners(BTreeMap<Purpose, (TcpListener, Opener)>);

impl Listeners {
    /// Adds one. Where there is one already, it stays.
    pub fn add(&mut self, purpose: Purpose, listener: TcpListener, opener: Opener) {
        self.0.entry(purpose).or_insert((listener, opener));
    }

    /// Adds the others' where there is none.
    pub fn fill_from(&mut self, others: Listeners) {
        others.0.into_iter().for_each(|(purpose, (listener, opener))| self.add(purpose, listener, opener));
    }

    /// Takes one out.
    pub fn take(&mut self, purpose: Purpose) -> Option<(TcpListener, Opener)> {
        self.0.remove(&purpose)
    }

    /// Closes one that is elsewhere than it is wanted now, if it was for us to say where. Port 0 is content with any port.
    pub fn keep_if_at(&mut self, purpose: Purpose, wanted: Option<SocketAddr>) {
        let fits = |(listener, opener): &(TcpListener, Opener)| {
            let (wanted, is) = (wanted?, listener.local_addr().ok()?);
            let is_there = wanted.ip() == is.ip() && (wanted.port() == 0 || wanted.port() == is.port());
            Some(is_there || *opener == Opener::Systemd)
        };
        if self.0.get(&purpose).is_some_and(|listener| fits(listener) != Some(true)) {
            tracing::info!(
                listener = purpose.name(),
                "the configured address changed; opening a new listener"
            );
            self.0.remove(&purpose);
        }
    }

    /// Their names, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.keys().map(|purpose| purpose.name()).collect()
    }

    /// The sockets, in the same order.
    pub fn sockets(&self) -> Vec<&TcpListener> {
        self.0.values().map(|(listener, _)| listener).collect()
    }

    /// What those are for that systemd opened.
    pub fn activated(&self) -> Vec<Purpose> {
        let activated = self.0.iter().filter(|(_, (_, opener))| *opener == Opener::Systemd);
        activated.map(|(purpose, _)| *purpose).collect()
    }
}

/// Where a ZeroMQ endpoint of ours is bound, if it is a plain TCP address.
pub fn address_of(endpoint: &str) -> Option<SocketAddr> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    let host = if host == "*" { "0.0.0.0" } else { host.trim_start_matches('[').trim_end_matches(']') };
    Some(SocketAddr::new(host.parse::<IpAddr>().ok()?, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_kept_only_where_it_is_wanted() {
        let keeps_of = |opener: Opener, wanted: Option<&str>| {
            let mut listeners = Listeners::default();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            listeners.add(Purpose::Admin, listener, opener);
            let wanted = wanted.map(|text| text.replace("PORT", &port.to_string()).parse().unwrap());
            listeners.keep_if_at(Purpose::Admin, wanted);
            listeners.take(Purpose::Admin).is_some()
        };
        let keeps = |wanted| keeps_of(Opener::Gateway, wanted);
        assert!(keeps(Some("127.0.0.1:PORT")) && keeps(Some("127.0.0.1:0")));
        assert!(!keeps(Some("127.0.0.1:1")) && !keeps(Some("0.0.0.0:PORT")) && !keeps(None));
        assert!(keeps_of(Opener::Systemd, Some("127.0.0.1:1")), "systemd says where");
        assert!(!keeps_of(Opener::Systemd, None), "nothing would be done with it");
    }

    #[test]
    fn endpoints_are_addresses_where_they_name_one() {
        let address = |endpoint| address_of(endpoint).map(|address| address.to_string());
        assert_eq!(address("tcp://*:5557").as_deref(), Some("0.0.0.0:5557"));
        assert_eq!(address("tcp://[::1]:0").as_deref(), Some("[::1]:0"));
        assert_eq!((address("ipc:///tmp/x"), address("tcp://host:1")), (None, None));
    }
}
