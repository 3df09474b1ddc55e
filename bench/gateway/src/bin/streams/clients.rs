//! Many clients, each with a connection of its own, that send at even intervals.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use warmroute_bench_gateway::wire::connect;

const PROMPT_BYTES: usize = 220 * 1024;
/// Documents that clients ask about. A request is a document and a question of its own.
const DOCUMENTS: usize = 20;
/// Requests of each client, after a first one that is not counted.
const REQUESTS: u32 = 2;
const STACK_BYTES: usize = 128 << 10;
/// A stream may take as long as its client's period, and more on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// The documents, as text.
pub struct Prompts(Vec<String>);

/// Clients of one server.
pub struct Clients<'a> {
    pub port: u16,
    pub count: usize,
    /// From one request of a client to its next.
    pub period: Duration,
    pub prompts: &'a Prompts,
}

/// What clients measured.
#[derive(Default)]
pub struct Round {
    /// Without each client's first request.
    pub first_token_ms: Vec<f64>,
    pub requests: u64,
    pub errors: u64,
}

impl Prompts {
    pub fn new() -> Prompts {
        let document = |number: usize| {
            let sentence = |at: usize| format!("Sentence {at} of document {number} says nothing new. ");
            let mut text = String::with_capacity(PROMPT_BYTES + 64);
            (0..)
                .take_while(|at| {
                    text.push_str(&sentence(*at));
                    text.len() < PROMPT_BYTES
                })
                .for_each(drop);
            text
        };
        Prompts((0..DOCUMENTS).map(document).collect())
    }
}

impl Clients<'_> {
    /// Each client sends its requests; their sendings are spread evenly over the period.
    pub fn run(&self) -> Round {
        let start = Instant::now() + Duration::from_millis(500);
        thread::scope(|scope| {
            let client = |at: usize| {
                let first = start + self.period.mul_f64(at as f64 / self.count as f64);
                let builder = thread::Builder::new().stack_size(STACK_BYTES);
                builder.spawn_scoped(scope, move || self.run_one(at, first)).expect("a thread can be started")
            };
            let clients: Vec<_> = (0..self.count).map(client).collect();
            let rounds = clients.into_iter().map(|client| client.join().expect("a client does not panic"));
            rounds.fold(Round::default(), |mut all, one| {
                all.first_token_ms.extend(one.first_token_ms);
                all.requests += one.requests;
                all.errors += one.errors;
                all
            })
        })
    }

    fn run_one(&self, at: usize, first: Instant) -> Round {
        let mut round = Round::default();
        let mut connection = None;
        for number in 0..=REQUESTS {
            let due = first + self.period * number;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            round.requests += 1;
            let document = &self.prompts.0[at % DOCUMENTS];
            match send(self.port, &mut connection, document, &format!("Question {number} of {at}?")) {
                Ok(first_token) if number > 0 => round.first_token_ms.push(first_token.as_secs_f64() * 1e3),
                Ok(_) => {}
                Err(error) => {
                    if round.errors == 0 {
                        eprintln!("client {at}: {error}");
                    }
                    round.errors += 1;
                }
            }
        }
        round
    }
}

/// Whether a short request is answered.
pub fn try_once(port: u16) -> Result<(), Box<dyn Error>> {
    send(port, &mut None, "Hello.", "").map(drop)
}

/// One request; the time from its first byte to the answer's first event.
fn send(
    port: u16,
    connection: &mut Option<BufReader<TcpStream>>,
    document: &str,
    question: &str,
) -> Result<Duration, Box<dyn Error>> {
    let mut open = match connection.take() {
        Some(open) => open,
        None => BufReader::new(connect(port)?),
    };
    open.get_mut().set_read_timeout(Some(PATIENCE))?;
    let before = r#"{"model":"llama-3.1-8b","stream":true,"messages":[{"role":"user","content":""#;
    let after = format!("{question}\"}}]}}");
    let length = before.len() + document.len() + after.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{before}"
    );
    let began = Instant::now();
    for part in [&head, document, &after] {
        open.get_mut().write_all(part.as_bytes())?;
    }
    let mut line = String::new();
    open.read_line(&mut line)?;
    if !line.starts_with("HTTP/1.1 200") {
        return Err(format!("answered {line:?}").into());
    }
    let mut first_token = None;
    loop {
        line.clear();
        if open.read_line(&mut line)? == 0 {
            return Err("the stream ended early".into());
        }
        if line.starts_with("data: {") {
            first_token.get_or_insert_with(|| began.elapsed());
        }
        // The chunk of length zero ends the body, and an empty line follows it.
        if line == "0\r\n" {
            open.read_line(&mut line)?;
            *connection = Some(open);
            return first_token.ok_or_else(|| "the stream had no token".into());
        }
    }
}
