//! A policy in any language: one JSON object a line in, one out.
//!
//! ```text
//!   {"prompt_tokens": 900, "session_key": 7, …, "candidates": [{"overlap_tokens": 640, "estimate": {…}, …}, …]}  ──►  program
//!   {"index": 2}  ◄──  program
//! ```
//!
//! The program is started once per router and run, so it may keep state. It receives exactly what a policy in Rust
//! receives, under the same names, and answers with the index of its candidate. A program that exceeds the time limit
//! ends the run.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use thiserror::Error;
use warmroute_policy::{Candidate, Choice, Estimate, Policy, PolicyRequest};

use crate::built_rule::Needs;
use crate::rule::Rule;

/// Why a program cannot be asked.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct ProgramError(String);

/// The first error. A policy cannot fail, so the error is reported after the run.
pub type Trouble = Arc<Mutex<Option<String>>>;

/// Time limit of an answer. A choice takes microseconds, but an interpreter may load for a while before its first
/// one.
const PATIENCE: Duration = Duration::from_secs(10);

/// A policy that asks a program.
pub fn exec_rule(name: &str, program: &str, trouble: &Trouble) -> Result<Rule, ProgramError> {
    // Starts the program once now, so that a wrong name fails before anything runs.
    drop(Program::start(program, PATIENCE)?);
    let (program, trouble) = (program.to_owned(), Arc::clone(trouble));
    let needs = Needs { overlap: true, prefix_key: true, session_key: true };
    Ok(Rule::made_by(name, needs, move || {
        let started =
            Program::start(&program, PATIENCE).map_err(|error| report(&trouble, &error.to_string())).ok();
        Box::new(Exec { program: Mutex::new(started), trouble: Arc::clone(&trouble) })
    }))
}

struct Exec {
    /// `None` after the first error.
    program: Mutex<Option<Program>>,
    trouble: Trouble,
}

struct Program {
    child: Child,
    /// Channels to the thread that owns the pipes: pipe reads and writes have no timeout.
    asks: Sender<String>,
    answers: Receiver<Result<String, ProgramError>>,
    patience: Duration,
}

impl Program {
    fn start(program: &str, patience: Duration) -> Result<Program, ProgramError> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| ProgramError(format!("starting {program}: {error}")))?;
        let stdin = child.stdin.take().expect("its stdin is a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("its stdout is a pipe"));
        let ((asks, questions), (lines, answers)) = (channel(), channel());
        std::thread::spawn(move || talk(stdin, stdout, &questions, &lines));
        Ok(Program { child, asks, answers, patience })
    }

    fn choose(&mut self, ask: &PolicyRequest, candidates: &[Candidate]) -> Result<usize, ProgramError> {
        let line = self.answer(question(ask, candidates).to_string())?;
        let unreadable = |error| ProgramError(format!("it answered {line:?}: {error}"));
        let answer: Value = serde_json::from_str(&line).map_err(unreadable)?;
        let missing = || ProgramError(format!("no index in {line:?}"));
        let index = answer["index"].as_u64().ok_or_else(missing)? as usize;
        match index < candidates.len() {
            true => Ok(index),
            false => Err(ProgramError(format!("index {index} of {} candidates", candidates.len()))),
        }
    }

    fn answer(&mut self, question: String) -> Result<String, ProgramError> {
        self.asks.send(question).map_err(|_| ProgramError("it was given up".to_owned()))?;
        self.answers.recv_timeout(self.patience).unwrap_or_else(|error| {
            Err(ProgramError(match error {
                RecvTimeoutError::Timeout => {
                    format!("it did not answer within {} s", self.patience.as_secs_f64())
                }
                RecvTimeoutError::Disconnected => "it no longer answers".to_owned(),
            }))
        })
    }
}

