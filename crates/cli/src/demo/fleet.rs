//! The engines and the gateway of one demo run.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use anyhow::Context;
use warmroute_engine::Profile;
use warmroute_gateway::DrainMode;
use warmroute_operate::{Fingerprints, Listeners, Service};
use warmroute_replica::{Config, Replica, Stats, serve};
use warmroute_types::WorkerState;

use crate::args::DemoArgs;
use crate::config_reader::Origin;
use crate::options::quantity::{ListenHost, OnOff};
use crate::options::{Discovery, Options, Routing, Server};
use crate::plan::plan;

/// The simulated model.
pub const MODEL: &str = "llama-3.1-8b";

/// Startup takes a fraction of a second; after this time something is wrong.
const READY_WITHIN: Duration = Duration::from_secs(10);
const READY_CHECK_EVERY: Duration = Duration::from_millis(10);

/// Engines with a gateway in front.
pub struct Fleet {
    engines: Vec<Replica>,
    pub service: Service<Origin>,
}

impl Fleet {
    /// Starts everything, and returns when every engine is ready.
    pub async fn start(args: &DemoArgs, policy: &str) -> anyhow::Result<Fleet> {
        let mut engines = Vec::new();
        for _ in 0..args.engines {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
            let profile: Profile = MODEL.parse().context("the demo's profile")?;
            let config = Config { speed: args.speed, ..Config::for_profile(profile) };
            engines.push(serve(config, listener).await?);
        }
        let urls = engines.iter().map(|engine| engine.url().to_owned()).collect();
        let plan = plan(options(urls, policy))?;
        let service =
            Service::start(plan, Origin::default(), Fingerprints::default(), Listeners::default()).await?;
        service.open();
        let fleet = Fleet { engines, service };
        tokio::time::timeout(READY_WITHIN, fleet.ready())
            .await
            .context("the engines did not become ready")?;
        Ok(fleet)
    }

    async fn ready(&self) {
        while !self
            .service
            .router
            .inspect()
            .workers()
            .iter()
            .all(|view| view.load.state == WorkerState::Ready)
        {
            tokio::time::sleep(READY_CHECK_EVERY).await;
        }
    }

    /// Each engine's counters.
    pub fn stats(&self) -> Vec<Stats> {
        self.engines.iter().map(Replica::stats).collect()
    }

    /// Stops everything in order.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.service.drain(DrainMode::CloseIdle, Duration::from_secs(5)).await
    }
}

/// The gateway as a user would configure it, on free ports.
fn options(urls: Vec<String>, policy: &str) -> Options {
    let loopback = Some(ListenHost(Ipv4Addr::LOCALHOST.into()));
    Options {
        server: Server { host: loopback, port: Some(0), admin_port: Some(0), ..Server::default() },
        discovery: Discovery { worker_urls: Some(urls), ..Discovery::default() },
        routing: Routing {
            policy: Some(policy.to_owned()),
            decision_headers: Some(OnOff(true)),
            ..Routing::default()
        },
        ..Options::default()
    }
}
