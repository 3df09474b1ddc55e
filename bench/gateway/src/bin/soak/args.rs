//! The command line. Parsed by hand: four flags do not justify a dependency.

use std::path::PathBuf;

use warmroute_bench_gateway::args::read_flags;

/// What `--help` prints.
pub const USAGE: &str = "\
Usage: cargo run --release --manifest-path bench/gateway/Cargo.toml --bin soak -- [OPTIONS]

  --requests N        Requests, each with a prompt of its own [default: 1000000]
  --connections N     Keep-alive connections that send them [default: 32]
  --engines N         Simulated engines [default: 8]
  --binary PATH       The gateway [default: target/release/warmroute of this checkout]
  --help              This text";

/// Fewer, and the rates of a row mean nothing.
const REQUESTS_MIN: u64 = 1_000;

/// What was asked for.
#[derive(Debug)]
pub struct Args {
    /// Requests in all.
    pub requests: u64,
    /// Connections that send them.
    pub connections: u64,
    /// Engines behind the gateway.
    pub engines: u64,
    /// The gateway's executable.
    pub binary: PathBuf,
}

impl Args {
    /// `None` when only help was asked for.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Option<Args>, String> {
        let checkout = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/release/warmroute");
        let mut args =
            Args { requests: 1_000_000, connections: 32, engines: 8, binary: PathBuf::from(checkout) };
        Ok(read_flags(words, |flag, value| args.set(flag, value))?.then_some(args))
    }

    fn set(&mut self, flag: &str, value: &str) -> Result<(), String> {
        match flag {
            "--requests" => self.requests = at_least(REQUESTS_MIN, flag, value)?,
            "--connections" => self.connections = at_least(1, flag, value)?,
            "--engines" => self.engines = at_least(1, flag, value)?,
            "--binary" => self.binary = PathBuf::from(value),
            _ => return Err(format!("unknown option {flag}")),
        }
        Ok(())
    }
}

fn at_least(least: u64, flag: &str, value: &str) -> Result<u64, String> {
    let number = value.parse().ok().filter(|number| *number >= least);
    number.ok_or_else(|| format!("{flag} must be a whole number of at least {least}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused() {
        for words in [&["--requests", "10"][..], &["--engines", "0"], &["--engines"], &["--fast", "1"]] {
            assert!(Args::parse(words.iter().map(|word| word.to_string())).is_err(), "{words:?}");
        }
    }
}
