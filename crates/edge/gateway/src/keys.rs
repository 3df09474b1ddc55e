//! API keys, and whose they are.
//!
//! ```text
//! # a key, or its hash, then what is said of it
//! sk-4fXq…                        name=search  requests-per-minute=600  priority=high
//! sha256:9f86d081884c7d65…        name=search
//! ```
//!
//! Keys of one name are one tenant, so a key is changed by having two for a while. A key is found by the beginning of its
//! SHA-256, which nobody can choose, and then compared in constant time; the keys themselves are not kept. What is wrong with a
//! file is told by its line's number only: whatever stands there may be a secret.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use prometheus_client::metrics::counter::Counter;
use warmroute_admission::{Class, Limits};

use crate::token::{Digest, bearer, digest, is_same};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Names become labels of metrics.
const NAME_BYTES_MAX: usize = 64;
/// More keys than this are a mistake, or a job for somebody else.
const KEYS_MAX: usize = 65_536;
/// Each name is a series on the metrics page.
const NAMES_MAX: usize = 4_096;

/// Whose a key is.
pub(crate) struct Tenant {
    pub(crate) name: String,
    /// Where they say nothing, the limits for all count.
    pub(crate) limits: Limits,
    /// The highest class its requests may have; where nothing is said, what counts for all.
    pub(crate) class_max: Option<Class>,
    /// Requests that came with its keys. Lives on when the file is read again.
    pub(crate) requests: Counter,
}

/// Every key that is let in.
pub struct Keys {
    /// By the first eight bytes of the hash.
    keys: HashMap<u64, Vec<(Digest, Arc<Tenant>)>>,
    tenants: BTreeMap<String, Arc<Tenant>>,
}

/// A file of keys that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKeys {
    /// In one of its lines.
    #[error("line {line}: {why}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Nothing in it: most likely it is being written just now, and nobody could come in.
    #[error("there is no key in it")]
    Empty,
}

impl Keys {
    /// Reads the text of a file: one key a line.
    pub fn read(text: &str) -> Result<Keys, BadKeys> {
        let mut keys = Keys { keys: HashMap::new(), tenants: BTreeMap::new() };
        let mut count = 0;
        for (index, line) in text.lines().enumerate() {
            let line_is = |why| BadKeys::Line { line: index + 1, why };
            let Some(line) = KeyLine::read(line).map_err(line_is)? else { continue };
            count += 1;
            keys.add(line).map_err(line_is)?;
            if count > KEYS_MAX || keys.tenants.len() > NAMES_MAX {
                return Err(line_is("too many keys, or too many names"));
            }
        }
        if count == 0 { Err(BadKeys::Empty) } else { Ok(keys) }
    }

    fn add(&mut self, line: KeyLine) -> Result<(), &'static str> {
        if self.find(&line.digest).is_some() {
            return Err("the key is there already");
        }
        let KeyLine { digest, name, limits, class_max } = line;
        let new = || Arc::new(Tenant { name: name.clone(), limits, class_max, requests: Counter::default() });
        let tenant = Arc::clone(self.tenants.entry(name.clone()).or_insert_with(new));
        if tenant.limits != limits || tenant.class_max != class_max {
            return Err("another key of this name has other limits, or another priority");
        }
        self.keys.entry(head(&digest)).or_default().push((digest, tenant));
        Ok(())
    }

    /// What was counted for a tenant goes on being counted.
    pub(crate) fn with_counts_of(mut self, before: &Keys) -> Keys {
        let known: HashMap<&str, &Counter> =
            before.tenants.values().map(|tenant| (tenant.name.as_str(), &tenant.requests)).collect();
        let with_count = |tenant: &Tenant| {
            let requests =
                known.get(tenant.name.as_str()).map_or_else(Counter::default, |&count| count.clone());
            let Tenant { limits, class_max, .. } = *tenant;
            Arc::new(Tenant { name: tenant.name.clone(), limits, class_max, requests })
        };
        self.tenants = self.tenants.iter().map(|(name, tenant)| (name.clone(), with_count(tenant))).collect();
        for (_, tenant) in self.keys.values_mut().flatten() {
            *tenant = Arc::clone(&self.tenants[&tenant.name]);
        }
        self
    }

    /// Whose request this is; `None` where it shows no key of ours.
    pub(crate) fn tenant_of(&self, headers: &HeaderMap) -> Option<&Arc<Tenant>> {
        let shown = bearer(headers).or_else(|| headers.get(API_KEY).map(HeaderValue::as_bytes))?;
        self.find(&digest(shown))
    }

    /// Every tenant, by name.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        self.tenants.values()
    }

    fn find(&self, shown: &Digest) -> Option<&Arc<Tenant>> {
        let alike = self.keys.get(&head(shown))?;
        alike.iter().find(|(digest, _)| is_same(shown, digest)).map(|(_, tenant)| tenant)
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({} of {} names)", self.keys.len(), self.tenants.len())
    }
}

fn head(digest: &Digest) -> u64 {
    let mut head = [0; 8];
    head.copy_from_slice(&digest[..8]);
    u64::from_be_bytes(head)
}

/// One line, taken apart.
struct KeyLine {
    digest: Digest,
    name: String,
    limits: Limits,
    class_max: Option<Class>,
}

