//! A request's budget for its time to first token: it is served in time or refused at once.
//!
//! The budget begins when the request has been read; a client's upload is not in the gateway's hands. While the request
//! waits for admission, the queue's prediction is compared with it (`permit`), and after routing the router's expected
//! time to first token. Waiting would not help a request whose worker is too busy: the work before it only moves.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::{HeaderMap, HeaderName, HeaderValue};
use warmroute_admission::{TooLate, TtftBudget};
use warmroute_types::Micros;

use crate::gateway_error::GatewayError;

/// The request header with the budget in milliseconds.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-warmroute-ttft-budget-ms");

/// A longer budget is none: no client waits for a day.
const BUDGET_MS_MAX: u64 = 86_400_000;

/// The budget of a request: of its header, its key or the settings, the first that is there.
pub(crate) fn ttft_budget(
    headers: &HeaderMap,
    of_key: Option<Micros>,
    usual: Micros,
) -> Result<Option<Micros>, GatewayError> {
    let own = headers.get(HEADER).map(read).transpose()?;
    Ok(Some(own.or(of_key).unwrap_or(usual)).filter(|budget| *budget > Micros::ZERO))
}

/// Refuses a request whose first token is expected too late.
pub(crate) fn check(budget: TtftBudget, expected_ttft: Micros, now: Micros) -> Result<(), GatewayError> {
    let TtftBudget { budget: whole, .. } = budget;
    let refusal = |TooLate { expected, accepted, retry_after_s }| GatewayError::TtftBudget {
        expected,
        accepted,
        budget: whole,
        retry_after_s,
    };
    budget.check(expected_ttft, now).map_err(refusal)
}

/// Reads a number of milliseconds; 0 is no budget.
pub(crate) fn parse_ms(text: &str) -> Option<Micros> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let ms: u64 = text.parse().ok().filter(|_| is_number)?;
    (ms <= BUDGET_MS_MAX).then(|| Micros::from_millis(ms))
}

fn read(value: &HeaderValue) -> Result<Micros, GatewayError> {
    value.to_str().ok().and_then(|text| parse_ms(text.trim())).ok_or(GatewayError::BadTtftBudget)
}

/// The expected time to first token of recent decisions, for requests that wait while no worker has room.
#[derive(Debug, Default)]
pub(crate) struct TypicalTtft(AtomicU64);

impl TypicalTtft {
    /// Adds a decision, with a weight of one eighth.
    pub(crate) fn learn(&self, expected_ttft: Micros) {
        let before = self.0.load(Relaxed);
        let mean = if before == 0 { expected_ttft.0 } else { before - before / 8 + expected_ttft.0 / 8 };
        self.0.store(mean, Relaxed);
    }

    pub(crate) fn get(&self) -> Micros {
        Micros(self.0.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_milliseconds_are_read() {
        for (text, budget) in [("250", Some(250)), ("0", Some(0)), ("86400000", Some(86_400_000))] {
            assert_eq!(parse_ms(text), budget.map(Micros::from_millis));
        }
        for bad in ["", "-1", "+1", "1.5", "1s", "86400001", "99999999999999999999"] {
            assert_eq!(parse_ms(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_typical_time_follows_the_decisions() {
        let typical = TypicalTtft::default();
        assert_eq!(typical.get(), Micros::ZERO);
        (0..60).for_each(|_| typical.learn(Micros::from_millis(80)));
        assert_eq!(typical.get(), Micros::from_millis(80));
        (0..60).for_each(|_| typical.learn(Micros::from_millis(800)));
        assert!(typical.get() > Micros::from_millis(790));
    }
}
