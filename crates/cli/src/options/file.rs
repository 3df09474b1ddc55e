//! Reads the configuration file and explains its errors.

use std::path::Path;

use anyhow::{Context, anyhow};
use warmroute_discovery::line_of;
use warmroute_types::redact_values;

use super::{KEYS, Options};

/// Least similarity of an unknown key to a valid one for a suggestion.
const SIMILARITY_MIN: f64 = 0.66;
/// Similarity of a part of a name.
const PART: f64 = 0.85;
/// How much more similar a key of another table has to be.
const OTHER_TABLE: f64 = 0.1;

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
    if let Some(unknown) = unknown_key(error.message()) {
        return format!("line {line}: {unknown}");
    }
    let table = table_at(text, line);
    let message = redact_values(error.message());
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

/// Explains serde's message "unknown field `KEY`, expected one of `A`, `B`": the key with its table, and the most similar
/// key. The table is the one that takes exactly the expected keys.
pub fn unknown_key(message: &str) -> Option<String> {
    let (key, expected) = message.strip_prefix("unknown field `")?.split_once('`')?;
    let own: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    let all = tables();
    let table = all.iter().find(|(_, keys)| *keys == own).map_or("", |(table, _)| *table);
    let hint =
        nearest(key, table, &own, &all).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    Some(format!("unknown key `{}`{hint}", path(table, key)))
}

fn path(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}

/// The key that is most similar to an unknown one of this table, with its table. A key in the wrong table is found too, but
/// settings of one worker or one model are no options, so there only their own keys count.
fn nearest(key: &str, table: &str, own: &[&str], all: &[(&str, Vec<&str>)]) -> Option<String> {
    let word = key.replace('_', "-");
    let of_own = own.iter().map(|name| (similarity(&word, name), path(table, name)));
    let is_nested = NESTED.iter().any(|(nested, _)| *nested == table);
    let others = all.iter().filter(|(other, _)| {
        !is_nested && *other != table && NESTED.iter().all(|(nested, _)| nested != other)
    });
    let of_others = others.flat_map(|(other, keys)| keys.iter().map(move |name| (*other, *name)));
    let of_others = of_others.map(|(other, name)| (similarity(&word, name) - OTHER_TABLE, path(other, name)));
    let nearest = of_own.chain(of_others).max_by(|(a, _), (b, _)| a.total_cmp(b));
    nearest.filter(|(similarity, _)| *similarity >= SIMILARITY_MIN).map(|(_, path)| path)
}

/// Every table and its keys; the table without a name is the file.
fn tables() -> Vec<(&'static str, Vec<&'static str>)> {
    let top = KEYS.iter().map(|(table, _)| *table).chain(["aliases", "models", "workers"]).collect();
    let named = KEYS.iter().chain(&NESTED).map(|(table, keys)| (*table, keys.to_vec()));
    [("", top)].into_iter().chain(named).collect()
}

/// Tables of one worker and one model.
const NESTED: [(&str, &[&str]); 3] = [
    ("workers", &["url", "ranks", "models", "pool", "kv-events"]),
    ("workers.kv-events", &["endpoint", "replay", "topic"]),
    ("models.NAME", &["policy", "max-concurrent-per-worker"]),
];

/// Every table and key, and how it is printed.
fn valid_keys() -> Vec<(String, String)> {
    let shown = |(table, keys): (&str, Vec<&str>)| {
        keys.into_iter().map(|key| (key.to_owned(), path(table, key))).collect::<Vec<_>>()
    };
    tables().into_iter().flat_map(shown).collect()
}

/// The name most similar to `word`, if any is similar enough.
pub fn most_similar<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most_similar =
        names.into_iter().max_by(|a, b| similarity(word, a).total_cmp(&similarity(word, b)))?;
    (similarity(word, most_similar) >= SIMILARITY_MIN).then_some(most_similar)
}

/// From 0 to 1, for equal names. A part of a name is similar to it, wherever it stands: `timeout-secs`.
fn similarity(word: &str, name: &str) -> f64 {
    let part = if word.len() > 2 && name.contains(word) { PART } else { 0.0 };
    // One or two letters resemble every name that contains them.
    let letters = if word.len() < 3 { 0.0 } else { strsim::jaro_winkler(name, word) };
    letters.max(strsim::normalized_damerau_levenshtein(name, word)).max(part)
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
            ("[server]\npolcy = \"random\"", "line 2", "`routing.policy`"),
            ("[health]\ntimeout-secs = 3", "line 2", "`health.health-check-timeout-secs`"),
            ("server = { prot = 1 }", "line 1", "`server.prot`; did you mean `server.port`"),
            (
                "[[workers]]\nurl = \"http://a\"\n\n[[workers]]\nurl = \"http://b\"\npol = \"a\"",
                "line 6",
                "`workers.pol`; did you mean `workers.pool`",
            ),
            (
                "workers = [{ url = \"http://a\", rank = 2 }]",
                "line 1",
                "`workers.rank`; did you mean `workers.ranks`",
            ),
            (
                "[[workers]]\nurl = \"http://a\"\nkv-events = { endpont = \"off\" }",
                "line 3",
                "`workers.kv-events.endpont`; did you mean `workers.kv-events.endpoint`",
            ),
            (
                "[models.\"a/b\"]\npolice = \"random\"",
                "line 2",
                "`models.NAME.police`; did you mean `models.NAME.policy`",
            ),
            (
                "[models.m]\nmax-concurrent = 2",
                "line 2",
                "did you mean `models.NAME.max-concurrent-per-worker`",
            ),
            ("[tls]\ncert = \"x\"", "line 1", "unknown key `tls`; did you mean `security.tls-"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(place) && error.contains(hint), "{text}: {error}");
        }
        let error = format!("{:#}", parse("[server]\nzzzz = 1").unwrap_err());
        assert_eq!(error, "line 2: unknown key `server.zzzz`");
        let error = format!("{:#}", parse("[server]\npolicy = \"random\"").unwrap_err());
        assert_eq!(error, "line 2: unknown key `server.policy`; did you mean `routing.policy`?");
        // Options of other tables are no settings of one worker or one model.
        let error = format!("{:#}", parse("[[workers]]\nurl = \"http://a\"\nhost = \"b\"").unwrap_err());
        assert_eq!(error, "line 3: unknown key `workers.host`");
        let error = format!("{:#}", parse("[server]\nx = 1").unwrap_err());
        assert_eq!(error, "line 2: unknown key `server.x`");
    }

    /// serde lists the keys that a table takes. Each list must be known, or an unknown key would be looked for elsewhere.
    #[test]
    fn every_table_is_known_by_its_keys() {
        for (table, keys) in tables() {
            let text = match table {
                "" => "zzzz = 1".to_owned(),
                "workers" => "[[workers]]\nzzzz = 1".to_owned(),
                "workers.kv-events" => "[[workers]]\nurl = \"u\"\n[workers.kv-events]\nzzzz = 1".to_owned(),
                _ => format!("[{table}]\nzzzz = 1"),
            };
            let error = toml::from_str::<Options>(&text).unwrap_err();
            let listed: Vec<&str> = error.message().split('`').skip(3).step_by(2).collect();
            assert_eq!(listed, keys, "[{table}]: {error}");
        }
    }

    #[test]
    fn values_of_the_wrong_type_are_reported_with_their_key() {
        let error = format!("{:#}", parse("[server]\nport = \"many\"").unwrap_err());
        assert!(
            error.contains("line 2, server.port: invalid type, expected a whole number from 0 to 65535"),
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
