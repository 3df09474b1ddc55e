//! Turns the engine's block events into published events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use warmroute_engine::{Happened, SequenceId};

use super::channel::Channel;
use super::content::Content;
use super::encode::CacheChange;

/// Longest time that an engine waits for its events to be sent.
const SENT_WITHIN: Duration = Duration::from_millis(5);

/// Knows the sequences in the engine and reports their blocks.
pub(crate) struct EventReporter {
    channel: Arc<Channel>,
    sequences: HashMap<SequenceId, Arc<Content>>,
    /// Sequences whose client has left: a step in progress may still store blocks for them.
    left: Vec<SequenceId>,
}

impl EventReporter {
    pub(crate) fn new(channel: Arc<Channel>) -> EventReporter {
        EventReporter { channel, sequences: HashMap::new(), left: Vec::new() }
    }

    /// Adds a sequence that enters the engine.
    pub(crate) fn enters(&mut self, id: SequenceId, content: Arc<Content>) {
        self.sequences.insert(id, content);
    }

    /// Marks a sequence whose client has left.
    pub(crate) fn leaves(&mut self, id: SequenceId) {
        self.left.push(id);
    }

    /// Starts as a new process.
    pub(crate) fn restart(&mut self) {
        self.sequences.clear();
        self.left.clear();
        self.channel.restart();
    }

    /// Publishes the cache events of a step, and waits until they are sent: as in vLLM, subscribers learn of a block
    /// no later than the client receives its token. A subscriber that does not read delays this only briefly.
    pub(crate) async fn tell(&mut self, happened: &[Happened]) {
        let told: Vec<CacheChange> = happened.iter().filter_map(|event| self.told(event)).collect();
        if !told.is_empty() {
            self.channel.publish(told);
            // A late batch is on its way, which is enough.
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

    fn told(&self, event: &Happened) -> Option<CacheChange> {
        match *event {
            Happened::Stored { id, first_block, blocks } => {
                let content = Arc::clone(self.sequences.get(&id)?);
                Some(CacheChange::Stored { content, first: first_block as usize, blocks: blocks as usize })
            }
            Happened::Removed { name } => Some(CacheChange::Removed(name.0)),
            Happened::Kept { name, memory } => Some(CacheChange::Kept(name.0, memory)),
            Happened::Dropped { name, memory } => Some(CacheChange::Dropped(name.0, memory)),
            Happened::Cleared => Some(CacheChange::Cleared),
            Happened::Started { .. }
            | Happened::Token { .. }
            | Happened::Finished { .. }
            | Happened::Preempted { .. } => None,
        }
    }
}
