//! Inherited listeners, by purpose.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};

/// The purpose of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Client requests.
    Clients,
    /// The admin listener.
    Admin,
    /// Engines that connect to publish events.
    Events,
    /// Peers.
    Mesh,
    /// Proxies that ask the endpoint picker.
    Picker,
    /// Proxies that ask it for a worker of one pool: the pool's place in the configuration.
    Pool(u16),
}

/// Before the number of a pool.
const POOL_PREFIX: &str = "pool-";

impl Purpose {
    /// All purposes of which there is one listener.
    pub const SINGLE: [Purpose; 5] =
        [Purpose::Clients, Purpose::Admin, Purpose::Events, Purpose::Mesh, Purpose::Picker];

    /// The option that sets the listener's port, and the listener as errors name it.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Purpose::Clients => ("--port", "the client listener"),
            Purpose::Admin => ("--admin-port", "the admin listener"),
            Purpose::Events => ("--kv-events-bind", "the listener for KV events"),
            Purpose::Mesh => ("--mesh-listen", "the mesh"),
            Purpose::Picker => ("--picker-port", "the endpoint picker"),
            Purpose::Pool(_) => ("--picker-pools", "a pool of the picker"),
        }
    }

    /// The name in handover messages and in `FileDescriptorName=`.
    pub fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Purpose::Clients => "clients",
            Purpose::Admin => "admin",
            Purpose::Events => "events",
            Purpose::Mesh => "mesh",
            Purpose::Picker => "picker",
            Purpose::Pool(place) => return Cow::Owned(format!("{POOL_PREFIX}{place}")),
        })
    }

    /// The purpose of this name.
    pub fn named(name: &str) -> Option<Purpose> {
        if let Some(place) = name.strip_prefix(POOL_PREFIX) {
            return place.parse().ok().map(Purpose::Pool);
        }
        Purpose::SINGLE.into_iter().find(|purpose| purpose.name() == name)
    }
}

/// Who opened a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opener {
    /// A gateway, at its configured address.
    Gateway,
    /// systemd, which keeps it open. It stays in use whatever the configured address is; otherwise its clients would
    /// wait forever.
    Systemd,
}

/// Listeners by purpose, at most one each.
#[derive(Debug, Default)]
pub struct Listeners(BTreeMap<Purpose, (TcpListener, Opener)>);

impl Listeners {
    /// Adds a listener, unless there is one for this purpose.
    pub fn add(&mut self, purpose: Purpose, listener: TcpListener, opener: Opener) {
        self.0.entry(purpose).or_insert((listener, opener));
    }

    /// Adds the others for purposes that have none.
    pub fn fill_from(&mut self, others: Listeners) {
        others.0.into_iter().for_each(|(purpose, (listener, opener))| self.add(purpose, listener, opener));
    }

    /// Takes the listener for this purpose.
    pub fn take(&mut self, purpose: Purpose) -> Option<(TcpListener, Opener)> {
        self.0.remove(&purpose)
    }

    /// Closes a gateway's listener whose address is not the wanted one. A wanted port of 0 accepts any port.
    pub fn keep_if_at(&mut self, purpose: Purpose, wanted: Option<SocketAddr>) {
        let fits = |(listener, opener): &(TcpListener, Opener)| {
            let (wanted, is) = (wanted?, listener.local_addr().ok()?);
            let is_there = wanted.ip() == is.ip() && (wanted.port() == 0 || wanted.port() == is.port());
            Some(is_there || *opener == Opener::Systemd)
        };
        if self.0.get(&purpose).is_some_and(|listener| fits(listener) != Some(true)) {
            tracing::info!(
                listener = %purpose.name(),
                "the configured address changed; opening a new listener"
            );
            self.0.remove(&purpose);
        }
    }

    /// Names of the listeners, in order.
    pub fn names(&self) -> Vec<Cow<'static, str>> {
        self.0.keys().map(|purpose| purpose.name()).collect()
    }

    /// The sockets, in the same order.
    pub fn sockets(&self) -> Vec<&TcpListener> {
        self.0.values().map(|(listener, _)| listener).collect()
    }

    /// The purposes of the listeners that systemd opened.
    pub fn activated(&self) -> Vec<Purpose> {
        let activated = self.0.iter().filter(|(_, (_, opener))| *opener == Opener::Systemd);
        activated.map(|(purpose, _)| *purpose).collect()
    }
}

/// The address of a ZeroMQ endpoint to bind, if it is a plain TCP address.
pub fn address_of(endpoint: &str) -> Option<SocketAddr> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    let host = if host == "*" { "0.0.0.0" } else { host.trim_start_matches('[').trim_end_matches(']') };
    Some(SocketAddr::new(host.parse::<IpAddr>().ok()?, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_kept_only_at_its_wanted_address() {
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
        assert!(keeps_of(Opener::Systemd, Some("127.0.0.1:1")), "systemd sets the address");
        assert!(!keeps_of(Opener::Systemd, None), "unused");
    }

    #[test]
    fn a_plain_tcp_endpoint_has_an_address() {
        let address = |endpoint| address_of(endpoint).map(|address| address.to_string());
        assert_eq!(address("tcp://*:5557").as_deref(), Some("0.0.0.0:5557"));
        assert_eq!(address("tcp://[::1]:0").as_deref(), Some("[::1]:0"));
        assert_eq!((address("ipc:///tmp/x"), address("tcp://host:1")), (None, None));
    }
}
