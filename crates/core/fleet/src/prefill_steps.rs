//! Steps that have been observed and wait for what their answers tell.
//!
//! A first token shows how long a step of prefills took. How many of its prompt tokens were cached the engine reports only at the
//! end of the answer, seconds later. The latency model learns from the step at once with predicted cached tokens, and again with
//! the reported ones.

use std::collections::VecDeque;

use warmroute_types::Micros;

use crate::latency_model::{
    FeatureVector, LatencyModel, ObservedPrompt, ObservedStep, PrefillFeatures, Verified,
};

/// First tokens this close to each other are taken for one step. After a burst, the tokens of one step reach a busy router over
/// many connections within milliseconds; each taken for a step of its own, prompts would seem to be computed in no time.
pub(crate) const SAME_STEP: Micros = Micros::from_millis(5);

/// Two steps of a fast engine that are taken for one are learned from as well as one: their times are added. But not endlessly many.
const STEP_SPREAD_MAX: Micros = Micros::from_millis(25);

/// The most prompts that wait; beyond, the oldest is given up.
const WAITING_MAX: usize = 1_024;

/// One worker's steps, oldest first.
#[derive(Debug, Default)]
pub(crate) struct PendingSteps {
    steps: VecDeque<PendingStep>,
    /// Prompts of those steps whose answers have not ended, in the order of their steps.
    prompts: VecDeque<PendingPrompt>,
    next_step: u64,
    /// Memory for the prompts of the step at hand, kept between steps.
    pub(crate) computed: Vec<ComputedPrompt>,
}

/// A prompt of the step at hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComputedPrompt {
    pub ticket: u64,
    pub features: PrefillFeatures,
    /// Whether something will still be reported of it.
    pub report: ReportExpected,
}

/// Whether something will be reported of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportExpected {
    /// Its answer has not ended.
    Yes,
    /// A peer sent it, or its answer was not streamed and may have ended.
    No,
}

#[derive(Debug)]
struct PendingStep {
    number: u64,
    observed: ObservedStep,
    /// When the first of its first tokens came.
    began_at: Micros,
    /// When the last of them came.
    first_token_at: Micros,
    /// Something else took a part of its time: nothing is learned from it.
    is_disturbed: bool,
    /// Its prompts that have not been reported.
    open: usize,
    /// The model's number of it, once it has been learned from.
    lesson: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct PendingPrompt {
    ticket: u64,
    step: u64,
    features: PrefillFeatures,
}

impl PendingStep {
    /// Whether a first token that comes now is one of its own.
    fn is_joined_at(&self, now: Micros) -> bool {
        now.since(self.first_token_at) <= SAME_STEP && now.since(self.began_at) <= STEP_SPREAD_MAX
    }
}

impl PendingSteps {
    /// First tokens have come. `took` is since the step began, or since the first token before them, and `position` the part
    /// of the features that belongs to the step as a whole.
    pub(crate) fn observe(
        &mut self,
        prompts: &[ComputedPrompt],
        position: FeatureVector,
        took: Micros,
        now: Micros,
        is_disturbed: bool,
    ) {
        let joins = self.steps.back().is_some_and(|step| step.is_joined_at(now));
        if !joins {
            let observed = ObservedStep {
                features: FeatureVector::default(),
                features_if_cold: FeatureVector::default(),
                took_ms: 0.0,
                verified: Verified::Yes,
            };
            let (number, open, lesson) = (self.next_step, 0, None);
            self.next_step += 1;
            let (began_at, first_token_at) = (now, now);
            self.steps.push_back(PendingStep {
                number,
                observed,
                began_at,
                first_token_at,
                is_disturbed,
                open,
                lesson,
            });
        }
        let Some(step) = self.steps.back_mut() else { return };
        step.first_token_at = now;
        step.observed.took_ms += took.0 as f64 / 1e3;
        step.observed.add(&position, &position);
        for &ComputedPrompt { ticket, features, report } in prompts {
            match report {
                ReportExpected::Yes => {
                    step.open += 1;
                    self.prompts.push_back(PendingPrompt { ticket, step: step.number, features });
                }
                ReportExpected::No => step.observed.add_unverified(&features),
            }
        }
    }

