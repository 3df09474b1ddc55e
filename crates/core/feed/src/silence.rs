//! Whether an engine that works has stopped telling.
//!
//! Engines say nothing while they are idle, and nothing about what they found in their cache. So silence counts only while
//! answers come that must have filled a block; or when the connection is gone.

use warmroute_types::Micros;

use crate::config::Config;

/// What has passed since the last batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    answers: u32,
    first_answer: Micros,
    down_since: Option<Micros>,
}

impl Silence {
    /// A batch came.
    pub fn heard(&mut self) {
        self.answers = 0;
    }

    /// An answer came that must have filled a block.
    pub fn worked(&mut self, now: Micros) {
        if self.answers == 0 {
            self.first_answer = now;
        }
        self.answers = self.answers.saturating_add(1);
    }

    /// The connection is there.
    pub fn up(&mut self) {
        self.down_since = None;
    }

    /// It is not.
    pub fn down(&mut self, now: Micros) {
        self.down_since.get_or_insert(now);
    }

    /// Whether it has lasted too long.
    pub fn is_over(&self, config: &Config, now: Micros) -> bool {
        let is_mute =
            self.answers >= config.silent_answers_min && now.since(self.first_answer) >= config.silent_after;
        is_mute || self.down_since.is_some_and(|since| now.since(since) >= config.silent_after)
    }
}
