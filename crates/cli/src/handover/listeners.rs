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

/// Listeners by what they are for, at most one each.
#[derive(Debug, Default)]
pub struct Listeners(BTreeMap<Purpose, TcpListener>);

impl Listeners {
    /// Adds one. Where there is one already, it stays.
    pub fn add(&mut self, purpose: Purpose, listener: TcpListener) {
        self.0.entry(purpose).or_insert(listener);
    }

    /// Adds the others' where there is none.
    pub fn fill_from(&mut self, others: Listeners) {
        others.0.into_iter().for_each(|(purpose, listener)| self.add(purpose, listener));
    }

    /// Takes one out.
    pub fn take(&mut self, purpose: Purpose) -> Option<TcpListener> {
        self.0.remove(&purpose)
    }

    /// Closes one that is elsewhere than it is wanted now. Port 0 is content with any port.
    pub fn keep_if_at(&mut self, purpose: Purpose, wanted: Option<SocketAddr>) {
        let fits = |listener: &TcpListener| {
            let (wanted, is) = (wanted?, listener.local_addr().ok()?);
            Some(wanted.ip() == is.ip() && (wanted.port() == 0 || wanted.port() == is.port()))
        };
        if self.0.get(&purpose).is_some_and(|listener| fits(listener) != Some(true)) {
            tracing::info!(listener = purpose.name(), "is wanted at another address: opened anew");
            self.0.remove(&purpose);
        }
    }

    /// Their names, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.keys().map(|purpose| purpose.name()).collect()
    }

    /// The sockets, in the same order.
    pub fn sockets(&self) -> Vec<&TcpListener> {
        self.0.values().collect()
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
        let keeps = |wanted: Option<&str>| {
            let mut listeners = Listeners::default();
            listeners.add(Purpose::Admin, TcpListener::bind("127.0.0.1:0").unwrap());
            let port = listeners.0[&Purpose::Admin].local_addr().unwrap().port();
            let wanted = wanted.map(|text| text.replace("PORT", &port.to_string()).parse().unwrap());
            listeners.keep_if_at(Purpose::Admin, wanted);
            listeners.take(Purpose::Admin).is_some()
        };
        assert!(keeps(Some("127.0.0.1:PORT")) && keeps(Some("127.0.0.1:0")));
        assert!(!keeps(Some("127.0.0.1:1")) && !keeps(Some("0.0.0.0:PORT")) && !keeps(None));
    }

    #[test]
    fn endpoints_are_addresses_where_they_name_one() {
        let address = |endpoint| address_of(endpoint).map(|address| address.to_string());
        assert_eq!(address("tcp://*:5557").as_deref(), Some("0.0.0.0:5557"));
        assert_eq!(address("tcp://[::1]:0").as_deref(), Some("[::1]:0"));
        assert_eq!((address("ipc:///tmp/x"), address("tcp://host:1")), (None, None));
    }
}
