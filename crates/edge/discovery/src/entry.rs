//! A worker in the configuration.

use serde::{Deserialize, Deserializer, Serialize};
use warmroute_types::{Address, BadUrl, NO_RANKS, redact_values};

use crate::{EventsEntry, ListedWorker};

/// One `[[workers]]` table, in the configuration or in a watched file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with the key `url`")]
pub struct WorkerEntry {
    /// Base URL of the engine.
    pub url: String,
    /// Number of data-parallel ranks behind the URL, if it has ranks.
    #[serde(default, deserialize_with = "ranks", skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u16>,
    /// The models that it serves; if missing, the engine is asked.
    #[serde(default, deserialize_with = "models", skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// The pool to which it belongs, for an endpoint picker with several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Its KV events endpoint, if the engine cannot be asked.
    #[serde(default, rename = "kv-events", skip_serializing_if = "Option::is_none")]
    pub kv_events: Option<EventsEntry>,
}

/// A number of ranks. The line of the error is that of the number, which is not the URL's.
fn ranks<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    match Option::deserialize(from)? {
        Some(0) => Err(serde::de::Error::custom(NO_RANKS)),
        ranks => Ok(ranks),
    }
}

/// Names of models. A worker that serves none would answer nothing.
fn models<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    let models: Option<Vec<String>> = Option::deserialize(from)?;
    let names_none = |models: &Vec<String>| models.is_empty() || models.iter().any(String::is_empty);
    if models.as_ref().is_some_and(names_none) {
        return Err(serde::de::Error::custom(NO_MODELS));
    }
    Ok(models)
}

const NO_MODELS: &str =
    "a model without a name, or no model: name the models, or leave models out, and the engine is asked";

/// Why a file of workers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadWorkers {
    /// The file cannot be read.
    #[error("cannot read the file: {0}")]
    Unreadable(#[from] std::io::Error),
    /// The file is not TOML, or does not list workers. The text is not quoted, because it may contain a key.
    #[error("line {line}: {message}")]
    Wrong {
        /// The line, from 1.
        line: usize,
        /// The parser's message.
        message: String,
    },
    /// The file is empty: most likely it is being written.
    #[error("the file is empty; write `workers = []` for no workers")]
    Empty,
    /// A URL is invalid.
    #[error(transparent)]
    BadUrl(#[from] BadUrl),
}

impl BadWorkers {
    fn wrong(text: &str, error: &toml::de::Error) -> BadWorkers {
        BadWorkers::Wrong { line: line_of(text, error), message: redact_values(error.message()) }
    }
}

/// The line of a TOML error, from 1.
pub fn line_of(text: &str, error: &toml::de::Error) -> usize {
    let at = error.span().map_or(0, |span| span.start);
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkersFile {
    #[serde(default)]
    workers: Vec<WorkerEntry>,
}

impl WorkerEntry {
    /// An engine with only a URL.
    pub fn new(url: String, ranks: Option<u16>) -> WorkerEntry {
        WorkerEntry { url, ranks, models: None, pool: None, kv_events: None }
    }

    /// The workers behind the URL.
    pub fn listed(&self) -> Result<Vec<ListedWorker>, BadUrl> {
        let addresses = Address::parse(&self.url, self.ranks)?;
        let listed = |address| ListedWorker {
            models: self.models.clone(),
            kv_events: self.kv_events.clone(),
            pools: self.pool.iter().cloned().collect(),
            ..ListedWorker::new(address)
        };
        Ok(addresses.into_iter().map(listed).collect())
    }
}

/// Parses a TOML text that contains only `[[workers]]`.
pub fn read_workers(text: &str) -> Result<Vec<ListedWorker>, BadWorkers> {
    if text.trim().is_empty() {
        return Err(BadWorkers::Empty);
    }
    let file: WorkersFile = toml::from_str(text).map_err(|error| BadWorkers::wrong(text, &error))?;
    let listed: Result<Vec<_>, _> = file.workers.iter().map(WorkerEntry::listed).collect();
    Ok(listed?.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_become_workers() {
        let text = "[[workers]]\nurl = \"http://a:1/\"\nranks = 2\n[[workers]]\nurl = \"http://b:1\"\nmodels = [\"m\"]";
        let listed = read_workers(text).unwrap();
        let addresses: Vec<String> = listed.iter().map(|listed| listed.address.to_string()).collect();
        assert_eq!(addresses, ["http://a:1@0", "http://a:1@1", "http://b:1"]);
        assert_eq!(listed[2].models, Some(vec!["m".to_owned()]));
    }

    #[test]
    fn unknown_keys_are_named() {
        let error = read_workers("[[workers]]\nurl = \"http://a\"\nrank = 2").unwrap_err().to_string();
        assert!(error.contains("unknown field `rank`"), "{error}");
        assert!(matches!(read_workers(" \n"), Err(BadWorkers::Empty)));
        assert_eq!(read_workers("workers = []").unwrap(), []);
        let bad_url = read_workers("[[workers]]\nurl = \"ftp://x\"");
        assert!(matches!(bad_url, Err(BadWorkers::BadUrl(_))), "{bad_url:?}");
        let no_ranks = read_workers("[[workers]]\nurl = \"http://x\"\nranks = 0").unwrap_err().to_string();
        assert!(no_ranks.starts_with("line 3: 0 ranks: give at least 1, or leave"), "{no_ranks}");
        for models in ["[]", "[\"\"]", "[\"m\", \"\"]"] {
            let text = format!("[[workers]]\nurl = \"http://x\"\nmodels = {models}");
            let error = read_workers(&text).unwrap_err().to_string();
            assert!(error.starts_with("line 3: a model without a name, or no model"), "{error}");
        }
        let words = read_workers("[[workers]]\nurl = \"http://x\"\nranks = \"two\"").unwrap_err().to_string();
        assert_eq!(words, "line 3: invalid type, expected a whole number from 0 to 65535");
    }

    #[test]
    fn errors_do_not_quote_values() {
        for text in [
            "[[workers]]\nurl = \"http://a\"\napi-key = \"hush\"",
            "[[workers]]\nurl = \"http://a\"\nranks = \"hush\"",
            "[[workers]]\nurl = \"hush",
        ] {
            let error = read_workers(text).unwrap_err().to_string();
            assert!(error.starts_with("line ") && !error.contains("hush"), "{error}");
        }
        let error = read_workers("[[workers]]\nurl = \"http://user:hush@a:1\"").unwrap_err().to_string();
        assert!(error.contains("http://***@a:1") && !error.contains("hush"), "{error}");
    }
}
