//! Honest tenants: clients that stream chats one after another, and what service they get.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::engines::MODEL;
use crate::harness::TIMEOUT;
use crate::harness::client::authority;

const TENANTS: usize = 3;
const CLIENTS_EACH: usize = 8;

/// The service of one part of a run.
#[derive(Debug, Default)]
pub struct Service {
    ttfts_ms: Vec<f64>,
    pub failures: BTreeMap<String, u64>,
}

impl Service {
    fn sent(&self) -> u64 {
        self.ttfts_ms.len() as u64 + self.failures.values().sum::<u64>()
    }

    pub fn success(&self) -> f64 {
        self.ttfts_ms.len() as f64 / self.sent().max(1) as f64
    }

    pub fn p99_ttft_ms(&self) -> f64 {
        self.quantile_ms(0.99)
    }

    fn quantile_ms(&self, share: f64) -> f64 {
        let mut sorted = self.ttfts_ms.clone();
        sorted.sort_by(f64::total_cmp);
        let at = ((sorted.len() as f64 * share).ceil() as usize).saturating_sub(1);
        sorted.get(at).copied().unwrap_or(f64::INFINITY)
    }

    fn add(&mut self, other: Service) {
        self.ttfts_ms.extend(other.ttfts_ms);
        other.failures.into_iter().for_each(|(why, n)| *self.failures.entry(why).or_default() += n);
    }
}

impl fmt::Display for Service {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sent, success) = (self.sent(), 100.0 * self.success());
        let (p50, p99) = (self.quantile_ms(0.5), self.p99_ttft_ms());
        write!(out, "{sent:>6} sent, {success:>6.2} % served, TTFT p50 {p50:>5.0} ms, p99 {p99:>5.0} ms")
    }
}

/// The running clients.
pub struct HonestClients {
    is_over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Service>>,
}

impl HonestClients {
    /// `part` makes the prompts of this part of a run different from others'.
    pub fn start(url: &str, part: u64) -> HonestClients {
        let is_over = Arc::new(AtomicBool::new(false));
        let start = |number: usize| {
            let (address, is_over) = (authority(url).to_owned(), Arc::clone(&is_over));
            let tenant = number % TENANTS + 1;
            std::thread::spawn(move || ask_on(&address, tenant, &format!("{part}-{number}"), &is_over))
        };
        HonestClients { clients: (0..TENANTS * CLIENTS_EACH).map(start).collect(), is_over }
    }

    /// Stops the clients after this time and their last answers.
    pub fn stop_after(self, time: Duration) -> Service {
        std::thread::sleep(time);
        self.is_over.store(true, Ordering::Relaxed);
        let mut whole = Service::default();
        self.clients.into_iter().for_each(|client| whole.add(client.join().unwrap()));
        whole
    }
}

fn ask_on(address: &str, tenant: usize, name: &str, is_over: &AtomicBool) -> Service {
    let mut service = Service::default();
    for turn in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        match ask(address, tenant, &format!("{name}-{turn}")) {
            Ok(ttft) => service.ttfts_ms.push(ttft.as_secs_f64() * 1e3),
            Err(why) => *service.failures.entry(why).or_default() += 1,
        }
    }
    service
}

/// Streams one chat. Returns the time to its first event.
fn ask(address: &str, tenant: usize, name: &str) -> Result<Duration, String> {
    // A system prompt of the tenant, and some text that no other request has.
    let shared = format!("System prompt of tenant {tenant}. ").repeat(40);
    let own = format!("Request {name}. ").repeat(200);
    let body = json!({"model": MODEL, "max_tokens": 16, "stream": true, "messages": [
        {"role": "system", "content": shared}, {"role": "user", "content": own}]})
    .to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         authorization: Bearer sk-honest-{tenant}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all((head + &body).as_bytes()).map_err(|error| error.to_string())?;
    let (mut answer, mut ttft) = (Vec::new(), None);
    let mut chunk = [0; 4_096];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => answer.extend_from_slice(&chunk[..n]),
            Err(error) => return Err(error.to_string()),
        }
        if ttft.is_none() && find(&answer, b"data: ") {
            ttft = Some(begun.elapsed());
        }
    }
    match ttft {
        Some(ttft) if find(&answer, b"data: [DONE]") => Ok(ttft),
        _ => Err(String::from_utf8_lossy(&answer[answer.len().saturating_sub(200)..]).into_owned()),
    }
}

fn find(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}
