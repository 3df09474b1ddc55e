//! Whether an engine computes the last cached block of each prompt again, learned from answers.
//!
//! vLLM does so with EAGLE and MTP drafts, and nothing announces it. Each answer whose cached tokens were certain shows the
//! one or the other. Single answers may mislead (an event that came late), so several decide.

/// Weight of the evidence from which the block counts as recomputed.
const DECIDED: u8 = 4;
/// The most evidence kept, so that an engine with other settings is noticed soon.
const EVIDENCE_MAX: u8 = 8;
/// What an answer that used its last block takes from the evidence.
const USED: u8 = 2;

/// The rule that an engine seems to follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastBlockRule {
    /// Answers whose last cached block was recomputed, less those whose was used.
    evidence: u8,
}

impl LastBlockRule {
    /// The rule after one more answer.
    #[must_use]
    pub fn after(self, was_recomputed: bool) -> LastBlockRule {
        let evidence = match was_recomputed {
            true => (self.evidence + 1).min(EVIDENCE_MAX),
            false => self.evidence.saturating_sub(USED),
        };
        LastBlockRule { evidence }
    }

    /// Whether the engine computes the block again.
    #[inline]
    pub fn is_recomputed(self) -> bool {
        self.evidence >= DECIDED
    }

    pub(crate) fn pack(self) -> u32 {
        u32::from(self.evidence)
    }

    #[inline]
    pub(crate) fn unpack(word: u32) -> LastBlockRule {
        LastBlockRule { evidence: (word as u8).min(EVIDENCE_MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(rule: LastBlockRule, answers: usize, was_recomputed: bool) -> LastBlockRule {
        (0..answers).fold(rule, |rule, _| rule.after(was_recomputed))
    }

    #[test]
    fn several_answers_decide_and_a_changed_engine_is_noticed() {
        let rule = LastBlockRule::default();
        assert!(!after(rule, 3, true).is_recomputed());
        assert!(after(rule, 4, true).is_recomputed());
        let sure = after(rule, 1_000, true);
        assert!(after(sure, 2, false).is_recomputed(), "late events change nothing");
        assert!(!after(sure, 3, false).is_recomputed());
    }

    #[test]
    fn an_engine_that_uses_its_last_block_is_never_taken_for_another() {
        let answers = (0..1_000).map(|answer| answer % 3 == 0);
        answers.fold(LastBlockRule::default(), |rule, was_recomputed| {
            let rule = rule.after(was_recomputed);
            assert!(!rule.is_recomputed());
            rule
        });
    }
}
