//! The tokens behind published blocks.

use warmroute_engine::BlockName;

use crate::answer::Planned;
use crate::api::Ask;
use crate::config::Config;
use crate::tokens::{self, Token};

/// The tokens of a sequence, and what else determines its blocks.
pub(crate) struct Content {
    pub(crate) names: Vec<BlockName>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) block_size: u32,
    pub(crate) lora: Option<String>,
    pub(crate) salt: Option<String>,
}

impl Content {
    /// The images in a block: hash, and where each begins, counted from the block's start.
    pub(crate) fn images(&self, block: usize) -> Vec<(u32, i64)> {
        let size = self.block_size as usize;
        let first = block * size;
        let mut images = Vec::new();
        for at in first..(first + size).min(self.tokens.len()) {
            match tokens::image_of(self.tokens[at]) {
                Some((hash, true)) => images.push((hash, (at - first) as i64)),
                Some((hash, false)) if at == first => {
                    let is_start = |token: &Token| tokens::image_of(*token).is_some_and(|(_, first)| first);
                    let start = self.tokens[..at].iter().rposition(is_start).unwrap_or(0);
                    images.push((hash, start as i64 - first as i64));
                }
                _ => {}
            }
        }
        images
    }

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