impl KeyLine {
    /// `None`: there is nothing in it.
    fn read(line: &str) -> Result<Option<KeyLine>, &'static str> {
        let mut words = line.split_whitespace();
        let Some(key) = words.next().filter(|word| !word.starts_with('#')) else { return Ok(None) };
        let digest = match key.strip_prefix("sha256:") {
            Some(hex) => unhex(hex).ok_or("expected 64 hexadecimal digits after sha256:")?,
            None => digest(key.as_bytes()),
        };
        let name = digest[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (name, limits) = (format!("key-{name}"), Limits::default());
        let mut line = KeyLine { digest, name, limits, class_max: None };
        words.try_for_each(|word| line.take(word))?;
        Ok(Some(line))
    }

    fn take(&mut self, word: &str) -> Result<(), &'static str> {
        const UNKNOWN: &str =
            "expected name=, requests-per-minute=, tokens-per-minute= or priority= after the key";
        let number = |value: &str| value.parse::<u32>().map_err(|_| "a limit is a whole number");
        match word.split_once('=').ok_or(UNKNOWN)? {
            ("name", name) => self.name = checked(name)?,
            ("requests-per-minute", value) => self.limits.requests_per_minute = number(value)?,
            ("tokens-per-minute", value) => self.limits.tokens_per_minute = number(value)?,
            ("priority", value) => {
                self.class_max = Some(Class::named(value).ok_or("a priority is high, normal or low")?);
            }
            _ => return Err(UNKNOWN),
        }
        Ok(())
    }
}

fn checked(name: &str) -> Result<String, &'static str> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    match (1..=NAME_BYTES_MAX).contains(&name.len()) && is_plain {
        true => Ok(name.to_owned()),
        false => Err("a name has 1 to 64 letters, digits, dots, dashes and underscores"),
    }
}

fn unhex(text: &str) -> Option<Digest> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let byte = |pair: &[u8; 2]| {
        let is_hex = pair.iter().all(u8::is_ascii_hexdigit);
        std::str::from_utf8(pair).ok().filter(|_| is_hex).and_then(|pair| u8::from_str_radix(pair, 16).ok())
    };
    pairs.iter().map(byte).collect::<Option<Vec<u8>>>()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(keys: &Keys, name: &'static str, value: &'static str) -> Option<String> {
        let headers: HeaderMap =
            [(HeaderName::from_static(name), HeaderValue::from_static(value))].into_iter().collect();
        keys.tenant_of(&headers).map(|tenant| tenant.name.clone())
    }

    #[test]
    fn a_key_is_its_tenants_by_either_header() {
        let hash: String = digest(b"hashed-key").iter().map(|byte| format!("{byte:02x}")).collect();
        let text =
            format!("# keys\n\nsk-1 name=a requests-per-minute=5\nsha256:{hash} name=b\n  sk-2\tname=b\n");
        let keys = Keys::read(&text).unwrap();
        assert_eq!(owner(&keys, "authorization", "Bearer sk-1").as_deref(), Some("a"));
        assert_eq!(owner(&keys, "x-api-key", "sk-2").as_deref(), Some("b"));
        assert_eq!(owner(&keys, "authorization", "bearer hashed-key").as_deref(), Some("b"));
        for (header, wrong) in [
            ("authorization", "sk-1"),
            ("authorization", "Bearer sk-"),
            ("x-api-key", ""),
            ("x-api-key", "name=a"),
        ] {
            assert_eq!(owner(&keys, header, wrong), None, "{header}: {wrong}");
        }
        let limits: Vec<u32> = keys.tenants().map(|tenant| tenant.limits.requests_per_minute).collect();
        assert_eq!(limits, [5, 0]);
    }

    #[test]
    fn what_is_wrong_is_told_by_line_and_without_what_stands_there() {
        for (text, why) in [
            ("", "there is no key in it"),
            ("# only this", "there is no key in it"),
            ("sk-1\nsk-1 name=b", "line 2: the key is there already"),
            ("sk-1 name=a/b", "line 1: a name has"),
            ("sk-1 secret", "line 1: expected name="),
            ("sk-1 color=secret", "line 1: expected name="),
            ("sk-1 tokens-per-minute=secret", "line 1: a limit is a whole number"),
            ("sk-1 priority=secret", "line 1: a priority is high, normal or low"),
            ("sk-1 name=a priority=high\nsk-2 name=a", "line 2: another key of this name"),
            ("sha256:secret", "line 1: expected 64 hexadecimal digits"),
            ("sha256:+f", "line 1: expected 64 hexadecimal digits"),
            ("sk-1 name=a\nsk-2 name=a tokens-per-minute=5", "line 2: another key of this name"),
        ] {
            let error = Keys::read(text).unwrap_err().to_string();
            assert!(error.starts_with(why) && !error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn counts_outlive_the_reading_of_a_file() {
        let before = Keys::read("sk-1 name=a").unwrap();
        before.tenants().for_each(|tenant| _ = tenant.requests.inc_by(3));
        let after = Keys::read("sk-2 name=a\nsk-3 name=b").unwrap().with_counts_of(&before);
        assert_eq!(after.tenants().map(|tenant| tenant.requests.get()).collect::<Vec<_>>(), [3, 0]);
        let headers: HeaderMap = [(API_KEY, HeaderValue::from_static("sk-2"))].into_iter().collect();
        assert_eq!(after.tenant_of(&headers).unwrap().requests.get(), 3);
        assert!(!format!("{after:?}").contains("sk-"));
    }
}