    /// Teaches the model the newest step, with predicted cached tokens for all prompts of which nothing was reported yet. False if
    /// there is nothing to learn.
    pub(crate) fn teach_newest(&mut self, model: &mut LatencyModel) -> bool {
        let Some(step) = self.steps.back_mut().filter(|step| !step.is_disturbed) else { return false };
        let mut observed = step.observed;
        for prompt in self.prompts.iter().rev().take_while(|prompt| prompt.step == step.number) {
            observed.add_unverified(&prompt.features);
        }
        match step.lesson {
            Some(lesson) => model.revise(lesson, &observed),
            None => step.lesson = Some(model.observe(&observed)),
        }
        true
    }

    /// An answer has ended; what its engine reported of its prompt, if it did.
    pub(crate) fn report(&mut self, ticket: u64, prompt: Option<ObservedPrompt>) {
        let Some(at) = self.prompts.iter().position(|prompt| prompt.ticket == ticket) else { return };
        let Some(PendingPrompt { step, features, .. }) = self.prompts.remove(at) else { return };
        let Ok(at) = self.steps.binary_search_by_key(&step, |step| step.number) else { return };
        let step = &mut self.steps[at];
        step.open -= 1;
        match prompt {
            Some(prompt) => {
                let seen = without_position(&features.observed(prompt));
                step.observed.add(&seen, &seen);
            }
            None => step.observed.add_unverified(&features),
        }
    }

    /// A step all of whose answers have ended and that no further first token can join, with the model's number of it; disturbed ones
    /// are dropped on the way.
    pub(crate) fn take_complete(&mut self, now: Micros) -> Option<(ObservedStep, Option<u64>)> {
        while self.prompts.len() > WAITING_MAX {
            let oldest = self.prompts[0].ticket;
            self.report(oldest, None);
        }
        let mut at = 0;
        while at < self.steps.len() {
            let step = &self.steps[at];
            let is_closed = at + 1 < self.steps.len() || !step.is_joined_at(now);
            if step.open > 0 || !is_closed {
                at += 1;
                continue;
            }
            let step = self.steps.remove(at)?;
            if !step.is_disturbed {
                return Some((step.observed, step.lesson));
            }
        }
        None
    }

    /// Steps that are not complete.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// All answers end without a report, except those of the newest step.
    #[cfg(test)]
    pub(crate) fn abandon_older(&mut self) {
        let newest = self.steps.back().map_or(0, |step| step.number);
        let older = self.prompts.iter().filter(|prompt| prompt.step < newest).map(|prompt| prompt.ticket);
        older.collect::<Vec<_>>().into_iter().for_each(|ticket| self.report(ticket, None));
    }

    /// Allocates what this many prompts need, so that requests do not.
    pub(crate) fn reserve(&mut self, prompts: usize) {
        self.steps.reserve(prompts);
        self.prompts.reserve(prompts);
        self.computed.reserve(prompts);
    }

    /// Forgets all steps: another engine process runs at this address.
    pub(crate) fn clear(&mut self) {
        self.steps.clear();
        self.prompts.clear();
    }
}

impl ObservedStep {
    fn add(&mut self, features: &FeatureVector, if_cold: &FeatureVector) {
        add(&mut self.features, features);
        add(&mut self.features_if_cold, if_cold);
    }

    fn add_unverified(&mut self, features: &PrefillFeatures) {
        self.verified = Verified::No;
        self.add(&without_position(features), &without_position(&features.cold()));
    }
}

/// The position in the queue is the step's, not the single prompt's.
fn without_position(features: &PrefillFeatures) -> FeatureVector {
    let mut vector = features.vector();
    (vector[0], vector[1]) = (0.0, 0.0);
    vector
}

fn add(sum: &mut FeatureVector, features: &FeatureVector) {
    sum.iter_mut().zip(features).for_each(|(sum, feature)| *sum += feature);
}
