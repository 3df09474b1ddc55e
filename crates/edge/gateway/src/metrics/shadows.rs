//! Metrics that compare the active policy with shadow policies on the same requests.

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use warmroute_router::PolicyComparison;

/// A counter of a policy: name, help, and how to read it.
type ShadowCount = (&'static str, &'static str, fn(&PolicyComparison) -> f64);

const COUNTS: [ShadowCount; 5] = [
    ("shadow_decisions", "Decisions that the policy evaluated", |t| t.decisions as f64),
    ("shadow_agreed", "Decisions in which the policy chose the worker that the request went to", |t| {
        t.agreed as f64
    }),
    ("shadow_prompt_tokens", "Prompt tokens of these requests", |t| t.prompt_tokens as f64),
    (
        "shadow_predicted_cached_tokens",
        "Prompt tokens predicted to be cached on the worker that the policy chose",
        |t| t.cached_tokens as f64,
    ),
    (
        "shadow_predicted_ttft_seconds",
        "Sum of the predicted times to first token on the workers that the policy chose",
        |t| t.ttft.as_secs_f64(),
    ),
];

pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    tallies: &[PolicyComparison],
) -> Result<(), std::fmt::Error> {
    for (name, help, read) in COUNTS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for tally in tallies {
            ConstCounter::new(read(tally)).encode(family.encode_family(&[("policy", tally.policy)])?)?;
        }
    }
    Ok(())
}
