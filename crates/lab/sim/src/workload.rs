//! Workloads by name, generated from a seed: published ones with their published numbers, and simple ones for
//! single effects.
//!
//! Each yields sessions in the order of their start, lazily: a million requests take the memory of those in
//! flight. A seed gives the same stream for every fleet and policy.

mod agentic;
mod b2b;
mod chat;
mod codegen;
mod coding_agents;
mod documents;
mod equal_queries;
mod follow_up;
mod rag;
mod single;
mod tenants;

use std::str::FromStr;

use thiserror::Error;

use crate::Session;

/// Sessions in the order of their start.
pub type Sessions = Box<dyn Iterator<Item = Session> + Send>;

/// A named workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// llm-d's B2B SaaS replay: 150 groups of 5 prompts, 6,000 shared tokens, stages of 3 to 60 requests per
    /// second.
    B2b,
    /// llm-d's code generation: long system prompts, growing conversations, a fixed number of clients.
    Codegen,
    /// llm-d's reasoning: little shared content, answers of 8,000 tokens.
    Reasoning,
    /// Agents with published statistics: contexts of hundreds of thousands of tokens, many turns, sub-agents.
    Agentic,
    /// Coding agents: tools that take a second or minutes, sub-agents that start several at once.
    CodingAgents,
    /// Tenants with system prompts of 6,000 tokens: the traffic of the GPU study.
    Tenants,
    /// Chats like ShareGPT's: short turns, no system prompt.
    Sharegpt,
    /// Questions over retrieved passages, placed before the history, where they prevent its reuse.
    RagBefore,
    /// As `RagBefore`, with the passages after the history.
    RagAfter,
    /// Five thousand requests at once, with one shared instruction.
    Batch,
    /// 200 tokens in, 20 out, nothing shared.
    Short,
    /// 2,000 tokens in, 200 out, nothing shared.
    Unique,
    /// One prefix of 4,000 tokens that all requests share.
    OneHotPrefix,
    /// Chats of a few tenants that arrive in bursts.
    Burst,
    /// Lengths like those of Azure's conversation trace, nothing shared.
    Azure,
    /// Long documents: summaries, then questions about the same document.
    Documents,
    /// One question and one follow-up, nothing shared between conversations: the setting of the 1/N law.
    FollowUp,
    /// One agent that sends the same 76,288 tokens (10 GB of KV cache) ten times.
    EqualQueries,
    /// Chats with six system prompts, for two engines with caches of a few thousand tokens.
    Assistants,
}

/// Seed, rate and size of a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkloadScale {
    /// Seed of the stream.
    pub seed: u64,
    /// Multiple of the workload's own rate, or number of clients.
    pub rate: f64,
    /// Approximate number of requests, as sessions are not split; `None` for the workload's own number.
    pub requests: Option<u64>,
}

impl Default for WorkloadScale {
    fn default() -> WorkloadScale {
        WorkloadScale { seed: 1, rate: 1.0, requests: None }
    }
}

/// Error of an unknown workload.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown workload `{0}`; known: {known}", known = Workload::ALL.map(Workload::as_str).join(", "))]
pub struct UnknownWorkload(pub String);

impl Workload {
    /// All workloads.
    pub const ALL: [Workload; 19] = [
        Workload::B2b,
        Workload::Codegen,
        Workload::Reasoning,
        Workload::Agentic,
        Workload::CodingAgents,
        Workload::Tenants,
        Workload::Sharegpt,
        Workload::RagBefore,
        Workload::RagAfter,
        Workload::Batch,
        Workload::Short,
        Workload::Unique,
        Workload::OneHotPrefix,
        Workload::Burst,
        Workload::Azure,
        Workload::Documents,
        Workload::FollowUp,
        Workload::EqualQueries,
        Workload::Assistants,
    ];

