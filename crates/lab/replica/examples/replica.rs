//! Runs one simulated engine, to try by hand:
//!
//! `cargo run -p warmroute-replica --example replica -- [PORT [SPEED [RANKS [EVENTS [REPLAY]]]]]`, where EVENTS and REPLAY are
//! endpoints such as `tcp://127.0.0.1:0`. With `MODEL_FOLDER` set it writes the model folder that goes with its events.

use std::net::TcpListener;
use std::path::Path;
use std::str::FromStr;

use warmroute_engine::Profile;
use warmroute_replica::{Config, Endpoint, EventsConfig, Tokenizer, serve, write_model};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::for_profile(Profile::Llama3_1_8b);
    config.speed = argument(2, 1.0)?;
    config.ranks = argument(3, 1)?;
    if let Some(endpoint) = endpoint(4)? {
        config.tokenizer = Tokenizer::Pairs;
        config.events = Some(EventsConfig::bind(endpoint, self::endpoint(5)?));
    }
    if let Some(folder) = std::env::var_os("MODEL_FOLDER") {
        write_model(Path::new(&folder))?;
    }
    let listener = TcpListener::bind(("127.0.0.1", argument(1, 0)?))?;
    let replica = serve(config, listener).await?;
    eprintln!("{}", replica.url());
    for (events, replay) in replica.event_endpoints() {
        eprintln!("{events} {}", replay.map_or_else(String::new, |replay| replay.to_string()));
    }
    replica.died().await;
    Err("died as ordered".into())
}

fn argument<T: FromStr>(position: usize, default: T) -> Result<T, T::Err> {
    std::env::args().nth(position).map_or(Ok(default), |text| text.parse())
}

fn endpoint(position: usize) -> Result<Option<Endpoint>, warmroute_replica::BadEndpoint> {
    std::env::args().nth(position).map(|text| text.parse()).transpose()
}
