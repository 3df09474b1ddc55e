//! Whether an engine that works has stopped telling.
//!
//! Engines say nothing while they are idle, and nothing about what they found in their cache. So silence counts only while
//! answers come that must have filled a block; or when the connection is gone. Before a verdict the engine's replay is asked:
//! it may have told nothing, or others than us (a topic that is not ours).

use warmroute_types::Micros;

use crate::config::Config;

/// What has passed since the last batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    answers: u32,
    first_answer: Micros,
    /// After how many of them the replay was last asked, and when.
    asked: Option<(u32, Micros)>,
    down_since: Option<Micros>,
}

impl Silence {
    /// A batch came, or it is certain that there was none.
    pub fn heard(&mut self) {
        self.answers = 0;
        self.asked = None;
    }

    /// Whether a replay should be asked about it now; it is then taken as asked.
    pub fn asks(&mut self, after: Micros, now: Micros) -> bool {
        let (answers, since) = self.asked.unwrap_or((0, self.first_answer));
        let is_due = self.answers > answers && now.since(since) >= after;
        if is_due {
            self.asked = Some((self.answers, now));
        }
        is_due
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
