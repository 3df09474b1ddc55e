//! Answers that overtook the events of their prompts.
//!
//! An engine publishes a prompt's blocks at about its first token, on another connection than the answer. On a busy
//! machine the answer may be read first. What it shows then waits for the events: the prompt's presumption ends with
//! them, and its blocks are those of its text (a block that is reported alone may also have been filled while decoding).

use std::collections::VecDeque;

use parking_lot::Mutex;
use warmroute_index::RootKey;
use warmroute_types::{Micros, WorkerId};

use crate::speculation::{ANSWERED_WITHIN, SpeculationTicket};
use crate::{PromptText, Unit};

/// Most answers that wait; the oldest gives way.
const WAITING_MAX: usize = 64;

/// Most bytes of a prompt that is kept.
const PROMPT_BYTES_MAX: usize = 1 << 20;

/// An answer whose prompt is not yet reported as a whole.
#[derive(Debug)]
pub(crate) struct AwaitedAnswer {
    pub worker: WorkerId,
    /// The worker's cache for which the answer holds.
    pub generation: u32,
    pub root: RootKey,
    pub unit: Unit,
    /// The prompt in the unit of its family.
    pub bytes: Vec<u8>,
    pub prompt_tokens: u32,
    /// Time at which the request was sent.
    pub sent: Micros,
    /// Number of first tokens observed before the request was sent.
    pub moment: u64,
    /// The prompt's presumption.
    pub ticket: Option<SpeculationTicket>,
}

impl AwaitedAnswer {
    pub fn text(&self) -> PromptText<'_> {
        PromptText { root: self.root, bytes: &self.bytes, unit: self.unit }
    }
}

/// All answers that wait for events.
#[derive(Default)]
pub(crate) struct AwaitedAnswers(Mutex<VecDeque<AwaitedAnswer>>);

impl AwaitedAnswers {
    /// Whether a prompt is short enough to be kept.
    pub fn has_room_for(text: PromptText<'_>) -> bool {
        text.bytes.len() <= PROMPT_BYTES_MAX
    }

    /// Keeps an answer until its events arrive.
    pub fn keep(&self, answer: AwaitedAnswer) {
        let mut waiting = self.0.lock();
        waiting.push_back(answer);
        if waiting.len() > WAITING_MAX {
            waiting.pop_front();
        }
    }

    /// Takes the answers that wait for events of a worker.
    pub fn take(&self, worker: WorkerId) -> VecDeque<AwaitedAnswer> {
        let mut waiting = self.0.lock();
        if !waiting.iter().any(|answer| answer.worker == worker) {
            return VecDeque::new();
        }
        let (due, others) = waiting.drain(..).partition(|answer| answer.worker == worker);
        *waiting = others;
        due
    }

    /// Gives up answers whose presumptions have expired.
    pub fn expire(&self, now: Micros) {
        self.0.lock().retain(|answer| now.since(answer.sent) < ANSWERED_WITHIN);
    }
}
