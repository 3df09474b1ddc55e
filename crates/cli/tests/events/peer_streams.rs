//! Events that reach only one of several routers: every router knows what the engine holds.

use crate::harness::client::{Call, Response, get, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, Process, engine};
use crate::harness::redis::RedisServer;
use crate::harness::temp_folder::TempFolder;
use serde_json::{Value, json};

const MODEL: &str = "llama-3.1-8b";
const BLOCK: usize = 16;

/// How routers reach each other.
enum Transport {
    /// The address of the first router, once there is one.
    Mesh {
        seed: Option<String>,
    },
    Redis(RedisServer),
}

impl Transport {
    fn flags(&self) -> Vec<String> {
        let flags = match self {
            Transport::Mesh { seed: None } => "--share mesh --mesh-listen 127.0.0.1:0".to_owned(),
            Transport::Mesh { seed: Some(seed) } => {
                format!("--share mesh --mesh-listen 127.0.0.1:0 --mesh-peers {seed}")
            }
            Transport::Redis(server) => format!("--share {}", server.url()),
        };
        flags.split(' ').map(str::to_owned).collect()
    }

    /// The next router must dial a live one.
    fn meet_at(&mut self, router: &Gateway) {
        if let Transport::Mesh { seed } = self {
            *seed = peers(router)["transport"]["listening"].as_str().map(str::to_owned);
        }
    }
}

/// An engine without events of its own, and several routers that share.
struct Cluster {
    engine: Process,
    routers: Vec<Gateway>,
    transport: Transport,
    secret: String,
    folder: String,
    /// Number of reports so far.
    seq: u64,
    _files: TempFolder,
}

impl Cluster {
    fn new(name: &str, transport: Transport, routers: usize) -> Cluster {
        let files = TempFolder::new(name);
        let folder = format!("{}/model-{name}", env!("CARGO_TARGET_TMPDIR"));
        let secret = files.file("secret");
        std::fs::write(&secret, "a secret that only these routers know\n").unwrap();
        let engine = engine(&["--write-model", &folder]);
        let mut cluster =
            Cluster { engine, routers: Vec::new(), transport, secret, folder, seq: 0, _files: files };
        (0..routers).for_each(|_| cluster.join());
        cluster
    }

    /// Adds a router. Returns when all routers are connected and have aligned the engine's prompts.
    fn join(&mut self) {
        let shared = self.transport.flags();
        let mut flags: Vec<&str> = shared.iter().map(String::as_str).collect();
        flags.extend(["--share-secret-file", &self.secret, "--model-path", &self.folder]);
        flags.extend(["--events-token", "token"]);
        let router = Gateway::over(&[self.engine.url()], &flags);
        self.transport.meet_at(&router);
        self.routers.push(router);
        let others = self.routers.len() - 1;
        for router in &self.routers {
            eventually("all are heard", || {
                (peers(router)["peers"].as_array()?.len() == others).then_some(())
            });
            eventually("the worker is aligned", || router.workers()[0]["events"].is_object().then_some(()));
        }
    }

    /// The engine computes a prompt, and its reporter posts the events to one of the routers.
    fn store(&mut self, topic: &str, router: usize) -> Response {
        let tokens = self.tokens(topic);
        let blocks: Vec<u64> = (1..=tokens.len() / BLOCK).map(|end| name(&tokens[..end * BLOCK])).collect();
        let event = json!({"type": "BlockStored", "block_hashes": blocks, "parent_block_hash": null,
            "token_ids": &tokens[..blocks.len() * BLOCK], "block_size": BLOCK});
        self.post(vec![event], router)
    }

    fn post(&mut self, events: Vec<Value>, router: usize) -> Response {
        let body =
            json!({"source": "a reporter", "seq": self.seq, "ts": 1e9 + self.seq as f64, "events": events});
        self.seq += 1;
        let worker = self.engine.url().replace(':', "%3A").replace('/', "%2F");
        let headers = ["content-type: application/json", "authorization: Bearer token"];
        let path = format!("/events?worker={worker}");
        let admin = self.routers[router].admin();
        Call::send(admin, "POST", &path, &headers, body.to_string().as_bytes()).finish()
    }

