//! Validates the KV event settings of workers: endpoints must be usable and unique.

use std::collections::BTreeSet;

use anyhow::Context;
use warmroute_discovery::WorkerEntry;
use warmroute_events::{Endpoint, EventSource};

/// Checks all endpoints and topics.
pub(crate) fn check_endpoints(entries: &[WorkerEntry], bind: Option<&str>) -> anyhow::Result<()> {
    let bound = bind.map(str::parse::<Endpoint>).transpose().context("kv-events-bind")?;
    let (mut topics, mut used) = (BTreeSet::new(), UsedEndpoints { bound, ..UsedEndpoints::default() });
    for entry in entries {
        let Some(events) = &entry.kv_events else { continue };
        let context = || format!("kv-events of {}", entry.url);
        match events.endpoint.as_str() {
            "off" | "poll" => {}
            "bind" => {
                anyhow::ensure!(bind.is_some(), "{}: endpoint = \"bind\" requires kv-events-bind", context());
                anyhow::ensure!(
                    !events.topic.is_empty(),
                    "{}: endpoint = \"bind\" requires a topic",
                    context()
                );
                let is_new = topics.insert(&events.topic);
                anyhow::ensure!(
                    is_new,
                    "{}: topic `{}` is used by another engine; give each its own",
                    context(),
                    events.topic
                );
            }
            endpoint => {
                let (replay, ranks) = (events.replay.as_deref(), entry.ranks.unwrap_or(1));
                let sources = EventSource::configured(endpoint, replay, &events.topic, ranks, &entry.url);
                sources
                    .with_context(context)?
                    .iter()
                    .try_for_each(|source| used.add_source(source))
                    .with_context(context)?;
            }
        }
    }
    Ok(())
}

/// The endpoints of streams and replays. Two workers with one endpoint would be credited with each other's cache.
#[derive(Default)]
struct UsedEndpoints {
    by: Vec<(Endpoint, Option<String>)>,
    /// The endpoint that engines connect to. Topics are checked when they connect.
    bound: Option<Endpoint>,
}

impl UsedEndpoints {
    fn add_source(&mut self, source: &EventSource) -> anyhow::Result<()> {
        if !self.is_bound(&source.endpoint) {
            self.add(&source.endpoint, Some(source.topic.clone()))?;
        }
        source.replay.iter().try_for_each(|replay| self.add(replay, None))
    }

    /// Whether an endpoint is the bound one. It listens on all addresses, so its port decides.
    fn is_bound(&self, endpoint: &Endpoint) -> bool {
        match (&self.bound, endpoint) {
            (Some(Endpoint::Tcp { port: bound, .. }), Endpoint::Tcp { port, .. }) => bound == port,
            (bound, endpoint) => bound.as_ref() == Some(endpoint),
        }
    }

    /// Adds an endpoint. Streams may share one if their topics differ, as behind a forwarder.
    fn add(&mut self, endpoint: &Endpoint, topic: Option<String>) -> anyhow::Result<()> {
        let is_distinct = |other: &Option<String>| match (other, &topic) {
            (Some(other), Some(topic)) => other != topic && !other.is_empty() && !topic.is_empty(),
            _ => false,
        };
        let mut others = self.by.iter().filter(|(other, _)| other == endpoint);
        anyhow::ensure!(
            others.all(|(_, topic)| is_distinct(topic)),
            "{endpoint} is already used by another worker, rank or replay; rank r uses a port r higher than rank 0"
        );
        self.by.push((endpoint.clone(), topic));
        Ok(())
    }
}
