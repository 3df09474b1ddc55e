//! How a worker's events are matched with prompts.

use std::sync::Arc;

use warmroute_prompt::Vocabulary;

use crate::family::Family;
use crate::unit::Unit;

/// How one worker's events are matched with prompts.
#[derive(Clone, Debug)]
pub struct Matching {
    family: Family,
    pub(crate) alphabet: Alphabet,
}

/// The unit that reported tokens are converted to.
#[derive(Clone, Debug)]
pub(crate) enum Alphabet {
    Bytes(Arc<Vocabulary>),
    Tokens,
}

impl Matching {
    /// Matching in bytes: reported tokens are converted to text, requests are rendered but not tokenized.
    pub fn bytes(family: Family, vocabulary: Arc<Vocabulary>) -> Matching {
        Matching { family, alphabet: Alphabet::Bytes(vocabulary) }
    }

    /// Matching in tokens: requests are tokenized.
    pub fn tokens(family: Family) -> Matching {
        Matching { family, alphabet: Alphabet::Tokens }
    }

    /// The family of comparable workers.
    pub fn family(&self) -> &Family {
        &self.family
    }

    /// The unit of comparison.
    pub fn unit(&self) -> Unit {
        match self.alphabet {
            Alphabet::Bytes(_) => Unit::Byte,
            Alphabet::Tokens => Unit::Token,
        }
    }
}
