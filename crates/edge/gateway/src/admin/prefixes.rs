//! `GET /prefixes`: what breaks the prefixes of successive prompts, without any text.

use serde_json::{Value, json};
use warmroute_prefixes::{BreakReport, ModelReport};
use warmroute_types::Micros;

use crate::prefix_observer::PrefixObserver;

/// Places shown for a model.
const PLACES_MAX: usize = 16;

/// The places where prompts part, by model, the greatest loss first.
pub(super) fn report(observer: &PrefixObserver, now: Micros) -> Value {
    let report = observer.report(now);
    let skipped = observer.skipped();
    // Requests that were not observed are taken to be like the others.
    let scale = (report.outlined + skipped) as f64 / report.outlined.max(1) as f64;
    json!({
        "observed": report.outlined,
        "skipped": skipped,
        "models": report.models.iter().map(|model| describe_model(model, scale)).collect::<Value>(),
    })
}

fn describe_model(model: &ModelReport, scale: f64) -> Value {
    let breaks = model.breaks.iter().take(PLACES_MAX).map(|place| describe_break(model, place, scale));
    json!({
        "model": model.model,
        "covered_s": model.covered.as_secs_f64().round(),
        "compared": model.compared,
        "prompt_tokens": model.prompt_tokens,
        "broken": model.broken,
        "broken_share": rounded(model.share(model.broken)),
        "lost_tokens": model.lost_tokens,
        "lost_tokens_per_day": model.per_day(model.lost_tokens).map(|lost| scaled(lost, scale)),
        "breaks": breaks.collect::<Value>(),
    })
}

fn describe_break(model: &ModelReport, place: &BreakReport, scale: f64) -> Value {
    json!({
        "cause": place.cause.as_str(),
        "typical_of": place.cause.typical_of(),
        "advice": place.cause.advice(),
        "field": place.field,
        "byte": place.byte,
        "requests": place.requests,
        "share": rounded(model.share(place.requests)),
        "lost_tokens": place.lost_tokens,
        "lost_tokens_per_day": model.per_day(place.lost_tokens).map(|lost| scaled(lost, scale)),
    })
}

fn scaled(count: u64, scale: f64) -> u64 {
    (count as f64 * scale) as u64
}

fn rounded(share: f64) -> f64 {
    (share * 1e4).round() / 1e4
}
