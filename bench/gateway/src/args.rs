//! The command line. Parsed by hand: eight flags do not justify a dependency.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::measure::Load;

/// What `--help` prints.
pub const USAGE: &str = "\
Usage: cargo run --release --manifest-path bench/gateway/Cargo.toml -- [OPTIONS]

  --seconds S         Length of one measurement under load [default: 5]
  --rounds N          How often everything is measured [default: 5]
  --connections N     Keep-alive connections that drive the load [default: 16]
  --cases A,B         Of: tiny, 8k, 100k, stream [default: all]
  --peers A,B         Of: nginx, haproxy, or none [default: those that are installed]
  --peer NAME=COMMAND Another proxy; {port} and {upstream} are filled in, words are split at spaces; repeatable
  --binary PATH       The gateway [default: target/release/warmroute of this checkout]
  --help              This text";

/// What was asked for.
#[derive(Debug)]
pub struct Args {
    /// How long and how hard.
    pub load: Load,
    /// How often everything is measured.
    pub rounds: usize,
    /// Names of cases; empty means all.
    pub cases: Vec<String>,
    /// Names of the proxies that this crate can configure; `None` means those that are installed.
    pub peers: Option<Vec<String>>,
    /// Proxies that are given as a command.
    pub commands: Vec<PeerCommand>,
    /// The gateway's executable.
    pub binary: PathBuf,
}

/// A proxy that is given as a command.
#[derive(Debug)]
pub struct PeerCommand {
    /// How the table calls it.
    pub name: String,
    /// Its words, with placeholders.
    pub words: Vec<String>,
}

/// Reads flags, each with its value; whether there is something to do besides printing help.
pub fn read_flags(
    mut words: impl Iterator<Item = String>,
    mut set: impl FnMut(&str, &str) -> Result<(), String>,
) -> Result<bool, String> {
    while let Some(flag) = words.next() {
        if flag == "--help" || flag == "-h" {
            return Ok(false);
        }
        let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
        set(&flag, &value)?;
    }
    Ok(true)
}

/// The whole of a bench: prints help or what is wrong with the flags, or runs it. `run` returns the number of failed requests.
pub fn bench<A>(
    usage: &str,
    parsed: Result<Option<A>, String>,
    run: impl FnOnce(&A) -> Result<u64, Box<dyn Error>>,
) -> ExitCode {
    let args = match parsed {
        Ok(Some(args)) => args,
        Ok(None) => {
            println!("{usage}");
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("{wrong}\n\n{usage}");
            return ExitCode::from(2);
        }
    };
    match run(&args) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(errors) => {
            eprintln!("{errors} requests failed: the figures above do not count");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Args {
    /// `None` when only help was asked for.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Option<Args>, String> {
        let mut args = Args::default();
        Ok(read_flags(words, |flag, value| args.set(flag, value))?.then_some(args))
    }

    fn set(&mut self, flag: &str, value: &str) -> Result<(), String> {
        match flag {
            "--seconds" => self.load.busy = seconds(value)?,
            "--rounds" => self.rounds = at_least_one(flag, value)?,
            "--connections" => self.load.connections = at_least_one(flag, value)?,
            "--cases" => self.cases = list(value),
            "--peers" => self.peers = Some(list(value).into_iter().filter(|name| name != "none").collect()),
            "--peer" => self.commands.push(PeerCommand::parse(value)?),
            "--binary" => self.binary = PathBuf::from(value),
            _ => return Err(format!("unknown option {flag}")),
        }
        Ok(())
    }
}

impl Default for Args {
    fn default() -> Args {
        let checkout = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/release/warmroute");
        Args {
            load: Load { busy: Duration::from_secs(5), connections: 16 },
            rounds: 5,
            cases: Vec::new(),
            peers: None,
            commands: Vec::new(),
            binary: PathBuf::from(checkout),
        }
    }
}

impl PeerCommand {
    fn parse(text: &str) -> Result<PeerCommand, String> {
        let (name, command) = text.split_once('=').ok_or("--peer takes NAME=COMMAND")?;
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        if name.is_empty() || words.is_empty() {
            return Err("--peer takes NAME=COMMAND".to_owned());
        }
        Ok(PeerCommand { name: name.to_owned(), words })
    }
}

fn list(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn seconds(value: &str) -> Result<Duration, String> {
    let seconds: f64 = value.parse().map_err(|_| format!("--seconds: `{value}` is no number"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if (0.1..=600.0).contains(&seconds) => Ok(duration),
        _ => Err("--seconds must lie between 0.1 and 600".to_owned()),
    }
}

fn at_least_one(flag: &str, value: &str) -> Result<usize, String> {
    value
        .parse()
        .ok()
        .filter(|n| *n >= 1)
        .ok_or_else(|| format!("{flag} must be a whole number of at least 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Option<Args>, String> {
        Args::parse(words.iter().map(|word| word.to_string()))
    }

    #[test]
    fn a_peer_is_a_name_and_a_command() {
        let args = parse(&["--peer", "smg=smg launch --port {port}"]).unwrap().unwrap();
        assert_eq!(args.commands[0].name, "smg");
        assert_eq!(args.commands[0].words, ["smg", "launch", "--port", "{port}"]);
    }

    #[test]
    fn peers_none_means_no_peers_and_no_flag_means_those_installed() {
        assert_eq!(parse(&["--peers", "none"]).unwrap().unwrap().peers, Some(vec![]));
        assert_eq!(parse(&[]).unwrap().unwrap().peers, None);
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [&["--rounds", "0"][..], &["--seconds", "-1"], &["--rounds"], &["--fast", "1"]] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
