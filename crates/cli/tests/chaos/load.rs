//! Clients that send requests one after another, in several forms.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;

use crate::engines::MODEL;
use crate::harness::client::Call;
use crate::outcome::{Form, Outcome, Tally};
use crate::random::Random;

/// Prompts long enough for their cache to matter, and few enough to repeat.
const CONVERSATIONS: u64 = 400;

/// The running clients.
pub struct Load {
    is_over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Tally>>,
}

impl Load {
    pub fn start(url: &str, clients: usize, seed: u64) -> Load {
        let is_over = Arc::new(AtomicBool::new(false));
        let start = |number: usize| {
            let (url, is_over) = (url.to_owned(), Arc::clone(&is_over));
            std::thread::spawn(move || ask_on(&url, Random::new(seed ^ (number as u64 + 1) << 32), &is_over))
        };
        Load { clients: (0..clients).map(start).collect(), is_over }
    }

    /// Stops the clients after their last answer.
    pub fn stop(self) -> Tally {
        self.is_over.store(true, Ordering::Relaxed);
        sum(self.clients)
    }
}

/// Sends this many short requests at once; returns when all are answered or refused.
pub fn flood(url: &str, requests: usize, random: &mut Random) -> JoinHandle<Tally> {
    let (url, mut random) = (url.to_owned(), Random::new(random.throw()));
    std::thread::spawn(move || {
        let mut ask = |_| {
            let (url, random) = (url.clone(), Random::new(random.throw()));
            std::thread::spawn(move || {
                let mut tally = Tally::default();
                tally.count(document(&url, random));
                tally
            })
        };
        sum((0..requests).map(&mut ask).collect())
    })
}

/// Sends this many short requests from each of so many clients; returns when all are answered.
pub fn requests(url: &str, clients: usize, each: usize, seed: u64) -> Tally {
    let start = |number: usize| {
        let (url, mut random) = (url.to_owned(), Random::new(seed ^ (number as u64 + 1) << 32));
        std::thread::spawn(move || {
            let mut tally = Tally::default();
            (0..each).for_each(|_| tally.count(document(&url, Random::new(random.throw()))));
            tally
        })
    };
    sum((0..clients).map(start).collect())
}

fn sum(clients: Vec<JoinHandle<Tally>>) -> Tally {
    let mut whole = Tally::default();
    clients.into_iter().for_each(|client| whole.add(&client.join().unwrap()));
    whole
}

fn ask_on(url: &str, mut random: Random, is_over: &AtomicBool) -> Tally {
    let mut tally = Tally::default();
    while !is_over.load(Ordering::Relaxed) {
        let outcome = ask(url, &mut random);
        if matches!(outcome, Outcome::TurnedAway) {
            // The gateway asked to retry later.
            std::thread::sleep(Duration::from_millis(500));
        }
        tally.count(outcome);
    }
    tally
}

/// Of twenty requests, twelve are chats, three Anthropic messages, four documents, and one is abandoned.
fn ask(url: &str, random: &mut Random) -> Outcome {
    match random.within(0..20) {
        0..12 => stream(url, Form::Chat, random),
        12..15 => stream(url, Form::Messages, random),
        15..19 => document(url, Random::new(random.throw())),
        _ => leave(url, random),
    }
}

fn stream(url: &str, form: Form, random: &mut Random) -> Outcome {
    let tokens = random.within(10..120);
    Outcome::of(form, send(url, form, tokens, random).and_then(Call::finish_if_begun))
}

fn document(url: &str, mut random: Random) -> Outcome {
    let tokens = random.within(2..20);
    Outcome::of(
        Form::Document,
        send(url, Form::Document, tokens, &mut random).and_then(Call::finish_if_begun),
    )
}

fn leave(url: &str, random: &mut Random) -> Outcome {
    let call = send(url, Form::Chat, 120, random);
    std::thread::sleep(random.pause_ms(0..1500));
    drop(call);
    Outcome::Left
}

/// `None`: the connection was refused, which counts as no answer.
fn send(url: &str, form: Form, tokens: u64, random: &mut Random) -> Option<Call> {
    let path = if form == Form::Messages { "/v1/messages" } else { "/v1/chat/completions" };
    let number = random.within(0..CONVERSATIONS);
    let text = format!("Conversation {number} under system prompt {}. ", number % 8).repeat(20);
    let body = json!({
        "model": MODEL, "max_tokens": tokens, "stream": form != Form::Document,
        "messages": [{"role": "user", "content": text}],
    });
    Call::try_send(url, "POST", path, &["content-type: application/json"], body.to_string().as_bytes()).ok()
}
