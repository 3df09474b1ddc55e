//! API keys and their tenants.
//!
//! ```text
//! # a key or its SHA-256, then its attributes
//! sk-4fXq…                        name=search  requests-per-minute=600  priority=high
//! sha256:9f86d081884c7d65…        name=search
//! ```
//!
//! Keys with the same name belong to one tenant, so a key is rotated by having two for a while. A key is looked up by the
//! start of its SHA-256, which an attacker cannot choose, and compared in constant time. The keys themselves are not kept.
//! Errors name only the line number, because the line may contain a secret.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use prometheus_client::metrics::counter::Counter;
use warmroute_admission::{Class, Limits};
use warmroute_index::Digester;
use warmroute_types::{Micros, OptionValue, parse_count};

use crate::cache_salt::CacheSalt;
use crate::cached_tokens::CachedTokens;
use crate::engine_fields::FieldRules;
use crate::shares::Shares;
use crate::tenant_tokens::TenantTokens;
use crate::token::{Digest, bearer, digest, is_same};
use crate::ttft_budget;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Start of the names of keys without a name; eight digits of the key's hash follow.
const UNNAMED: &str = "key-";
/// Names become metric labels.
const NAME_BYTES_MAX: usize = 64;
/// A larger key file is a mistake, or needs a real identity provider.
const KEYS_MAX: usize = 65_536;
/// Each name is a metric series.
const NAMES_MAX: usize = 4_096;

/// The owner of one or more keys.
pub(crate) struct Tenant {
    pub(crate) name: String,
    /// Rate limits. Unset ones take the gateway's defaults.
    pub(crate) limits: Limits,
    /// Shares of memory and queue. Unset ones take the gateway's defaults.
    pub(crate) shares: Shares,
    /// Highest priority of its requests; `None`: the gateway's default.
    pub(crate) class_max: Option<Class>,
    /// Budget for the time to first token; `None`: the gateway's default.
    pub(crate) ttft_budget: Option<Micros>,
    /// What its requests may do with engines.
    pub(crate) rights: TenantRights,
    /// Identifies the tenant where its use of a resource is counted. A secret number: clients cannot choose another's.
    pub(crate) owner: u64,
    /// Requests with its keys. The count survives a reload of the key file.
    pub(crate) requests: Counter,
    /// Tokens of these requests.
    pub(crate) tokens: Arc<TenantTokens>,
}

/// What a tenant's requests may do with engines, where that differs from the gateway's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TenantRights {
    /// Fields that steer engines.
    pub(crate) engine_fields: FieldRules,
    /// Tenants with one group share caches.
    pub(crate) cache_group: Option<String>,
    /// `None`: the gateway's default.
    pub(crate) cached_tokens: Option<CachedTokens>,
}

impl Tenant {
    /// The salt that separates the tenant's cached prompts from others', with the salt that the client sent. It is keyed:
    /// who knows the tenant's name cannot compute it.
    pub(crate) fn cache_salt(
        &self,
        mode: CacheSalt,
        from_client: Option<&[u8]>,
        digester: &Digester,
    ) -> Option<String> {
        let (kind, name) = match (mode, &self.rights.cache_group) {
            (CacheSalt::Off, _) => return None,
            (CacheSalt::Group, Some(group)) => ("group", group),
            (CacheSalt::Key | CacheSalt::Group, _) => ("key", &self.name),
        };
        // Lengths keep different pairs apart.
        let sent = from_client.map_or(-1, |salt| salt.len() as i64);
        let mut text = format!("warmroute cache salt {kind} {} {name} {sent} ", name.len()).into_bytes();
        text.extend_from_slice(from_client.unwrap_or_default());
        Some(digester.salt(&text).iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// All valid API keys.
pub struct Keys {
    /// Keyed by the first eight bytes of the SHA-256.
    keys: HashMap<u64, Vec<(Digest, Arc<Tenant>)>>,
    tenants: BTreeMap<String, Arc<Tenant>>,
    /// Computes [`Tenant::owner`].
    owners: RandomState,
}

/// A key file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKeys {
    /// A line is invalid.
    #[error("line {line}: {why}")]
    Line {
        /// The line number, from 1.
        line: usize,
        /// The problem.
        why: &'static str,
    },
    /// The file has no keys. Most likely it is being written; using it would lock all clients out.
    #[error("the file contains no key")]
    Empty,
}

impl Keys {
    /// Parses a key file with one key per line.
    pub fn read(text: &str) -> Result<Keys, BadKeys> {
        let mut keys = Keys { keys: HashMap::new(), tenants: BTreeMap::new(), owners: RandomState::new() };
        let mut count = 0;
        // Editors of other systems may write a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (index, line) in text.lines().enumerate() {
            let line_is = |why| BadKeys::Line { line: index + 1, why };
            let Some(line) = KeyLine::read(line).map_err(line_is)? else { continue };
            count += 1;
            keys.add(line).map_err(line_is)?;
            if count > KEYS_MAX || keys.tenants.len() > NAMES_MAX {
                return Err(line_is("too many keys or names"));
            }
        }
        if count == 0 { Err(BadKeys::Empty) } else { Ok(keys) }
    }

    fn add(&mut self, line: KeyLine) -> Result<(), &'static str> {
        if self.find(&line.digest).is_some() {
            return Err("the key is a duplicate");
        }
        if !line.is_named && self.tenants.contains_key(&line.name) {
            return Err("another key without a name has a hash that begins alike; give the key a name");
        }
        let KeyLine { digest, name, limits, shares, class_max, ttft_budget, rights, .. } = line;
        let new = || {
            let (name, rights, requests) = (name.clone(), rights.clone(), Counter::default());
            let owner = self.owners.hash_one(&name);
            let tokens = Arc::default();
            Arc::new(Tenant { name, limits, shares, class_max, ttft_budget, rights, owner, requests, tokens })
        };
        let tenant = Arc::clone(self.tenants.entry(name.clone()).or_insert_with(new));
        let is_same = tenant.limits == limits && tenant.class_max == class_max && tenant.rights == rights;
        if !is_same || tenant.ttft_budget != ttft_budget || tenant.shares != shares {
            return Err("another key with this name has different limits, another priority or other rights");
        }
        self.keys.entry(head(&digest)).or_default().push((digest, tenant));
        Ok(())
    }

