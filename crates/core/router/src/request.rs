//! A request as the router sees it: borrowed from the driver, which keeps the buffers.

use warmroute_types::{Delivery, WorkerId};

use crate::media::UnknownMedia;
use crate::prompt::{PromptChunks, PromptText};
use crate::worker_group::{WorkerGroup, allows};

/// A request. Routing it and observing its answer take the same value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The requested model; `None` accepts any worker.
    pub model: Option<&'a str>,
    /// Tokens of the prompt, if known. With `prompt`, they are estimated from its bytes.
    pub prompt_tokens: u32,
    /// The prompt's chunks, if caches are to be considered.
    pub prompt: Option<PromptChunks<'a>>,
    /// The prompt as engines tokenize it, once per family of workers that serves the model.
    pub texts: &'a [PromptText<'a>],
    /// Hash of the session, if the request names one.
    pub session_key: Option<u64>,
    /// Hash of the prompt's beginning, if it has one.
    pub prefix_key: Option<u64>,
    /// Workers that have failed this request.
    pub avoid: &'a [WorkerId],
    /// The group of workers that may take the request; `None`: all workers.
    pub within: Option<&'a WorkerGroup>,
    /// The worker that stores what the request continues. Only it can take the request, and does even while it drains.
    pub stored_at: Option<WorkerId>,
    /// Exact overlap by worker index, where the caller knows it (the lab does).
    pub known_tokens: Option<&'a [u32]>,
    /// Whether the answer streams.
    pub delivery: Delivery,
    /// Whether the prompt is text only.
    pub content: Content,
    /// The prompt from its first medium on that is not known yet.
    pub unknown_media: Option<UnknownMedia<'a>>,
    /// Meaning of a missing cached-token count in the answer.
    pub silence: Silence,
}

impl<'a> Request<'a> {
    /// The workers that the request may use.
    pub fn usable(&self) -> Usable<'a> {
        Usable { stored_at: self.stored_at, avoid: self.avoid, within: self.within }
    }
}

/// Which workers a request may use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usable<'a> {
    /// Only this one; `None`: any.
    pub stored_at: Option<WorkerId>,
    /// These not.
    pub avoid: &'a [WorkerId],
    /// Only those of this group; `None`: all.
    pub within: Option<&'a WorkerGroup>,
}

impl Usable<'_> {
    #[inline]
    pub(crate) fn includes(self, worker: WorkerId) -> bool {
        self.stored_at.is_none_or(|only| only == worker)
            && allows(self.within, worker)
            && (self.avoid.is_empty() || !self.avoid.contains(&worker))
    }
}

/// The content of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// Text only: tokens are proportional to bytes.
    #[default]
    Text,
    /// Also images or audio, which are a hash here and thousands of tokens in the engine.
    Media,
}

/// Meaning of a missing cached-token count in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Silence {
    /// Zero, if the engine has reported a count before: engines omit a zero.
    MeansZero,
    /// Unknown: this API may never report it.
    #[default]
    MeansNothing,
}
