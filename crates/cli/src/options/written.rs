//! Where each option was written: on the command line, in the environment, or in the file.
//!
//! Mistakes are found when options become a plan, which knows only their keys. An error begins with the key of its
//! option; here the key is replaced by what the user wrote.

use std::collections::BTreeMap;
use std::path::Path;

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::groups::ENVIRONMENT_PREFIX;
use super::{KEYS, Options};

/// The source of each option that is not only in the file.
#[derive(Clone, Debug, Default)]
pub struct Written {
    sources: BTreeMap<String, ValueSource>,
    /// Workers' URLs are arguments without a flag.
    has_arguments: bool,
}

impl Written {
    /// The sources in the matches of a subcommand that takes all options.
    pub fn of(matches: &ArgMatches) -> Written {
        let keys = KEYS.iter().flat_map(|(_, keys)| keys.iter().copied()).chain(["config"]);
        let sources =
            keys.filter_map(|key| Some((key.to_owned(), matches.value_source(&key.replace('-', "_"))?)));
        let has_arguments =
            ["urls", "places"].iter().any(|id| matches!(matches.try_contains_id(id), Ok(true)));
        Written { sources: sources.collect(), has_arguments }
    }

    /// Whether the option is a flag on the command line.
    pub fn is_flag(&self, key: &str) -> bool {
        self.sources.get(key) == Some(&ValueSource::CommandLine)
    }

    /// Whether the option is in the environment.
    pub fn is_variable(&self, key: &str) -> bool {
        self.sources.get(key) == Some(&ValueSource::EnvVariable)
    }

    /// The error with the name that the user wrote in place of the key at its beginning.
    pub fn explain(&self, error: &anyhow::Error, file: Option<(&Path, &Options)>) -> anyhow::Error {
        anyhow::Error::msg(self.spell_out(&format!("{error:#}"), file))
    }

    /// The text with the name that the user wrote in place of the key at its beginning.
    pub fn spell_out(&self, text: &str, file: Option<(&Path, &Options)>) -> String {
        let at = text.find([':', ' ']).unwrap_or(text.len());
        let (word, rest) = text.split_at(at);
        let keys_in_file = file.map(|(path, options)| (path, keys_of(options)));
        let is_given = |key: &str| {
            let in_file = keys_in_file.as_ref().is_some_and(|(_, keys)| keys.contains_key(key));
            in_file || self.sources.contains_key(key)
        };
        let Some(key) = key_of(word, is_given) else { return text.to_owned() };
        let in_file = keys_in_file.as_ref().and_then(|(path, keys)| Some((path, keys.get(&key)?)));
        match (self.sources.get(&key), in_file) {
            (Some(ValueSource::EnvVariable), _) => {
                format!("{ENVIRONMENT_PREFIX}{}{rest}", key.replace('-', "_").to_ascii_uppercase())
            }
            (None, Some((path, shown))) => format!("in {}: {shown}{rest}", path.display()),
            (None, None) if key == "worker-urls" && self.has_arguments => {
                rest.trim_start_matches([':', ' ']).to_owned()
            }
            _ => format!("--{key}{rest}"),
        }
    }
}

/// The key that a word names. `tls` stands for the first option `tls-…` that is given.
fn key_of(word: &str, is_given: impl Fn(&str) -> bool) -> Option<String> {
    let mut keys = KEYS.iter().flat_map(|(_, keys)| keys.iter());
    let is_list = (word == "workers" || word == "aliases") && is_given(word);
    if is_list || word == "config" || keys.clone().any(|key| *key == word) {
        return Some(word.to_owned());
    }
    let prefix = format!("{word}-");
    keys.find(|key| key.starts_with(&prefix) && is_given(key)).map(|key| (*key).to_owned())
}

/// The keys that are set, each with its table.
fn keys_of(options: &Options) -> BTreeMap<String, String> {
    let keys = options.set().map(|(table, key, _)| (key.to_owned(), format!("{table}.{key}")));
    let lists = [
        ("aliases", options.aliases.is_empty()),
        ("models", options.models.is_empty()),
        ("workers", options.workers.is_empty()),
    ];
    let lists = lists.into_iter().filter(|(_, is_empty)| !is_empty);
    keys.chain(lists.map(|(list, _)| (list.to_owned(), list.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::parse;

    #[test]
    fn a_key_is_replaced_by_what_the_user_wrote() {
        let file = parse("[health]\nhealth-failure-threshold = 0\n[[workers]]\nurl = \"http://a\"").unwrap();
        let file = Some((Path::new("x.toml"), &file));
        let sources =
            [("threads", ValueSource::CommandLine), ("tls-key", ValueSource::EnvVariable)].into_iter();
        let sources = sources.map(|(key, source)| (key.to_owned(), source)).collect();
        let written = Written { sources, has_arguments: true };
        for (text, expected) in [
            ("threads must be at most 9", "--threads must be at most 9"),
            ("tls: set both", "WARMROUTE_TLS_KEY: set both"),
            ("health-failure-threshold must", "in x.toml: health.health-failure-threshold must"),
            ("workers: `x` is bad", "in x.toml: workers: `x` is bad"),
            ("worker-urls: `x` is bad", "`x` is bad"),
            ("share-secret-file is missing", "--share-secret-file is missing"),
            ("aliases are fine words", "aliases are fine words"),
            ("cannot read x", "cannot read x"),
        ] {
            assert_eq!(written.spell_out(text, file), expected);
        }
    }
}
