//! Values that take a unit or a word: times, sizes, counts, addresses, switches.
//!
//! Flags, environment variables and keys of the file read them alike. The parsers are [`warmroute_types`]'.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use warmroute_gateway::ContinueStreams;
use warmroute_types::{BadQuantity, parse_bytes, parse_count, parse_time};

/// Approximate memory of a span in the index, in bytes.
pub const BYTES_PER_SPAN: usize = 32;

const EXPECTED_SECS: BadQuantity = BadQuantity(
    "expected a time: a number of seconds, or a number with a unit such as 500ms, 2s, 10m or 1h30m",
);
const EXPECTED_MILLIS: BadQuantity = BadQuantity(
    "expected a time: a number of milliseconds, or a number with a unit such as 500ms, 2s or 1m30s",
);

/// A time in whole milliseconds. A plain number counts seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Secs(pub Duration);

/// A time in whole milliseconds. A plain number counts milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Millis(pub Duration);

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ByteSize(pub usize);

/// A whole number, such as 500000 or 500k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Count<T>(pub T);

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

/// A number of seconds, for options that take parts of a millisecond.
pub fn seconds(text: &str) -> Result<f64, BadQuantity> {
    parse_time(text, Duration::from_secs(1)).map(|time| time.as_secs_f64()).ok_or(EXPECTED_SECS)
}

/// A number of milliseconds, for options that take parts of one.
pub fn milliseconds(text: &str) -> Result<f64, BadQuantity> {
    let time = parse_time(text, Duration::from_millis(1)).ok_or(EXPECTED_MILLIS)?;
    Ok(time.as_secs_f64() * 1_000.0)
}

/// A whole number that fits its option.
pub fn count<T: TryFrom<u64>>(text: &str) -> Result<T, BadQuantity> {
    let expected = BadQuantity("expected a whole number, or a number with k, M or G, such as 500k");
    let count = parse_count(text).ok_or(expected)?;
    T::try_from(count).map_err(|_| BadQuantity("the number is too large"))
}

/// The form that a value should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected(String);

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.0)
    }
}

impl std::error::Error for Expected {}

/// The parser of a whole number within a range.
pub fn whole<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, Expected> + Clone {
    move |text| {
        let count = parse_count(text).filter(|count| range.contains(count));
        let expected = || Expected(format!("a whole number from {} to {}", range.start(), range.end()));
        count.and_then(|count| T::try_from(count).ok()).ok_or_else(expected)
    }
}

/// A time in whole milliseconds; `None` if it is rounded to nothing.
fn whole_millis(time: Option<Duration>) -> Option<Duration> {
    let time = time?;
    let millis = time.saturating_add(Duration::from_micros(500)).as_millis();
    let is_kept = millis > 0 || time.is_zero();
    is_kept.then(|| Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)))
}

/// A size of this machine.
fn size(text: &str, plain: u64) -> Result<usize, BadQuantity> {
    parse_bytes(text, plain).map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
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

/// Types that flags, environment variables and keys of the file read from the same text.
macro_rules! read_as_text {
    ($( $({ $($generic:tt)* })? $type:ty: |$text:ident| $read:expr; )*) => { $(
        impl $(<$($generic)*>)? FromStr for $type {
            type Err = BadQuantity;

            fn from_str($text: &str) -> Result<$type, BadQuantity> {
                $read
            }
        }

        impl<'de $(, $($generic)*)?> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                Scalar::parse(from)
            }
        }
    )* };
}

read_as_text! {
    Secs: |text| whole_millis(parse_time(text, Duration::from_secs(1))).map(Secs).ok_or(EXPECTED_SECS);
    Millis: |text| whole_millis(parse_time(text, Duration::from_millis(1))).map(Millis).ok_or(EXPECTED_MILLIS);
    {T: TryFrom<u64>} Count<T>: |text| count(text).map(Count);
    ByteSize: |text| size(text, 1).map(ByteSize);
    Spans: |text| size(text, BYTES_PER_SPAN as u64).map(|bytes| Spans(bytes / BYTES_PER_SPAN));
    ListenHost: |text| listen_host(text).map(ListenHost);
    OnOff: |text| match text.to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" | "y" | "1" => Ok(OnOff(true)),
        "off" | "false" | "no" | "n" | "0" => Ok(OnOff(false)),
        _ => Err(BadQuantity("expected on or off")),
    };
    StreamContinuation: |text| continuation(text).map(StreamContinuation);
}

fn listen_host(text: &str) -> Result<IpAddr, BadQuantity> {
    let address = match text {
        "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        _ => text.trim_start_matches('[').trim_end_matches(']').parse(),
    };
    let expected = "expected an IP address of this machine, 0.0.0.0 for all of them, or localhost";
    address.map_err(|_| BadQuantity(expected))
}

fn continuation(text: &str) -> Result<ContinueStreams, BadQuantity> {
    let word = match text {
        "true" => "on",
        "false" => "off",
        text => text,
    };
    let expected = "expected on, off, or a number of tokens below which streams are continued";
    word.parse().map_err(|_| BadQuantity(expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_whole_milliseconds_where_it_is_written_to_a_file() {
        assert_eq!("1.5".parse(), Ok(Secs(Duration::from_millis(1_500))));
        assert_eq!("250".parse(), Ok(Millis(Duration::from_millis(250))));
        assert_eq!("2s".parse(), Ok(Millis(Duration::from_secs(2))));
        assert_eq!("1.7ms".parse(), Ok(Secs(Duration::from_millis(2))));
        assert!("0.0001ms".parse::<Secs>().is_err(), "it would become 0, which means something else");
        assert!("99999999999d".parse::<Secs>().unwrap().0 > Duration::from_secs(1 << 50));
    }

    #[test]
    fn a_count_fits_its_option() {
        assert_eq!("500k".parse(), Ok(Count(500_000_u64)));
        assert_eq!("4G".parse(), Ok(Count(4_000_000_000_u32)));
        assert_eq!(count::<u16>("70k"), Err(BadQuantity("the number is too large")));
        assert_eq!("1MiB".parse(), Ok(Spans((1 << 20) / BYTES_PER_SPAN)));
        assert_eq!("1000".parse(), Ok(Spans(1_000)), "spans");
        assert_eq!((seconds("200us"), milliseconds("0.2")), (Ok(0.000_2), Ok(0.2)));
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
        tokens: Count<u64>,
        switch: OnOff,
    }

    #[test]
    fn what_is_written_to_a_file_is_read_back() {
        let text = "time = \"1500ms\"\npause = \"2s\"\nsize = \"1MB\"\ntokens = \"500k\"\nswitch = \"on\"\n";
        let file: File = toml::from_str(text).unwrap();
        let written = toml::to_string(&file).unwrap();
        assert_eq!(
            written,
            "time = \"1500ms\"\npause = 2000\nsize = 1000000\ntokens = 500000\nswitch = true\n"
        );
        assert_eq!(toml::from_str::<File>(&written).unwrap(), file);
        let error = toml::from_str::<File>("time = \"hush\"").unwrap_err();
        assert!(error.message().starts_with("expected a time"), "{error}");
        let error = toml::from_str::<File>("time = [1]").unwrap_err();
        assert_eq!(error.message(), "expected one value, not a list or a table");
    }
}
