//! What is told about breaks.

use warmroute_types::Micros;

use crate::Cause;
use crate::tally::{Loss, Place, Tally};

/// Time from which losses are projected to a day: minutes say little about one.
const PROJECTED_FROM: Micros = Micros::from_secs(600);

/// Bytes per token: the usual figure for English text and code.
const BYTES_PER_TOKEN: f64 = 4.0;

/// Breaks of all models.
#[derive(Clone, Debug)]
pub struct PrefixReport {
    /// Prompts that were outlined.
    pub outlined: u64,
    /// Models, the one with the greatest loss first.
    pub models: Vec<ModelReport>,
}

/// Breaks of one model.
#[derive(Clone, Debug)]
pub struct ModelReport {
    /// Name of the model.
    pub model: Box<str>,
    /// The time that the counts cover.
    pub covered: Micros,
    /// Prompts that were compared with an earlier one.
    pub compared: u64,
    /// Estimated tokens of these prompts.
    pub prompt_tokens: u64,
    /// Prompts that parted from the earlier one before text that both have.
    pub broken: u64,
    /// Estimated tokens of that text.
    pub lost_tokens: u64,
    /// Places, the one with the greatest loss first.
    pub breaks: Vec<BreakReport>,
}

/// A place where prompts part.
#[derive(Clone, Debug)]
pub struct BreakReport {
    /// Likely cause.
    pub cause: Cause,
    /// Field, as a path in the request's body.
    pub field: String,
    /// Position in the field's text, to about a line or to the value that changes.
    pub byte: Option<u32>,
    /// Prompts that parted here.
    pub requests: u64,
    /// Estimated tokens that were computed again for it.
    pub lost_tokens: u64,
}

impl ModelReport {
    pub(crate) fn of(model: &str, tally: &Tally, now: Micros) -> ModelReport {
        let mut breaks: Vec<BreakReport> =
            tally.places.iter().map(|(place, loss)| BreakReport::of(place, loss)).collect();
        breaks.sort_by_key(|place| std::cmp::Reverse(place.lost_tokens));
        ModelReport {
            model: model.into(),
            covered: tally.covered(now),
            compared: tally.compared,
            prompt_tokens: tokens(tally.bytes),
            broken: tally.lost.requests,
            lost_tokens: tokens(tally.lost.bytes),
            breaks,
        }
    }

    /// A count over the covered time, as it would be in a day; `None` if too little time is covered to tell.
    pub fn per_day(&self, count: u64) -> Option<u64> {
        let projected = || (count as f64 * 86_400.0 / self.covered.as_secs_f64()) as u64;
        (self.covered >= PROJECTED_FROM).then(projected)
    }

    /// Share of the compared prompts, from 0 to 1.
    pub fn share(&self, requests: u64) -> f64 {
        requests as f64 / self.compared.max(1) as f64
    }
}

impl BreakReport {
    fn of(place: &Place, loss: &Loss) -> BreakReport {
        BreakReport {
            cause: place.cause,
            field: place.path.to_string(),
            byte: place.byte,
            requests: loss.requests,
            lost_tokens: tokens(loss.bytes),
        }
    }
}

/// Tokens of a text, estimated.
pub(crate) fn tokens(bytes: u64) -> u64 {
    (bytes as f64 / BYTES_PER_TOKEN) as u64
}