    /// Keeps the request counts of tenants that were known before.
    pub(crate) fn with_counts_of(mut self, before: &Keys) -> Keys {
        let with_count = |tenant: &Tenant| {
            let known = before.tenants.get(&tenant.name);
            let requests = known.map_or_else(Counter::default, |known| known.requests.clone());
            let tokens = known.map_or_else(Arc::default, |known| Arc::clone(&known.tokens));
            let owner = known.map_or(tenant.owner, |known| known.owner);
            let (name, rights) = (tenant.name.clone(), tenant.rights.clone());
            let Tenant { limits, shares, class_max, ttft_budget, .. } = *tenant;
            Arc::new(Tenant { name, limits, shares, class_max, ttft_budget, rights, owner, requests, tokens })
        };
        self.tenants = self.tenants.iter().map(|(name, tenant)| (name.clone(), with_count(tenant))).collect();
        for (_, tenant) in self.keys.values_mut().flatten() {
            *tenant = Arc::clone(&self.tenants[&tenant.name]);
        }
        self
    }

    /// The tenant of a request; `None` if it carries no valid key.
    pub(crate) fn tenant_of(&self, headers: &HeaderMap) -> Option<&Arc<Tenant>> {
        let shown = bearer(headers).or_else(|| headers.get(API_KEY).map(HeaderValue::as_bytes))?;
        self.find(&digest(shown))
    }

    /// All tenants, by name.
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

/// A parsed line.
struct KeyLine {
    digest: Digest,
    name: String,
    /// Whether the line states the name; otherwise it is made from the key's hash.
    is_named: bool,
    limits: Limits,
    shares: Shares,
    class_max: Option<Class>,
    ttft_budget: Option<Micros>,
    rights: TenantRights,
}

impl KeyLine {
    /// Parses a line; `None` if it is empty or a comment.
    fn read(line: &str) -> Result<Option<KeyLine>, &'static str> {
        let mut words = line.split_whitespace();
        let Some(key) = words.next().filter(|word| !word.starts_with('#')) else { return Ok(None) };
        let digest = match key.strip_prefix("sha256:") {
            Some(hex) => unhex(hex).ok_or("expected 64 hexadecimal digits after sha256:")?,
            None => digest(key.as_bytes()),
        };
        let name = digest[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (name, limits) = (format!("{UNNAMED}{name}"), Limits::default());
        let (shares, class_max, ttft_budget, rights) = Default::default();
        let is_named = false;
        let mut line = KeyLine { digest, name, is_named, limits, shares, class_max, ttft_budget, rights };
        words.try_for_each(|word| line.take(word))?;
        Ok(Some(line))
    }

