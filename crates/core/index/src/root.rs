//! Roots: the beginning of all chains of one namespace.
//!
//! Two prompts with the same bytes but another model, LoRA or cache salt share nothing in an engine, so they share no
//! root here. The source is part of the key, so reported and presumed spans never mix. A root costs memory only while
//! something is stored under it.

use xxhash_rust::xxh3::xxh3_64;

/// Where the knowledge comes from that a holder holds a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The engine's events: spans have names and are removed one by one.
    Reported,
    /// Our own routing: spans have no names and age by capacity and time.
    Presumed,
}

/// The properties that distinguish one root from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace<'a> {
    /// The model that computes the cache.
    pub model: &'a str,
    /// The adapter, where one is used.
    pub lora: Option<&'a str>,
    /// The request's cache salt, where one is given.
    pub salt: Option<&'a str>,
    /// Which way of cutting chains this is, where a model has several (block size, tokens or bytes).
    pub cut: u32,
    /// Reported or presumed.
    pub source: Source,
}

/// A namespace as a number: cheap to copy and to look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RootKey {
    key: u64,
    source: Source,
}

impl RootKey {
    /// The key of a namespace. Fields are length-prefixed, so different namespaces have different encodings.
    pub fn of(namespace: &Namespace<'_>) -> RootKey {
        let mut text = Vec::with_capacity(128);
        for field in [Some(namespace.model), namespace.lora, namespace.salt] {
            let length = field.map_or(u64::MAX, |value| value.len() as u64);
            text.extend_from_slice(&length.to_le_bytes());
            text.extend_from_slice(field.unwrap_or_default().as_bytes());
        }
        text.extend_from_slice(&namespace.cut.to_le_bytes());
        text.push(namespace.source as u8);
        RootKey { key: xxh3_64(&text), source: namespace.source }
    }

    /// The source of the spans under this root.
    pub fn source(self) -> Source {
        self.source
    }

    /// The key as a number, for another router. It does not contain the source.
    pub fn to_bits(self) -> u64 {
        self.key
    }

    /// The presumed root for a key that another router sent.
    pub fn presumed_from_bits(key: u64) -> RootKey {
        RootKey { key, source: Source::Presumed }
    }

    pub(crate) fn digest(self) -> u64 {
        self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Namespace<'static> {
        Namespace { model: "m", lora: None, salt: None, cut: 0, source: Source::Reported }
    }

    #[test]
    fn every_field_makes_another_root() {
        let others = [
            Namespace { model: "n", ..plain() },
            Namespace { lora: Some(""), ..plain() },
            Namespace { salt: Some("m"), ..plain() },
            Namespace { lora: Some("m"), ..plain() },
            Namespace { cut: 1, ..plain() },
            Namespace { source: Source::Presumed, ..plain() },
        ];
        let mut keys: Vec<_> = others.iter().map(|other| RootKey::of(other).digest()).collect();
        keys.push(RootKey::of(&plain()).digest());
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), others.len() + 1);
    }
}
