//! Values that take a unit or a word: times, sizes, addresses, switches.
//!
//! One parser serves flags, environment variables and keys of the file. A plain number keeps the unit of the option's
//! name, so that command lines of other routers mean the same here. Errors do not repeat the value, which may be a
//! secret in the wrong place.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use warmroute_gateway::ContinueStreams;

/// Approximate memory of a span in the index, in bytes.
pub const BYTES_PER_SPAN: usize = 32;

/// What was expected instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadQuantity(&'static str);

impl std::fmt::Display for BadQuantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for BadQuantity {}

/// A time in whole milliseconds. A plain number counts seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Secs(pub Duration);

/// A time in whole milliseconds. A plain number counts milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Millis(pub Duration);

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ByteSize(pub usize);

/// A size of the index. A plain number counts spans; with a unit it is a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Spans(pub usize);

/// The address of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ListenHost(pub IpAddr);

/// Whether something is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OnOff(pub bool);

/// Whether streams survive their worker: on, off, or below a number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamContinuation(pub ContinueStreams);

/// A number and the unit behind it, in lower case.
fn number_and_unit(text: &str) -> (&str, String) {
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    (text[..unit].trim(), text[unit..].trim().to_ascii_lowercase())
}

/// The number in units of `unit`, rounded; `None` if it is no number, is negative, or is rounded to nothing.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    if let Ok(whole) = number.parse::<u64>() {
        return Some(whole.saturating_mul(unit));
    }
    let decimal = number.parse::<f64>().ok().filter(|decimal| decimal.is_finite() && *decimal >= 0.0)?;
    let scaled = (decimal * unit as f64).round() as u64;
    (scaled > 0 || decimal == 0.0).then_some(scaled)
}

fn parse_time(text: &str, plain_ms: u64) -> Option<Duration> {
    let (number, unit) = number_and_unit(text);
    let unit_ms = match unit.as_str() {
        "" => plain_ms,
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    scaled(number, unit_ms).map(Duration::from_millis)
}

fn parse_size(text: &str, plain_bytes: u64) -> Result<usize, BadQuantity> {
    const EXPECTED: BadQuantity =
        BadQuantity("expected a size: a number, or a number with a unit such as 16MB or 16MiB");
    let (number, unit) = number_and_unit(text);
    let unit_bytes = match unit.as_str() {
        "" => plain_bytes,
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
    let bytes = scaled(number, unit_bytes).ok_or(EXPECTED)?;
    // TOML has no larger number.
    Ok(usize::try_from(bytes.min(i64::MAX as u64)).unwrap_or(usize::MAX))
}

impl FromStr for Secs {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Secs, BadQuantity> {
        let expected =
            "expected a time: a number of seconds, or a number with a unit such as 500ms, 2s, 10m or 1h";
        parse_time(text, 1_000).map(Secs).ok_or(BadQuantity(expected))
    }
}

impl FromStr for Millis {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Millis, BadQuantity> {
        let expected =
            "expected a time: a number of milliseconds, or a number with a unit such as 500ms, 2s or 1m";
        parse_time(text, 1).map(Millis).ok_or(BadQuantity(expected))
    }
}

impl FromStr for ByteSize {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<ByteSize, BadQuantity> {
        parse_size(text, 1).map(ByteSize)
    }
}

impl FromStr for Spans {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Spans, BadQuantity> {
        parse_size(text, BYTES_PER_SPAN as u64).map(|bytes| Spans(bytes / BYTES_PER_SPAN))
    }
}

impl FromStr for ListenHost {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<ListenHost, BadQuantity> {
        let address = match text {
            "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            _ => text.trim_start_matches('[').trim_end_matches(']').parse(),
        };
        address.map(ListenHost).map_err(|_| {
            BadQuantity("expected an IP address of this machine, 0.0.0.0 for all of them, or localhost")
        })
    }
}

impl FromStr for OnOff {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<OnOff, BadQuantity> {
        match text.to_ascii_lowercase().as_str() {
            "on" | "true" | "yes" | "y" | "1" => Ok(OnOff(true)),
            "off" | "false" | "no" | "n" | "0" => Ok(OnOff(false)),
            _ => Err(BadQuantity("expected on or off")),
        }
    }
}

impl FromStr for StreamContinuation {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<StreamContinuation, BadQuantity> {
        let expected =
            BadQuantity("expected on, off, or a number of tokens below which streams are continued");
        let text = match text {
            "true" => "on",
            "false" => "off",
            text => text,
        };
        text.parse().map(StreamContinuation).map_err(|_| expected)
    }
}

impl Serialize for StreamContinuation {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            ContinueStreams::Below(tokens) => to.serialize_u32(tokens),
            ContinueStreams::On => to.serialize_bool(true),
            ContinueStreams::Off => to.serialize_bool(false),
        }
    }
}

