//! The router is kept up to date by a simulated engine that publishes events, by changed lists, and by a peer.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use warmroute_discovery::WorkerEntry;
use warmroute_follow::{
    Configured, EngineFollower, FollowSettings, FollowedSources, ModelPaths, SharePlan, Sources, Transport,
    exchange_with_peers, follow_sources,
};
use warmroute_gateway::{Gateway, Records, ReportSink};
use warmroute_policy::Standard;
use warmroute_replica::{Config, EventsConfig, Tokenizer, serve, write_model};
use warmroute_router::{Change, Router};
use warmroute_share::{MeshConfig, MeshTimings, Secrets, Versions};
use warmroute_types::{Address, CacheView, MAX_WORKERS};

/// How long an expected event may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

fn gateway() -> Arc<Gateway> {
    let policy: Standard = "round_robin".parse().unwrap();
    let router = Arc::new(Router::new(policy, warmroute_router::Config::default()));
    Gateway::new(router, warmroute_gateway::Config::default(), Records::default()).unwrap()
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < TIMEOUT, "it never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("warmroute-follow-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn urls(gateway: &Gateway) -> Vec<String> {
    gateway.router().inspect().workers().iter().map(|view| view.worker.address.url.clone()).collect()
}

fn listed(urls: &[&str]) -> Sources {
    let entries = urls.iter().map(|url| WorkerEntry::new((*url).to_owned(), None));
    Sources {
        listed: entries.flat_map(|entry| entry.listed().unwrap()).collect(),
        file: None,
        dns: Vec::new(),
        dns_refresh: Duration::from_secs(1),
        kubernetes: Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_publishes_is_followed_until_it_leaves() {
    let (gateway, model) = (gateway(), folder("model"));
    write_model(&model).unwrap();
    let any_port = || "tcp://127.0.0.1:0".parse().unwrap();
    let config = Config {
        tokenizer: Tokenizer::Pairs,
        events: Some(EventsConfig::bind(any_port(), Some(any_port()))),
        ..Config::for_profile("llama-3.1-8b".parse().unwrap())
    };
    let engine = serve(config, std::net::TcpListener::bind("127.0.0.1:0").unwrap()).await.unwrap();
    let paths = ModelPaths::new(&[model.to_str().unwrap().to_owned()]);
    let settings = FollowSettings { paths, ..FollowSettings::default() };
    let mut background = JoinSet::new();
    let (clock, router) = (Arc::clone(&gateway), Arc::clone(gateway.router()));
    let (config, problems) =
        (warmroute_probe::Config::default(), Arc::new(|_: &Address, _: Option<&str>| {}));
    background.spawn(warmroute_probe::run(router, config, move || clock.now(), problems));
    let follower = EngineFollower::new(Arc::clone(&gateway), settings, None).await.unwrap();
    let reports = follower.report_endpoint();
    let address = Address::new(engine.url());
    let refused = || reports.post(&address, "application/json", b"{}").unwrap_err().status;
    assert_eq!(refused(), 503, "the engine is not known yet");
    background.spawn(follower.run());

    let _sources = follow_sources(
        listed(&[engine.url()]),
        Arc::clone(gateway.router()),
        Configured::default(),
        &mut background,
    );
    let view = || gateway.router().inspect().workers().first().map(|view| view.load.view);
    until("the engine's cache is known from its events", || view() == Some(CacheView::Reported)).await;
    assert_eq!(refused(), 403, "the engine publishes itself");

    gateway.router().apply(Change::Leave { address: address.clone() });
    until("the engine is not followed any more", || refused() == 503).await;
    std::fs::remove_dir_all(&model).unwrap();
}

#[tokio::test]
async fn a_replaced_list_adds_new_workers_and_removes_those_that_are_not_needed() {
    let (gateway, mut background) = (gateway(), JoinSet::new());
    let (a, b) = ("http://127.0.0.1:1", "http://127.0.0.1:2");
    let FollowedSources { changed, .. } =
        follow_sources(listed(&[a]), Arc::clone(gateway.router()), Configured::default(), &mut background);
    assert_eq!(urls(&gateway), [a], "the configured list is applied at once");
    changed.send(listed(&[a, b])).unwrap();
    until("b joins", || urls(&gateway) == [a, b]).await;
    changed.send(listed(&[b])).unwrap();
    until("a leaves: it has never been ready", || urls(&gateway) == [b]).await;
}

#[tokio::test]
async fn a_worker_beyond_the_limit_joins_when_another_has_left() {
    let (gateway, mut background) = (gateway(), JoinSet::new());
    let all: Vec<String> = (1..=MAX_WORKERS + 1).map(|port| format!("http://127.0.0.1:{port}")).collect();
    let mut all: Vec<&str> = all.iter().map(String::as_str).collect();
    let (last, second) = (all[MAX_WORKERS], all[1]);
    let FollowedSources { changed, .. } =
        follow_sources(listed(&all), Arc::clone(gateway.router()), Configured::default(), &mut background);
    // In the order of the addresses, another one than the last of the list may have found no room.
    let found = urls(&gateway);
    assert_eq!(found.len(), MAX_WORKERS);
    let without_room = *all.iter().find(|&&url| !found.iter().any(|known| known == url)).unwrap();
    let leaving = if without_room == last { second } else { last };
    all.retain(|&url| url != leaving);
    changed.send(listed(&all)).unwrap();
    until("the ignored worker joins", || urls(&gateway).iter().any(|url| url == without_room)).await;
}

/// A gateway that shares by mesh.
async fn sharing(background: &mut JoinSet<()>, listener: TcpListener, peer: SocketAddr) -> Arc<Gateway> {
    let folder = folder(&format!("mesh-{}", peer.port()));
    let secret = folder.join("secret");
    std::fs::write(&secret, "a secret that only these routers know\n").unwrap();
    let config = MeshConfig {
        listen: listener.local_addr().unwrap(),
        advertise: None,
        peers: vec![peer.to_string()],
        secret: Secrets::from_file(&secret).unwrap(),
        versions: Versions::OURS,
        timings: MeshTimings::default(),
    };
    std::fs::remove_dir_all(&folder).unwrap();
    let plan = SharePlan { transport: Transport::Mesh(Box::new(config)), seed: 1, exposed: Vec::new() };
    let gateway = gateway();
    let (exchange, _leave) = exchange_with_peers(plan, Arc::clone(&gateway), Some(listener)).unwrap();
    background.spawn(exchange);
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn two_routers_connect_to_each_other() {
    let mut background = JoinSet::new();
    let listen = || async { TcpListener::bind("127.0.0.1:0").await.unwrap() };
    let (first, second) = (listen().await, listen().await);
    let (first_address, second_address) = (first.local_addr().unwrap(), second.local_addr().unwrap());
    let first = sharing(&mut background, first, second_address).await;
    let second = sharing(&mut background, second, first_address).await;
    let peers =
        |gateway: &Gateway| gateway.router().peering().view(gateway.now()).map(|sharing| sharing.peers.len());
    until("each has one peer", || peers(&first) == Some(1) && peers(&second) == Some(1)).await;
}
