//! Executes what an answer has shown when the events of its prompt arrive after it.

use warmroute_policy::Policy;
use warmroute_types::WorkerId;

use super::Router;
use crate::PromptText;
use crate::assessment::is_reported;
use crate::awaited_answers::{AwaitedAnswer, AwaitedAnswers};
use crate::decision::Decision;
use crate::reported_view::ReportedView;

impl<P: Policy> Router<P> {
    /// Keeps an answer whose prompt is not reported as a whole.
    pub(super) fn await_events(&self, decision: &Decision, text: PromptText<'_>, prompt_tokens: u32) {
        if !AwaitedAnswers::has_room_for(text) {
            return;
        }
        let worker = decision.worker.id;
        self.awaited_answers.keep(AwaitedAnswer {
            worker,
            generation: decision.expectation.generation,
            root: text.root,
            unit: text.unit,
            bytes: text.bytes.to_vec(),
            prompt_tokens,
            sent: decision.made,
            moment: decision.moment,
            ticket: decision.ticket,
        });
        // They may have arrived since they were looked for.
        self.learn_awaited_answers(worker);
    }

    /// Executes what earlier answers have shown, where their prompts are reported by now.
    pub(super) fn learn_awaited_answers(&self, worker: WorkerId) {
        for answer in self.awaited_answers.take(worker) {
            let load = self.fleet.load_view(worker);
            if load.generation != answer.generation {
                continue;
            }
            let reported = self.reported_tokens(answer.text(), ReportedView::Sampled.holder(worker));
            if !is_reported(reported, answer.prompt_tokens, load.block_tokens.unwrap_or(1)) {
                self.awaited_answers.keep(answer);
                continue;
            }
            self.speculations.caught_up(worker, answer.moment);
            answer.ticket.into_iter().for_each(|ticket| self.speculations.answered(ticket));
            self.prove(worker, answer.text(), answer.prompt_tokens);
        }
    }
}
