//! An answer as server-sent events, one per token.
//!
//! Tokens that are ready together are written at once, as separate events.

use std::task::{Context, Poll};

use bytes::Bytes;

use crate::api::{Reply, Shape};
use crate::generation::Generation;
use crate::progress::{End, Seen};

/// Approximate maximum of bytes per write; a slow client gets the rest later.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// A streamed generation.
pub(crate) struct Stream {
    generation: Generation,
    /// Tokens written, per answer.
    sent: Vec<u32>,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing is written.
    New,
    /// Only the greeting is written.
    Greeted,
    /// The first token is written.
    Open,
    /// Everything is written.
    Ended,
    /// The connection is reset once the socket has sent what was written.
    Cutting,
}

impl Stream {
    pub(crate) fn new(generation: Generation) -> Stream {
        Stream { sent: vec![0; generation.answering.answers.len()], generation, phase: Phase::New }
    }

    /// Whether everything is written.
    pub(crate) fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// The next events; `None` at the end.
    pub(crate) fn poll_events(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut out = Vec::new();
        if self.phase == Phase::New {
            self.greet(&mut out);
        }
        if matches!(self.phase, Phase::Greeted | Phase::Open) {
            self.write_answers(cx, &mut out);
        }
        match (out.is_empty(), self.phase) {
            (false, _) => Poll::Ready(Some(out.into())),
            (true, Phase::Ended) => Poll::Ready(None),
            (true, Phase::Cutting) => {
                // The connection flushes when its body has no more data, and only then checks for a cut. The
                // client therefore gets everything written before the reset.
                self.generation.line.cut();
                Poll::Pending
            }
            (true, _) => Poll::Pending,
        }
    }

    fn greet(&mut self, out: &mut Vec<u8>) {
        self.phase = Phase::Greeted;
        self.write(out, |shape, reply, out| shape.greet(reply, out));
    }

    fn write_answers(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) {
        let mut all_ended = true;
        for choice in 0..self.sent.len() {
            match self.generation.answering.tickets[choice].progress().poll_beyond(cx, self.sent[choice]) {
                Poll::Ready(seen) => all_ended &= self.write_answer(choice, seen, out),
                Poll::Pending => all_ended = false,
            }
            if self.phase == Phase::Cutting {
                return;
            }
        }
        if all_ended {
            self.phase = Phase::Ended;
            self.write(out, |shape, reply, out| shape.close(reply, out));
        }
    }

    /// Writes the new tokens of one answer. Returns whether it ended.
    fn write_answer(&mut self, choice: usize, seen: Seen, out: &mut Vec<u8>) -> bool {
        while self.sent[choice] < seen.tokens && out.len() < WRITE_BYTES_MAX {
            if self.is_due_for_reset() {
                self.phase = Phase::Cutting;
                return false;
            }
            self.write_token(choice, out);
        }
        if seen.end == Some(End::Lost) || self.is_due_for_reset() {
            self.phase = Phase::Cutting;
        }
        seen.end == Some(End::Finished) && self.sent[choice] == seen.tokens
    }

    fn is_due_for_reset(&self) -> bool {
        let sent = self.sent.iter().sum::<u32>();
        self.generation.reset_after.is_some_and(|after| sent >= after)
    }

    fn write_token(&mut self, choice: usize, out: &mut Vec<u8>) {
        if self.phase == Phase::Greeted {
            self.phase = Phase::Open;
            self.write(out, |shape, reply, out| shape.open(reply, out));
        }
        let index = self.sent[choice];
        self.sent[choice] += 1;
        self.write(out, |shape, reply, out| {
            let answer = &reply.answers[choice];
            let finish = (index + 1 == answer.tokens).then_some(&answer.finish);
            shape.token(reply, choice, answer.piece(index), finish, out);
        });
    }

    fn write(&mut self, out: &mut Vec<u8>, events: impl FnOnce(&mut dyn Shape, &Reply<'_>, &mut Vec<u8>)) {
        let output_tokens = self.sent.iter().sum();
        let (shape, reply) = self.generation.shape_and_reply(output_tokens);
        events(shape, &reply, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::{Answer, Finish};
    use crate::api::{Head, completions};
    use crate::command::FinishedReason;
    use crate::config::{Config, UsageDetails};
    use crate::connection_control::OpenConnections;
    use crate::fault::Faults;
    use crate::generation::{Answering, Honesty};
    use crate::rank::Rank;
    use crate::tokens::Tokenizer;
    use std::future::poll_fn;
    use std::sync::Arc;
    use warmroute_engine::{Profile, Request};

    /// A stream of an answer of this many tokens, unread so far.
    async fn stream_of(tokens: u32, faults: &Faults) -> (Stream, Arc<Rank>) {
        let mut config = Config::for_profile(Profile::Llama3_1_8b);
        config.engine.prefix_caching = warmroute_engine::PrefixCaching::Off;
        let rank = Arc::new(Rank::start(&config, faults.watch(), None).unwrap());
        let chain = (0..u64::from(tokens + 4) / 16).map(warmroute_engine::BlockName).collect();
        let request = Request { chain, prompt_tokens: 4, output_tokens: tokens };
        let ticket = rank.submit(request, None, FinishedReason::Length, 0).await;
        let text = "word".repeat(tokens as usize);
        let answering = Answering {
            head: Head { id: "1".to_owned(), created_s: 0, model: "m".to_owned() },
            answers: vec![Answer { text, tokens, finish: Finish::Length, tokenizer: Tokenizer::Quads }],
            tickets: vec![ticket],
            answers_per_prompt: 1,
            prompt_tokens: 4,
            usage_details: UsageDetails::Omit,
            honesty: Honesty::Truth,
        };
        let shape = completions::read(br#"{"prompt":"x"}"#, Tokenizer::Quads).ok().unwrap().shape;
        let line = OpenConnections::default().open();
        (Stream::new(Generation { answering, shape, reset_after: None, line }), rank)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_was_slow_gets_everything_in_writes_of_bounded_size() {
        let faults = Faults::new();
        let (mut stream, rank) = stream_of(2_000, &faults).await;
        let ticket = &stream.generation.answering.tickets[0];
        poll_fn(|cx| ticket.progress().poll_beyond(cx, 1_999)).await;
        assert_eq!(rank.board().stats.running, 0, "all tokens wait to be written");
        let (mut events, mut writes) = (0, 0);
        while let Some(written) = poll_fn(|cx| stream.poll_events(cx)).await {
            assert!(written.len() < WRITE_BYTES_MAX + 1_024, "{}", written.len());
            events += String::from_utf8_lossy(&written).matches("data: ").count();
            writes += 1;
        }
        assert_eq!(events, 2_000 + 1);
        assert!(writes > 3, "{writes}");
    }
}
