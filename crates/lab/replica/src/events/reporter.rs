//! Turns the engine's block events into published events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use warmroute_engine::{Happened, SequenceId};

use super::channel::Channel;
use super::content::Content;
use super::encode::{CacheChange, CacheGroup};

/// Longest time that an engine waits for its events to be sent.
const SENT_WITHIN: Duration = Duration::from_millis(5);

/// Knows the sequences in the engine and reports their blocks.
pub(crate) struct EventReporter {
    channel: Arc<Channel>,
    sequences: HashMap<SequenceId, Arc<Content>>,
    /// Sequences whose client has left: a step in progress may still store blocks for them.
    left: Vec<SequenceId>,
    /// The engine's second group.
    window: CacheGroup,
}

impl EventReporter {
    /// A reporter for an engine, with the window of its second group if it has one.
    pub(crate) fn new(channel: Arc<Channel>, sliding_window: Option<u32>) -> EventReporter {
        let window = CacheGroup::Window(sliding_window.unwrap_or(0));
        EventReporter { channel, sequences: HashMap::new(), left: Vec::new(), window }
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

    fn stored(
        &self,
        id: SequenceId,
        first_block: u32,
        blocks: u32,
        group: CacheGroup,
    ) -> Option<CacheChange> {
        let content = Arc::clone(self.sequences.get(&id)?);
        Some(CacheChange::Stored { content, first: first_block as usize, blocks: blocks as usize, group })
    }

    fn told(&self, event: &Happened) -> Option<CacheChange> {
        match *event {
            Happened::Stored { id, first_block, blocks } => {
                self.stored(id, first_block, blocks, CacheGroup::Full)
            }
            Happened::WindowStored { id, first_block, blocks } => {
                self.stored(id, first_block, blocks, self.window)
            }
            Happened::Removed { name } => Some(CacheChange::Removed(name.0, CacheGroup::Full)),
            Happened::WindowRemoved { name } => Some(CacheChange::Removed(name.0, self.window)),
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
