//! A policy in any language: one JSON object a line in, one out.
//!
//! The program is started once for each router of each run, so it may remember what it likes. What it is told and what it may
//! answer is exactly what a policy in Rust sees and says.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use serde_json::{Value, json};
use warmroute_policy::{Ask, Candidate, Choice, Policy};
use warmroute_sim::{Needs, Rule};

/// The first thing that went wrong, for when the run is over: a policy cannot fail.
pub type Trouble = Arc<Mutex<Option<String>>>;

/// A rule that asks a program.
pub fn rule(name: &str, program: &str, trouble: &Trouble) -> anyhow::Result<Rule> {
    // Started once now, so that a wrong name is told before anything runs.
    drop(Program::start(program)?);
    let (program, trouble) = (program.to_owned(), Arc::clone(trouble));
    let needs = Needs { overlap: true, prefix_key: true, session_key: true };
    Ok(Rule::made_by(name, needs, move || {
        let started = Program::start(&program).map_err(|error| report(&trouble, &format!("{error:#}"))).ok();
        Box::new(Exec { program: Mutex::new(started), trouble: Arc::clone(&trouble) })
    }))
}

struct Exec {
    /// Gone after its first mistake.
    program: Mutex<Option<Program>>,
    trouble: Trouble,
}

struct Program {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Program {
    fn start(program: &str) -> anyhow::Result<Program> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {program}"))?;
        let asks = child.stdin.take().context("its stdin is a pipe")?;
        let answers = BufReader::new(child.stdout.take().context("its stdout is a pipe")?);
        Ok(Program { child, asks, answers })
    }

    fn choose(&mut self, ask: &Ask, candidates: &[Candidate]) -> anyhow::Result<usize> {
        writeln!(self.asks, "{}", question(ask, candidates)).context("it no longer reads")?;
        let mut line = String::new();
        self.answers.read_line(&mut line).context("it no longer answers")?;
        let answer: Value = serde_json::from_str(&line).with_context(|| format!("it answered {line:?}"))?;
        let index = answer["index"].as_u64().with_context(|| format!("no index in {line:?}"))? as usize;
        anyhow::ensure!(index < candidates.len(), "index {index} of {} candidates", candidates.len());
        Ok(index)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself; there is nobody left to tell.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn question(ask: &Ask, candidates: &[Candidate]) -> Value {
    let candidate = |candidate: &Candidate| {
        json!({
            "worker": candidate.worker.0,
            "overlap_tokens": candidate.overlap_tokens,
            "in_flight": candidate.in_flight,
            "prefill_tokens": candidate.prefill_tokens,
            "decode_tokens": candidate.decode_tokens,
            "waiting": candidate.waiting,
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

impl Policy for Exec {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn choose(&self, ask: &Ask, candidates: &[Candidate]) -> Choice {
        let mut program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        let chosen = program.as_mut().map(|program| program.choose(ask, candidates));
        match chosen {
            Some(Ok(index)) => return Choice { index, reason: "exec" },
            Some(Err(error)) => {
                report(&self.trouble, &format!("{error:#}"));
                *program = None;
            }
            None => {}
        }
        // The run is void; it only has to come to its end.
        Choice { index: 0, reason: "exec_failed" }
    }
}

fn report(trouble: &Trouble, what: &str) {
    trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| what.to_owned());
}
