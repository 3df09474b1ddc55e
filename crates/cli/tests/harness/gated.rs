//! An engine that answers once the test lets it, for tests of admission.

use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::eventually;
use super::gate::Gate;
use super::process::Gateway;
use super::script::{ReceivedRequest, Scripted};

/// An engine that answers once the gate is open, and records the order of its requests.
pub struct Gated {
    pub engine: Scripted,
    pub gate: Gate,
    order: Arc<Mutex<Vec<String>>>,
}

impl Gated {
    /// An engine that serves this model and answers with `answer`.
    pub fn serving(model: &'static str, answer: fn(ReceivedRequest)) -> Gated {
        let (gate, order) = (Gate::default(), Arc::new(Mutex::new(Vec::new())));
        let (waited_at, asked_in) = (gate.clone(), Arc::clone(&order));
        let engine = Scripted::with_models(Some(model), move |asked| {
            let body: Value = serde_json::from_slice(&asked.body).unwrap();
            asked_in.lock().unwrap().push(body["messages"][0]["content"].as_str().unwrap().to_owned());
            waited_at.pass();
            answer(asked);
        });
        Gated { engine, gate, order }
    }

    /// The texts of the requests that came, in order.
    pub fn order(&self) -> Vec<String> {
        self.order.lock().unwrap().clone()
    }
}

/// Waits until this many requests wait for admission.
pub fn wait_for_waiting(gateway: &Gateway, n: usize) {
    eventually(&format!("{n} requests wait"), || {
        (gateway.metric_sum("warmroute_queue_waiting") == n as f64).then_some(())
    });
}
