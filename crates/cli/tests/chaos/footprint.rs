//! The open files and memory of the gateway's process, as the kernel counts them.

use std::fs;

use crate::harness::eventually;
use crate::harness::process::Gateway;

#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    pub files: usize,
    pub rss_mib: f64,
}

impl Footprint {
    pub fn now(gateway: &Gateway) -> Footprint {
        let files = fs::read_dir(format!("/proc/{}/fd", gateway.process.id())).unwrap().count();
        Footprint { files, rss_mib: status_mib(gateway, "VmRSS:") }
    }

    /// The footprint after idle connections were closed.
    pub fn at_rest(gateway: &Gateway) -> Footprint {
        gateway.wait_for_idle();
        let since = std::time::Instant::now();
        let mut least = Footprint::now(gateway);
        // Idle connections are kept for 4 s and pruned at intervals; a longer wait costs nothing here.
        while since.elapsed().as_secs() < 8 {
            let now = Footprint::now(gateway);
            least = if now.files < least.files { now } else { least };
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        least
    }

    /// Waits until no more files are open than before.
    pub fn no_more_than(gateway: &Gateway, before: &Footprint) -> Footprint {
        gateway.wait_for_idle();
        eventually(&format!("at most {} files are open", before.files), || {
            Some(Footprint::now(gateway)).filter(|now| now.files <= before.files)
        })
    }
}

/// The most memory that the gateway has while `load` runs.
pub fn peak_mib(gateway: &Gateway, load: impl FnOnce()) -> f64 {
    // Resets the kernel's peak: proc_pid_clear_refs(5).
    fs::write(format!("/proc/{}/clear_refs", gateway.process.id()), "5").unwrap();
    load();
    status_mib(gateway, "VmHWM:")
}

fn status_mib(gateway: &Gateway, name: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.process.id())).unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let kib: f64 = value.split_whitespace().next().unwrap().parse().unwrap();
    kib / 1024.0
}
