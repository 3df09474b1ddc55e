//! Counters of predicted and found cache contents.

use warmroute_router::Feedback;

/// A cache counter: name, help, and what one response adds.
type CacheCount = (&'static str, &'static str, fn(&Feedback) -> u64);

/// Counters over responses with reported cached tokens, unless the help says otherwise. Units are tokens, except for
/// `answers*`.
pub(crate) const CACHE_COUNTS: [CacheCount; 11] = [
    ("answers", "Responses that reported prompt tokens", |_| 1),
    ("answers_with_cached", "Responses that reported cached tokens", |f| f.cached.is_some().into()),
    ("answers_hit", "Responses with at least one cached token", |f| f.cached.is_some_and(|n| n > 0).into()),
    ("answers_stale", "Responses with fewer cached tokens than predicted", |f| (f.stale > 0).into()),
    ("answers_missed", "Responses with more cached tokens than predicted", |f| (f.missed > 0).into()),
    ("prompt_tokens", "Prompt tokens of responses that reported cached tokens", |f| {
        f.cached.map_or(0, |_| f.prompt_tokens.into())
    }),
    ("predicted_cached_tokens", "Prompt tokens predicted to be cached", |f| {
        f.cached.and(f.predicted).unwrap_or(0).into()
    }),
    (
        "reachable_cached_tokens",
        "Prompt tokens predicted to be cached on the worker that held most of those that could be chosen",
        |f| f.cached.and(f.reachable).unwrap_or(0).into(),
    ),
    ("cached_tokens", "Prompt tokens reported as cached", |f| f.cached.unwrap_or(0).into()),
    ("stale_tokens", "Prompt tokens predicted to be cached and not found", |f| f.stale.into()),
    ("missed_tokens", "Prompt tokens found in the cache and not predicted", |f| f.missed.into()),
];
