//! Whose reports may be compared with one another.
//!
//! Two engines that serve the same model from the same tokenizer and template write a prompt as the same bytes; two that
//! differ in any of that do not, even under one name. A family is the former: its name is part of the root under which its
//! events are kept, so that what one family holds is never found by another's prompt. Who belongs together is decided
//! outside; here it is only a name.

use std::fmt;
use std::sync::Arc;

use warmroute_index::{Namespace, RootKey, Source};

use crate::Unit;

/// Workers of one model whose files agree.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Family(Arc<str>);

impl Family {
    /// The family of this name.
    pub fn new(name: &str) -> Family {
        Family(name.into())
    }

    /// Where its prompts begin, with an adapter and a salt.
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
