//! The endpoint picker, as options describe it.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, ensure};
use warmroute_follow::SourceSettings;
use warmroute_router::CANDIDATE_RECORDS_MAX;
use warmroute_types::check_settings;

use crate::plan::PickerPlan;

/// The picker's listeners and how it answers. Without a port and pools there is no picker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PickerSettings {
    /// Address of the listeners.
    pub host: IpAddr,
    /// Port of the listener for all workers.
    pub port: Option<u16>,
    /// Pools with a port of their own, as `POOL=PORT`.
    pub pools: Option<Vec<String>>,
    /// How it answers.
    pub config: warmroute_picker::Config,
}

impl Default for PickerSettings {
    fn default() -> PickerSettings {
        let (host, config) = (Ipv4Addr::UNSPECIFIED.into(), warmroute_picker::Config::default());
        PickerSettings { host, port: None, pools: None, config }
    }
}

impl PickerSettings {
    /// The picker; `None` if there is none. Workers come from these sources.
    pub fn plan(&self, sources: &SourceSettings) -> anyhow::Result<Option<PickerPlan>> {
        let has_room = self.config.fallbacks < CANDIDATE_RECORDS_MAX;
        check_settings(&[("picker-fallbacks", has_room, "must be at most 3")])?;
        let pools = self.pools(sources).context("picker-pools")?;
        let listen = self.port.map(|port| SocketAddr::new(self.host, port));
        let is_on = listen.is_some() || !pools.is_empty();
        Ok(is_on.then_some(PickerPlan { listen, pools, config: self.config }))
    }

    /// The pools and their addresses, in the order of the option.
    fn pools(&self, sources: &SourceSettings) -> anyhow::Result<Vec<(String, SocketAddr)>> {
        let (mut names, mut ports) = (BTreeSet::new(), BTreeSet::from_iter(self.port));
        let mut pools = Vec::new();
        for entry in self.pools.iter().flatten() {
            let parts = entry.split_once('=').map(|(pool, port)| (pool.trim(), port.trim().parse::<u16>()));
            let Some((pool, Ok(port))) = parts else {
                anyhow::bail!("`{entry}` is not a pool and its port, such as llama=9002");
            };
            ensure!(names.insert(pool), "the pool `{pool}` has two ports");
            ensure!(port == 0 || ports.insert(port), "port {port} is used twice");
            ensure!(
                sources.may_list_pool(pool),
                "no source of workers names the pool `{pool}`; add it to service-discovery-pool, or to `pool` of \
                 [[workers]]"
            );
            pools.push((pool.to_owned(), SocketAddr::new(self.host, port)));
        }
        Ok(pools)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(port: Option<u16>, pools: &[&str]) -> anyhow::Result<Option<PickerPlan>> {
        let mut sources = SourceSettings::default();
        sources.kubernetes.pools = Some(vec!["llama".to_owned()]);
        let pools = Some(pools.iter().map(|pool| (*pool).to_owned()).collect());
        PickerSettings { port, pools, ..PickerSettings::default() }.plan(&sources)
    }

    #[test]
    fn a_pool_has_a_port_of_its_own_and_the_common_port_may_be_missing() {
        let both = planned(Some(9002), &["llama=9003"]).unwrap().unwrap();
        assert_eq!(both.listen.map(|at| at.port()), Some(9002));
        assert_eq!(both.pools, [("llama".to_owned(), "0.0.0.0:9003".parse().unwrap())]);
        let alone = planned(None, &["llama=0"]).unwrap().unwrap();
        assert_eq!((alone.listen, alone.pools.len()), (None, 1));
        assert!(planned(None, &[]).unwrap().is_none());
    }

    #[test]
    fn wrong_pools_are_refused_with_a_reason() {
        for (pools, why) in [
            (&["llama"][..], "not a pool and its port"),
            (&["llama=70000"], "not a pool and its port"),
            (&["llama=1", "llama=2"], "has two ports"),
            (&["llama=9002"], "port 9002 is used twice"),
            (&["qwen=1"], "no source of workers names the pool `qwen`"),
        ] {
            let error = format!("{:#}", planned(Some(9002), pools).unwrap_err());
            assert!(error.contains(why), "{pools:?}: {error}");
        }
    }
}
