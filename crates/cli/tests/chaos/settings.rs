//! The gateway's configuration file, which changes while everything else happens.
//!
//! All that may be changed while it runs, and that makes a difference to requests: the policy, the limits, how long silence is borne.
//! Every fourth file is wrong, and must change nothing.

use std::fs;

use crate::dice::Dice;
use crate::from_environment;
use crate::world::scrap::Scrap;

/// 200 clients pass it together with a flood of 300, not without.
const UNDER_WAY_MAX: u64 = 230;
const POLICIES: [&str; 4] = ["expected_ttft", "cache_aware", "round_robin", "least_loaded"];

pub struct Settings {
    scrap: Scrap,
}

impl Settings {
    pub fn new() -> Settings {
        let settings = Settings { scrap: Scrap::new("chaos") };
        settings.reset();
        settings
    }

    fn file(&self) -> String {
        self.scrap.file("warmroute.toml")
    }

    /// What every gateway of the run is started with.
    pub fn flags(&self) -> Vec<String> {
        let (socket, state) = (self.scrap.file("handover.sock"), self.scrap.file("state"));
        let named = [("--config", self.file()), ("--handover", socket), ("--state", state)];
        // Stopped engines must be found out while the run lasts.
        let probes = [("--health-check-timeout-secs", "1".to_owned())];
        named.into_iter().chain(probes).flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// As it was at the beginning.
    pub fn reset(&self) {
        self.write(POLICIES[0], UNDER_WAY_MAX, 3);
    }

    pub fn change(&self, dice: &mut Dice) {
        let (policy, idle_timeout_s) = (dice.one_of(&POLICIES), dice.within(2..5));
        match dice.within(0..4) {
            0 => self.write("best", UNDER_WAY_MAX, idle_timeout_s),
            _ => self.write(policy, dice.within(UNDER_WAY_MAX - 20..UNDER_WAY_MAX + 20), idle_timeout_s),
        }
    }

    fn write(&self, policy: &str, under_way_max: u64, idle_timeout_s: u64) {
        // With less than a sixth of all, requests are lost: one that a worker refuses is not kept until another has room.
        let on_a_worker_max = from_environment("CHAOS_ON_A_WORKER", 100);
        let text = format!(
            "[routing]\npolicy = \"{policy}\"\n[timeouts]\nidle-timeout-secs = {idle_timeout_s}\n\
             [admission]\nmax-concurrent-requests = {under_way_max}\nmax-concurrent-per-worker = {on_a_worker_max}\nqueue-size = 40\n"
        );
        fs::write(self.file(), text).unwrap();
    }
}
