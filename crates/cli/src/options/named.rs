//! Reads and writes options whose values have names ([`OptionValue`]): as flags, and as keys of the file.

use clap::builder::{MapValueParser, PossibleValue, TypedValueParser, ValueParserFactory};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use warmroute_types::OptionValue;

/// Parses flags and environment variables by the names of the values.
#[derive(Clone)]
pub struct Named<T>(std::marker::PhantomData<T>);

/// The parser of an option: `value_parser = named::<T>()`.
pub fn named<T: OptionValue>() -> Named<T> {
    Named(std::marker::PhantomData)
}

impl<T: OptionValue> TypedValueParser for Named<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<T, clap::Error> {
        let text = value.to_string_lossy();
        T::named(&text).ok_or_else(|| {
            let mut error = clap::Error::new(ErrorKind::InvalidValue).with_cmd(command);
            if let Some(arg) = arg {
                error.insert(ContextKind::InvalidArg, ContextValue::String(arg.to_string()));
            }
            error.insert(ContextKind::InvalidValue, ContextValue::String(text.into_owned()));
            let names = T::VALUES.iter().map(|(_, name, _)| (*name).to_owned()).collect();
            error.insert(ContextKind::ValidValue, ContextValue::Strings(names));
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(T::VALUES.iter().map(|(_, name, help)| PossibleValue::new(*name).help(*help))))
    }
}

/// A value of an option, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice<T>(pub T);

impl<T: OptionValue> ValueParserFactory for Choice<T> {
    type Parser = MapValueParser<Named<T>, fn(T) -> Choice<T>>;

    fn value_parser() -> Self::Parser {
        named::<T>().map(Choice)
    }
}

impl<T: OptionValue> Serialize for Choice<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.name().serialize(to)
    }
}

/// Reads a value by its name. The error does not repeat what was written, which may be a secret in the wrong place.
impl<'de, T: OptionValue> Deserialize<'de> for Choice<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Choice<T>, D::Error> {
        let names: Vec<String> = T::VALUES.iter().map(|(_, name, _)| format!("`{name}`")).collect();
        let unknown =
            || serde::de::Error::custom(format!("unknown value, expected one of {}", names.join(", ")));
        T::named(&String::deserialize(from)?).map(Choice).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use warmroute_follow::MatchingUnit;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct File {
        matching: Option<Choice<MatchingUnit>>,
    }

    #[test]
    fn a_value_is_written_and_read_by_its_name() {
        let file = File { matching: Some(Choice(MatchingUnit::Bytes)) };
        assert_eq!(toml::to_string(&file).unwrap(), "matching = \"bytes\"\n");
        assert_eq!(toml::from_str::<File>("matching = \"bytes\"").unwrap(), file);
        assert_eq!(toml::from_str::<File>("").unwrap(), File { matching: None });
        let error = toml::from_str::<File>("matching = \"hush\"").unwrap_err();
        assert_eq!(error.message(), "unknown value, expected one of `auto`, `bytes`, `tokens`");
    }

    #[test]
    fn a_flag_lists_its_values_and_refuses_others() {
        let command = || {
            clap::Command::new("x").arg(clap::Arg::new("m").long("m").value_parser(named::<MatchingUnit>()))
        };
        let matches = command().try_get_matches_from(["x", "--m", "tokens"]).unwrap();
        assert_eq!(matches.get_one::<MatchingUnit>("m"), Some(&MatchingUnit::Tokens));
        let error = command().try_get_matches_from(["x", "--m", "tokns"]).unwrap_err().to_string();
        assert!(error.contains("'tokns'") && error.contains("auto, bytes, tokens"), "{error}");
    }
}
