//! Where workers come from, as options name it.

use anyhow::Context;
use warmroute_discovery::{ListedWorker, WorkerEntry};
use warmroute_types::{AT_LEAST_1, BadUrl, check_settings};

use super::kubernetes_settings::KubernetesSettings;
use super::sources::Sources;
use crate::engines::check_endpoints;

/// The sources of workers, before they are read.
#[derive(Default)]
pub struct SourceSettings {
    /// URLs of engines.
    pub urls: Option<Vec<String>>,
    /// Data-parallel ranks behind each of these URLs and each port in Kubernetes.
    pub ranks: Option<u16>,
    /// Workers with settings of their own.
    pub entries: Vec<WorkerEntry>,
    /// Workers in Kubernetes.
    pub kubernetes: KubernetesSettings,
    /// The sources that need no further reading: a file, and DNS names.
    pub sources: Sources,
}

impl SourceSettings {
    /// The validated sources. Engines connect to `bind` to publish their events, if they do not bind their own endpoint.
    pub fn plan(self, bind: Option<&str>) -> anyhow::Result<Sources> {
        check_settings(&[
            ("dns-refresh-secs", !self.sources.dns_refresh.is_zero(), AT_LEAST_1),
            ("dp-size", self.ranks != Some(0), AT_LEAST_1),
        ])?;
        let urls = self.urls.into_iter().flatten();
        let from_urls: Vec<WorkerEntry> = urls.map(|url| WorkerEntry::new(url, self.ranks)).collect();
        // Validates URLs first: later errors repeat them, and a URL may contain a password.
        let mut listed = listed(&from_urls).context("worker-urls")?;
        listed.extend(self::listed(&self.entries).context("workers")?);
        check_endpoints(&[from_urls, self.entries].concat(), bind)?;
        Ok(Sources { listed, kubernetes: self.kubernetes.sources(self.ranks)?, ..self.sources })
    }

    /// Whether workers of a pool can come. A watched file may name any pool, now or later.
    pub fn may_list_pool(&self, pool: &str) -> bool {
        let watched = self.kubernetes.pools.iter().flatten().map(String::as_str);
        let listed = self.entries.iter().filter_map(|worker| worker.pool.as_deref());
        self.sources.file.is_some() || watched.chain(listed).any(|name| name == pool)
    }
}

fn listed(entries: &[WorkerEntry]) -> Result<Vec<ListedWorker>, BadUrl> {
    let listed = entries.iter().map(WorkerEntry::listed).collect::<Result<Vec<_>, _>>()?;
    Ok(listed.concat())
}
