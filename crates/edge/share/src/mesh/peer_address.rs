//! Addresses of routers: parsing, and the address that this router advertises.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::BadShare;

/// Longest address in bytes; longer names are not valid in DNS.
pub(crate) const ADDRESS_BYTES_MAX: usize = 255;

/// Splits `HOST:PORT` into host, without brackets, and port.
pub(crate) fn parse_address(address: &str) -> Result<(&str, u16), BadShare> {
    let bad = || BadShare::BadPeer(address.to_owned());
    let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if address.len() > ADDRESS_BYTES_MAX
        || host.is_empty()
        || host.contains(['/', '@'])
        || (bare.is_none() && host.contains(':'))
    {
        return Err(bad());
    }
    let host = bare.unwrap_or(host);
    // The unspecified address (0.0.0.0 or ::) cannot be dialed.
    let is_unspecified = host.parse().is_ok_and(|address: IpAddr| address.is_unspecified());
    let port = port.parse().ok().filter(|_| !is_unspecified);
    Ok((host, port.ok_or_else(bad)?))
}

/// Writes brackets around the IPv6 address of `ADDRESS:PORT`. In Kubernetes `$(POD_IP):7946` has none.
pub(crate) fn bracketed(address: &str) -> Cow<'_, str> {
    let is_host = |host: &str| host.parse().is_ok_and(|host: Ipv6Addr| !host.is_unspecified());
    match address.rsplit_once(':') {
        Some((host, port)) if is_host(host) && port.parse::<u16>().is_ok() => {
            format!("[{host}]:{port}").into()
        }
        _ => address.into(),
    }
}

/// The address that peers dial: the configured one, or else the listening address.
pub(crate) fn advertised_address(advertise: Option<&str>, listening: SocketAddr) -> String {
    let own = || match listening.ip() {
        ip if ip.is_unspecified() => SocketAddr::new(own_ip(), listening.port()).to_string(),
        _ => listening.to_string(),
    };
    advertise.map_or_else(own, |address| bracketed(address).into_owned())
}

/// The address that this machine uses to reach other hosts. Nothing is sent: connecting a datagram socket to a documentation
/// address only looks up the route.
fn own_ip() -> IpAddr {
    let route_to = |local: &str, other: &str| {
        let socket = UdpSocket::bind(local).ok()?;
        socket.connect(other).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let found = route_to("0.0.0.0:0", "192.0.2.1:9").or_else(|| route_to("[::]:0", "[2001:db8::1]:9"));
    found.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split_into_host_and_port() {
        for (address, expected) in
            [("a:1", ("a", 1)), ("[::1]:70", ("::1", 70)), ("routers.svc:7946", ("routers.svc", 7946))]
        {
            assert_eq!(parse_address(address).unwrap(), expected);
        }
        for bad in ["", "a", ":1", "a:b", "::1:7", "http://a:1", "a:70000", "0.0.0.0:7946", "[::]:7946"] {
            assert!(parse_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_advertised_address_can_be_dialed() {
        let advertised = |listening: &str| advertised_address(None, listening.parse().unwrap());
        assert_eq!(advertised("10.0.0.7:7946"), "10.0.0.7:7946");
        let everywhere: SocketAddr = advertised("0.0.0.0:7946").parse().unwrap();
        assert!(!everywhere.ip().is_unspecified() && everywhere.port() == 7946, "{everywhere}");
        let named = advertised_address(Some("router-1.example:1"), "0.0.0.0:7946".parse().unwrap());
        assert_eq!(named, "router-1.example:1");
        for (given, dialed) in [
            ("10.0.0.7:7946", "10.0.0.7:7946"),
            ("fd00::1:7946", "[fd00::1]:7946"),
            ("fd00:1:2:3:4:5:6:7:7946", "[fd00:1:2:3:4:5:6:7]:7946"),
            ("[fd00::1]:7946", "[fd00::1]:7946"),
        ] {
            assert_eq!(advertised_address(Some(given), "[::]:7946".parse().unwrap()), dialed);
            assert!(parse_address(&bracketed(given)).is_ok(), "{given}");
        }
        for bad in ["fd00::1", ":::7946", "fd00::1:70000", "fd00::1:x"] {
            assert!(parse_address(&bracketed(bad)).is_err(), "{bad}");
        }
    }
}
