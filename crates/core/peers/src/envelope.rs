//! An encoded message and its receivers.

use std::sync::Arc;

use warmroute_types::{RouterId, To};

use crate::PeerMessage;

/// An encoded message and its receivers, for the driver to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// One peer, or all of them.
    pub to: To,
    /// The encoded [`PeerMessage`].
    pub bytes: Arc<[u8]>,
}

impl Envelope {
    /// A report to the router that has routed a request. It may be lost.
    pub fn report(from: RouterId, to: RouterId, bytes: Vec<u8>) -> Envelope {
        Envelope::to_one(to, &PeerMessage::Report { from, bytes })
    }

    pub(crate) fn to_one(to: RouterId, message: &PeerMessage) -> Envelope {
        Envelope { to: To::One(to), bytes: message.encode().into() }
    }
}
