//! Turns options into the endpoint picker.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context, ensure};
use warmroute_operate::PickerPlan;
use warmroute_router::CANDIDATE_RECORDS_MAX;

use super::value_of;
use crate::options::Options;

/// The picker; `None` if there is none.
pub(super) fn plan(
    config: warmroute_picker::Config,
    options: &Options,
) -> anyhow::Result<Option<PickerPlan>> {
    let picker = &options.picker;
    ensure!(config.fallbacks < CANDIDATE_RECORDS_MAX, "picker-fallbacks must be at most 3");
    let host = value_of(picker.picker_host);
    let pools = pools(options).context("picker-pools")?;
    if picker.picker_port.is_none() && pools.is_empty() {
        return Ok(None);
    }
    Ok(Some(PickerPlan {
        listen: picker.picker_port.map(|port| SocketAddr::new(host, port)),
        pools: pools.into_iter().map(|(pool, port)| (pool, SocketAddr::new(host, port))).collect(),
        config,
    }))
}

/// The pools and their ports, in the order of the option.
fn pools(options: &Options) -> anyhow::Result<Vec<(String, u16)>> {
    let (mut names, mut ports) = (BTreeSet::new(), BTreeSet::from_iter(options.picker.picker_port));
    let mut pools = Vec::new();
    for entry in options.picker.picker_pools.iter().flatten() {
        let parts = entry.split_once('=').map(|(pool, port)| (pool.trim(), port.trim().parse::<u16>()));
        let Some((pool, Ok(port))) = parts else {
            anyhow::bail!("`{entry}` is not a pool and its port, such as llama=9002");
        };
        ensure!(names.insert(pool), "the pool `{pool}` has two ports");
        ensure!(port == 0 || ports.insert(port), "port {port} is used twice");
        ensure!(is_listed(options, pool), "no source of workers names the pool `{pool}`; {WHERE_NAMED}");
        pools.push((pool.to_owned(), port));
    }
    Ok(pools)
}

const WHERE_NAMED: &str = "add it to service-discovery-pool, or to `pool` of [[workers]]";

/// Whether workers of a pool can come. A watched file may name any pool, now or later.
fn is_listed(options: &Options, pool: &str) -> bool {
    let watched = options.discovery.service_discovery_pool.iter().flatten();
    let listed = options.workers.iter().filter_map(|worker| worker.pool.as_deref());
    options.discovery.worker_file.is_some()
        || watched.map(String::as_str).chain(listed).any(|name| name == pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(text: &str) -> anyhow::Result<Option<PickerPlan>> {
        let options: Options = toml::from_str(text).unwrap();
        let options = options.over(Options::defaults());
        plan(options.settings().picker, &options)
    }

    #[test]
    fn a_pool_has_a_port_of_its_own_and_the_common_port_may_be_missing() {
        let workers = "[[workers]]\nurl = \"http://10.0.0.1:1\"\npool = \"llama\"\n";
        let both =
            planned(&format!("[picker]\npicker-port = 9002\npicker-pools = \"llama=9003\"\n{workers}"));
        let both = both.unwrap().unwrap();
        assert_eq!(both.listen.map(|at| at.port()), Some(9002));
        assert_eq!(both.pools, [("llama".to_owned(), "0.0.0.0:9003".parse().unwrap())]);
        let alone = planned(&format!("[picker]\npicker-pools = [\"llama=0\"]\n{workers}")).unwrap().unwrap();
        assert_eq!((alone.listen, alone.pools.len()), (None, 1));
        assert!(planned(workers).unwrap().is_none());
    }

    #[test]
    fn wrong_pools_are_refused_with_a_reason() {
        let workers = "[[workers]]\nurl = \"http://10.0.0.1:1\"\npool = \"llama\"\n";
        for (pools, why) in [
            ("\"llama\"", "not a pool and its port"),
            ("\"llama=70000\"", "not a pool and its port"),
            ("[\"llama=1\", \"llama=2\"]", "has two ports"),
            ("\"llama=9002\"", "port 9002 is used twice"),
            ("\"qwen=1\"", "no source of workers names the pool `qwen`"),
        ] {
            let text = format!("[picker]\npicker-port = 9002\npicker-pools = {pools}\n{workers}");
            let error = format!("{:#}", planned(&text).unwrap_err());
            assert!(error.contains(why), "{pools}: {error}");
        }
    }
}
