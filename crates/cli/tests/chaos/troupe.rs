//! The engines: processes that can be killed and come back on their port, and that publish events.

use std::time::{Duration, Instant};

use crate::settings::Settings;
use crate::world::client::post;
use crate::world::process::{Gateway, Process};

pub const MODEL: &str = "llama-3.1-8b";
/// A token takes some 30 ms, so that streams last for seconds and 200 of them are no load for two cores.
const SPEED: &str = "0.2";
/// An engine that comes back publishes somewhere else: its old endpoint is silent after 10 s, and 15 s pass between two questions.
const VIEWS_WITHIN: Duration = Duration::from_secs(90);

pub struct Troupe {
    engines: Vec<Engine>,
}

struct Engine {
    url: String,
    process: Option<Process>,
}

impl Troupe {
    pub fn start(engines: usize) -> Troupe {
        let start = |_| {
            let process = start("0");
            Engine { url: process.url().to_owned(), process: Some(process) }
        };
        Troupe { engines: (0..engines).map(start).collect() }
    }

    /// A gateway over all of them that hears their events.
    pub fn gateway(&self, settings: &Settings) -> Gateway {
        let gateway = self.successor(settings);
        gateway.wait_for_ready(self.size());
        wait_for_views(&gateway);
        gateway
    }

    /// One that takes the place of the gateway that runs, should there be one; returns when it has.
    pub fn successor(&self, settings: &Settings) -> Gateway {
        let urls: Vec<&str> = self.engines.iter().map(|engine| engine.url.as_str()).collect();
        // With a file that is wrong it would not start.
        settings.reset();
        let (folder, flags) = (model_folder(), settings.flags());
        let flags = ["--model-path", &folder].into_iter().chain(flags.iter().map(String::as_str));
        Gateway::start(&urls, &flags.collect::<Vec<_>>())
    }

    pub fn size(&self) -> usize {
        self.engines.len()
    }

    pub fn order(&self, victim: usize, fault: &str) {
        assert_eq!(post(&self.engines[victim].url, "/fault", fault).status, 200, "{fault}");
    }

    pub fn signal(&self, victim: usize, signal: &str) {
        self.engines[victim].process.iter().for_each(|process| process.signal(signal));
    }

    /// `kill -9`, and the process is gone when this returns.
    pub fn kill(&mut self, victim: usize) {
        self.engines[victim].process = None;
    }

    pub fn revive(&mut self, victim: usize) {
        let engine = &mut self.engines[victim];
        engine.process = Some(start(engine.url.rsplit(':').next().unwrap()));
    }
}

fn start(port: &str) -> Process {
    let folder = model_folder();
    let events = ["--events", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0"];
    Process::start(
        &[&["engine", "--port", port, "--speed", SPEED, "--write-model", &folder], &events[..]].concat(),
    )
}

fn model_folder() -> String {
    format!("{}/model-chaos", env!("CARGO_TARGET_TMPDIR"))
}

/// Waits until every engine's events are followed again.
pub fn wait_for_views(gateway: &Gateway) {
    let deadline = Instant::now() + VIEWS_WITHIN;
    while !gateway.workers().iter().all(|worker| worker["view"] == "reported") {
        assert!(Instant::now() < deadline, "views are not reported: {:#?}", gateway.workers());
        std::thread::sleep(Duration::from_millis(50));
    }
}
