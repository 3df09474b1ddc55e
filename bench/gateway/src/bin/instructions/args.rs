//! The command line. Parsed by hand: five flags do not justify a dependency.

use std::path::PathBuf;

use warmroute_bench_gateway::args::read_flags;

/// What `--help` prints.
pub const USAGE: &str = "\
Usage: cargo run --release --manifest-path bench/gateway/Cargo.toml --bin instructions -- [OPTIONS]

  --requests N        Requests of each case [default: 1000]
  --cases A,B         Of: tiny, 8k, 100k, stream [default: all]
  --binary PATH       The gateway [default: target/release/warmroute of this checkout]
  --before PATH       Another build of it, to be measured too
  --counts FOLDER     Keep callgrind's files there, one for each case, for callgrind_annotate
  --help              This text

It needs nginx, valgrind and perf.";

/// What was asked for.
#[derive(Debug)]
pub struct Args {
    /// Requests of each case.
    pub requests: usize,
    /// Names of cases; empty means all.
    pub cases: Vec<String>,
    /// The gateway's executable.
    pub binary: PathBuf,
    /// Another build of it.
    pub before: Option<PathBuf>,
    /// Where callgrind's files are kept.
    pub counts: Option<PathBuf>,
}

impl Args {
    /// `None` when only help was asked for.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Option<Args>, String> {
        let checkout = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/release/warmroute");
        let binary = PathBuf::from(checkout);
        let mut args = Args { requests: 1_000, cases: Vec::new(), binary, before: None, counts: None };
        Ok(read_flags(words, |flag, value| args.set(flag, value))?.then_some(args))
    }

    fn set(&mut self, flag: &str, value: &str) -> Result<(), String> {
        match flag {
            "--requests" => {
                let number = value.parse().ok().filter(|number| *number >= 1);
                self.requests = number.ok_or("--requests must be a whole number of at least 1")?;
            }
            "--cases" => self.cases = value.split(',').map(str::to_owned).collect(),
            "--binary" => self.binary = PathBuf::from(value),
            "--before" => self.before = Some(PathBuf::from(value)),
            "--counts" => self.counts = Some(PathBuf::from(value)),
            _ => return Err(format!("unknown option {flag}")),
        }
        Ok(())
    }
}
