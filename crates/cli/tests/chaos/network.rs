//! A slow, lossy network: the whole run inside a network namespace with a `tc` queue on its loopback.
//!
//! It needs root and kernel support, so `CHAOS_QDISC` enables it: `"netem delay 20ms loss 1%"`, or `"tbf rate 100mbit
//! burst 128kb latency 20ms"`, which drops packets that wait longer. Where it is unavailable, the run is skipped with
//! a message.

use std::process::Command;

const WANTED: &str = "CHAOS_QDISC";
/// Set inside the namespace.
const INSIDE: &str = "CHAOS_IS_INSIDE";
const SPOIL: &str = "ip link set lo up && tc qdisc add dev lo root $CHAOS_QDISC";

/// The queue in use.
pub fn spoiled() -> Option<String> {
    std::env::var(WANTED).ok().filter(|_| std::env::var_os(INSIDE).is_some())
}

/// Runs this test again inside the namespace, if requested. True if that run is done or impossible.
pub fn has_been_tried_inside(test: &str) -> bool {
    if std::env::var_os(WANTED).is_none() || std::env::var_os(INSIDE).is_some() {
        return false;
    }
    let inside = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", script, "sh"]).env(INSIDE, "1");
        command
    };
    let tried = inside(SPOIL).output();
    match tried.map(|output| (output.status.success(), output.stderr)) {
        Ok((true, _)) => {
            let mut again = inside(&format!("{SPOIL} && exec \"$@\""));
            again.arg(std::env::current_exe().unwrap()).args(["--ignored", "--nocapture", "--exact", test]);
            assert!(again.status().unwrap().success(), "it failed inside");
        }
        Ok((false, said)) => {
            println!("skipped: no network can be spoiled here: {}", String::from_utf8_lossy(&said))
        }
        Err(error) => println!("skipped: no network can be spoiled here: unshare: {error}"),
    }
    true
}
