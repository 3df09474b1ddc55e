//! What one picker tells another about a response: the proxy reports a response to any of them, and the one that chose
//! the worker holds its booking.
//!
//! ```text
//! proxy ──response──▶ picker B: ResponseReader ──ResponseReport──▶ picker A: Pick
//! ```
//!
//! The text of the response stays where it arrived: a report has times, counts and a status.

use serde::{Deserialize, Serialize};

/// Longest report. The only text in one is the identifier of a stored response.
pub(crate) const REPORT_BYTES_MAX: usize = 1 << 10;

/// Something that happened to the response of a pick.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseReport {
    /// The request is still open. Sent at intervals, so that a reporter that dies is noticed.
    Open,
    /// The worker's response began.
    Begun {
        /// Its status.
        status: u16,
        /// Whether it is a stream of events.
        is_stream: bool,
        /// `Retry-After`, as the worker sent it.
        retry_after: Option<String>,
    },
    /// The first token came.
    FirstToken,
    /// The response is complete.
    Ended {
        /// Tokens that the engine reported: prompt, answer, and those found in its cache.
        usage: Option<(u32, u32, Option<u32>)>,
        /// The identifier of the response, which the engine may have stored.
        id: Option<String>,
        /// Whether it says that the engine has computed all of it.
        #[serde(default)]
        is_computed: bool,
    },
    /// Another worker answered, or the proxy itself.
    Elsewhere,
    /// The client left.
    Left,
}

/// A report and its pick.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PickReport {
    /// The pick's number at the picker that chose.
    pub pick: u64,
    /// How far the response has come, or how it ended.
    pub report: ResponseReport,
}

impl PickReport {
    /// The report as a message.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers, strings and names of variants can be written")
    }

    /// Reads a message; `None` if this version does not know it.
    pub fn decode(message: &[u8]) -> Option<PickReport> {
        (message.len() <= REPORT_BYTES_MAX).then(|| serde_json::from_slice(message).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_other_versions_and_long_ones_are_ignored() {
        for message in [&b"{}"[..], b"{\"pick\":1,\"report\":\"unknown\"}", b"\xff", &vec![b' '; 5_000]] {
            assert_eq!(PickReport::decode(message), None);
        }
        let later =
            b"{\"pick\":1,\"report\":{\"begun\":{\"status\":200,\"is_stream\":false,\"new\":1}},\"more\":2}";
        assert!(PickReport::decode(later).is_some(), "a later version may add fields");
    }
}