/// Writes queries and reads answers one by one until either side closes. Killing the program closes its pipes.
fn talk(
    mut stdin: ChildStdin,
    mut stdout: BufReader<ChildStdout>,
    questions: &Receiver<String>,
    answers: &Sender<Result<String, ProgramError>>,
) {
    while let Ok(question) = questions.recv() {
        let mut line = String::new();
        let failed = |what: &str, error: std::io::Error| ProgramError(format!("{what}: {error}"));
        let asked = writeln!(stdin, "{question}").map_err(|error| failed("it no longer reads", error));
        let answered = asked.and_then(|()| {
            stdout.read_line(&mut line).map_err(|error| failed("it no longer answers", error))
        });
        if answers.send(answered.map(|_| line)).is_err() {
            return;
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program may have exited; the receiver is gone.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn question(ask: &PolicyRequest, candidates: &[Candidate]) -> Value {
    let candidate = |candidate: &Candidate| {
        json!({
            "worker": candidate.worker.0,
            "identity": candidate.identity,
            "overlap_tokens": candidate.overlap_tokens,
            "restorable_tokens": candidate.restorable_tokens,
            "shortfall_tokens": candidate.shortfall_tokens,
            "in_flight": candidate.in_flight,
            "prefill_tokens": candidate.prefill_tokens,
            "decode_tokens": candidate.decode_tokens,
            "waiting": candidate.waiting,
            "estimate": estimated(&candidate.estimate),
        })
    };
    json!({
        "prompt_tokens": ask.prompt_tokens,
        "session_key": ask.session_key,
        "prefix_key": ask.prefix_key,
        "random": ask.random,
        "turn": ask.turn,
        "candidates": candidates.iter().map(candidate).collect::<Vec<_>>(),
    })
}

fn estimated(estimate: &Estimate) -> Value {
    json!({
        "ttft_ms": estimate.ttft_ms(),
        "queue_ms": estimate.queue_ms,
        "prefill_ms": estimate.prefill_ms,
        "uncached_ms": estimate.uncached_ms,
        "adapter_ms": estimate.adapter_ms,
        "lacking_ms": estimate.lacking_ms,
        "anywhere_ms": estimate.anywhere_ms,
        "step_ms": estimate.step_ms,
        "eviction_ms": estimate.eviction_ms,
        "prompts_ahead": estimate.prompts_ahead,
        "followers": estimate.followers,
        "idle_us": estimate.idle.0,
    })
}

impl Policy for Exec {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn choose(&self, ask: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let mut program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        let chosen = program.as_mut().map(|program| program.choose(ask, candidates));
        match chosen {
            Some(Ok(index)) => return Choice { index, reason: "exec" },
            Some(Err(error)) => {
                report(&self.trouble, &error.to_string());
                *program = None;
            }
            None => {}
        }
        // The run is invalid and only has to end.
        Choice { index: 0, reason: "exec_failed" }
    }
}

fn report(trouble: &Trouble, what: &str) {
    trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| what.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_types::{Micros, WorkerId};

    fn candidate(worker: u16) -> Candidate {
        Candidate {
            worker: WorkerId(worker),
            identity: u64::MAX - 1,
            overlap_tokens: 640,
            restorable_tokens: 64,
            shortfall_tokens: 0,
            in_flight: 2,
            prefill_tokens: 4_000,
            decode_tokens: 9_000,
            waiting: None,
            estimate: Estimate {
                queue_ms: 8.5,
                prefill_ms: 4.0,
                uncached_ms: 3.5,
                adapter_ms: 0.5,
                eviction_ms: 0.75,
                lacking_ms: 2.0,
                anywhere_ms: 1.5,
                step_ms: 0.25,
                prompts_ahead: 3,
                followers: 0.5,
                idle: Micros(77),
            },
        }
    }

    #[test]
    fn a_program_is_told_all_that_a_policy_sees() {
        let ask = PolicyRequest {
            prompt_tokens: 900,
            session_key: Some(7),
            prefix_key: None,
            random: 5,
            turn: 1,
            ..PolicyRequest::default()
        };
        let candidate = candidate(4);
        // Destructured without `..`, so that a new field of policies must be added here as well.
        let Candidate {
            worker,
            identity,
            overlap_tokens,
            restorable_tokens,
            shortfall_tokens,
            in_flight,
            prefill_tokens,
            decode_tokens,
            waiting,
            estimate,
        } = candidate;
        let Estimate {
            queue_ms,
            prefill_ms,
            uncached_ms,
            adapter_ms,
            lacking_ms,
            anywhere_ms,
            step_ms,
            eviction_ms,
            prompts_ahead,
            followers,
            idle,
        } = estimate;
        let told = question(&ask, &[candidate]);
        let estimate = json!({
            "ttft_ms": 13.0, "queue_ms": queue_ms, "prefill_ms": prefill_ms, "uncached_ms": uncached_ms, "adapter_ms": adapter_ms, "lacking_ms": lacking_ms,
            "anywhere_ms": anywhere_ms, "step_ms": step_ms, "eviction_ms": eviction_ms, "prompts_ahead": prompts_ahead, "followers": followers, "idle_us": idle.0,
        });
        let candidate = json!({
            "worker": worker.0, "identity": identity, "overlap_tokens": overlap_tokens,
            "restorable_tokens": restorable_tokens, "shortfall_tokens": shortfall_tokens, "in_flight": in_flight,
            "prefill_tokens": prefill_tokens, "decode_tokens": decode_tokens, "waiting": waiting, "estimate": estimate,
        });
        let expected = json!({
            "prompt_tokens": 900, "session_key": 7, "prefix_key": null, "random": 5, "turn": 1,
            "candidates": [candidate],
        });
        assert_eq!(told, expected);
    }

    #[test]
    fn who_keeps_silent_is_given_up() {
        // The program reads everything before it writes anything.
        let mut silent = Program::start("sort", Duration::from_millis(30)).unwrap();
        let error = silent.choose(&PolicyRequest::default(), &[candidate(0)]).unwrap_err().to_string();
        assert_eq!(error, "it did not answer within 0.03 s");
    }

    #[test]
    fn who_does_not_even_read_is_given_up() {
        // A query of this size does not fit into a pipe that is not read.
        let mut deaf = Program::start("yes", Duration::from_millis(30)).unwrap();
        let candidates: Vec<Candidate> = (0..2_000).map(candidate).collect();
        let error = deaf.choose(&PolicyRequest::default(), &candidates).unwrap_err().to_string();
        assert_eq!(error, "it did not answer within 0.03 s");
    }
}
