//! The real binary, as processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::Value;

use super::client::get;
use super::eventually;

/// A running `warmroute`, killed when dropped.
pub struct Process {
    child: Child,
    first_line: Value,
}

impl Process {
    /// Starts it and reads the line with its addresses.
    pub fn start(args: &[&str]) -> Process {
        Process::start_with_env(args, &[])
    }

    pub fn start_with_env(args: &[&str], env: &[(&str, &str)]) -> Process {
        Process::start_with_log(args, env, Stdio::null())
    }

    /// Starts it with its log in `log`.
    pub fn start_with_log(args: &[&str], env: &[(&str, &str)], log: Stdio) -> Process {
        let mut command = command(args, env);
        command.stderr(log);
        Process::of(command)
    }

    /// Starts `serve` on free ports of the loopback address, with its log in `log`.
    pub fn serve(flags: &[&str], log: Stdio) -> Process {
        let args = ["serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0"];
        Process::start_with_log(&[&args[..], flags].concat(), &[], log)
    }

    /// Starts it by any command that becomes a `warmroute`.
    pub fn of(mut command: Command) -> Process {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let first_line = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        Process { child, first_line }
    }

    pub fn url(&self) -> &str {
        self.first_line["listening"].as_str().unwrap()
    }

    pub fn admin(&self) -> &str {
        self.first_line["admin"].as_str().unwrap()
    }

    /// The endpoint picker's address.
    pub fn picker(&self) -> &str {
        self.first_line["picker"].as_str().unwrap()
    }

    /// The address of the endpoint picker's listener for a pool.
    pub fn pool(&self, name: &str) -> &str {
        self.first_line["pools"][name].as_str().unwrap()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        if signal == "-STOP" {
            // Threads stop one after another, and the last may still answer.
            eventually("all its threads have stopped", || self.is_stopped().then_some(()));
        }
    }

    fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let stat = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stat")).unwrap();
        // The state follows the command name, which is in brackets.
        let is_stopped = |stat: String| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"));
        threads.map(Result::unwrap).map(stat).all(is_stopped)
    }

    pub fn wait(mut self) -> ExitStatus {
        self.wait_in_place()
    }

    pub fn wait_in_place(&mut self) -> ExitStatus {
        eventually("the process ends", || self.child.try_wait().unwrap())
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn command(args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmroute"));
    command.args(args).envs(env.iter().copied());
    command
}

/// Runs a command that ends by itself.
pub fn run(args: &[&str]) -> std::process::Output {
    run_with_env(args, &[])
}

/// Runs a command that ends by itself, with these environment variables.
pub fn run_with_env(args: &[&str], env: &[(&str, &str)]) -> std::process::Output {
    command(args, env).output().unwrap()
}

/// Runs a command with standard input.
pub fn run_with_input(args: &[&str], input: &[u8]) -> std::process::Output {
    let piped =
        command(args, &[]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = piped.unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// A gateway with its admin listener.
pub struct Gateway {
    pub process: Process,
}

impl Gateway {
    /// Starts a gateway for these workers; returns when all are ready.
    pub fn over(urls: &[&str], more: &[&str]) -> Gateway {
        let gateway = Gateway::start(urls, more);
        gateway.wait_for_ready(urls.len());
        gateway
    }

    pub fn start(urls: &[&str], more: &[&str]) -> Gateway {
        Gateway::start_with_env(urls, more, &[])
    }

    pub fn start_with_env(urls: &[&str], more: &[&str], env: &[(&str, &str)]) -> Gateway {
        Gateway::start_with_log(urls, more, env, Stdio::null())
    }

    /// Starts a gateway with its log in `log`.
    pub fn start_with_log(urls: &[&str], more: &[&str], env: &[(&str, &str)], log: Stdio) -> Gateway {
        let mut args =
            vec!["serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--decision-headers"];
        if !urls.is_empty() {
            args.push("--worker-urls");
            args.extend_from_slice(urls);
        }
        args.extend_from_slice(more);
        Gateway { process: Process::start_with_log(&args, env, log) }
    }

    pub fn url(&self) -> &str {
        self.process.url()
    }

    pub fn admin(&self) -> &str {
        self.process.admin()
    }

    pub fn workers(&self) -> Vec<Value> {
        get(self.admin(), "/workers").json()["workers"].as_array().unwrap().clone()
    }

    /// Waits until exactly this many workers exist and are ready.
    pub fn wait_for_ready(&self, n: usize) {
        eventually(&format!("{n} workers are ready: {:?}", self.workers()), || {
            let workers = self.workers();
            (workers.len() == n && workers.iter().all(|worker| worker["state"] == "ready")).then_some(())
        });
    }

    /// Waits until no request is in flight.
    pub fn wait_for_idle(&self) {
        eventually("nothing is in flight", || {
            self.workers().iter().all(|worker| worker["in_flight"] == 0).then_some(())
        });
    }

    /// The sum of a metric over all its labels.
    pub fn metric_sum(&self, name: &str) -> f64 {
        let page = get(self.admin(), "/metrics").text();
        let rows = page.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        rows.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    pub fn metric(&self, line: &str) -> f64 {
        let page = get(self.admin(), "/metrics").text();
        let found = page.lines().find_map(|l| l.strip_prefix(line).and_then(|rest| rest.strip_prefix(' ')));
        found.map_or(0.0, |value| value.parse().unwrap())
    }
}

/// A simulated engine as a process, on a free port.
pub fn engine(more: &[&str]) -> Process {
    engine_on("0", more)
}

/// A simulated engine on a given port, for restarts.
pub fn engine_on(port: &str, more: &[&str]) -> Process {
    let mut args = vec!["engine", "--port", port, "--speed", "50"];
    args.extend_from_slice(more);
    Process::start(&args)
}
