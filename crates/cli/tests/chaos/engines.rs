//! The engine processes, which can be killed and restarted on their port, and publish events.

use std::time::{Duration, Instant};

use crate::from_environment;
use crate::harness::client::post;
use crate::harness::process::{Gateway, Process};
use crate::settings::Settings;

pub const MODEL: &str = "llama-3.1-8b";
/// A token takes some 30 ms, so that streams last for seconds and 200 streams are little load for two cores.
const SPEED: &str = "0.2";
/// A restarted engine publishes at another endpoint: the old one counts as silent after 10 s, and queries are 15 s
/// apart.
const VIEWS_WITHIN: Duration = Duration::from_secs(90);

/// One heap that returns what is free at its end: the peak of the resident memory is then the peak of what is in use.
const ONE_HEAP: [(&str, &str); 3] =
    [("MALLOC_ARENA_MAX", "1"), ("MALLOC_TRIM_THRESHOLD_", "131072"), ("MALLOC_MMAP_THRESHOLD_", "131072")];

pub struct Engines {
    engines: Vec<Engine>,
}

struct Engine {
    url: String,
    process: Option<Process>,
}

impl Engines {
    pub fn start(engines: usize) -> Engines {
        let start = |_| {
            let process = start("0");
            Engine { url: process.url().to_owned(), process: Some(process) }
        };
        Engines { engines: (0..engines).map(start).collect() }
    }

    /// A gateway in front of all engines that follows their events.
    pub fn gateway(&self, settings: &Settings) -> Gateway {
        let gateway = self.successor(settings);
        gateway.wait_for_ready(self.size());
        wait_for_views(&gateway);
        gateway
    }

    /// Starts a gateway that takes over from the running one, if any; returns when it has.
    pub fn successor(&self, settings: &Settings) -> Gateway {
        let urls: Vec<&str> = self.engines.iter().map(|engine| engine.url.as_str()).collect();
        // A gateway would not start with an invalid file.
        settings.reset();
        let (folder, flags) = (model_folder(), settings.flags());
        let flags = ["--model-path", &folder].into_iter().chain(flags.iter().map(String::as_str));
        let heap: &[_] = if from_environment("CHAOS_ONE_HEAP", 1) == 0 { &[] } else { &ONE_HEAP };
        Gateway::start_with_log(&urls, &flags.collect::<Vec<_>>(), heap, settings.log().into())
    }

    /// A gateway without settings of its own that follows the engines' events.
    pub fn plain_gateway(&self, flags: &[&str]) -> Gateway {
        let urls: Vec<&str> = self.engines.iter().map(|engine| engine.url.as_str()).collect();
        let folder = model_folder();
        let gateway = Gateway::start(&urls, &[&["--model-path", &folder], flags].concat());
        gateway.wait_for_ready(self.size());
        wait_for_views(&gateway);
        gateway
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

    /// Sends SIGKILL and waits for the process to end.
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
