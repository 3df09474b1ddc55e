//! Fuzz target: any input is ignored, rejected, or decoded to a message that survives encoding; the receiver
//! keeps working.

use warmroute_types::{Micros, RouterId};

use crate::{Config, MESSAGE_MAX, OwnLedger, PeerMessage, Peers};

const NOW: Micros = Micros::from_secs(1_000);

/// Decodes the input, encodes the message again and lets a router receive it.
pub fn message(input: &[u8]) {
    if let Ok(Some(message)) = PeerMessage::decode(input) {
        let encoded = message.encode();
        assert_eq!(PeerMessage::decode(&encoded), Ok(Some(message)));
        assert!(encoded.len() <= input.len(), "{} bytes of {}", encoded.len(), input.len());
    }
    receive_input(input);
}

/// Receives the input twice, because messages may be repeated, and checks the answers and queries that
/// follow.
fn receive_input(input: &[u8]) {
    let (mut peers, mut own) = (Peers::new(RouterId(1), Config::default()), OwnLedger::default());
    let mut envelopes = Vec::new();
    for at in [NOW, NOW + Micros::from_millis(1)] {
        envelopes.extend(peers.receive(input, at, &mut Vec::new()).unwrap_or_default());
    }
    envelopes.extend(peers.compose(own.take_updates(), NOW + Micros::from_secs(1)));
    for envelope in envelopes {
        assert!(matches!(PeerMessage::decode(&envelope.bytes), Ok(Some(_))), "sent messages can be decoded");
        assert!(envelope.bytes.len() <= MESSAGE_MAX);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn decoded_messages_survive_encoding() {
        warmroute_fuzz::try_out("message", super::message);
    }
}
