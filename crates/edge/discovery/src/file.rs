//! A file of workers, read again whenever it changes.
//!
//! The file is looked at once a second instead of being watched by the kernel: that also works on network file systems and
//! for files replaced through links, as Kubernetes does it, and a fleet does not change faster than that.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::{BadWorkers, Listing, SourceId, read_workers};

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Sends a listing at first sight and after every change, until nobody listens. Returns then.
pub async fn watch_file(path: PathBuf, source: SourceId, listings: mpsc::Sender<Listing>) {
    let mut known: Option<String> = None;
    let mut last_trouble = String::new();
    while !listings.is_closed() {
        match read(&path).await {
            Ok(text) if known.as_ref() == Some(&text) => {}
            Ok(text) => match read_workers(&text) {
                Ok(workers) => {
                    tracing::info!(file = %path.display(), workers = workers.len(), "read workers");
                    last_trouble.clear();
                    known = Some(text);
                    _ = listings.send(Listing { source, workers }).await;
                }
                Err(trouble) => complain(&path, &trouble, &mut last_trouble),
            },
            Err(trouble) => complain(&path, &trouble.into(), &mut last_trouble),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn read(path: &Path) -> std::io::Result<String> {
    tokio::fs::read_to_string(path).await
}

/// Once per trouble, not once per second.
fn complain(path: &Path, trouble: &BadWorkers, last: &mut String) {
    let trouble = trouble.to_string();
    if *last != trouble {
        tracing::warn!(file = %path.display(), %trouble, "keeping the workers known before");
        *last = trouble;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(listing: &Listing) -> Vec<&str> {
        listing.workers.iter().map(|listed| listed.address.url.as_str()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_is_read_again_and_a_broken_one_is_not_believed() {
        let folder = std::env::temp_dir().join(format!("warmroute-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("workers.toml");
        let (sender, mut listings) = mpsc::channel(4);
        tokio::spawn(watch_file(path.clone(), SourceId(3), sender));

        std::fs::write(&path, "[[workers]]\nurl = \"http://a\"").unwrap();
        assert_eq!(urls(&listings.recv().await.unwrap()), ["http://a"]);
        std::fs::write(&path, "[[workers]\nurl = ").unwrap();
        tokio::time::sleep(LOOK_EVERY * 3).await;
        assert!(listings.try_recv().is_err(), "a broken file changes nothing");
        std::fs::write(&path, "[[workers]]\nurl = \"http://b\"").unwrap();
        assert_eq!(urls(&listings.recv().await.unwrap()), ["http://b"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
