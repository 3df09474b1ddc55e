//! A file of workers, read again whenever it changes.
//!
//! The file is polled once a second instead of being watched by the kernel. Polling also works on network file
//! systems and for files replaced through links, as Kubernetes does, and a fleet does not change faster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::{BadWorkers, Listing, SourceId, read_workers};

const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Sends a listing at the start and after every change. Returns when the receiver is gone.
pub async fn watch_file(path: PathBuf, source: SourceId, listings: mpsc::Sender<Listing>) {
    let mut known: Option<String> = None;
    let mut last_problem = String::new();
    while !listings.is_closed() {
        match read(&path).await {
            Ok(text) if known.as_ref() == Some(&text) => {}
            Ok(text) => match read_workers(&text) {
                Ok(workers) => {
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
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
