//! Runs one simulated engine, to try by hand:
//!
//! `cargo run -p warmroute-replica --example replica -- [PORT [SPEED [RANKS]]]`

use std::net::TcpListener;
use std::str::FromStr;

use warmroute_engine::Profile;
use warmroute_replica::{Config, serve};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::for_profile(Profile::Llama3_1_8b);
    config.speed = argument(2, 1.0)?;
    config.ranks = argument(3, 1)?;
    let listener = TcpListener::bind(("127.0.0.1", argument(1, 0)?))?;
    let replica = serve(config, listener).await?;
    eprintln!("{}", replica.url());
    replica.died().await;
    Err("died as ordered".into())
}

fn argument<T: FromStr>(position: usize, default: T) -> Result<T, T::Err> {
    std::env::args().nth(position).map_or(Ok(default), |text| text.parse())
}
