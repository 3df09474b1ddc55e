//! Fuzz target: whatever another router says, it is passed over, refused, or means the same when it is said again; and whoever hears it
//! goes on.

use warmroute_types::{Micros, RouterId};

use crate::{Config, MESSAGE_MAX, Message, OwnLedger, Peers};

const NOW: Micros = Micros::from_secs(1_000);

/// A message.
pub fn message(input: &[u8]) {
    if let Ok(Some(message)) = Message::decode(input) {
        let said = message.encode();
        assert_eq!(Message::decode(&said), Ok(Some(message)));
        assert!(said.len() <= input.len(), "{} bytes of {}", said.len(), input.len());
    }
    it_is_heard_without_harm(input);
}

/// Twice, because a message may be, and after it what is asked for and answered.
fn it_is_heard_without_harm(input: &[u8]) {
    let (mut peers, mut own) = (Peers::new(RouterId(1), Config::default()), OwnLedger::default());
    let mut letters = Vec::new();
    for at in [NOW, NOW + Micros::from_millis(1)] {
        letters.extend(peers.hear(input, at, &mut Vec::new()).unwrap_or_default());
    }
    letters.extend(peers.speak(own.take(), NOW + Micros::from_secs(1)));
    for letter in letters {
        assert!(matches!(Message::decode(&letter.bytes), Ok(Some(_))), "what is said can be read");
        assert!(letter.bytes.len() <= MESSAGE_MAX);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn messages_mean_the_same_when_they_are_said_again() {
        warmroute_fuzz::try_out("message", super::message);
    }
}
