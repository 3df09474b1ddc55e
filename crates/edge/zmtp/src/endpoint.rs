//! The address of a socket: `tcp://HOST:PORT` or `ipc://PATH`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// An address in ZeroMQ's notation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    /// Over the network. `*` is every address of this machine.
    Tcp {
        /// A host name or an address; IPv6 without brackets.
        host: String,
        /// The port; 0 binds any free one.
        port: u16,
    },
    /// A Unix socket.
    Ipc(PathBuf),
}

/// An invalid endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{endpoint}` is not a valid endpoint: {why}")]
pub struct BadEndpoint {
    /// The endpoint as written.
    pub endpoint: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl Endpoint {
    /// Whether it means every address of a machine. To connect, it needs a host in its place.
    pub fn is_wildcard(&self) -> bool {
        matches!(self, Endpoint::Tcp { host, .. } if matches!(host.as_str(), "*" | "0.0.0.0" | "::"))
    }

    /// The same endpoint, with this host in place of a wildcard.
    pub fn on_host(self, substitute: &str) -> Endpoint {
        match self {
            Endpoint::Tcp { port, .. } if self.is_wildcard() => {
                Endpoint::Tcp { host: substitute.to_owned(), port }
            }
            other => other,
        }
    }

    /// The endpoint of a data-parallel rank, as vLLM and SGLang count: that many ports higher. A free port stays
    /// free.
    pub fn of_rank(self, rank: u16) -> Option<Endpoint> {
        match self {
            Endpoint::Tcp { host, port: 0 } => Some(Endpoint::Tcp { host, port: 0 }),
            Endpoint::Tcp { host, port } => Some(Endpoint::Tcp { host, port: port.checked_add(rank)? }),
            Endpoint::Ipc(path) => (rank == 0).then_some(Endpoint::Ipc(path)),
        }
    }
}

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Endpoint, BadEndpoint> {
        let bad = |why| BadEndpoint { endpoint: text.to_owned(), why };
        if let Some(path) = text.strip_prefix("ipc://") {
            return match path.is_empty() || path.starts_with('@') {
                true => Err(bad("expected ipc://PATH with the path of a file")),
                false => Ok(Endpoint::Ipc(PathBuf::from(path))),
            };
        }
        let rest =
            text.strip_prefix("tcp://").ok_or_else(|| bad("expected tcp://HOST:PORT or ipc://PATH"))?;
        let (host, port) =
            rest.rsplit_once(':').ok_or_else(|| bad("it has no port; expected tcp://HOST:PORT"))?;
        let port = port.parse().map_err(|_| bad("the port is not a number from 0 to 65535"))?;
        let host = host.strip_prefix('[').and_then(|v6| v6.strip_suffix(']')).unwrap_or(host);
        match host.is_empty() || host.contains(['/', '[', ']', '@']) {
            true => Err(bad("it has no host; expected tcp://HOST:PORT")),
            false => Ok(Endpoint::Tcp { host: host.to_owned(), port }),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Endpoint::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Endpoint::Ipc(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    #[test]
    fn endpoints_are_read_and_written_alike() {
        for text in ["tcp://*:5557", "tcp://10.0.0.7:5557", "tcp://[::1]:80", "ipc:///tmp/events.sock"] {
            assert_eq!(endpoint(text).to_string(), text);
        }
    }

    #[test]
    fn invalid_endpoints_are_rejected_with_the_reason() {
        for (text, why) in [
            ("http://a:1", "tcp://"),
            ("tcp://a", "port"),
            ("tcp://a:70000", "port"),
            ("tcp://:5557", "host"),
            ("ipc://", "PATH"),
            ("ipc://@abstract", "PATH"),
            ("inproc://x", "tcp://"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn wildcards_get_the_workers_host_and_ranks_the_next_ports() {
        assert_eq!(endpoint("tcp://*:5557").on_host("10.0.0.7"), endpoint("tcp://10.0.0.7:5557"));
        assert_eq!(endpoint("tcp://[::]:5557").on_host("h"), endpoint("tcp://h:5557"));
        assert_eq!(endpoint("tcp://a:5557").on_host("b"), endpoint("tcp://a:5557"));
        assert_eq!(endpoint("tcp://a:5557").of_rank(3), Some(endpoint("tcp://a:5560")));
        assert_eq!(endpoint("tcp://a:65535").of_rank(1), None);
        assert_eq!(endpoint("ipc:///x").of_rank(1), None);
    }
}
