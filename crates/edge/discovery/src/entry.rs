//! A worker as a person writes it down.

use serde::{Deserialize, Serialize};
use warmroute_types::{Address, BadUrl, redact_values};

use crate::Listed;

/// One `[[workers]]` table, in the configuration or in a watched file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerEntry {
    /// Base URL of the engine.
    pub url: String,
    /// How many data-parallel ranks run behind it, if it has ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u16>,
    /// What it serves; left out, the engine is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// Where its KV events are, if the engine cannot be asked.
    #[serde(default, rename = "kv-events", skip_serializing_if = "Option::is_none")]
    pub kv_events: Option<EventsEntry>,
}

/// Where an engine's KV events are: of its first rank; the others count ports up from there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventsEntry {
    /// `tcp://HOST:PORT`; a `*` is the worker's host. `bind` awaits the engine at our own endpoint, `poll` asks TensorRT-LLM
    /// over HTTP, `off` leaves the engine alone.
    pub endpoint: String,
    /// Where replays are served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// The topic of its messages, where it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub topic: String,
}

/// A file of workers that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BadWorkers {
    /// No file, or not for us.
    #[error("cannot read it: {0}")]
    Unreadable(#[from] std::io::Error),
    /// Not TOML, or not workers. The text is not quoted, because somebody may have written a key there.
    #[error("line {line}: {message}")]
    Wrong {
        /// Where.
        line: usize,
        /// What.
        message: String,
    },
    /// Nothing in it: most likely it is being written just now.
    #[error("it is empty; write `workers = []` to mean no workers")]
    Empty,
    /// A URL that cannot work.
    #[error(transparent)]
    BadUrl(#[from] BadUrl),
}

impl BadWorkers {
    fn wrong(text: &str, error: &toml::de::Error) -> BadWorkers {
        BadWorkers::Wrong { line: line_of(text, error), message: redact_values(error.message()) }
    }
}

/// The line of a TOML text, from 1, in which something is wrong.
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
    /// An engine of which nothing else is said.
    pub fn new(url: String, ranks: Option<u16>) -> WorkerEntry {
        WorkerEntry { url, ranks, models: None, kv_events: None }
    }

    /// The workers behind the URL.
    pub fn listed(&self) -> Result<Vec<Listed>, BadUrl> {
        let addresses = Address::parse(&self.url, self.ranks)?;
        let listed =
            |address| Listed { address, models: self.models.clone(), kv_events: self.kv_events.clone() };
        Ok(addresses.into_iter().map(listed).collect())
    }
}

/// Reads a TOML text that holds only `[[workers]]`.
pub fn read_workers(text: &str) -> Result<Vec<Listed>, BadWorkers> {
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
        for bad in ["url = \"ftp://x\"", "url = \"http://x\"\nranks = 0"] {
            assert!(
                matches!(read_workers(&format!("[[workers]]\n{bad}")), Err(BadWorkers::BadUrl(_))),
                "{bad}"
            );
        }
    }

    #[test]
    fn errors_quote_no_values() {
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
