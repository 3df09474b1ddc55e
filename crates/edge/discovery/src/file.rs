//! A file of workers, read again whenever it changes.
//!
//! The file is polled once a second instead of being watched by the kernel. Polling also works on network file
//! systems and for files replaced through links, as Kubernetes does, and a fleet does not change faster.
//!
//! A file may be read while it is being written. So a change counts when the file has stayed the same for a while, and
//! for longer if workers are missing: a worker that leaves by mistake loses what is known about its cache.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;

use warmroute_types::Address;

use crate::{BadWorkers, Listing, SourceId, read_workers};

const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Polls in a row that must find the same content: of any change, and of one without some of the workers.
const STABLE_POLLS: u32 = 1;
const STABLE_POLLS_WITHOUT: u32 = 4;

/// Sends a listing at the start and after every change. Returns when the receiver is gone.
pub async fn watch_file(path: PathBuf, source: SourceId, listings: mpsc::Sender<Listing>) {
    let mut known: Option<String> = None;
    let mut workers_before = BTreeSet::new();
    // Content that is not known yet, and how often it was found again.
    let (mut changed, mut polls) = (String::new(), 0);
    let mut last_problem = String::new();
    while !listings.is_closed() {
        match read(&path).await {
            Ok(text) if known.as_ref() == Some(&text) => {}
            Ok(text) => match read_workers(&text) {
                Ok(workers) => {
                    polls = if text == changed { polls + 1 } else { 0 };
                    changed.clone_from(&text);
                    let addresses: BTreeSet<Address> =
                        workers.iter().map(|listed| listed.address.clone()).collect();
                    let needed = match workers_before.is_subset(&addresses) {
                        _ if known.is_none() => 0,
                        true => STABLE_POLLS,
                        false => STABLE_POLLS_WITHOUT,
                    };
                    if polls < needed {
                        tokio::time::sleep(POLL_INTERVAL).await;
                        continue;
                    }
                    workers_before = addresses;
                    tracing::info!(file = %path.display(), workers = workers.len(), "read workers");
                    last_problem.clear();
                    known = Some(text);
                    _ = listings.send(Listing::new(source, workers)).await;
                }
                Err(problem) => log_once(&path, &problem, &mut last_problem),
            },
            Err(problem) => log_once(&path, &problem.into(), &mut last_problem),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn read(path: &Path) -> std::io::Result<String> {
    tokio::fs::read_to_string(path).await
}

/// Logs each problem once, and not once a second.
fn log_once(path: &Path, problem: &BadWorkers, last: &mut String) {
    let problem = problem.to_string();
    if *last != problem {
        tracing::warn!(file = %path.display(), %problem, "keeping the workers known before");
        *last = problem;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(listing: &Listing) -> Vec<&str> {
        listing.workers.iter().map(|listed| listed.address.url.as_str()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_is_read_again_and_a_broken_one_is_ignored() {
        let folder = std::env::temp_dir().join(format!("warmroute-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("workers.toml");
        let (sender, mut listings) = mpsc::channel(4);
        tokio::spawn(watch_file(path.clone(), SourceId(3), sender));

        std::fs::write(&path, "[[workers]]\nurl = \"http://a\"").unwrap();
        assert_eq!(urls(&listings.recv().await.unwrap()), ["http://a"]);
        std::fs::write(&path, "[[workers]\nurl = ").unwrap();
        tokio::time::sleep(POLL_INTERVAL * 3).await;
        assert!(listings.try_recv().is_err(), "a broken file changes nothing");
        std::fs::write(&path, "[[workers]]\nurl = \"http://b\"").unwrap();
        assert_eq!(urls(&listings.recv().await.unwrap()), ["http://b"]);
        let part = |names: &[&str]| -> String {
            names.iter().map(|name| format!("[[workers]]\nurl = \"http://{name}\"\n")).collect()
        };
        std::fs::write(&path, part(&["b", "c", "d"])).unwrap();
        assert_eq!(urls(&listings.recv().await.unwrap()), ["http://b", "http://c", "http://d"]);
        // Written anew in two pieces.
        std::fs::write(&path, part(&["b"])).unwrap();
        tokio::time::sleep(POLL_INTERVAL * 3).await;
        std::fs::write(&path, part(&["b", "c", "d", "e"])).unwrap();
        assert_eq!(urls(&listings.recv().await.unwrap()).len(), 4, "no worker left in between");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
