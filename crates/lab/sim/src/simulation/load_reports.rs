//! Engines' reports of their own load, for rules that read them.

use warmroute_types::{LoadReport, Micros};

use super::Simulation;
use crate::queue::Event;

/// Interval at which routers read an engine's metrics, as in production.
const REPORT_INTERVAL: Micros = Micros::from_secs(1);

impl Simulation<'_> {
    /// Schedules the first reports, if the rule reads any.
    pub(super) fn start_load_reports(&mut self) {
        if self.needs_waiting {
            self.queue.push(self.now, Event::LoadReports);
        }
    }

    /// Gives every router the waiting and running requests of every engine.
    pub(super) fn report_loads(&mut self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let stats = node.engine.stats();
            let report = LoadReport {
                waiting: stats.waiting,
                running: stats.running,
                at: self.now,
                ..LoadReport::default()
            };
            self.routers.iter().for_each(|router| router.report_load(index, report));
        }
        if !self.is_over() {
            self.queue.push(self.now + REPORT_INTERVAL, Event::LoadReports);
        }
    }
}
