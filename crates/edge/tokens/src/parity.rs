//! Whether the engine renders and tokenizes prompts as we do, checked with its own `POST /tokenize`.
//!
//! When a worker registers, samples of everything that goes wrong in practice are sent there: tools, lists of parts, `<`
//! and `&`, combining letters, the text of special tokens, runs of white space. If the engine's tokens spell our bytes,
//! the worker is matched in bytes. If they equal our tokenizer's tokens, it is matched in tokens. Otherwise the engine
//! renders prompts differently, and its cache is presumed. The verdict names the first difference.

mod conversion;
mod difference;
mod judge;
mod samples;

pub use conversion::{ConversionEndpoint, ConversionVerdict, PresumedApi, check_conversion};
pub use difference::Difference;
pub use judge::{Reason, Verdict, judge};
pub use samples::{Sample, samples};

use std::future::Future;

use serde_json::Value;
use warmroute_prompt::Api;

use crate::Model;

/// An engine's response to one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The body of a successful answer.
    Json(Vec<u8>),
    /// The engine refuses the sample (400 or 422): its template may refuse tools or system prompts.
    Refused(String),
    /// The engine cannot be asked: no such endpoint, no access, no connection.
    Unavailable(String),
}

/// An engine's tokenizing endpoint.
pub trait TokenizeEndpoint {
    /// Posts a body to `/tokenize`.
    fn tokenize(&self, body: String) -> impl Future<Output = Answer> + Send;
}

/// Asks an engine about all samples and judges its responses. `unix_s` is for templates that print the date.
pub async fn check(engine: &impl TokenizeEndpoint, served_name: &str, model: &Model, unix_s: u64) -> Verdict {
    let mut answers = Vec::new();
    // vLLM's /tokenize renders the template of every model, even where it serves chats without it. Without a template in the
    // model's folder, its chats cannot be compared, and its completions can.
    let has_template = model.renderer().is_ok_and(|renderer| renderer.has_template());
    let is_asked = |sample: &Sample| has_template || sample.api == Api::Completions;
    for sample in samples(model.text()).into_iter().filter(is_asked) {
        match engine.tokenize(sample.question(served_name)).await {
            Answer::Json(body) => match tokens(&body) {
                Some(tokens) => answers.push((sample, tokens)),
                None => return Verdict::Unknown("the answer of /tokenize holds no tokens".to_owned()),
            },
            Answer::Refused(_) => {}
            Answer::Unavailable(problem) => return Verdict::Unknown(problem),
        }
    }
    judge(model, &answers, unix_s)
}

/// vLLM and SGLang both respond with `tokens`.
fn tokens(body: &[u8]) -> Option<Vec<u32>> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let ids = body["tokens"].as_array()?;
    ids.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
}
