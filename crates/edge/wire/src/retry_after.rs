//! The pause that a busy server asks for.

use std::time::Duration;

use http::{HeaderMap, header};

/// The pause in `Retry-After`, if there is one. A date becomes `for_date`: the clocks of two machines differ.
pub fn retry_after(headers: &HeaderMap, for_date: Duration) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok().map(str::trim).unwrap_or_default();
    Some(text.parse().map_or(for_date, Duration::from_secs))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn seconds_are_read_and_a_date_is_not() {
        for (text, pause) in [
            (None, None),
            (Some("3"), Some(3)),
            (Some(" 0 "), Some(0)),
            (Some("Wed, 21 Oct 2026 07:28:00 GMT"), Some(7)),
            (Some("-1"), Some(7)),
        ] {
            let value = text.map(|text| (header::RETRY_AFTER, HeaderValue::from_static(text)));
            let pause = pause.map(Duration::from_secs);
            assert_eq!(retry_after(&value.into_iter().collect(), Duration::from_secs(7)), pause, "{text:?}");
        }
    }
}