impl Serialize for Secs {
    /// Whole seconds are a number.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0.subsec_millis() {
            0 => to.serialize_u64(self.0.as_secs()),
            _ => to.collect_str(&format_args!("{}ms", self.0.as_millis())),
        }
    }
}

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A value as the file writes it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected one value, not a list or a table")]
enum Scalar {
    Bool(bool),
    Whole(u64),
    Decimal(f64),
    Text(String),
}

impl Scalar {
    fn parse<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err = BadQuantity>,
        D: Deserializer<'de>,
    {
        let text = match Scalar::deserialize(from)? {
            Scalar::Bool(value) => value.to_string(),
            Scalar::Whole(value) => value.to_string(),
            Scalar::Decimal(value) => value.to_string(),
            Scalar::Text(value) => value,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

macro_rules! read_as_text {
    ($($type:ty),*) => { $(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                Scalar::parse(from)
            }
        }
    )* };
}

read_as_text!(Secs, Millis, ByteSize, Spans, ListenHost, OnOff, StreamContinuation);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_the_options_unit_or_its_own() {
        let ms = |text: &str| text.parse::<Secs>().map(|time| time.0.as_millis()).ok();
        for (text, expected) in [
            ("60", 60_000),
            ("0", 0),
            ("1.5", 1_500),
            ("500ms", 500),
            ("2s", 2_000),
            ("10m", 600_000),
            ("10 min", 600_000),
            ("0.5h", 1_800_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(ms(text), Some(expected), "{text}");
        }
        for bad in ["", "m", "-1", "1x", "1e3", "inf", "0.0001ms", "1m30s", "tcp://1.2.3.4:80"] {
            assert_eq!(ms(bad), None, "{bad}");
        }
        assert_eq!("250".parse(), Ok(Millis(Duration::from_millis(250))));
        assert_eq!("2s".parse(), Ok(Millis(Duration::from_secs(2))));
        assert!(ms("18446744073709551615d") > Some(1 << 60), "too large is not wrapped");
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
            assert_eq!(text.parse(), Ok(ByteSize(expected)), "{text}");
        }
        let error = "16M".parse::<ByteSize>().unwrap_err().to_string();
        assert!(error.contains("MiB for"), "{error}");
        for bad in ["", "MB", "-1", "16 eggs"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
        assert_eq!("1000".parse(), Ok(Spans(1_000)), "spans");
        assert_eq!("1MiB".parse(), Ok(Spans((1 << 20) / BYTES_PER_SPAN)));
    }

    #[test]
    fn hosts_and_switches_have_words() {
        assert_eq!("localhost".parse(), Ok(ListenHost(Ipv4Addr::LOCALHOST.into())));
        assert_eq!("[::1]".parse(), Ok(ListenHost("::1".parse().unwrap())));
        assert!("engines.example".parse::<ListenHost>().is_err());
        assert_eq!(("on".parse(), "False".parse()), (Ok(OnOff(true)), Ok(OnOff(false))));
        assert!("maybe".parse::<OnOff>().is_err());
        assert_eq!("4096".parse(), Ok(StreamContinuation(ContinueStreams::Below(4_096))));
        assert_eq!("true".parse(), Ok(StreamContinuation(ContinueStreams::On)));
        assert!("0".parse::<StreamContinuation>().is_err());
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct File {
        time: Secs,
        pause: Millis,
        size: ByteSize,
        switch: OnOff,
    }

    #[test]
    fn what_is_written_to_a_file_is_read_back() {
        let text = "time = \"1500ms\"\npause = \"2s\"\nsize = \"1MB\"\nswitch = \"on\"\n";
        let file: File = toml::from_str(text).unwrap();
        let written = toml::to_string(&file).unwrap();
        assert_eq!(written, "time = \"1500ms\"\npause = 2000\nsize = 1000000\nswitch = true\n");
        assert_eq!(toml::from_str::<File>(&written).unwrap(), file);
        let error = toml::from_str::<File>("time = \"hush\"").unwrap_err();
        assert!(error.message().starts_with("expected a time"), "{error}");
        let error = toml::from_str::<File>("time = [1]").unwrap_err();
        assert_eq!(error.message(), "expected one value, not a list or a table");
    }
}
