//! Answers in progress: their decided text, and how far the engine has generated it.

use std::future::{pending, poll_fn};
use std::sync::Arc;

use crate::answer::Answer;
use crate::api::{Head, Reply, Shape, Usage};
use crate::config::UsageDetails;
use crate::connection_control::ConnectionControl;
use crate::progress::{End, Seen};
use crate::rank::Ticket;

/// Tokens that a lying engine reports. Twice as many still fit.
const ABSURD: u32 = u32::MAX / 2;

/// All answers to one request, and their format.
pub(crate) struct Generation {
    pub(crate) answering: Answering,
    pub(crate) shape: Box<dyn Shape>,
    /// The connection is reset after this many tokens.
    pub(crate) reset_after: Option<u32>,
    pub(crate) line: Arc<ConnectionControl>,
}

/// The answers and their progress.
pub(crate) struct Answering {
    pub(crate) head: Head,
    /// One for each ticket.
    pub(crate) answers: Vec<Answer>,
    /// Dropping them cancels unfinished answers.
    pub(crate) tickets: Vec<Ticket>,
    /// Answers to the same prompt follow each other in groups of this size.
    pub(crate) answers_per_prompt: usize,
    /// All prompts together.
    pub(crate) prompt_tokens: u32,
    pub(crate) usage_details: UsageDetails,
    pub(crate) honesty: Honesty,
}

/// Whether the reported usage is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Honesty {
    Truth,
    Lies,
}

impl Generation {
    /// Waits for the end of all answers and returns the response body.
    pub(crate) async fn whole(self) -> Vec<u8> {
        for ticket in &self.answering.tickets {
            let beyond = self.reset_after.map_or(u32::MAX, |after| after.saturating_sub(1));
            let seen = poll_fn(|cx| ticket.progress().poll_beyond(cx, beyond)).await;
            if self.is_broken(seen) {
                self.line.cut();
                // The connection's task drops this future in a moment.
                pending::<()>().await;
            }
        }
        let output_tokens = self.answering.answers.iter().map(|answer| answer.tokens).sum();
        self.shape.whole(&self.answering.reply(output_tokens))
    }

    fn is_broken(&self, seen: Seen) -> bool {
        seen.end == Some(End::Lost) || self.reset_after.is_some_and(|after| seen.tokens >= after)
    }

    /// The shape, and what it has to tell after so many output tokens.
    pub(crate) fn shape_and_reply(&mut self, output_tokens: u32) -> (&mut dyn Shape, Reply<'_>) {
        (self.shape.as_mut(), self.answering.reply(output_tokens))
    }
}

impl Answering {
    fn reply(&self, output_tokens: u32) -> Reply<'_> {
        let cached_tokens = match self.usage_details {
            UsageDetails::Report => Some(self.cached_tokens()),
            UsageDetails::Omit => None,
        };
        let usage = match self.honesty {
            Honesty::Truth => Usage { prompt_tokens: self.prompt_tokens, output_tokens, cached_tokens },
            Honesty::Lies => {
                Usage { prompt_tokens: ABSURD, output_tokens: ABSURD, cached_tokens: Some(u32::MAX) }
            }
        };
        Reply { head: &self.head, answers: &self.answers, usage }
    }

    /// A prompt with several answers counts once, as in `prompt_tokens`.
    fn cached_tokens(&self) -> u32 {
        let firsts = self.tickets.iter().step_by(self.answers_per_prompt);
        firsts.map(|ticket| ticket.progress().seen().cached_tokens).sum()
    }
}
