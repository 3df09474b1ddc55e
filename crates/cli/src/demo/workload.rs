//! A workload of conversations from several tenants of one fleet.
//!
//! Each tenant has a system prompt that all its conversations start with. A conversation has a few turns. Each turn
//! sends the whole conversation so far, after the last answer and a pause.

use std::time::Duration;

/// Conversations that share one system prompt.
const CONVERSATIONS_PER_TENANT: u32 = 6;
/// Turns of a conversation.
pub const TURNS: usize = 4;
/// Tokens of a system prompt, a question and an answer; a token has four bytes.
pub const SYSTEM_TOKENS: usize = 3_000;
pub const QUESTION_TOKENS: usize = 300;
pub const ANSWER_TOKENS: u32 = 60;
/// Conversations start within this many seconds of engine time.
const BEGIN_WITHIN_S: f64 = 12.0;
/// Minimum seconds between an answer and the next question; a random pause adds up to as many again.
const PAUSE_S: f64 = 0.75;

/// All conversations, in order of their start.
pub struct Workload {
    pub conversations: Vec<Conversation>,
}

/// A client's questions, each sent after the answer to the one before.
#[derive(Clone)]
pub struct Conversation {
    /// The value of the session header.
    pub name: String,
    /// Start after the start of the run, in engine time.
    pub begins: Duration,
    pub system: String,
    /// Each question, and the pause before it.
    pub questions: Vec<(Duration, String)>,
}

impl Workload {
    /// The same seed gives the same conversations.
    pub fn new(conversations: u32, seed: u64) -> Workload {
        let mut chance = Chance(seed);
        let tenants = conversations.div_ceil(CONVERSATIONS_PER_TENANT);
        let systems: Vec<String> =
            (0..tenants).map(|tenant| chance.text(&format!("Tenant {tenant}."), SYSTEM_TOKENS)).collect();
        let mut conversations: Vec<Conversation> = (0..conversations)
            .map(|i| {
                let begins = Duration::from_secs_f64(chance.share() * BEGIN_WITHIN_S);
                let system = systems[(i % tenants) as usize].clone();
                let questions = (0..TURNS).map(|turn| chance.question(turn)).collect();
                Conversation { name: format!("session-{i}"), begins, system, questions }
            })
            .collect();
        conversations.sort_by_key(|conversation| conversation.begins);
        Workload { conversations }
    }

    /// Share of all prompt tokens that an infinite shared cache would hold: everything but the first occurrence of
    /// each system prompt and each question. No policy can find more.
    pub fn ideal_hit_ratio(&self) -> f64 {
        let (mut all, mut new) = (0, 0);
        let mut systems: Vec<&str> = Vec::new();
        for conversation in &self.conversations {
            let mut length = conversation.system.len() / 4;
            if !systems.contains(&conversation.system.as_str()) {
                systems.push(&conversation.system);
                new += length;
            }
            for (_, question) in &conversation.questions {
                length += question.len() / 4;
                (all, new) = (all + length, new + question.len() / 4);
                length += ANSWER_TOKENS as usize;
            }
        }
        1.0 - new as f64 / all as f64
    }

    /// Total number of requests.
    pub fn requests(&self) -> u64 {
        (self.conversations.len() * TURNS) as u64
    }
}

/// A small random number generator, so that a seed gives the same workload on every machine and version.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A random number between 0 and 1.
    fn share(&mut self) -> f64 {
        self.next() as f64 / u64::MAX as f64
    }

    /// Filler text that starts with `start`; no two are equal.
    fn text(&mut self, start: &str, tokens: usize) -> String {
        const WORDS: [&str; 16] = [
            "routing", "prefix", "cache", "token", "engine", "queue", "batch", "worker", "prompt", "answer",
            "block", "memory", "first", "latency", "fleet", "warm",
        ];
        let mut text = start.to_owned();
        while text.len() < tokens * 4 {
            text.push(' ');
            text.push_str(WORDS[self.next() as usize % WORDS.len()]);
        }
        text.truncate(tokens * 4);
        text
    }

    fn question(&mut self, turn: usize) -> (Duration, String) {
        let pause = if turn == 0 { 0.0 } else { PAUSE_S * (1.0 + self.share()) };
        let tokens = QUESTION_TOKENS / 2 + self.next() as usize % QUESTION_TOKENS;
        (Duration::from_secs_f64(pause), self.text(&format!("Question {turn}:"), tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_conversations() {
        let texts = |seed| -> Vec<String> {
            Workload::new(20, seed).conversations.into_iter().map(|c| c.system + &c.questions[0].1).collect()
        };
        assert_eq!(texts(1), texts(1));
        assert_ne!(texts(1), texts(2));
    }

    #[test]
    fn the_ideal_is_everything_said_before() {
        let ideal = Workload::new(144, 1).ideal_hit_ratio();
        assert!((0.85..0.97).contains(&ideal), "{ideal}");
        // One conversation alone: its system prompt is new once and repeated three times.
        let alone = Workload::new(1, 1).ideal_hit_ratio();
        assert!((0.5..0.75).contains(&alone), "{alone}");
    }

    #[test]
    fn tenants_share_a_system_prompt_and_nothing_else() {
        let workload = Workload::new(24, 7);
        let mut systems: Vec<&str> = workload.conversations.iter().map(|c| c.system.as_str()).collect();
        systems.sort_unstable();
        systems.dedup();
        assert_eq!(systems.len(), 4);
        let mut questions: Vec<&str> = workload
            .conversations
            .iter()
            .flat_map(|c| c.questions.iter().map(|(_, text)| text.as_str()))
            .collect();
        questions.sort_unstable();
        questions.dedup();
        assert_eq!(questions.len() as u64, workload.requests());
    }
}
