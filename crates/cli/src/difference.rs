//! Differences between two configurations, and which of them need a restart.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

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
pub fn differences(before: &Options, after: &Options) -> anyhow::Result<Vec<String>> {
    let (before_json, after_json) = (serde_json::to_value(before)?, serde_json::to_value(after)?);
    let (empty, mut changed) = (Map::new(), Vec::new());
    let tables = |value: &Value| value.as_object().unwrap_or(&empty).clone();
    let (before_tables, after_tables) = (tables(&before_json), tables(&after_json));
    for (table, value) in &after_tables {
        let old = before_tables.get(table).unwrap_or(&Value::Null);
        match (old.as_object(), value.as_object()) {
            (Some(old), Some(new)) => {
                let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
                let differ = keys.into_iter().filter(|key| old.get(*key) != new.get(*key));
                changed.extend(differ.map(|key| format!("{table}.{key}")));
            }
            _ if old != value => changed.push(table.clone()),
            _ => {}
        }
    }
    // Secrets are not serialized.
    let (old, new) = (&before.security, &after.security);
    let secrets = [
        ("events.events-token", before.events.events_token != after.events.events_token),
        ("tracing.otlp-headers", before.tracing.otlp_headers != after.tracing.otlp_headers),
        ("security.admin-token", old.admin_token != new.admin_token),
        ("security.worker-api-key", old.worker_api_key != new.worker_api_key),
    ];
    changed.extend(secrets.into_iter().filter(|(_, differ)| *differ).map(|(key, _)| key.to_owned()));
    Ok(changed)
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
        let changed = differences(&before, &after).unwrap();
        assert_eq!(changed, ["aliases.a", "routing.policy", "routing.shadow", "workers"]);
        assert_eq!(differences(&after, &after).unwrap(), [""; 0]);
    }

    #[test]
    fn a_changed_secret_is_named_without_its_value() {
        let before = options("[security]\nadmin-token = \"a\"\nworker-api-key = \"k\"");
        let after = options("[security]\nadmin-token = \"b\"\nworker-api-key = \"k\"");
        assert_eq!(differences(&before, &after).unwrap(), ["security.admin-token"]);
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
