//! Streams survive their engine: when a worker dies in the middle of a chat or completion stream, the gateway sends
//! the request with the text so far to another worker, and the client sees one stream.
//!
//! ```text
//!   worker ─chunks─▶ EventSplitter ─events─▶ DeliveredText: the text so far ─▶ client
//!      ╳                                          │ continued_body
//!   another worker ◀──────────────────────────────┘
//!      └─────chunks─▶ EventSplitter ─events─▶ EventRewriter: id, usage ─▶ client
//! ```
//!
//! Only complete events reach the client, so that a stream may break anywhere. What cannot be continued ends with an
//! error event, as without this option: several answers, answers with log probabilities, answers bound to a format,
//! tool calls that have begun, and reasoning, which no request can repeat.

mod continued_body;
mod delivered_text;
mod event_rewriter;
mod ordered_object;
mod stream_guard;
mod switch;

use std::fmt;
use std::str::FromStr;

use warmroute_types::parse_count;

pub(crate) use continued_body::{Continued, SentRequest, continued};
pub(crate) use stream_guard::{GuardedState, StreamGuard};
pub(crate) use switch::{Interrupted, Remainder, Resumed, Switch};

/// Whether a stream whose worker dies is continued on another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContinueStreams {
    /// It ends with an error event.
    #[default]
    Off,
    /// It is continued.
    On,
    /// It is continued while prompt and answer have fewer tokens than this: the next worker computes both.
    Below(u32),
}

/// The value is neither `on`, `off` nor a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected on, off, or a number of tokens below which streams are continued")]
pub struct BadContinueStreams;

impl FromStr for ContinueStreams {
    type Err = BadContinueStreams;

    fn from_str(text: &str) -> Result<ContinueStreams, BadContinueStreams> {
        match text {
            "on" => Ok(ContinueStreams::On),
            "off" => Ok(ContinueStreams::Off),
            number => match parse_count(number).and_then(|tokens| u32::try_from(tokens).ok()) {
                Some(0) | None => Err(BadContinueStreams),
                Some(tokens) => Ok(ContinueStreams::Below(tokens)),
            },
        }
    }
}

impl fmt::Display for ContinueStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ContinueStreams::Off => f.write_str("off"),
            ContinueStreams::On => f.write_str("on"),
            ContinueStreams::Below(tokens) => write!(f, "{tokens}"),
        }
    }
}

impl ContinueStreams {
    /// Whether a stream with this many tokens, prompt and answer together, is continued.
    pub(crate) fn allows(self, tokens: u32) -> bool {
        match self {
            ContinueStreams::Off => false,
            ContinueStreams::On => true,
            ContinueStreams::Below(max) => tokens < max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_read_and_written_alike() {
        for text in ["on", "off", "4096"] {
            assert_eq!(text.parse::<ContinueStreams>().unwrap().to_string(), text);
        }
        for bad in ["", "0", "maybe", "-1", "1.5"] {
            assert_eq!(bad.parse::<ContinueStreams>(), Err(BadContinueStreams), "{bad}");
        }
        assert!(ContinueStreams::Below(10).allows(9) && !ContinueStreams::Below(10).allows(10));
        assert!(ContinueStreams::On.allows(u32::MAX) && !ContinueStreams::Off.allows(0));
    }
}
