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
        let folder = format!("/proc/{}", gateway.process.id());
        let status = fs::read_to_string(format!("{folder}/status")).unwrap();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let rss_kib: f64 = rss.split_whitespace().next().unwrap().parse().unwrap();
        Footprint { files: fs::read_dir(format!("{folder}/fd")).unwrap().count(), rss_mib: rss_kib / 1024.0 }
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
