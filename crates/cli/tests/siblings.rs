//! Engines' events that reach one of several routers: all of them know what the engine holds.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod world;

use serde_json::{Value, json};
use world::client::{Call, Response, get, post};
use world::eventually;
use world::process::{Gateway, Process, engine};
use world::redis::RedisServer;
use world::scrap::Scrap;

const MODEL: &str = "llama-3.1-8b";
const BLOCK: usize = 16;

/// How routers reach each other.
enum Transport {
    /// By this one, once there is one.
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

    /// Whoever comes next is to dial one that is alive.
    fn meet_at(&mut self, router: &Gateway) {
        if let Transport::Mesh { seed } = self {
            *seed = peers(router)["transport"]["listening"].as_str().map(str::to_owned);
        }
    }
}

/// An engine without events of its own, and routers before it that share.
struct World {
    engine: Process,
    routers: Vec<Gateway>,
    transport: Transport,
    secret: String,
    folder: String,
    /// Posts so far.
    seq: u64,
    _scrap: Scrap,
}

impl World {
    fn new(name: &str, transport: Transport, routers: usize) -> World {
        let scrap = Scrap::new(name);
        let folder = format!("{}/model-{name}", env!("CARGO_TARGET_TMPDIR"));
        let secret = scrap.file("secret");
        std::fs::write(&secret, "a secret that only these routers know\n").unwrap();
        let engine = engine(&["--write-model", &folder]);
        let mut world =
            World { engine, routers: Vec::new(), transport, secret, folder, seq: 0, _scrap: scrap };
        (0..routers).for_each(|_| world.join());
        world
    }

    /// One more router; returns when all hear each other and know how the engine's prompts are written.
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

    /// The engine computes a prompt, and its reporter posts that to one of the routers.
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

    /// Every router expects just the whole blocks of this prompt at the engine, by its events.
    fn all_know(&self, topic: &str) {
        // The last token is computed again in any case.
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

/// What a router expects the engine to hold of a prompt; asking this leaves no trace.
fn overlap(router: &Gateway, topic: &str) -> u64 {
    post(router.admin(), "/explain", &chat(topic)).json()["candidates"][0]["overlap_tokens"]
        .as_u64()
        .unwrap_or(0)
}

fn relayed(router: &Gateway, what: &str) -> u64 {
    peers(router)["relayed"][what].as_u64().unwrap()
}

#[test]
fn what_is_posted_to_one_router_or_to_all_in_turn_every_router_knows() {
    post_to_one_and_to_all(World::new("posted", Transport::Mesh { seed: None }, 3));
}

#[test]
fn the_same_by_redis() {
    let Some(server) = RedisServer::start() else { return };
    post_to_one_and_to_all(World::new("posted-redis", Transport::Redis(server), 3));
}

fn post_to_one_and_to_all(mut world: World) {
    for topic in ["kettles", "herons", "violins"] {
        assert_eq!(world.store(topic, 0).status, 200);
        world.all_know(topic);
    }
    assert_eq!((relayed(&world.routers[0], "told"), relayed(&world.routers[1], "heard")), (3, 3));
    for (number, topic) in ["gravel", "saffron", "lanterns", "anvils", "otters"].iter().enumerate() {
        let answer = world.store(topic, number % 3);
        assert_eq!((answer.status, answer.json()["next_seq"].as_u64()), (200, Some(world.seq)));
        world.all_know(topic);
    }
    eventually("it is counted", || {
        (world.routers[0].metric("warmroute_relayed_streams") == 1.0).then_some(())
    });
    world.post(vec![json!({"type": "AllBlocksCleared"})], 1);
    eventually("nobody believes it any more", || {
        world.routers.iter().all(|router| overlap(router, "otters") == 0).then_some(())
    });
}

#[test]
fn a_late_joiner_learns_all_and_a_receiver_that_is_killed_is_not_missed() {
    join_late_and_be_killed(World::new("joining", Transport::Mesh { seed: None }, 2));
}

#[test]
fn nor_is_it_by_redis() {
    let Some(server) = RedisServer::start() else { return };
    join_late_and_be_killed(World::new("joining-redis", Transport::Redis(server), 2));
}

fn join_late_and_be_killed(mut world: World) {
    let topics = ["kettles", "herons", "violins", "gravel"];
    for topic in topics {
        assert_eq!(world.store(topic, 0).status, 200);
    }
    topics.iter().for_each(|topic| world.all_know(topic));
    world.join();
    topics.iter().for_each(|topic| world.all_know(topic));
    let given: u64 = world.routers.iter().map(|router| relayed(router, "given")).sum();
    assert!(given > 0, "a sibling told it, and no reporter");
    // With SIGKILL.
    drop(world.routers.remove(0));
    let answer = world.store("saffron", 1);
    assert_eq!(
        (answer.status, answer.json()["next_seq"].as_u64()),
        (200, Some(world.seq)),
        "{}",
        answer.text()
    );
    world.all_know("saffron");
    topics.iter().for_each(|topic| world.all_know(topic));
    world.transport.meet_at(&world.routers[0]);
    world.routers.iter().for_each(|router| {
        eventually("the dead one is gone", || (peers(router)["peers"].as_array()?.len() == 1).then_some(()));
    });
    world.join();
    topics.iter().for_each(|topic| world.all_know(topic));
}
