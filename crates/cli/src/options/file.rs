//! Reading the configuration file, and saying what is wrong with it.

use std::path::Path;

use anyhow::{Context, anyhow};

use super::Options;
use super::groups::KEYS;

/// A key this far from any valid one is not taken for a slip of the finger.
const LIKENESS_MIN: f64 = 0.66;

/// Reads options from a TOML file.
pub fn read_file(path: &Path) -> anyhow::Result<Options> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("in {}", path.display()))
}

fn parse(text: &str) -> anyhow::Result<Options> {
    toml::from_str(text).map_err(|error| match unknown_key(error.message()).and_then(nearest) {
        Some(nearest) => anyhow!("{error}help: did you mean `{nearest}`?"),
        None => anyhow!("{error}"),
    })
}

/// The key that serde did not know. Its message begins with "unknown field `KEY`".
fn unknown_key(message: &str) -> Option<&str> {
    message.strip_prefix("unknown field `")?.split('`').next()
}

/// The valid key most like this one, with its table: a key in the wrong table is found too.
fn nearest(key: &str) -> Option<String> {
    let mut valid: Vec<(String, String)> =
        ["aliases", "workers"].map(|name| (name.to_owned(), name.to_owned())).into();
    for (table, keys) in KEYS {
        valid.push((table.to_owned(), table.to_owned()));
        for key in keys.iter().map(|key| key.replace('_', "-")) {
            valid.push((key.clone(), format!("{table}.{key}")));
        }
    }
    valid.extend(["url", "ranks", "models"].map(|key| (key.to_owned(), format!("workers.{key}"))));
    let found = likest(&key.replace('_', "-"), valid.iter().map(|(name, _)| name.as_str()))?;
    valid.iter().find(|(name, _)| name == found).map(|(_, shown)| shown.clone())
}

/// The name most like `word`, if any is like it at all.
pub fn likest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |name: &&str| {
        strsim::jaro_winkler(name, word).max(strsim::normalized_damerau_levenshtein(name, word))
    };
    let likest = names.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(&likest) >= LIKENESS_MIN).then_some(likest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_errors_that_name_the_nearest_valid_one() {
        for (text, place, hint) in [
            ("[server]\nprot = 1", "line 2", "`server.port`"),
            ("[sever]\nport = 1", "line 1", "`server`"),
            ("port = 1", "line 1", "`server.port`"),
            ("[routing]\npolicies = \"random\"", "line 2", "`routing.policy`"),
            ("[health]\nhealth_check_interval_secs = 3", "line 2", "`health.health-check-interval-secs`"),
            ("[[workers]]\nulr = \"http://a\"", "line 2", "`workers.url`"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(place) && error.contains(hint), "{text}: {error}");
        }
        let error = format!("{:#}", parse("[server]\nzzzz = 1").unwrap_err());
        assert!(!error.contains("did you mean"), "{error}");
    }

    #[test]
    fn values_of_the_wrong_kind_are_named() {
        let error = format!("{:#}", parse("[server]\nport = \"many\"").unwrap_err());
        assert!(error.contains("line 2") && error.contains("invalid type"), "{error}");
    }
}