    /// Name in flags and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Workload::B2b => "b2b",
            Workload::Codegen => "codegen",
            Workload::Reasoning => "reasoning",
            Workload::Agentic => "agentic",
            Workload::CodingAgents => "coding-agents",
            Workload::Tenants => "tenants",
            Workload::Sharegpt => "sharegpt",
            Workload::RagBefore => "rag-before",
            Workload::RagAfter => "rag-after",
            Workload::Batch => "batch",
            Workload::Short => "short",
            Workload::Unique => "unique",
            Workload::OneHotPrefix => "one-hot-prefix",
            Workload::Burst => "burst",
            Workload::Azure => "azure",
            Workload::Documents => "documents",
            Workload::FollowUp => "follow-up",
            Workload::EqualQueries => "equal-queries",
            Workload::Assistants => "assistants",
        }
    }

    /// Generates the sessions.
    pub fn sessions(self, scale: WorkloadScale) -> Sessions {
        match self {
            Workload::B2b => b2b::sessions(scale),
            Workload::Codegen => codegen::sessions(scale),
            Workload::Reasoning => single::sessions(scale, single::REASONING),
            Workload::Agentic => agentic::sessions(scale),
            Workload::CodingAgents => coding_agents::sessions(scale),
            Workload::Tenants => tenants::sessions(scale),
            Workload::Sharegpt => chat::sessions(scale, chat::SHAREGPT),
            Workload::RagBefore => rag::sessions(scale, rag::PassageOrder::BeforeHistory),
            Workload::RagAfter => rag::sessions(scale, rag::PassageOrder::AfterHistory),
            Workload::Batch => single::sessions(scale, single::BATCH),
            Workload::Short => single::sessions(scale, single::SHORT),
            Workload::Unique => single::sessions(scale, single::UNIQUE),
            Workload::OneHotPrefix => single::sessions(scale, single::ONE_HOT_PREFIX),
            Workload::Burst => chat::sessions(scale, chat::BURST),
            Workload::Azure => single::sessions(scale, single::AZURE),
            Workload::Documents => documents::sessions(scale),
            Workload::FollowUp => follow_up::sessions(scale),
            Workload::EqualQueries => equal_queries::sessions(scale),
            Workload::Assistants => chat::sessions(scale, chat::ASSISTANTS),
        }
    }
}

impl FromStr for Workload {
    type Err = UnknownWorkload;

    fn from_str(name: &str) -> Result<Workload, UnknownWorkload> {
        let known = Workload::ALL.into_iter().find(|workload| workload.as_str() == name.replace('_', "-"));
        known.ok_or_else(|| UnknownWorkload(name.to_owned()))
    }
}

/// Takes sessions until they hold about this many requests.
fn up_to(sessions: impl Iterator<Item = Session> + Send + 'static, requests: u64) -> Sessions {
    let mut sent = 0;
    Box::new(sessions.take_while(move |session| {
        let is_wanted = sent < requests;
        sent += session.turns.len() as u64;
        is_wanted
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens;

    fn some(workload: Workload, seed: u64) -> Vec<Session> {
        workload.sessions(WorkloadScale { seed, rate: 1.0, requests: Some(300) }).collect()
    }

    #[test]
    fn every_workload_is_sorted_complete_and_determined_by_its_seed() {
        for workload in Workload::ALL {
            assert_eq!(workload.as_str().parse(), Ok(workload));
            let sessions = some(workload, 1);
            let name = workload.as_str();
            assert!(sessions.is_sorted_by_key(|session| session.starts), "{name}");
            assert_eq!(sessions, some(workload, 1), "{name}");
            assert_ne!(sessions, some(workload, 2), "{name}");
            let turns: Vec<_> = sessions.iter().flat_map(|session| &session.turns).collect();
            assert!(turns.len() >= 300, "{name}: {}", turns.len());
            for turn in turns {
                assert!(tokens(&turn.prompt) > 0 && tokens(&turn.answer) > 0, "{name}");
                assert!(turn.thread.first_tokens <= tokens(&turn.prompt).max(turn.thread.first_tokens));
            }
        }
    }

    #[test]
    fn twice_the_rate_takes_half_the_time() {
        let span = |rate| {
            let scale = WorkloadScale { rate, requests: Some(4_000), ..WorkloadScale::default() };
            Workload::Unique.sessions(scale).last().unwrap().starts.as_secs_f64()
        };
        let ratio = span(1.0) / span(2.0);
        assert!((ratio - 2.0).abs() < 0.1, "{ratio}");
    }
}
