//! Whether a working engine has stopped publishing.
//!
//! Engines publish nothing while they are idle, and nothing about cache hits. So silence counts only while answers
//! arrive that must have filled a block, or when the connection is lost. Before the feed counts as silent it requests
//! a replay: the engine may have published nothing, or on another topic.

use warmroute_types::Micros;

use crate::config::Config;

/// Answers and times since the last batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct SilenceDetector {
    answers: u32,
    first_answer: Micros,
    /// After how many answers, and when, the last replay was requested.
    last_request: Option<(u32, Micros)>,
    down_since: Option<Micros>,
}

impl SilenceDetector {
    /// A batch arrived, or a replay showed that there was none.
    pub fn reset(&mut self) {
        self.answers = 0;
        self.last_request = None;
    }

    /// Whether to request a replay now. If so, it counts as requested.
    pub fn should_ask(&mut self, after: Micros, now: Micros) -> bool {
        let (answers, since) = self.last_request.unwrap_or((0, self.first_answer));
        let is_due = self.answers > answers && now.since(since) >= after;
        if is_due {
            self.last_request = Some((self.answers, now));
        }
        is_due
    }

    /// An answer arrived that must have filled a block.
    pub fn record_answer(&mut self, now: Micros) {
        if self.answers == 0 {
            self.first_answer = now;
        }
        self.answers = self.answers.saturating_add(1);
    }

    /// The connection is up.
    pub fn up(&mut self) {
        self.down_since = None;
    }

    /// The connection is down.
    pub fn down(&mut self, now: Micros) {
        self.down_since.get_or_insert(now);
    }

    /// Whether the silence has lasted too long.
    pub fn has_lasted(&self, config: &Config, now: Micros) -> bool {
        let is_mute =
            self.answers >= config.silent_answers_min && now.since(self.first_answer) >= config.silent_after;
        is_mute || self.down_since.is_some_and(|since| now.since(since) >= config.silent_after)
    }
}
