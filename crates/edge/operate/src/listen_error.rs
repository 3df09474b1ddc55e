//! Why a listener could not be opened, and what to do.

use std::io::{Error, ErrorKind};
use std::net::SocketAddr;

/// The error of a listener that could not be opened at this address, which `flag` sets.
pub fn listen_error(address: SocketAddr, flag: &str, error: Error) -> anyhow::Error {
    let advice = match error.kind() {
        ErrorKind::AddrInUse => {
            &format!("; stop the program that listens there, or choose another port with {flag}")
        }
        ErrorKind::AddrNotAvailable => "; no interface of this machine has that address",
        ErrorKind::PermissionDenied if address.port() < 1_024 => {
            "; ports below 1024 need the capability CAP_NET_BIND_SERVICE"
        }
        _ => "",
    };
    anyhow::anyhow!("cannot listen on {address}: {error}{advice}")
}
