//! From what happened to blocks to what is told about them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use warmroute_engine::{BlockName, Happened, SequenceId};

use super::channel::Channel;
use super::encode::Told;
use crate::answer::Planned;
use crate::api::Ask;
use crate::config::Config;
use crate::tokens::Token;

/// An engine waits no longer than this for its events to leave.
const SENT_WITHIN: Duration = Duration::from_millis(5);

/// The tokens of a sequence and what else its blocks are made of.
pub(crate) struct Content {
    pub(crate) names: Vec<BlockName>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) block_size: u32,
    pub(crate) lora: Option<String>,
    pub(crate) salt: Option<String>,
}

impl Content {
    /// Prompt and answer, as they are planned.
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

/// Knows the sequences in the engine and tells of their blocks.
pub(crate) struct Teller {
    channel: Arc<Channel>,
    sequences: HashMap<SequenceId, Arc<Content>>,
    /// Those whose client has left: a step under way may still store blocks in their name.
    left: Vec<SequenceId>,
}

impl Teller {
    pub(crate) fn new(channel: Arc<Channel>) -> Teller {
        Teller { channel, sequences: HashMap::new(), left: Vec::new() }
    }

    /// A sequence enters the engine.
    pub(crate) fn enters(&mut self, id: SequenceId, content: Arc<Content>) {
        self.sequences.insert(id, content);
    }

    /// Its client has left.
    pub(crate) fn leaves(&mut self, id: SequenceId) {
        self.left.push(id);
    }

    /// The process is a new one.
    pub(crate) fn restart(&mut self) {
        self.sequences.clear();
        self.left.clear();
        self.channel.restart();
    }

    /// Tells what a step did to the cache, and waits until that has left: as in vLLM, the world hears of a block no later
    /// than the client hears of its token. A subscriber that does not read holds nobody up for long.
    pub(crate) async fn tell(&mut self, happened: &[Happened]) {
        let told: Vec<Told> = happened.iter().filter_map(|event| self.told(event)).collect();
        if !told.is_empty() {
            self.channel.publish(told);
            // Late is as good as sent: it is on its way.
            let _ = timeout(SENT_WITHIN, self.channel.sent()).await;
        }
        for event in happened {
            if let Happened::Finished { id } = event {
                self.sequences.remove(id);
            }
        }
        for id in self.left.drain(..) {
            self.sequences.remove(&id);
        }
    }

    fn told(&self, event: &Happened) -> Option<Told> {
        match *event {
            Happened::Stored { id, first_block, blocks } => {
                let content = Arc::clone(self.sequences.get(&id)?);
                Some(Told::Stored { content, first: first_block as usize, blocks: blocks as usize })
            }
            Happened::Removed { name } => Some(Told::Removed(name.0)),
            Happened::Kept { name, memory } => Some(Told::Kept(name.0, memory)),
            Happened::Dropped { name, memory } => Some(Told::Dropped(name.0, memory)),
            Happened::Cleared => Some(Told::Cleared),
            Happened::Started { .. }
            | Happened::Token { .. }
            | Happened::Finished { .. }
            | Happened::Preempted { .. } => None,
        }
    }
}
