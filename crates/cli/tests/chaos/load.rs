//! Clients that ask one thing after another, each in its own way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;

use crate::dice::Dice;
use crate::outcome::{Form, Outcome, Tally};
use crate::troupe::MODEL;
use crate::world::client::Call;

/// Long enough for prefixes to be worth something, few enough that they come again.
const CONVERSATIONS: u64 = 400;

/// Clients at work.
pub struct Load {
    is_over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Tally>>,
}

impl Load {
    pub fn start(url: &str, clients: usize, seed: u64) -> Load {
        let is_over = Arc::new(AtomicBool::new(false));
        let start = |number: usize| {
            let (url, is_over) = (url.to_owned(), Arc::clone(&is_over));
            std::thread::spawn(move || ask_on(&url, Dice::new(seed ^ (number as u64 + 1) << 32), &is_over))
        };
        Load { clients: (0..clients).map(start).collect(), is_over }
    }

    /// Everybody gets the answer to the last question.
    pub fn stop(self) -> Tally {
        self.is_over.store(true, Ordering::Relaxed);
        sum(self.clients)
    }
}

/// So many short requests at once; returns when all have been answered or turned away.
pub fn flood(url: &str, requests: usize, dice: &mut Dice) -> JoinHandle<Tally> {
    let (url, mut dice) = (url.to_owned(), Dice::new(dice.throw()));
    std::thread::spawn(move || {
        let mut ask = |_| {
            let (url, dice) = (url.clone(), Dice::new(dice.throw()));
            std::thread::spawn(move || {
                let mut tally = Tally::default();
                tally.count(document(&url, dice));
                tally
            })
        };
        sum((0..requests).map(&mut ask).collect())
    })
}

fn sum(clients: Vec<JoinHandle<Tally>>) -> Tally {
    let mut whole = Tally::default();
    clients.into_iter().for_each(|client| whole.add(&client.join().unwrap()));
    whole
}

fn ask_on(url: &str, mut dice: Dice, is_over: &AtomicBool) -> Tally {
    let mut tally = Tally::default();
    while !is_over.load(Ordering::Relaxed) {
        let outcome = ask(url, &mut dice);
        if matches!(outcome, Outcome::TurnedAway) {
            // It was told to come back later.
            std::thread::sleep(Duration::from_millis(500));
        }
        tally.count(outcome);
    }
    tally
}

/// Of twenty, twelve are chats, three Anthropic's, four documents, and one goes away.
fn ask(url: &str, dice: &mut Dice) -> Outcome {
    match dice.within(0..20) {
        0..12 => stream(url, Form::Chat, dice),
        12..15 => stream(url, Form::Messages, dice),
        15..19 => document(url, Dice::new(dice.throw())),
        _ => leave(url, dice),
    }
}

fn stream(url: &str, form: Form, dice: &mut Dice) -> Outcome {
    let tokens = dice.within(10..120);
    Outcome::of(form, send(url, form, tokens, dice).and_then(Call::finish_if_begun))
}

fn document(url: &str, mut dice: Dice) -> Outcome {
    let tokens = dice.within(2..20);
    Outcome::of(Form::Document, send(url, Form::Document, tokens, &mut dice).and_then(Call::finish_if_begun))
}

fn leave(url: &str, dice: &mut Dice) -> Outcome {
    let call = send(url, Form::Chat, 120, dice);
    std::thread::sleep(dice.pause_ms(0..1500));
    drop(call);
    Outcome::Left
}

/// `None` where nobody listens, which is as bad as no answer.
fn send(url: &str, form: Form, tokens: u64, dice: &mut Dice) -> Option<Call> {
    let path = if form == Form::Messages { "/v1/messages" } else { "/v1/chat/completions" };
    let number = dice.within(0..CONVERSATIONS);
    let text = format!("Conversation {number} under system prompt {}. ", number % 8).repeat(20);
    let body = json!({
        "model": MODEL, "max_tokens": tokens, "stream": form != Form::Document,
        "messages": [{"role": "user", "content": text}],
    });
    Call::try_send(url, "POST", path, &["content-type: application/json"], body.to_string().as_bytes()).ok()
}
