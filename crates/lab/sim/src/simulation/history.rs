//! Engines with a history: they have served requests before the routers of the run join them.

use warmroute_types::Micros;

use super::{Outcome, Simulation};
use crate::config::{Config, History};
use crate::node::Node;
use crate::queue::Event;
use crate::rule::Rule;
use crate::session::Session;

/// Requests that engines serve before the run.
const HISTORY_REQUESTS: usize = 300;

/// Time that new routers have to read the engines' replayed events before the first request comes: they are not ready before.
const CATCH_UP: Micros = Micros::from_secs(1);

/// Lets the engines serve the beginning of the same traffic, spread over all of them, so that many replayed blocks are requested
/// again. Then runs the sessions with new routers.
pub(super) fn run(config: &Config, rule: &Rule, sessions: Vec<Session>) -> Outcome {
    let round_robin = Rule::parse("round_robin").expect("round_robin is a policy");
    let quiet = Config { incidents: Vec::new(), ..config.clone() };
    let past = beginning(&sessions).to_vec();
    let mut simulation = Simulation::new(&quiet, &round_robin, Box::new(past.into_iter()));
    simulation.publishes_unread = true;
    simulation.start();
    while simulation.step() {}
    simulation.with_new_routers(config, rule, sessions).run_to_end()
}

/// The first sessions that have at most [`HISTORY_REQUESTS`] turns together.
fn beginning(sessions: &[Session]) -> &[Session] {
    let mut requests = 0;
    let is_within = |session: &&Session| {
        requests += session.turns.len();
        requests <= HISTORY_REQUESTS
    };
    &sessions[..sessions.iter().take_while(is_within).count()]
}

impl Simulation<'_> {
    /// Replaces the routers by new ones with another rule, keeps the engines and their caches, and starts the
    /// sessions when the routers are ready.
    fn with_new_routers<'b>(self, config: &'b Config, rule: &Rule, sessions: Vec<Session>) -> Simulation<'b> {
        let (now, began) = (self.now, self.now + CATCH_UP);
        let later = move |session: Session| Session { starts: session.starts + began, ..session };
        let mut simulation = Simulation::new(config, rule, Box::new(sessions.into_iter().map(later)));
        (simulation.now, simulation.began) = (now, began);
        (simulation.nodes, simulation.streams) = (self.nodes, self.streams);
        (simulation.directory, simulation.transit) = (self.directory, self.transit);
        simulation.nodes.iter_mut().for_each(Node::begin_run);
        if config.history == History::Reset {
            simulation.nodes.iter_mut().for_each(Node::reset);
        }
        for node in 0..simulation.nodes.len() {
            let engine = &config.fleet[node];
            simulation.routers.iter_mut().for_each(|router| router.join(node, engine, now));
            // A router asks for one token before it reads a replay, so that an idle engine publishes its reset.
            let mut held = Vec::new();
            simulation.nodes[node].engine.take_held_events(&mut held);
            simulation.send_changes(node, &held);
            simulation.connect(node);
        }
        let ticks = now.0 / simulation.tick_interval().0 + 1;
        simulation.queue.push(Micros(ticks * simulation.tick_interval().0), Event::Tick);
        simulation.start_load_reports();
        simulation.start_sharing();
        simulation.schedule_incidents();
        simulation
    }
}
