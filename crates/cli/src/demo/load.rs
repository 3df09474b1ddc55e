//! Sends all conversations of a workload to a gateway.

use std::net::SocketAddr;
use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::workload::{ANSWER_TOKENS, Conversation, Workload};
use crate::client::{self, Question, Served};

/// The gateway to send to.
#[derive(Clone, Copy)]
pub struct Target {
    pub gateway: SocketAddr,
    pub model: &'static str,
    /// Engine seconds per second. Pauses are in engine time.
    pub speed: f64,
}

/// The results of a workload.
pub struct Outcome {
    pub served: Vec<Served>,
    pub errors: u64,
    /// From the first request to the end of the last answer, in wall time.
    pub lasted: Duration,
}

/// Runs all conversations, each from its own start time.
pub async fn run(workload: &Workload, target: Target, bar: &ProgressBar) -> Outcome {
    let start = Instant::now();
    let mut talks = JoinSet::new();
    for conversation in workload.conversations.iter().cloned() {
        talks.spawn(talk(conversation, target, start, bar.clone()));
    }
    let mut outcome = Outcome { served: Vec::new(), errors: 0, lasted: Duration::ZERO };
    while let Some(talked) = talks.join_next().await {
        let (served, errors) = talked.unwrap_or((Vec::new(), 1));
        outcome.served.extend(served);
        outcome.errors += errors;
    }
    outcome.lasted = start.elapsed();
    outcome
}

/// Runs one conversation. A failed turn ends it, because the next turn needs the answer.
async fn talk(
    conversation: Conversation,
    target: Target,
    start: Instant,
    bar: ProgressBar,
) -> (Vec<Served>, u64) {
    let wall = |engine: Duration| engine.div_f64(target.speed);
    let authority = target.gateway.to_string();
    tokio::time::sleep_until(start + wall(conversation.begins)).await;
    let mut messages = vec![json!({"role": "system", "content": conversation.system})];
    let mut served = Vec::new();
    for (pause, question) in conversation.questions {
        tokio::time::sleep(wall(pause)).await;
        messages.push(json!({"role": "user", "content": question}));
        let question = Question {
            authority: &authority,
            path: "/v1/chat/completions",
            session: Some(conversation.name.clone()),
            body: request(target, &messages),
        };
        match client::ask(question).await {
            Ok(answer) => {
                messages.push(json!({"role": "assistant", "content": answer.text}));
                served.push(answer);
            }
            Err(error) => {
                bar.suspend(|| eprintln!("request failed: {error:#}"));
                return (served, 1);
            }
        }
        bar.inc(1);
    }
    (served, 0)
}

fn request(target: Target, messages: &[Value]) -> String {
    json!({
        "model": target.model, "messages": messages, "max_tokens": ANSWER_TOKENS, "ignore_eos": true, "stream": true,
    })
    .to_string()
}
