//! Conversations: growing turns with think times.

use warmroute_types::Micros;

use super::{Sessions, WorkloadScale, up_to};
use crate::random::{Random, mix};
use crate::{Piece, Session, Thread, Turn, tokens};

/// Parameters of the conversations.
#[derive(Clone, Copy, Debug)]
pub struct Chat {
    purpose: u64,
    /// Conversations started per second.
    rate_per_s: f64,
    requests: u64,
    /// Number of system prompts, and their tokens; 0 for none.
    tenants: u64,
    system_tokens: u32,
    turns_mean: f64,
    think_mean_s: f64,
    /// In the first `busy_s` of every `period_s` seconds the rate is higher by this factor.
    burst: Burst,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    period_s: f64,
    busy_s: f64,
    times: f64,
}

const EVEN: Burst = Burst { period_s: 1.0, busy_s: 0.0, times: 1.0 };

/// About 3.5 turns, short questions, answers of some 200 tokens.
pub const SHAREGPT: Chat = Chat {
    purpose: 201,
    rate_per_s: 20.0,
    requests: 20_000,
    tenants: 1,
    system_tokens: 0,
    turns_mean: 3.5,
    think_mean_s: 10.0,
    burst: EVEN,
};

/// Twenty tenants with long system prompts, ten times the rate for five seconds of every minute.
pub const BURST: Chat = Chat {
    purpose: 202,
    rate_per_s: 8.0,
    requests: 15_000,
    tenants: 20,
    system_tokens: 3_000,
    turns_mean: 3.0,
    think_mean_s: 8.0,
    burst: Burst { period_s: 60.0, busy_s: 5.0, times: 10.0 },
};

/// Six assistants with system prompts of 600 tokens, for two engines with caches of a few thousand tokens: what one
/// consumer GPU shared by two engines has left beside the weights of a 3B model.
pub const ASSISTANTS: Chat = Chat {
    purpose: 203,
    rate_per_s: 0.7,
    requests: 3_000,
    tenants: 6,
    system_tokens: 600,
    turns_mean: 3.0,
    think_mean_s: 6.0,
    burst: EVEN,
};

/// Generates the conversations.
pub fn sessions(scale: WorkloadScale, chat: Chat) -> Sessions {
    let mut random = Random::new(scale.seed, chat.purpose);
    let systems = random.bits();
    let mut now = Micros::ZERO;
    let stream = std::iter::repeat_with(move || {
        let rate_per_s = scale.rate * chat.rate_per_s * chat.burst.factor(now);
        now = now + random.gap(rate_per_s);
        let tenant = random.bits() % chat.tenants;
        let system = Piece { content: mix(systems ^ tenant), tokens: chat.system_tokens };
        conversation(now, &chat, system, &mut random)
    });
    up_to(stream, scale.requests.unwrap_or(chat.requests))
}

fn conversation(starts: Micros, chat: &Chat, system: Piece, random: &mut Random) -> Session {
    let key = random.bits();
    let turns = (random.exponential(chat.turns_mean - 1.0).round() as usize + 1).min(40);
    let mut history: Vec<Piece> = if system.tokens > 0 { vec![system] } else { Vec::new() };
    let mut first_tokens = 0;
    let turns = (0..turns).map(|turn| {
        history.push(Piece { content: random.bits(), tokens: random.tokens(60.0, 1.2, 4, 3_000) });
        let answer = Piece { content: random.bits(), tokens: random.tokens(180.0, 0.9, 4, 1_500) };
        let prompt = history.clone();
        history.push(answer);
        if turn == 0 {
            first_tokens = tokens(&prompt);
        }
        let think = Micros::from_millis_f64(random.exponential(chat.think_mean_s * 1_000.0));
        let thread = Thread { key: Some(key), first_tokens, system_tokens: system.tokens };
        Turn { think, thread, prompt, answer: vec![answer] }
    });
    Session { starts, turns: turns.collect() }
}

impl Burst {
    fn factor(&self, now: Micros) -> f64 {
        if now.as_secs_f64() % self.period_s < self.busy_s { self.times } else { 1.0 }
    }
}
