//! The model's cache, for comparison with a real engine by `conformance/vllm/validate`.
//!
//! `replay BLOCK_SIZE BLOCKS` reads one request per line: prompt tokens, output tokens, the numbers of its
//! blocks. It serves them one after another and writes one event per line: `cached TOKENS` for each request,
//! `stored NUMBERS`, `removed NUMBER`.
#![expect(clippy::print_stdout, reason = "a command for programs: what it prints is what it is for")]

use std::error::Error;
use std::io;

use warmroute_engine::{BlockName, Config, Engine, Happened, Profile, Request};
use warmroute_types::Micros;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [block_size, blocks] = &words[..] else { return Err("usage: replay BLOCK_SIZE BLOCKS".into()) };
    let (block_size, blocks): (u32, u64) = (block_size.parse()?, blocks.parse()?);
    let kv_tokens = blocks * u64::from(block_size);
    let mut engine =
        Engine::new(Config { block_size, kv_tokens, ..Config::for_profile(Profile::Llama3_2_3b) })?;
    for line in io::stdin().lines() {
        serve(&mut engine, &line?)?;
    }
    Ok(())
}

/// Serves one request.
fn serve(engine: &mut Engine, line: &str) -> Result<(), Box<dyn Error>> {
    let numbers = line.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    let [prompt_tokens, output_tokens, names @ ..] = &numbers[..] else {
        return Err(format!("no request: {line}").into());
    };
    let chain: Vec<BlockName> = names.iter().copied().map(BlockName).collect();
    let (prompt_tokens, output_tokens) = (u32::try_from(*prompt_tokens)?, u32::try_from(*output_tokens)?);
    engine.submit(Micros::ZERO, Request { chain, prompt_tokens, output_tokens })?;
    let mut happened = Vec::new();
    while engine.begin_step(Micros::ZERO).is_some() {
        engine.finish_step(&mut happened);
    }
    happened.iter().for_each(|one| tell(one, names));
    Ok(())
}

fn tell(happened: &Happened, names: &[u64]) {
    match happened {
        Happened::Started { cached_tokens, .. } => println!("cached {cached_tokens}"),
        Happened::Stored { first_block, blocks, .. } => {
            let stored = &names[*first_block as usize..][..*blocks as usize];
            println!("stored {}", stored.iter().map(u64::to_string).collect::<Vec<_>>().join(" "));
        }
        Happened::Removed { name } => println!("removed {}", name.0),
        _ => {}
    }
}
