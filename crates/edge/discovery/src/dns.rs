//! DNS discovery: every address behind a name is a worker, and the name is resolved periodically.
//!
//! Headless services, Consul and plain zone files can all list the engines under one name. The system's resolver is
//! used, so /etc/hosts and search domains apply, in a thread that may block.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use tokio::sync::mpsc;
use warmroute_types::{Address, mask_url};

use crate::{ListedWorker, Listing, SourceId};

/// A name with a port, as in `http://engines.example:8000`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsName {
    host: String,
    port: u16,
}

/// The text is not a name with a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a DNS name with a port; expected http://NAME:PORT")]
pub struct BadDnsName(String);

impl FromStr for DnsName {
    type Err = BadDnsName;

    fn from_str(text: &str) -> Result<DnsName, BadDnsName> {
        let bad = || BadDnsName(mask_url(text));
        let rest = text.strip_prefix("http://").ok_or_else(bad)?.trim_end_matches('/');
        let (host, port) = rest.rsplit_once(':').ok_or_else(bad)?;
        if host.is_empty() || host.contains(['/', '@', '?']) {
            return Err(bad());
        }
        Ok(DnsName { host: host.to_owned(), port: port.parse().map_err(|_| bad())? })
    }
}

/// Resolves the name periodically, and sends a listing whenever the result changed.
pub async fn watch_dns(name: DnsName, every: Duration, source: SourceId, listings: mpsc::Sender<Listing>) {
    let resolve = |name: DnsName| async move {
        let found = tokio::net::lookup_host((name.host.as_str(), name.port)).await?;
        Ok(found.collect())
    };
    watch_with(name, every, source, listings, resolve).await;
}

async fn watch_with<F>(
    name: DnsName,
    every: Duration,
    source: SourceId,
    listings: mpsc::Sender<Listing>,
    resolve: impl Fn(DnsName) -> F,
) where
    F: Future<Output = io::Result<Vec<SocketAddr>>>,
{
    let mut known: Option<Vec<SocketAddr>> = None;
    while !listings.is_closed() {
        match resolve(name.clone()).await {
            Ok(mut found) => {
                found.sort_unstable();
                found.dedup();
                if known.as_ref() != Some(&found) {
                    tracing::info!(name = name.host, addresses = found.len(), "resolved workers");
                    let workers = found.iter().map(worker_at).collect();
                    _ = listings.send(Listing::new(source, workers)).await;
                    known = Some(found);
                }
            }
            Err(error) => {
                tracing::warn!(name = name.host, %error, "cannot resolve; keeping the workers known before")
            }
        }
        tokio::time::sleep(every).await;
    }
}

fn worker_at(address: &SocketAddr) -> ListedWorker {
    // SocketAddr writes IPv6 addresses in brackets, as URLs need them.
    ListedWorker::new(Address::new(format!("http://{address}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn names_have_a_port() {
        assert_eq!("http://engines:8000/".parse(), Ok(DnsName { host: "engines".into(), port: 8000 }));
        for bad in ["engines:8000", "http://engines", "http://:80", "http://a/b:80", "http://a:99999"] {
            assert!(bad.parse::<DnsName>().is_err(), "{bad}");
        }
        let shown = "http://user:hush@engines:80".parse::<DnsName>().unwrap_err().to_string();
        assert_eq!(shown, "`http://***@engines:80` is not a DNS name with a port; expected http://NAME:PORT");
    }

    #[tokio::test(start_paused = true)]
    async fn all_records_become_workers_and_an_outage_changes_nothing() {
        let answers = Mutex::new(vec![
            Ok(vec!["10.0.0.2:80", "10.0.0.1:80", "[fd00::1]:80"]),
            Err(io::Error::other("server failure")),
            Ok(vec!["10.0.0.1:80", "10.0.0.2:80", "[fd00::1]:80"]),
            Ok(vec!["10.0.0.2:80"]),
        ]);
        let resolve = |_| {
            let mut answers = answers.lock().unwrap();
            let next = if answers.len() > 1 { answers.remove(0) } else { Ok(vec!["10.0.0.2:80"]) };
            std::future::ready(next.map(|rows| rows.iter().map(|row| row.parse().unwrap()).collect()))
        };
        let (sender, mut listings) = mpsc::channel(4);
        let name = "http://engines:80".parse().unwrap();
        let watching = watch_with(name, Duration::from_secs(5), SourceId(0), sender, resolve);
        let reading = async {
            let mut heard = Vec::new();
            for _ in 0..2 {
                let listing = listings.recv().await.unwrap();
                heard.push(listing.workers.into_iter().map(|listed| listed.address.url).collect::<Vec<_>>());
            }
            listings.close();
            heard
        };
        let ((), heard) = tokio::join!(watching, reading);
        assert_eq!(heard[0], ["http://10.0.0.1:80", "http://10.0.0.2:80", "http://[fd00::1]:80"]);
        assert_eq!(heard[1], ["http://10.0.0.2:80"], "the same records in another order are no news");
    }
}
