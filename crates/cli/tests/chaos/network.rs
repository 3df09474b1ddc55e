//! A slow network that loses packets: the whole run inside a network namespace of its own, whose loopback is spoiled by `tc`.
//!
//! That takes root, and a kernel that has the queue, so it is asked for by `CHAOS_QDISC`: `"netem delay 20ms loss 1%"`, or
//! `"tbf rate 100mbit burst 128kb latency 20ms"`, which drops what has to wait for longer. Where it cannot be had it is left out, and that is said.

use std::process::Command;

const WANTED: &str = "CHAOS_QDISC";
/// Set inside.
const INSIDE: &str = "CHAOS_IS_INSIDE";
const SPOIL: &str = "ip link set lo up && tc qdisc add dev lo root $CHAOS_QDISC";

/// What is asked for and in force.
pub fn spoiled() -> Option<String> {
    std::env::var(WANTED).ok().filter(|_| std::env::var_os(INSIDE).is_some())
}

/// Runs this test again inside, where that was asked for; true where it is done then, or cannot be.
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