    fn tokens(&self, topic: &str) -> Vec<u64> {
        let answer = post(self.engine.url(), "/tokenize", &chat(topic)).json();
        answer["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
    }

    /// Checks that every router expects exactly the whole blocks of this prompt at the engine.
    fn all_know(&self, topic: &str) {
        // The last token is always recomputed.
        let blocks = (self.tokens(topic).len() - 1) / BLOCK;
        for (number, router) in self.routers.iter().enumerate() {
            eventually(&format!("router {number} knows {topic}: {}", overlap(router, topic)), || {
                (overlap(router, topic) == (blocks * BLOCK) as u64).then_some(())
            });
            assert_eq!(router.workers()[0]["view"], "reported", "router {number}");
        }
    }
}

fn chat(topic: &str) -> String {
    let text = format!("{topic} ").repeat(200);
    json!({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}).to_string()
}

fn name(tokens: &[u64]) -> u64 {
    tokens.iter().fold(7, |hash: u64, &id| (hash ^ id).wrapping_mul(0x0100_0000_01b3).rotate_left(5))
}

fn peers(router: &Gateway) -> Value {
    get(router.admin(), "/peers").json()
}

/// The tokens of a prompt that a router expects at the engine. The preview leaves no trace.
fn overlap(router: &Gateway, topic: &str) -> u64 {
    post(router.admin(), "/explain", &chat(topic)).json()["candidates"][0]["overlap_tokens"]
        .as_u64()
        .unwrap_or(0)
}

fn relayed(router: &Gateway, what: &str) -> u64 {
    peers(router)["relayed"][what].as_u64().unwrap()
}

#[test]
fn reports_to_one_router_or_to_all_in_turn_reach_every_router() {
    post_to_one_and_to_all(Cluster::new("posted", Transport::Mesh { seed: None }, 3));
}

#[test]
fn reports_reach_every_router_by_redis() {
    let Some(server) = RedisServer::start() else { return };
    post_to_one_and_to_all(Cluster::new("posted-redis", Transport::Redis(server), 3));
}

fn post_to_one_and_to_all(mut cluster: Cluster) {
    for topic in ["kettles", "herons", "violins"] {
        assert_eq!(cluster.store(topic, 0).status, 200);
        cluster.all_know(topic);
    }
    assert_eq!((relayed(&cluster.routers[0], "told"), relayed(&cluster.routers[1], "heard")), (3, 3));
    for (number, topic) in ["gravel", "saffron", "lanterns", "anvils", "otters"].iter().enumerate() {
        let answer = cluster.store(topic, number % 3);
        assert_eq!((answer.status, answer.json()["next_seq"].as_u64()), (200, Some(cluster.seq)));
        cluster.all_know(topic);
    }
    eventually("it is counted", || {
        (cluster.routers[0].metric("warmroute_relayed_streams") == 1.0).then_some(())
    });
    cluster.post(vec![json!({"type": "AllBlocksCleared"})], 1);
    eventually("nobody believes it any more", || {
        cluster.routers.iter().all(|router| overlap(router, "otters") == 0).then_some(())
    });
}

#[test]
fn a_late_joiner_learns_all_and_a_killed_receiver_loses_nothing() {
    join_late_and_be_killed(Cluster::new("joining", Transport::Mesh { seed: None }, 2));
}

#[test]
fn a_late_joiner_by_redis_learns_all() {
    let Some(server) = RedisServer::start() else { return };
    join_late_and_be_killed(Cluster::new("joining-redis", Transport::Redis(server), 2));
}

fn join_late_and_be_killed(mut cluster: Cluster) {
    let topics = ["kettles", "herons", "violins", "gravel"];
    for topic in topics {
        assert_eq!(cluster.store(topic, 0).status, 200);
    }
    topics.iter().for_each(|topic| cluster.all_know(topic));
    cluster.join();
    topics.iter().for_each(|topic| cluster.all_know(topic));
    let given: u64 = cluster.routers.iter().map(|router| relayed(router, "given")).sum();
    assert!(given > 0, "a sibling told it, and no reporter");
    // With SIGKILL.
    drop(cluster.routers.remove(0));
    let answer = cluster.store("saffron", 1);
    assert_eq!(
        (answer.status, answer.json()["next_seq"].as_u64()),
        (200, Some(cluster.seq)),
        "{}",
        answer.text()
    );
    cluster.all_know("saffron");
    topics.iter().for_each(|topic| cluster.all_know(topic));
    cluster.transport.meet_at(&cluster.routers[0]);
    cluster.routers.iter().for_each(|router| {
        eventually("the dead one is gone", || (peers(router)["peers"].as_array()?.len() == 1).then_some(()));
    });
    cluster.join();
    topics.iter().for_each(|topic| cluster.all_know(topic));
}
