//! Load that records every failed request and never retries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::client::{chat, chat_stream};
use super::eventually;
use super::keep_alive::KeepAlive;

const MODEL: &str = "llama-3.1-8b";
const CHATS: &str = "/v1/chat/completions";

/// Clients that send streams and documents on kept connections.
pub struct Load {
    is_over: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    clients: Vec<std::thread::JoinHandle<Vec<String>>>,
}

impl Load {
    pub fn start(url: &str, clients: usize) -> Load {
        let (is_over, asked): (Arc<AtomicBool>, Arc<AtomicU64>) = Default::default();
        let client = |number: usize| {
            let (mut kept, is_over, asked) = (KeepAlive::new(url), Arc::clone(&is_over), Arc::clone(&asked));
            std::thread::spawn(move || {
                let mut failed = Vec::new();
                while !is_over.load(Relaxed) {
                    failed.extend(ask(&mut kept, number));
                    asked.fetch_add(1, Relaxed);
                }
                failed
            })
        };
        Load { clients: (0..clients).map(client).collect(), is_over, asked }
    }

    pub fn wait_for_more(&self, requests: u64) {
        let before = self.asked.load(Relaxed);
        eventually("clients go on", || (self.asked.load(Relaxed) >= before + requests).then_some(()));
    }

    /// Returns the number of requests, and the failures.
    pub fn stop(self) -> (u64, Vec<String>) {
        self.is_over.store(true, Relaxed);
        let failed = self.clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        (self.asked.load(Relaxed), failed)
    }
}

/// Sends a request. `Some`: why it failed.
fn ask(kept: &mut KeepAlive, number: usize) -> Option<String> {
    let is_stream = number.is_multiple_of(2);
    let body = if is_stream { chat_stream(MODEL, 20) } else { chat(MODEL) };
    match kept.post(CHATS, &body) {
        Ok(answer) if answer.status != 200 => Some(format!("{answer:?}")),
        Ok(answer) if is_stream && !answer.body.ends_with("data: [DONE]\n\n") => Some(format!("{answer:?}")),
        Ok(_) => None,
        Err(error) => {
            let failed = format!("connection {}: {error}", kept.connected);
            *kept = KeepAlive::new(kept.url());
            Some(failed)
        }
    }
}
