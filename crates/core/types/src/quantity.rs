//! Numbers with a unit, as people write them: times, sizes and large counts.
//!
//! One parser of each kind serves flags, environment variables, the configuration file, the key file and headers. A plain
//! number keeps the unit of the option's name, so that command lines of other routers mean the same here. Errors do not
//! repeat the value, which may be a secret in the wrong place.

use std::time::Duration;

/// TOML has no larger number.
const NUMBER_MAX: u64 = i64::MAX as u64;

/// What was expected instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadQuantity(pub &'static str);

/// A time, such as `500ms`, `1.5s`, `10m`, `1h`, `1d` or `1h30m`. A plain number counts `plain`.
pub fn parse_time(text: &str, plain: Duration) -> Option<Duration> {
    let (mut total, mut rest, mut larger) = (Duration::ZERO, text, None);
    loop {
        let (part, behind) = rest.split_at(part_end(rest));
        let (number, unit) = number_and_unit(part);
        // Only a number that stands alone has the option's unit: `1h30` is a mistake.
        let is_alone = part.len() == text.len();
        let unit = if unit.is_empty() && is_alone { plain } else { unit_of_time(&unit)? };
        let is_descending = larger.is_none_or(|larger| unit < larger);
        total = total.saturating_add(times(number, unit).filter(|_| is_descending)?);
        if behind.is_empty() {
            return Some(total);
        }
        (rest, larger) = (behind, Some(unit));
    }
}

/// Where the first number and its unit end: at a digit behind a letter.
fn part_end(text: &str) -> usize {
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    text[unit..].find(|c: char| c.is_ascii_digit()).map_or(text.len(), |digit| unit + digit)
}

fn unit_of_time(unit: &str) -> Option<Duration> {
    Some(match unit {
        "us" => Duration::from_micros(1),
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" | "min" => Duration::from_secs(60),
        "h" => Duration::from_secs(3_600),
        "d" => Duration::from_secs(86_400),
        _ => return None,
    })
}

/// A number of units. Too small a part of one is refused: it would become 0, which means something else.
fn times(number: &str, unit: Duration) -> Option<Duration> {
    if let Ok(whole) = number.parse::<u64>() {
        // At most 2^64 days: no overflow.
        let nanos = u128::from(whole) * unit.as_nanos();
        let secs = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
        return Some(Duration::new(secs, (nanos % 1_000_000_000) as u32));
    }
    let decimal = decimal(number)?;
    let nanos = (decimal * unit.as_nanos() as f64).round();
    (nanos > 0.0 || decimal == 0.0).then(|| Duration::from_nanos(nanos as u64))
}

/// A number of bytes, such as `16MB` or `16MiB`. A plain number counts `plain` bytes.
pub fn parse_bytes(text: &str, plain: u64) -> Result<u64, BadQuantity> {
    const EXPECTED: BadQuantity =
        BadQuantity("expected a size: a number, or a number with a unit such as 16MB or 16MiB");
    let (number, unit) = number_and_unit(text);
    let unit = match unit.as_str() {
        "" => plain,
        "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "kib" | "ki" => 1 << 10,
        "mib" | "mi" => 1 << 20,
        "gib" | "gi" => 1 << 30,
        "k" | "m" | "g" => {
            return Err(BadQuantity(
                "ambiguous unit: write MB for 1,000,000 bytes or MiB for 1,048,576 bytes",
            ));
        }
        _ => return Err(EXPECTED),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return Ok(whole.saturating_mul(unit).min(NUMBER_MAX));
    }
    let decimal = decimal(number).ok_or(EXPECTED)?;
    let bytes = (decimal * unit as f64).round() as u64;
    if bytes > 0 || decimal == 0.0 { Ok(bytes.min(NUMBER_MAX)) } else { Err(EXPECTED) }
}

/// A whole number of tokens, requests or the like, such as `500000`, `500k` or `1.5M`.
pub fn parse_count(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text);
    let unit = match unit.as_str() {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        _ => return None,
    };
    let count = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(unit)?,
        Err(_) => {
            let count = decimal(number)? * unit as f64;
            // 2.3M is whole, though 2.3 is not a number of the machine.
            let is_whole = (count - count.round()).abs() <= count * 1e-12;
            is_whole.then(|| count.round() as u64)?
        }
    };
    (count <= NUMBER_MAX).then_some(count)
}

/// A number and the unit behind it, in lower case.
fn number_and_unit(text: &str) -> (&str, String) {
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let number = text[..unit].trim();
    // Rust would read +1 too.
    (number.strip_prefix('+').map_or(number, |_| ""), text[unit..].trim().to_ascii_lowercase())
}

/// A number with a decimal point, from 0 on.
fn decimal(number: &str) -> Option<f64> {
    number.parse::<f64>().ok().filter(|decimal| decimal.is_finite() && *decimal >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_the_options_unit_or_its_own() {
        let us = |text: &str| parse_time(text, Duration::from_secs(1)).map(|time| time.as_micros());
        for (text, expected) in [
            ("60", 60_000_000),
            ("0", 0),
            ("1.5", 1_500_000),
            ("250us", 250),
            ("0.2ms", 200),
            ("500ms", 500_000),
            ("2s", 2_000_000),
            ("10m", 600_000_000),
            ("10 min", 600_000_000),
            ("0.5h", 1_800_000_000),
            ("1d", 86_400_000_000),
            ("1h30m", 5_400_000_000),
            ("1m 30.5s", 90_500_000),
            ("1d2h3m4s5ms6us", 93_784_005_006),
        ] {
            assert_eq!(us(text), Some(expected), "{text}");
        }
        for bad in [
            "",
            "m",
            "-1",
            "+1",
            "1x",
            "1e3",
            "inf",
            "0.0000001us",
            "1h30",
            "30m1h",
            "1m1m",
            "1h-5m",
            "1h.5",
            "tcp://1.2.3.4:80",
        ] {
            assert_eq!(us(bad), None, "{bad}");
        }
        assert_eq!(parse_time("250", Duration::from_millis(1)), Some(Duration::from_millis(250)));
        assert!(us("18446744073709551615d") > Some(1 << 80), "too large is not wrapped");
    }

    #[test]
    fn a_size_has_a_decimal_or_a_binary_unit() {
        for (text, expected) in [
            ("16777216", 16 << 20),
            ("16MB", 16_000_000),
            ("16MiB", 16 << 20),
            ("16mib", 16 << 20),
            ("1.5 GiB", 3 << 29),
            ("2Gi", 2 << 30),
            ("7B", 7),
        ] {
            assert_eq!(parse_bytes(text, 1), Ok(expected), "{text}");
        }
        let error = parse_bytes("16M", 1).unwrap_err().to_string();
        assert!(error.contains("MiB for"), "{error}");
        for bad in ["", "MB", "-1", "16 eggs"] {
            assert!(parse_bytes(bad, 1).is_err(), "{bad}");
        }
        assert_eq!(parse_bytes("3", 32), Ok(96));
    }

    #[test]
    fn a_count_is_whole_and_may_be_in_thousands() {
        for (text, expected) in [
            ("0", 0),
            ("500000", 500_000),
            ("500k", 500_000),
            ("500 K", 500_000),
            ("2.3M", 2_300_000),
            ("1g", 1_000_000_000),
        ] {
            assert_eq!(parse_count(text), Some(expected), "{text}");
        }
        for bad in [
            "",
            "k",
            "-1",
            "1.5",
            "0.0001k",
            "1e3",
            "5 tokens",
            "500kB",
            "18446744073709551615",
            "99999999999g",
        ] {
            assert_eq!(parse_count(bad), None, "{bad}");
        }
    }
}
