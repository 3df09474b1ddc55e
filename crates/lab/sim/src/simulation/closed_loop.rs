//! Clients of a closed loop: a fixed number, each with one request in flight.
//!
//! Each client plays one session after another, turn by turn, without start and think times. The fleet is always
//! as busy as the number of clients makes it, so the rate of answers is the fleet's own: its throughput.

use warmroute_types::Micros;

use super::Simulation;

impl Simulation<'_> {
    /// Start of the next session: its own time, or now if a client of the closed loop is free and the run has begun.
    pub(super) fn next_arrival(&mut self) -> Option<Micros> {
        let starts = self.sessions.peek().map(|session| session.starts);
        let Some(clients) = self.config.concurrency else { return starts };
        if self.jobs.len() - self.vacant.len() >= clients as usize {
            return None;
        }
        if starts.is_none() {
            self.saturated.get_or_insert(self.now);
        }
        starts.map(|_| self.now.max(self.began))
    }
}
