//! A plan and a reader of configurations for tests: an option is the name of a policy.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use warmroute_follow::Sources;
use warmroute_wire::Acceptor;

use crate::{Acceptors, ConfigReader, ConfigSource, Plan, ProcessConfig};

/// Reads the name of a policy from a file.
pub struct PolicyFile(pub PathBuf);

impl ConfigReader for PolicyFile {
    type Options = String;

    fn file(&self) -> Option<&Path> {
        Some(&self.0)
    }

    fn read(&self, source: &ConfigSource, _in_force: &String) -> anyhow::Result<String> {
        match source {
            ConfigSource::File => Ok(std::fs::read_to_string(&self.0)?),
            ConfigSource::Sent { body, .. } => Ok(String::from_utf8(body.clone())?),
        }
    }

    fn named_files(&self, _options: &String) -> Vec<(&'static str, PathBuf)> {
        Vec::new()
    }

    fn plan(&self, options: String) -> anyhow::Result<Plan<String>> {
        plan(options)
    }

    fn changes(&self, before: &String, after: &String) -> anyhow::Result<Vec<String>> {
        anyhow::ensure!(after != "random", "these options need a restart: routing.policy");
        Ok(if before == after { Vec::new() } else { vec!["routing.policy".to_owned()] })
    }
}

/// A plan without workers, on free ports.
pub fn plan(policy: String) -> anyhow::Result<Plan<String>> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Ok(Plan {
        process: ProcessConfig {
            listen: any_port,
            admin: any_port,
            drain_timeout: Duration::from_secs(1),
            ..ProcessConfig::default()
        },
        policy: policy.parse()?,
        shadows: Vec::new(),
        model_rules: Default::default(),
        router: warmroute_router::Config::default(),
        gateway: warmroute_gateway::Config::default(),
        probe: warmroute_probe::Config::default(),
        sources: Sources::default(),
        precise: None,
        record: Default::default(),
        access_log: Default::default(),
        collector: None,
        sharing: None,
        events_token: None,
        picker: None,
        acceptors: Acceptors {
            clients: Acceptor::default(),
            operators: Acceptor::default(),
            picker: Acceptor::default(),
        },
        keys: None,
        options: policy,
    })
}