    fn take(&mut self, word: &str) -> Result<(), &'static str> {
        const UNKNOWN: &str = "expected name=, requests-per-minute=, tokens-per-minute=, concurrent-requests=, \
             queue-share=, memory-share=, priority=, ttft-budget-ms=, engine-fields=, cache-group= or \
             cached-tokens= after the key";
        let count = |value: &str| parse_count(value).and_then(|count| u32::try_from(count).ok());
        match word.split_once('=').ok_or(UNKNOWN)? {
            ("name", name) => (self.name, self.is_named) = (not_reserved(checked(name)?)?, true),
            ("requests-per-minute", value) => {
                self.limits.requests_per_minute =
                    count(value).ok_or("requests-per-minute must be a whole number, such as 600 or 2k")?
            }
            ("tokens-per-minute", value) => {
                self.limits.tokens_per_minute =
                    count(value).ok_or("tokens-per-minute must be a whole number, such as 500000 or 500k")?
            }
            ("concurrent-requests", value) => {
                self.limits.concurrent =
                    count(value).ok_or("concurrent-requests must be a whole number, such as 8")?
            }
            ("queue-share", value) => {
                self.shares.queue_percent = percent(value).ok_or("queue-share must be 1 to 100 percent")?
            }
            ("memory-share", value) => {
                self.shares.memory_percent = percent(value).ok_or("memory-share must be 1 to 100 percent")?
            }
            ("priority", value) => {
                self.class_max = Some(Class::named(value).ok_or("priority must be high, normal or low")?);
            }
            ("ttft-budget-ms", value) => {
                let budget = ttft_budget::parse(value);
                let wrong = "ttft-budget-ms must be a number of milliseconds or a time such as 2s: 0, or 1 ms to a day";
                self.ttft_budget = Some(budget.ok_or(wrong)?);
            }
            ("engine-fields", rules) => self.rights.engine_fields = rules.parse()?,
            ("cache-group", group) => self.rights.cache_group = Some(checked(group)?),
            ("cached-tokens", value) => {
                let known = CachedTokens::VALUES.iter().find(|(_, name, _)| *name == value);
                let (known, ..) = known.ok_or("cached-tokens must be shown or hidden")?;
                self.rights.cached_tokens = Some(*known);
            }
            _ => return Err(UNKNOWN),
        }
        Ok(())
    }
}

/// A share, such as `25` or `25%`.
fn percent(value: &str) -> Option<u32> {
    let number = value.strip_suffix('%').unwrap_or(value).parse::<u32>().ok();
    number.filter(|percent| (1..=100).contains(percent))
}

fn checked(name: &str) -> Result<String, &'static str> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    match (1..=NAME_BYTES_MAX).contains(&name.len()) && is_plain {
        true => Ok(name.to_owned()),
        false => Err("a name must have 1 to 64 letters, digits, dots, dashes and underscores"),
    }
}

