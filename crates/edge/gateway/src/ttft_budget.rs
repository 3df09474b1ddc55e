//! A request's budget for its time to first token: it is served in time or refused at once.
//!
//! The budget begins when the request has been read; a client's upload is not in the gateway's hands. While the request
//! waits for admission, the queue's prediction is compared with it (`permit`), and after routing the router's expected
//! time to first token. Waiting would not help a request whose worker is too busy: the work before it only moves.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use warmroute_admission::{ExpectedWait, TooLate, TtftBudget};
use warmroute_types::{Micros, parse_time};

use crate::cached_tokens::CachedTokens;
use crate::gateway_error::GatewayError;

/// The request header with the budget in milliseconds.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-warmroute-ttft-budget-ms");

/// A longer budget is none: no client waits for a day.
const BUDGET_MAX: Duration = Duration::from_secs(86_400);

/// A shorter budget is a mistake, such as a number of seconds.
const BUDGET_MIN: Duration = Duration::from_millis(1);

/// The budget of a request: of its key, or else of the settings. A header may make it shorter, not longer: requests
/// without a budget would fill the workers at the cost of those with one. Of several headers the shortest one counts.
pub(crate) fn ttft_budget(
    headers: &HeaderMap,
    of_key: Option<Micros>,
    usual: Micros,
) -> Result<Option<Micros>, GatewayError> {
    let unlimited = |budget: Micros| if budget > Micros::ZERO { Some(budget) } else { None };
    let mut shortest = unlimited(of_key.unwrap_or(usual));
    for budget in headers.get_all(&HEADER) {
        let budget = unlimited(read(budget)?);
        shortest = shortest.into_iter().chain(budget).min();
    }
    Ok(shortest)
}

/// Refuses a request whose first token is expected too late.
pub(crate) fn check(
    budget: TtftBudget,
    expected_ttft: ExpectedWait,
    now: Micros,
    cached_tokens: CachedTokens,
) -> Result<(), GatewayError> {
    let TtftBudget { budget: whole, .. } = budget;
    let refusal = |TooLate { expected, accepted, retry_after_s }| GatewayError::TtftBudget {
        expected: shown(expected, cached_tokens),
        accepted,
        budget: whole,
        retry_after_s,
    };
    budget.check(expected_ttft, now).map_err(refusal)
}

/// An expected time as a client may see it. Where cached tokens are hidden it is a whole number of seconds: the time of a
/// prompt tells whether it is cached.
pub(crate) fn shown(expected: Micros, cached_tokens: CachedTokens) -> Micros {
    match cached_tokens {
        CachedTokens::Shown => expected,
        CachedTokens::Hidden => Micros::from_secs(expected.0 / 1_000_000 + 1),
    }
}

/// Reads a number of milliseconds, or a time with its unit; 0 is no budget.
pub(crate) fn parse(text: &str) -> Option<Micros> {
    let is_valid = |budget: &Duration| budget.is_zero() || (BUDGET_MIN..=BUDGET_MAX).contains(budget);
    parse_time(text, Duration::from_millis(1)).filter(is_valid).map(Micros::from)
}

fn read(value: &HeaderValue) -> Result<Micros, GatewayError> {
    value.to_str().ok().and_then(|text| parse(text.trim())).ok_or(GatewayError::BadTtftBudget)
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
    fn a_budget_is_in_milliseconds_or_has_its_own_unit_and_is_at_most_a_day() {
        for (text, ms) in
            [("250", 250), ("0", 0), ("86400000", 86_400_000), ("1.5s", 1_500), ("1d", 86_400_000)]
        {
            assert_eq!(parse(text), Some(Micros::from_millis(ms)), "{text}");
        }
        for bad in ["", "-1", "+1", "soon", "86400001", "25h", "99999999999999999999", "1,000"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        for short in ["0.0001", "0.999", "0.00000000001", "999us"] {
            assert_eq!(parse(short), None, "{short}");
        }
        assert_eq!(parse("0.0"), Some(Micros::ZERO));
    }

    #[test]
    fn a_header_shortens_the_budget_and_does_not_lift_it() {
        let ms = |ms: u64| Micros::from_millis(ms);
        for (header, of_key, usual, expected) in [
            (None, None, 0, None),
            (None, None, 900, Some(900)),
            (None, Some(500), 900, Some(500)),
            (Some("200"), Some(500), 900, Some(200)),
            (Some("86400000"), Some(500), 900, Some(500)),
            (Some("0"), None, 900, Some(900)),
            (Some("700"), None, 0, Some(700)),
            (Some("0"), Some(0), 900, None),
        ] {
            let headers = header.map(|value| (HEADER, HeaderValue::from_static(value)));
            let budget = ttft_budget(&headers.into_iter().collect(), of_key.map(ms), ms(usual)).unwrap();
            assert_eq!(budget, expected.map(ms), "{header:?} {of_key:?} {usual}");
        }
    }

    #[test]
    fn of_several_headers_the_shortest_budget_counts() {
        let budget = |values: [&'static str; 2]| {
            let headers = values.map(|value| (HEADER, HeaderValue::from_static(value)));
            let mut map = HeaderMap::new();
            headers.into_iter().for_each(|(name, value)| _ = map.append(name, value));
            ttft_budget(&map, None, Micros::from_millis(900)).ok()
        };
        for values in [["200", "300"], ["300", "200"], ["0", "200"]] {
            assert_eq!(budget(values), Some(Some(Micros::from_millis(200))), "{values:?}");
        }
        assert_eq!(budget(["200", "soon"]), None);
    }

    #[test]
    fn an_expected_time_does_not_tell_what_is_cached_where_that_is_hidden() {
        let times = [15_600, 229_300].map(|us| shown(Micros(us), CachedTokens::Hidden));
        assert_eq!(times, [Micros::from_secs(1); 2]);
        assert_eq!(shown(Micros(15_600), CachedTokens::Shown), Micros(15_600));
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
