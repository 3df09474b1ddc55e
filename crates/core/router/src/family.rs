//! Families: workers whose reports are comparable.
//!
//! Engines that serve the same model with the same tokenizer and template turn a prompt into the same bytes.
//! Engines that differ in any of these do not, even under one model name. The family name is part of the root
//! of its events, so one family's prompts never match another's cache. Callers decide which workers form a
//! family.

use std::fmt;
use std::sync::Arc;

use warmroute_index::{Namespace, RootKey, Source};
use xxhash_rust::xxh3::xxh3_64;

use crate::Unit;

/// The name of a group of workers whose model files agree.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Family(Arc<str>);

impl Family {
    /// Creates the family with this name.
    pub fn new(name: &str) -> Family {
        Family(name.into())
    }

    /// The family as a number.
    pub fn key(&self) -> u64 {
        xxh3_64(self.0.as_bytes())
    }

    /// The root of its prompts, with an adapter and a salt.
    pub(crate) fn root(&self, lora: Option<&str>, salt: Option<&str>, unit: Unit) -> RootKey {
        let (model, cut) = (&*self.0, unit as u32);
        RootKey::of(&Namespace { model, lora, salt, cut, source: Source::Reported })
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
