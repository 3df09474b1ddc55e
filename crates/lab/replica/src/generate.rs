//! The path of a generation request: limits, prompt to block names, rank, engine, answer.

use std::future::pending;
use std::sync::Arc;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};

use crate::answer::{Answer, Ending, Finish, Planned};
use crate::api::{Ask, Delivery, EndOfTurn, Head};
use crate::body::Body;
use crate::chain::Chain;
use crate::command::FinishedReason;
use crate::config::Config;
use crate::connection_control::ConnectionControl;
use crate::error::ApiError;
use crate::events::Content;
use crate::filler::TextSoFar;
use crate::generation::{Answering, Generation, Honesty};
use crate::rank::{Rank, Ticket};
use crate::server::Server;
use crate::stream::Stream;

/// Most answers of one request, over all its prompts.
const ANSWERS_MAX: usize = 1_024;

/// Generates, and answers in the shape that the request asks for.
pub(crate) async fn generate(
    server: &Server,
    line: &Arc<ConnectionControl>,
    headers: &HeaderMap,
    id: String,
    ask: Ask,
) -> Result<Response<Body>, ApiError> {
    let rank = rank_for(server, headers)?;
    let plan = Plan::of(&server.config, &ask)?;
    if plan.model != server.config.model {
        server.adapters.wait_loaded(&plan.model).await;
    }
    let reset_after = server.faults.claim_reset();
    if reset_after == Some(0) {
        line.cut();
        pending::<()>().await;
    }
    let wake_from = match ask.delivery {
        Delivery::Stream => 0,
        Delivery::Whole => reset_after.unwrap_or(u32::MAX),
    };
    let head = Head { id, created_s: server.now_s(), model: plan.model };
    let (answers, tickets) = submit(&rank, plan.answers, wake_from).await;
    let answering = Answering {
        head,
        answers,
        tickets,
        answers_per_prompt: ask.n as usize,
        prompt_tokens: plan.prompt_tokens,
        usage_details: server.config.usage_details,
        honesty: if server.faults.lies() { Honesty::Lies } else { Honesty::Truth },
    };
    let generation = Generation { answering, shape: ask.shape, reset_after, line: Arc::clone(line) };
    Ok(respond(generation, ask.delivery).await)
}

async fn submit(
    rank: &Arc<Rank>,
    planned: Vec<(Planned, Option<Arc<Content>>)>,
    wake_from: u32,
) -> (Vec<Answer>, Vec<Ticket>) {
    let mut answers = Vec::with_capacity(planned.len());
    let mut tickets = Vec::with_capacity(planned.len());
    for (Planned { answer, request, .. }, content) in planned {
        tickets.push(rank.submit(request, content, reason(&answer.finish), wake_from).await);
        answers.push(answer);
    }
    (answers, tickets)
}

fn reason(finish: &Finish) -> FinishedReason {
    match finish {
        Finish::Length => FinishedReason::Length,
        Finish::EndOfTurn | Finish::StopString(_) => FinishedReason::Stop,
    }
}

