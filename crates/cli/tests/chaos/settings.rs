//! The gateway's configuration file, which changes during the run.
//!
//! It varies all options that can change at run time and affect requests: policy, limits, idle timeouts. Every fourth
//! file is invalid and must change nothing.

use std::fs::{self, File};

use crate::from_environment;
use crate::harness::temp_folder::TempFolder;
use crate::random::Random;

/// A limit that 200 clients exceed only together with a flood of 300.
const UNDER_WAY_MAX: u64 = 230;
const POLICIES: [&str; 4] = ["expected_ttft", "cache_aware", "round_robin", "least_loaded"];

pub struct Settings {
    folder: TempFolder,
}

impl Settings {
    pub fn new() -> Settings {
        let settings = Settings { folder: TempFolder::new("chaos") };
        settings.reset();
        settings
    }

    fn file(&self) -> String {
        self.folder.file("warmroute.toml")
    }

    /// The flags of every gateway of the run.
    pub fn flags(&self) -> Vec<String> {
        let (socket, state) = (self.folder.file("handover.sock"), self.folder.file("state"));
        let named = [("--config", self.file()), ("--handover", socket), ("--state", state)];
        // Stopped engines must be detected during the run.
        let probes = [("--health-check-timeout-secs", "1".to_owned())];
        named.into_iter().chain(probes).flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// The log that all gateways of the run write to.
    pub fn log(&self) -> File {
        File::options().append(true).create(true).open(self.folder.file("log")).unwrap()
    }

    /// What the gateways wrote about a request.
    pub fn log_of(&self, request: &str) -> String {
        let log = fs::read(self.folder.file("log")).unwrap();
        let log = String::from_utf8_lossy(&log);
        log.lines().filter(|line| line.contains(request)).map(|line| format!("{line}\n")).collect()
    }

    /// The initial settings.
    pub fn reset(&self) {
        self.write(POLICIES[0], UNDER_WAY_MAX, 3);
    }

    pub fn change(&self, random: &mut Random) {
        let (policy, idle_timeout_s) = (random.one_of(&POLICIES), random.within(2..5));
        match random.within(0..4) {
            0 => self.write("best", UNDER_WAY_MAX, idle_timeout_s),
            _ => self.write(policy, random.within(UNDER_WAY_MAX - 20..UNDER_WAY_MAX + 20), idle_timeout_s),
        }
    }

    fn write(&self, policy: &str, under_way_max: u64, idle_timeout_s: u64) {
        // With less than a sixth of all, requests are lost: one that a worker refuses does not wait until another has
        // room.
        let on_a_worker_max = from_environment("CHAOS_ON_A_WORKER", 100);
        let text = format!(
            "[routing]\npolicy = \"{policy}\"\n[timeouts]\nidle-timeout-secs = {idle_timeout_s}\n\
             [admission]\nmax-concurrent-requests = {under_way_max}\nmax-concurrent-per-worker = {on_a_worker_max}\nqueue-size = 40\n"
        );
        fs::write(self.file(), text).unwrap();
    }
}
