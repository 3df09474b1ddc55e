//! The tokens behind published blocks.

use warmroute_engine::BlockName;

use crate::answer::Planned;
use crate::api::Ask;
use crate::config::Config;
use crate::tokens::Token;

/// The tokens of a sequence, and what else determines its blocks.
pub(crate) struct Content {
    pub(crate) names: Vec<BlockName>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) block_size: u32,
    pub(crate) lora: Option<String>,
    pub(crate) salt: Option<String>,
}

impl Content {
    /// Prompt and answer, as planned.
    pub(crate) fn new(
        config: &Config,
        ask: &Ask,
        model: &str,
        prompt: &[Token],
        planned: &Planned,
    ) -> Content {
        Content {
            names: planned.request.chain.clone(),
            tokens: prompt.iter().chain(&planned.token_ids).copied().collect(),
            block_size: config.engine.block_size,
            lora: (model != config.model).then(|| model.to_owned()),
            salt: (!ask.salt.is_empty()).then(|| ask.salt.clone()),
        }
    }
}