async fn respond(generation: Generation, delivery: Delivery) -> Response<Body> {
    let (kind, body) = match delivery {
        Delivery::Whole => ("application/json", Body::from(generation.whole().await)),
        Delivery::Stream => {
            ("text/event-stream; charset=utf-8", Body::Stream(Box::new(Stream::new(generation))))
        }
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The rank that the header names, or the least busy one.
fn rank_for(server: &Server, headers: &HeaderMap) -> Result<Arc<Rank>, ApiError> {
    let Some(header) = headers.get("x-data-parallel-rank") else {
        let least_busy = server.ranks.iter().min_by_key(|rank| rank.in_flight());
        return Ok(Arc::clone(least_busy.expect("a valid configuration has a rank")));
    };
    let asked = header.to_str().unwrap_or_default();
    let rank = asked.parse().ok().and_then(|rank: usize| server.ranks.get(rank));
    rank.cloned().ok_or_else(|| {
        let ranks = server.ranks.len();
        ApiError::bad_request(format!("data_parallel_rank {asked} is out of range [0, {ranks})."))
    })
}

/// A planned request.
struct Plan {
    model: String,
    prompt_tokens: u32,
    /// With their tokens, where cache events are published.
    answers: Vec<(Planned, Option<Arc<Content>>)>,
}

impl Plan {
    fn of(config: &Config, ask: &Ask) -> Result<Plan, ApiError> {
        let model = ask.model.as_deref().unwrap_or(&config.model);
        if !config.models().any(|served| served == model) {
            return Err(ApiError::not_found(format!("The model `{model}` does not exist.")).about("model"));
        }
        check_count(ask)?;
        let mut plan = Plan { model: model.to_owned(), prompt_tokens: 0, answers: Vec::new() };
        for prompt in &ask.prompts {
            let ending = ending(config, ask, prompt.len())?;
            let mut chain = Chain::new(model, &ask.salt, config.engine.block_size);
            chain.extend(prompt.iter().copied());
            plan.prompt_tokens += chain.tokens();
            plan.answers.extend((0..ask.n).map(|choice| {
                let seed = seed_of(ask.seed, choice);
                let text_so_far = TextSoFar::of_prompt(seed, prompt);
                let planned = Answer::plan(chain.clone(), text_so_far, ending, &ask.stops, config.tokenizer);
                let is_told = config.events.is_some();
                let content = is_told.then(|| Arc::new(Content::new(config, ask, model, prompt, &planned)));
                (planned, content)
            }));
        }
        Ok(plan)
    }
}

fn check_count(ask: &Ask) -> Result<(), ApiError> {
    match ask.prompts.len().saturating_mul(ask.n as usize) {
        0 => Err(ApiError::bad_request(format!("n must be at least 1, got {}.", ask.n)).about("n")),
        1..=ANSWERS_MAX => Ok(()),
        _ => Err(ApiError::bad_request(format!(
            "n asks for too many answers; at most {ANSWERS_MAX} are allowed in one request"
        ))
        .about("n")),
    }
}

/// How the answer to a prompt of this length ends.
fn ending(config: &Config, ask: &Ask, prompt_tokens: usize) -> Result<Ending, ApiError> {
    let max = config.tokens_max();
    let room = (max as usize).saturating_sub(prompt_tokens) as u32;
    // At least the end of the turn is left of an answer that is continued.
    let natural = config.answer_tokens_default.saturating_sub(ask.begun_tokens).max(1);
    match (ask.limit, ask.end_of_turn) {
        (Some(0), _) => {
            Err(ApiError::bad_request("max_tokens must be at least 1, got 0.").about("max_tokens"))
        }
        (limit, _) if room < limit.unwrap_or(1) => Err(too_long(max, prompt_tokens, limit)),
        (Some(limit), EndOfTurn::BeforeLimit) if natural < limit => Ok(Ending::Natural(natural)),
        (Some(limit), _) => Ok(Ending::Cut(limit)),
        (None, EndOfTurn::Heeded) if natural <= room => Ok(Ending::Natural(natural)),
        (None, _) => Ok(Ending::Cut(natural.min(room))),
    }
}

fn too_long(max: u32, prompt_tokens: usize, limit: Option<u32>) -> ApiError {
    let output = limit.map(|limit| format!(" and {limit} output tokens")).unwrap_or_default();
    let message = format!(
        "This model's maximum context length is {max} tokens. However, you requested {prompt_tokens} input \
         tokens{output}. Please reduce the length of the input prompt or the number of requested output tokens."
    );
    ApiError::new(StatusCode::BAD_REQUEST, message).about("input_tokens")
}

/// Several answers to one prompt say different things.
fn seed_of(seed: u64, choice: u32) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(choice).wrapping_mul(0xd1b5_4a32_d192_ed03)
}
