//! Reads the configuration file and explains its errors.

use std::path::Path;

use anyhow::{Context, anyhow};
use warmroute_discovery::line_of;
use warmroute_types::redact_values;

use super::{KEYS, Options};

/// Least similarity of an unknown key to a valid one for a suggestion.
const SIMILARITY_MIN: f64 = 0.66;

/// Reads options from a TOML file.
pub fn read_file(path: &Path) -> anyhow::Result<Options> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("in {}", path.display()))
}

/// Parses options from TOML text.
pub fn parse(text: &str) -> anyhow::Result<Options> {
    toml::from_str(text).map_err(|error| anyhow!(describe(text, &error)))
}

/// The error with its line and key. Values are never repeated: errors are logged and returned to the sender of a
/// configuration, and with a mistyped key any value may be a secret.
fn describe(text: &str, error: &toml::de::Error) -> String {
    let line = line_of(text, error);
    let table = table_at(text, line);
    if let Some(key) = unknown_key(error.message()) {
        let path = table.map_or_else(|| key.to_owned(), |table| format!("{table}.{key}"));
        let hint = nearest(key).map_or(String::new(), |nearest| format!("; did you mean `{nearest}`?"));
        return format!("line {line}: unknown key `{path}`{hint}");
    }
    let message = without_types(&redact_values(error.message()));
    match text.lines().nth(line - 1).and_then(key_in) {
        Some(key) => match table {
            Some(table) => format!("line {line}, {table}.{key}: {message}"),
            None => format!("line {line}, {key}: {message}"),
        },
        None => format!("line {line}: {message}"),
    }
}

/// The table that a line is in, if it is a valid one. A line that looks like a header may be part of a value.
fn table_at(text: &str, line: usize) -> Option<&str> {
    let header = |line: &'_ str| line.trim().starts_with('[');
    let above: Vec<&str> = text.lines().take(line).collect();
    let header = above.into_iter().rev().find(|line| header(line))?;
    let name = header.trim().trim_start_matches('[').split(']').next()?.trim();
    let is_valid = |(_, shown): &(String, String)| shown == name;
    (header.trim() != text.lines().nth(line - 1)?.trim() && valid_keys().iter().any(is_valid)).then_some(name)
}

/// The key set in a line, if it is valid. A line that looks like one may be part of a value.
fn key_in(line: &str) -> Option<String> {
    let written = line.split_once('=')?.0.trim().replace('_', "-");
    valid_keys().into_iter().any(|(key, _)| key == written).then_some(written)
}

/// The message with words in place of the names of types.
pub fn without_types(message: &str) -> String {
    const WORDS: [(&str, &str); 6] = [
        ("expected u16", "expected a number from 0 to 65535"),
        ("expected u32", "expected a whole number"),
        ("expected u64", "expected a whole number"),
        ("expected usize", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("expected f32", "expected a number"),
    ];
    WORDS.iter().fold(message.to_owned(), |message, (name, words)| message.replace(name, words))
}

/// The key in serde's message "unknown field `KEY`".
fn unknown_key(message: &str) -> Option<&str> {
    message.strip_prefix("unknown field `")?.split('`').next()
}

/// The most similar valid key with its table. A key in the wrong table is found too.
fn nearest(key: &str) -> Option<String> {
    let valid = valid_keys();
    let found = most_similar(&key.replace('_', "-"), valid.iter().map(|(name, _)| name.as_str()))?;
    valid.iter().find(|(name, _)| name == found).map(|(_, shown)| shown.clone())
}

/// Every table and key, and how it is printed.
fn valid_keys() -> Vec<(String, String)> {
    let mut valid: Vec<(String, String)> =
        ["aliases", "models", "workers"].map(|name| (name.to_owned(), name.to_owned())).into();
    for &(table, keys) in KEYS {
        valid.push((table.to_owned(), table.to_owned()));
        valid.extend(keys.iter().map(|key| ((*key).to_owned(), format!("{table}.{key}"))));
    }
    valid.extend(
        ["url", "ranks", "models", "kv-events"].map(|key| (key.to_owned(), format!("workers.{key}"))),
    );
    valid
}

/// The name most similar to `word`, if any is similar enough.
pub fn most_similar<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let similarity = |name: &&str| {
        strsim::jaro_winkler(name, word).max(strsim::normalized_damerau_levenshtein(name, word))
    };
    let most_similar = names.into_iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)))?;
    (similarity(&most_similar) >= SIMILARITY_MIN).then_some(most_similar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_errors_with_a_suggestion() {
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
        assert_eq!(error, "line 2: unknown key `server.zzzz`");
        let error = format!("{:#}", parse("[server]\npolicy = \"random\"").unwrap_err());
        assert_eq!(error, "line 2: unknown key `server.policy`; did you mean `routing.policy`?");
    }

    #[test]
    fn values_of_the_wrong_type_are_reported_with_their_key() {
        let error = format!("{:#}", parse("[server]\nport = \"many\"").unwrap_err());
        assert!(
            error.contains("line 2, server.port: invalid type, expected a number from 0 to 65535"),
            "{error}"
        );
        let error =
            format!("{:#}", parse("[[workers]]\nurl = \"http://a\"\nkv-events = \"tcp\"").unwrap_err());
        assert!(
            error.contains("line 3, workers.kv-events: invalid type, expected a table such as {"),
            "{error}"
        );
        let error = format!("{:#}", parse("[timeouts]\nidle-timeout-secs = \"soon\"").unwrap_err());
        assert!(error.contains("line 2, timeouts.idle-timeout-secs: expected a time"), "{error}");
        let error = format!("{:#}", parse("server = 3").unwrap_err());
        assert_eq!(error, "line 1, server: invalid type, expected a table");
        let error = format!("{:#}", parse("[sharing]\nshare = 3").unwrap_err());
        assert!(error.contains("line 2, sharing.share: expected a string, or a list"), "{error}");
        let options =
            parse("[sharing]\nshare = \"redis://a:1, redis://b:1\"\nmesh-peers = [\"c:1\"]").unwrap();
        assert_eq!(options.sharing.share.unwrap(), ["redis://a:1", "redis://b:1"]);
        assert_eq!(options.sharing.mesh_peers.unwrap(), ["c:1"]);
    }

    #[test]
    fn errors_contain_no_secrets() {
        for text in [
            "[security]\nadmin-token = \"hush",
            "[security]\nadmin-token = \"hush\" x",
            "[events]\nevents-token = [\"hush\"]",
            "[security]\nworker-api-key = \"hush\"\nadmin-tokn = \"x\"",
            "[security]\nadmin-tokn = \"hush\"",
            "[securty]\nadmin-token = \"hush\"",
            "[[workers]]\nurl = \"http://a\"\napi-key = \"hush\"",
            "[server]\nport = \"hush\"",
            "[cache]\nusage-injection = \"hush\"",
            "[security]\nadmin-token = \"\"\"\nhush = x\nhush",
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains("line ") && !error.contains("hush"), "{text}: {error}");
        }
        let options = parse("[security]\nadmin-token = \"hush\"\nworker-api-key = \"hush\"").unwrap();
        assert_eq!(options.security.admin_token.as_ref().unwrap().reveal(), "hush");
        let shown = format!("{options:?}{}", toml::to_string(&options).unwrap());
        assert!(!shown.contains("hush"), "{shown}");
    }
}
