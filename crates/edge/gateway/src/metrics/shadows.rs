//! What the policy that acts and its shadows would make of the same requests, as Prometheus reads it.

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use warmroute_router::Tallied;

/// One count: its name and help, and how it is read.
type Count = (&'static str, &'static str, fn(&Tallied) -> f64);

const COUNTS: [Count; 5] = [
    ("shadow_decisions", "Decisions on which a policy was asked beside others", |t| t.decisions as f64),
    ("shadow_agreed", "Those in which it chose the worker that the request went to", |t| t.agreed as f64),
    ("shadow_prompt_tokens", "Prompt tokens of these requests", |t| t.prompt_tokens as f64),
    ("shadow_predicted_cached_tokens", "Of them, those expected in the cache of the worker it chose", |t| {
        t.cached_tokens as f64
    }),
    ("shadow_predicted_ttft_seconds", "Times to first token expected on the workers it chose, in sum", |t| {
        t.ttft.as_secs_f64()
    }),
];

pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    tallies: &[Tallied],
) -> Result<(), std::fmt::Error> {
    for (name, help, read) in COUNTS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for tally in tallies {
            ConstCounter::new(read(tally)).encode(family.encode_family(&[("policy", tally.policy)])?)?;
        }
    }
    Ok(())
}
