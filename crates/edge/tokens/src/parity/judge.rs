//! The verdict on an engine's responses, without any socket.

use std::fmt;

use warmroute_prompt::{Alignment, Body, Reading, Rendered, Renderer, Unaligned};

use super::difference::Difference;
use super::samples::Sample;
use crate::{Encoder, Model};

/// How a worker's prompts can be matched.
#[derive(Debug)]
pub enum Verdict {
    /// In bytes: every sample is equal under this reading.
    Bytes(Box<Alignment>, Reading),
    /// In tokens: prompts are equal, but their bytes cannot be followed.
    Tokens {
        /// The reading of the files.
        reading: Reading,
        /// Why not in bytes.
        because: Reason,
    },
    /// Only by presumed spans: the engine renders differently.
    Presumed(Reason),
    /// The engine does not tell. Whether the first blocks of our prompts appear in its events must show it.
    Unknown(String),
}

/// Why a worker is not matched in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model's files rule it out.
    Files(Unaligned),
    /// The engine's tokens spell other bytes.
    Bytes(Difference),
    /// The engine renders differently.
    Rendering(Difference),
    /// Our renderer refuses a sample that the engine accepts.
    NotRendered {
        /// What the sample tests.
        sample: &'static str,
        /// Why it is refused.
        problem: String,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Files(problem) => write!(f, "{problem}"),
            Reason::Bytes(difference) => {
                write!(
                    f,
                    "prompts are the same, but the tokenizer changes text in a way that is not followed: {difference}"
                )
            }
            Reason::Rendering(difference) => write!(
                f,
                "the engine renders prompts in another way: {difference}. If it was started with --chat-template or \
                 --default-chat-template-kwargs, or has other files than those read here, give the router the same; \
                 models whose chats the engine writes with code of its own instead of a template stay presumed"
            ),
            Reason::NotRendered { sample, problem } => {
                write!(f, "the engine takes {sample}, but it cannot be rendered here: {problem}")
            }
        }
    }
}

/// Judges an engine's tokens for the samples. The caller leaves out samples that the engine refused.
pub fn judge(model: &Model, answers: &[(Sample, Vec<u32>)], unix_s: u64) -> Verdict {
    if answers.is_empty() {
        return Verdict::Unknown("the engine refused every sample".to_owned());
    }
    let mut reasons = Vec::new();
    for reading in Reading::ALL {
        match in_bytes(model, reading, answers, unix_s) {
            Ok(alignment) => return Verdict::Bytes(Box::new(alignment), reading),
            Err(reason) => reasons.push(reason),
        }
    }
    // The reason under the file's own reading is the one that a user can act on.
    let because = reasons.swap_remove(0);
    in_tokens(model, answers, unix_s, because)
}

fn in_bytes(
    model: &Model,
    reading: Reading,
    answers: &[(Sample, Vec<u32>)],
    unix_s: u64,
) -> Result<Alignment, Reason> {
    let alignment = model.alignment(reading).map_err(Reason::Files)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (sample, tokens) in answers {
        let refused = |problem: &dyn fmt::Display| Reason::NotRendered {
            sample: sample.name,
            problem: problem.to_string(),
        };
        let body = sample.body.to_string();
        let body = Body::read(body.as_bytes()).map_err(|problem| refused(&problem))?;
        let written = alignment.write_prompt(&body, sample.api, unix_s, &mut ours);
        written.map_err(|problem| refused(&problem))?;
        theirs.clear();
        alignment.vocabulary().write(tokens, &mut theirs).map_err(|problem| refused(&problem))?;
        if let Some(difference) = Difference::between(sample.name, &ours, &theirs) {
            return Err(Reason::Bytes(difference));
        }
    }
    Ok(alignment)
}

/// Bytes differ: compares tokens.
fn in_tokens(model: &Model, answers: &[(Sample, Vec<u32>)], unix_s: u64, because: Reason) -> Verdict {
    let renderer = match model.renderer() {
        Ok(renderer) => renderer,
        Err(problem) => return Verdict::Presumed(Reason::Files(problem)),
    };
    let agrees = |reading: &Reading| {
        let Ok(encoder) = model.encoder(*reading) else { return false };
        answers
            .iter()
            .all(|(sample, tokens)| ids(&renderer, &encoder, sample, unix_s).as_ref() == Some(tokens))
    };
    match Reading::ALL.into_iter().find(agrees) {
        Some(reading) => Verdict::Tokens { reading, because },
        None => Verdict::Presumed(match because {
            Reason::Bytes(difference) => Reason::Rendering(difference),
            Reason::Files(problem) => {
                rendering(model, &renderer, answers, unix_s).unwrap_or(Reason::Files(problem))
            }
            other => other,
        }),
    }
}

/// The ids that we compute for a sample.
fn ids(renderer: &Renderer, encoder: &Encoder, sample: &Sample, unix_s: u64) -> Option<Vec<u32>> {
    let body = sample.body.to_string();
    let mut text = String::new();
    match renderer.render(&Body::read(body.as_bytes()).ok()?, sample.api, unix_s, &mut text).ok()? {
        Rendered::Text { around, .. } => encoder.encode(&text, around).ok(),
        Rendered::Ids(ids) => Some(ids),
    }
}

/// The first difference between token lists, shown as token ids, for models without bytes to compare.
fn rendering(
    model: &Model,
    renderer: &Renderer,
    answers: &[(Sample, Vec<u32>)],
    unix_s: u64,
) -> Option<Reason> {
    let encoder = model.encoder(Reading::AsFiled).ok()?;
    let written = |ids: &[u32]| {
        let words: Vec<String> = ids.iter().map(u32::to_string).collect();
        words.join(" ").into_bytes()
    };
    answers.iter().find_map(|(sample, tokens)| {
        let ours = ids(renderer, &encoder, sample, unix_s).unwrap_or_default();
        Difference::between(sample.name, &written(&ours), &written(tokens)).map(Reason::Rendering)
    })
}
