//! Talks to any ZeroMQ socket, for debugging:
//!
//! `cargo run -p warmroute-zmtp --example talk -- sub tcp://127.0.0.1:5557 [TOPIC]` prints what is published.
//! `… -- replay tcp://127.0.0.1:5558 0` requests a replay of KV events.
//! `… -- pub tcp://*:5557 COUNT` publishes, `… -- echo tcp://*:5558` replies to every request with itself.

use std::time::Duration;

use bytes::Bytes;
use warmroute_zmtp::{Dealer, Endpoint, Error, Message, Options, Publisher, Router, Sub};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, endpoint, rest @ ..] = args.as_slice() else { return Err("what, and where?".into()) };
    let endpoint: Endpoint = endpoint.parse()?;
    let rest = rest.first().map_or("", String::as_str);
    let options = Options {
        heartbeat_interval: Duration::from_secs(1),
        heartbeat_timeout: Duration::from_secs(3),
        ..Options::default()
    };
    match what.as_str() {
        "sub" => subscribe(&endpoint, rest, options).await?,
        "replay" => replay(&endpoint, rest.parse()?, options).await?,
        "pub" => publish(&endpoint, rest.parse()?, options).await?,
        "echo" => echo(&endpoint, options).await?,
        _ => return Err("one of sub, replay, pub, echo".into()),
    }
    Ok(())
}

async fn subscribe(endpoint: &Endpoint, topic: &str, options: Options) -> Result<(), Error> {
    let mut sub = Sub::connect(endpoint, topic.as_bytes(), &options).await?;
    eprintln!("subscribed");
    loop {
        print(&sub.receive().await?);
    }
}

async fn replay(endpoint: &Endpoint, from: u64, options: Options) -> Result<(), Error> {
    let mut dealer = Dealer::connect(endpoint, &options).await?;
    dealer.send(&[&[][..], &from.to_be_bytes()]).await?;
    loop {
        let message = dealer.receive().await?;
        print(&message);
        if message.last().is_none_or(Bytes::is_empty) {
            return Ok(());
        }
    }
}

async fn publish(endpoint: &Endpoint, count: u64, options: Options) -> Result<(), Error> {
    let publisher = Publisher::bind(endpoint, options).await?;
    eprintln!("{}", publisher.endpoint());
    while publisher.subscribers() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for seq in 0..count {
        let parts = [&b"topic"[..], &seq.to_be_bytes(), &vec![b'x'; seq as usize % 1_000]]
            .map(Bytes::copy_from_slice);
        publisher.send(&parts.to_vec());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    eprintln!("{} dropped", publisher.dropped());
    Ok(())
}

async fn echo(endpoint: &Endpoint, options: Options) -> Result<(), Error> {
    let mut router = Router::bind(endpoint, options).await?;
    eprintln!("{}", router.endpoint());
    loop {
        let (peer, message) = router.receive().await?;
        router.send(peer, message).await?;
    }
}

fn print(message: &Message) {
    let parts: Vec<String> = message.iter().map(|part| part.escape_ascii().to_string()).collect();
    println!("{}", parts.join(" | "));
}
