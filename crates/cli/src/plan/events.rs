//! Whether what is said of workers' events can be: endpoints that can be used, and none that two would share.

use std::collections::BTreeSet;

use anyhow::Context;
use warmroute_discovery::WorkerEntry;
use warmroute_events::{Endpoint, EventSource};

/// Endpoints that cannot be used, and topics that would not tell engines apart.
pub fn check(entries: &[WorkerEntry], bind: Option<&str>) -> anyhow::Result<()> {
    let bound = bind.map(str::parse::<Endpoint>).transpose().context("kv-events-bind")?;
    let (mut topics, mut taken) = (BTreeSet::new(), Taken { bound, ..Taken::default() });
    for entry in entries {
        let Some(events) = &entry.kv_events else { continue };
        let context = || format!("kv-events of {}", entry.url);
        match events.endpoint.as_str() {
            "off" | "poll" => {}
            "bind" => {
                anyhow::ensure!(bind.is_some(), "{}: `bind` needs kv-events-bind", context());
                anyhow::ensure!(!events.topic.is_empty(), "{}: `bind` needs a topic", context());
                let is_new = topics.insert(&events.topic);
                anyhow::ensure!(is_new, "{}: topic `{}` is another engine's too", context(), events.topic);
            }
            endpoint => {
                let (replay, ranks) = (events.replay.as_deref(), entry.ranks.unwrap_or(1));
                let sources = EventSource::configured(endpoint, replay, &events.topic, ranks, &entry.url);
                sources
                    .with_context(context)?
                    .iter()
                    .try_for_each(|source| taken.take(source))
                    .with_context(context)?;
            }
        }
    }
    Ok(())
}

/// Where streams and replays are: each is somebody's own, or one worker would be credited with another's cache.
#[derive(Default)]
struct Taken {
    by: Vec<(Endpoint, Option<String>)>,
    /// Ours, to which engines connect. Whose topic is whose is seen when they do.
    bound: Option<Endpoint>,
}

impl Taken {
    fn take(&mut self, source: &EventSource) -> anyhow::Result<()> {
        if !self.is_ours(&source.endpoint) {
            self.one(&source.endpoint, Some(source.topic.clone()))?;
        }
        source.replay.iter().try_for_each(|replay| self.one(replay, None))
    }

    /// Bound to every address, ours goes by any name: its port tells.
    fn is_ours(&self, endpoint: &Endpoint) -> bool {
        match (&self.bound, endpoint) {
            (Some(Endpoint::Tcp { port: ours, .. }), Endpoint::Tcp { port, .. }) => ours == port,
            (bound, endpoint) => bound.as_ref() == Some(endpoint),
        }
    }

    /// Streams may share an endpoint where topics tell them apart: somebody forwards them.
    fn one(&mut self, endpoint: &Endpoint, topic: Option<String>) -> anyhow::Result<()> {
        let is_apart = |other: &Option<String>| match (other, &topic) {
            (Some(other), Some(topic)) => other != topic && !other.is_empty() && !topic.is_empty(),
            _ => false,
        };
        let mut others = self.by.iter().filter(|(other, _)| other == endpoint);
        anyhow::ensure!(
            others.all(|(_, topic)| is_apart(topic)),
            "{endpoint} is taken already, by another worker, rank or replay: ranks count ports up from the first"
        );
        self.by.push((endpoint.clone(), topic));
        Ok(())
    }
}
