//! The first 64 bytes of each side: protocol, version and security mechanism.
//!
//! `FF 00×8 7F | major minor | mechanism, 20 bytes | as-server | 31 zeros`

use crate::error::Error;

/// Length of a greeting.
pub const GREETING_BYTES: usize = 64;

/// The minor version from which on peers support heartbeats and subscribe commands.
pub const MINOR: u8 = 1;

/// Our greeting.
pub fn ours() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    (greeting[0], greeting[8], greeting[9]) = (0xff, 1, 0x7f);
    (greeting[10], greeting[11]) = (3, MINOR);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// The peer's minor version, if it is compatible.
pub fn read(greeting: &[u8; GREETING_BYTES]) -> Result<u8, Error> {
    if greeting[0] != 0xff || greeting[9] & 1 != 1 {
        return Err(Error::Protocol("the greeting has no signature"));
    }
    if greeting[10] < 3 {
        return Err(Error::Protocol("the peer is older than ZeroMQ 4"));
    }
    let mechanism = &greeting[12..32];
    let end = mechanism.iter().position(|byte| *byte == 0).unwrap_or(mechanism.len());
    match &mechanism[..end] {
        b"NULL" => Ok(if greeting[10] > 3 { MINOR } else { greeting[11] }),
        other => Err(Error::Mechanism(String::from_utf8_lossy(other).into_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_greeting_is_accepted() {
        assert_eq!(read(&ours()).unwrap(), 1);
    }

    #[test]
    fn other_protocols_are_rejected() {
        let mut http = [0; GREETING_BYTES];
        http[..14].copy_from_slice(b"GET / HTTP/1.1");
        assert!(matches!(read(&http), Err(Error::Protocol(_))));
        let mut old = ours();
        old[10] = 1;
        assert!(matches!(read(&old), Err(Error::Protocol(_))));
        let mut curve = ours();
        curve[12..17].copy_from_slice(b"CURVE");
        assert!(matches!(read(&curve), Err(Error::Mechanism(name)) if name == "CURVE"));
    }
}
