//! Reads whether an engine sleeps.

use serde::Deserialize;

#[derive(Deserialize)]
struct SleepState {
    is_sleeping: bool,
}

/// The answer to `GET /is_sleeping`; `None` if it is something else.
pub(crate) fn read_sleep(body: &[u8]) -> Option<bool> {
    serde_json::from_slice(body).ok().map(|state: SleepState| state.is_sleeping)
}

#[cfg(test)]
mod tests {
    use super::read_sleep;

    #[test]
    fn the_state_is_read_and_other_answers_are_not_taken_for_it() {
        assert_eq!(read_sleep(br#"{"is_sleeping":true}"#), Some(true));
        assert_eq!(read_sleep(br#"{"is_sleeping": false, "level": 0}"#), Some(false));
        assert_eq!(read_sleep(b"<html>welcome</html>"), None);
        assert_eq!(read_sleep(br#"{"object":"list"}"#), None);
    }
}
