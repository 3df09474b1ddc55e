//! Differences between two configurations, and which of them need a restart.

use std::collections::{BTreeMap, BTreeSet};

use crate::options::Options;

/// Tables and keys that are read only at startup.
const FIXED: [&str; 12] = [
    "server.",
    "events.",
    "health.",
    "recording.",
    "tracing.",
    "sharing.",
    "picker.",
    "cache.max-tree-size",
    "cache.block-hash",
    "cache.eviction-interval-secs",
    "cache.presumed-ttl-secs",
    "cache.worker-kv-tokens",
];

/// Whether a change of this key needs a restart.
pub fn is_fixed(key: &str) -> bool {
    FIXED.iter().any(|fixed| key == *fixed || (fixed.ends_with('.') && key.starts_with(fixed)))
}

/// The keys whose values differ, as `table.key`. Values are left out, because some are secret.
pub fn differences(before: &Options, after: &Options) -> Vec<String> {
    let mut changed = before.differing(after);
    changed.extend(differing("aliases", &before.aliases, &after.aliases));
    changed.extend(differing("models", &before.models, &after.models));
    changed.extend((before.workers != after.workers).then(|| "workers".to_owned()));
    changed.sort_unstable();
    changed
}

fn differing<T: PartialEq>(
    table: &str,
    before: &BTreeMap<String, T>,
    after: &BTreeMap<String, T>,
) -> BTreeSet<String> {
    let names = before.keys().chain(after.keys());
    let differ = names.filter(|name| before.get(*name) != after.get(*name));
    differ.map(|name| format!("{table}.{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::parse;

    fn options(text: &str) -> Options {
        parse(text).unwrap().over(Options::defaults())
    }

    #[test]
    fn differences_are_named_by_table_and_key() {
        let before = options("[routing]\npolicy = \"random\"\n[aliases]\na = \"b\"");
        let after = options("[routing]\nshadow = [\"random\"]\n[[workers]]\nurl = \"http://a\"");
        let changed = differences(&before, &after);
        assert_eq!(changed, ["aliases.a", "routing.policy", "routing.shadow", "workers"]);
        assert_eq!(differences(&after, &after), [""; 0]);
    }

    #[test]
    fn a_changed_secret_is_named_without_its_value() {
        let before = options("[security]\nadmin-token = \"a\"\nworker-api-key = \"k\"");
        let after = options("[security]\nadmin-token = \"b\"\nworker-api-key = \"k\"");
        assert_eq!(differences(&before, &after), ["security.admin-token"]);
    }

    #[test]
    fn options_read_only_at_startup_are_fixed() {
        for fixed in ["server.port", "health.load-interval-ms", "cache.block-hash", "events.events-token"] {
            assert!(is_fixed(fixed), "{fixed}");
        }
        for free in ["routing.policy", "cache.cache-preset", "workers", "security.api-keys-file", "aliases.a"]
        {
            assert!(!is_fixed(free), "{free}");
        }
    }
}
