//! Engines' reports of their own load, as a router's probe reads them.

use warmroute_types::{LoadReport, Micros};

use super::Simulation;
use crate::queue::Event;

/// Interval at which routers read an engine's metrics, as in production.
const REPORT_INTERVAL: Micros = Micros::from_secs(1);

impl Simulation<'_> {
    /// Schedules the first reports.
    pub(super) fn start_load_reports(&mut self) {
        self.queue.push(self.now, Event::LoadReports);
    }

    /// Gives every router what vLLM's metrics say about the load of every engine: not the number of its places.
    pub(super) fn report_loads(&mut self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let stats = node.engine.stats();
            let report = LoadReport {
                waiting: stats.waiting,
                running: stats.running,
                kv_use: Some(stats.kv_use as f32),
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