/// Refuses names that keys without a name have: its requests would count as another key's, and share its caches.
fn not_reserved(name: String) -> Result<String, &'static str> {
    let is_hash = |rest: &str| rest.len() == 8 && rest.bytes().all(|byte| byte.is_ascii_hexdigit());
    match name.to_ascii_lowercase().strip_prefix(UNNAMED).is_some_and(is_hash) {
        true => {
            Err("names of the form key-1a2b3c4d are reserved for keys without a name; choose another name")
        }
        false => Ok(name),
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

    use warmroute_index::Hash;

    #[test]
    fn names_that_only_begin_like_those_of_unnamed_keys_are_allowed() {
        let keys =
            Keys::read("sk-1\nsk-2 name=key-0123abc\nsk-3 name=key-0123abcde\nsk-4 name=key-x123abcd\n");
        assert_eq!(keys.unwrap().tenants().count(), 4);
        let alike = |name: &str| {
            let hash = |end: &str| format!("sha256:01234567{}", end.repeat(28));
            Keys::read(&format!("{}\n{} {name}\n", hash("aa"), hash("bb")))
        };
        assert!(alike("").unwrap_err().to_string().starts_with("line 2: another key without a name"));
        assert!(alike("name=b").is_ok());
    }

    fn owner(keys: &Keys, name: &'static str, value: &'static str) -> Option<String> {
        let headers: HeaderMap =
            [(HeaderName::from_static(name), HeaderValue::from_static(value))].into_iter().collect();
        keys.tenant_of(&headers).map(|tenant| tenant.name.clone())
    }

    #[test]
    fn both_headers_identify_the_tenant() {
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
    fn limits_take_units() {
        let line = "sk-1 name=a requests-per-minute=2k tokens-per-minute=1.5M concurrent-requests=8 ttft-budget-ms=2s";
        let keys = Keys::read(line).unwrap();
        let tenant = keys.tenants().next().unwrap();
        let limits = Limits { requests_per_minute: 2_000, tokens_per_minute: 1_500_000, concurrent: 8 };
        assert_eq!((tenant.limits, tenant.ttft_budget), (limits, Some(Micros::from_secs(2))));
    }

    #[test]
    fn errors_name_the_line_but_not_its_content() {
        for (text, why) in [
            ("", "the file contains no key"),
            ("# only this", "the file contains no key"),
            ("sk-1\nsk-1 name=b", "line 2: the key is a duplicate"),
            ("sk-1 name=a/b", "line 1: a name must have"),
            ("sk-1 secret", "line 1: expected name="),
            ("sk-1 name=key-0123abcd", "line 1: names of the form key-1a2b3c4d are reserved"),
            ("sk-1\nsk-2 name=Key-0123ABCD", "line 2: names of the form key-1a2b3c4d are reserved"),
            ("sk-1 color=secret", "line 1: expected name="),
            ("sk-1 tokens-per-minute=secret", "line 1: tokens-per-minute must be a whole number"),
            ("sk-1 requests-per-minute=1.5", "line 1: requests-per-minute must be a whole number"),
            ("sk-1 concurrent-requests=9G", "line 1: concurrent-requests must be a whole number"),
            ("sk-1 queue-share=secret", "line 1: queue-share must be 1 to 100 percent"),
            ("sk-1 memory-share=0", "line 1: memory-share must be 1 to 100 percent"),
            ("sk-1 priority=secret", "line 1: priority must be high, normal or low"),
            ("sk-1 ttft-budget-ms=secret", "line 1: ttft-budget-ms must be a number of milliseconds"),
            ("sk-1 ttft-budget-ms=0.1", "line 1: ttft-budget-ms must be a number of milliseconds"),
            ("sk-1 engine-fields=secret", "line 1: expected FIELD:pass"),
            ("sk-1 cached-tokens=secret", "line 1: cached-tokens must be shown or hidden"),
            ("sk-1 name=a priority=high\nsk-2 name=a", "line 2: another key with this name"),
            ("sha256:secret", "line 1: expected 64 hexadecimal digits"),
            ("sha256:+f", "line 1: expected 64 hexadecimal digits"),
            ("sk-1 name=a\nsk-2 name=a tokens-per-minute=5", "line 2: another key with this name"),
        ] {
            let error = Keys::read(text).unwrap_err().to_string();
            assert!(error.starts_with(why) && !error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn salts_differ_between_tenants_and_are_shared_in_groups() {
        let keys = Keys::read("sk-1 name=a cache-group=g\nsk-2 name=b cache-group=g\nsk-3 name=g\n").unwrap();
        let (digester, other) = (Digester::new(Hash::Xxh3, 7), Digester::new(Hash::Xxh3, 8));
        let salt =
            |name: &str, mode, sent: Option<&[u8]>| keys.tenants[name].cache_salt(mode, sent, &digester);
        assert_ne!(
            salt("a", CacheSalt::Key, None),
            keys.tenants["a"].cache_salt(CacheSalt::Key, None, &other)
        );
        assert_eq!(salt("a", CacheSalt::Off, None), None);
        assert_ne!(salt("a", CacheSalt::Key, None), salt("b", CacheSalt::Key, None));
        assert_eq!(salt("a", CacheSalt::Group, None), salt("b", CacheSalt::Group, None));
        assert_ne!(salt("a", CacheSalt::Group, None), salt("g", CacheSalt::Group, None), "a key is no group");
        assert_ne!(salt("a", CacheSalt::Key, Some(b"x")), salt("a", CacheSalt::Key, None));
        assert_ne!(salt("a", CacheSalt::Key, Some(b"")), salt("a", CacheSalt::Key, None));
        assert_ne!(salt("a", CacheSalt::Key, Some(b"x")), salt("b", CacheSalt::Key, Some(b"x")));
        assert_eq!(salt("a", CacheSalt::Key, None).unwrap().len(), 32);
    }

    #[test]
    fn request_counts_survive_a_reload() {
        let before = Keys::read("sk-1 name=a").unwrap();
        before.tenants().for_each(|tenant| _ = tenant.requests.inc_by(3));
        let after = Keys::read("sk-2 name=a\nsk-3 name=b").unwrap().with_counts_of(&before);
        assert_eq!(after.tenants().map(|tenant| tenant.requests.get()).collect::<Vec<_>>(), [3, 0]);
        let headers: HeaderMap = [(API_KEY, HeaderValue::from_static("sk-2"))].into_iter().collect();
        assert_eq!(after.tenant_of(&headers).unwrap().requests.get(), 3);
        assert!(!format!("{after:?}").contains("sk-"));
    }
}
