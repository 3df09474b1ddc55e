//! Addresses of workers' hosts, resolved in the background.
//!
//! Every connection to the bound listener is compared with the workers' addresses. A stranger must not cost lookups, nor hold
//! a place while a slow name server is asked: a connection is compared with what is known. Only before a host has been
//! resolved for the first time does a connection wait.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

/// Time to resolve one host name.
const RESOLVE_WITHIN: Duration = Duration::from_secs(5);
/// A host is resolved again no more often than this, when a connection comes from an address that no host has.
const RESOLVE_EVERY: Duration = Duration::from_secs(5);
/// Most lookups at one time.
const LOOKUPS_MAX: usize = 16;

/// Finds the addresses of a host name; none if it has none.
type Resolver = dyn Fn(String) -> Pin<Box<dyn Future<Output = Vec<IpAddr>> + Send>> + Send + Sync;

/// The addresses of hosts.
pub(crate) struct HostAddresses {
    hosts: Mutex<HashMap<String, Host>>,
    /// Changes with every host that was resolved.
    resolved: watch::Sender<()>,
    lookups: Semaphore,
    resolver: Box<Resolver>,
}

struct Host {
    /// `None` before the first lookup has ended.
    addresses: Option<Vec<IpAddr>>,
    asked: Instant,
}

impl HostAddresses {
    /// With the system's resolver.
    pub(crate) fn new() -> Arc<HostAddresses> {
        HostAddresses::with(Box::new(|host| Box::pin(resolve(host))))
    }

    fn with(resolver: Box<Resolver>) -> Arc<HostAddresses> {
        let (hosts, resolved, lookups) =
            (Mutex::default(), watch::Sender::new(()), Semaphore::new(LOOKUPS_MAX));
        Arc::new(HostAddresses { hosts, resolved, lookups, resolver })
    }

    /// Begins to resolve a host that is not known yet, on the current tokio runtime.
    pub(crate) fn add(self: &Arc<Self>, host: &str) {
        if host.parse::<IpAddr>().is_ok() || self.hosts.lock().contains_key(host) {
            return;
        }
        self.hosts.lock().insert(host.to_owned(), Host { addresses: None, asked: Instant::now() });
        self.resolve_in_background(host.to_owned());
    }

    /// Forgets all hosts but these.
    pub(crate) fn keep(&self, is_used: impl Fn(&str) -> bool) {
        self.hosts.lock().retain(|host, _| is_used(host));
    }

    /// Whether one of these hosts has this address.
    pub(crate) async fn any_has(self: &Arc<Self>, hosts: &[&str], address: IpAddr) -> bool {
        let mut changes = self.resolved.subscribe();
        let compared = async {
            loop {
                match self.compare(hosts, address) {
                    Compared::Unresolved => _ = changes.changed().await,
                    known => return known == Compared::Equal,
                }
            }
        };
        timeout(RESOLVE_WITHIN, compared).await.unwrap_or(false)
    }

    /// Compares an address with what is known. Hosts that others may have taken over are resolved again for later connections.
    fn compare(self: &Arc<Self>, hosts: &[&str], address: IpAddr) -> Compared {
        let mut old = Vec::new();
        let mut compared = Compared::Different;
        let mut known = self.hosts.lock();
        for host in hosts {
            if let Ok(literal) = host.parse::<IpAddr>() {
                if literal.to_canonical() == address {
                    return Compared::Equal;
                }
                continue;
            }
            let Some(entry) = known.get_mut(*host) else { continue };
            match &entry.addresses {
                Some(addresses) if addresses.contains(&address) => return Compared::Equal,
                Some(_) if entry.asked.elapsed() >= RESOLVE_EVERY => {
                    entry.asked = Instant::now();
                    old.push((*host).to_owned());
                }
                Some(_) => {}
                None => compared = Compared::Unresolved,
            }
        }
        drop(known);
        old.into_iter().for_each(|host| self.resolve_in_background(host));
        compared
    }

    fn resolve_in_background(self: &Arc<Self>, host: String) {
        let all = Arc::clone(self);
        tokio::spawn(async move {
            let Ok(_place) = all.lookups.acquire().await else { return };
            let found = timeout(RESOLVE_WITHIN, (all.resolver)(host.clone())).await;
            if let Some(entry) = all.hosts.lock().get_mut(&host) {
                match (found, &mut entry.addresses) {
                    // A name server that does not answer takes no address away.
                    (Err(_), Some(_)) => {}
                    (found, addresses) => *addresses = Some(found.unwrap_or_default()),
                }
            }
            all.resolved.send_replace(());
        });
    }
}

/// An address beside those of some hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compared {
    Equal,
    Different,
    /// Different from those that are known.
    Unresolved,
}

async fn resolve(host: String) -> Vec<IpAddr> {
    let found = tokio::net::lookup_host((host.as_str(), 0)).await;
    found.map(|found| found.map(|found| found.ip().to_canonical()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const ENGINE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const MOVED: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
    const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 99));

    /// Hosts that have `ENGINE` at first and `MOVED` later, except `slow`, which is never resolved; and the number of lookups.
    fn hosts() -> (Arc<HostAddresses>, Arc<AtomicUsize>) {
        let lookups = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&lookups);
        let hosts = HostAddresses::with(Box::new(move |host| {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                if host == "slow" {
                    std::future::pending::<()>().await;
                }
                vec![if number < 2 { ENGINE } else { MOVED }]
            })
        }));
        (hosts, lookups)
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_cost_no_time_and_few_lookups() {
        let (hosts, lookups) = hosts();
        hosts.add("slow");
        hosts.add("engine");
        assert!(hosts.any_has(&["slow", "engine"], ENGINE).await, "one that is found waits for no other");
        let begun = Instant::now();
        assert!(!hosts.any_has(&["slow", "engine"], STRANGER).await);
        assert!(begun.elapsed() <= RESOLVE_WITHIN, "while a host is resolved for the first time");
        let begun = Instant::now();
        for _ in 0..10_000 {
            assert!(!hosts.any_has(&["slow", "engine", "198.51.100.1"], STRANGER).await);
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert!(lookups.load(Ordering::SeqCst) <= 4, "{lookups:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_with_a_new_address_is_found_when_it_connects_again() {
        let (hosts, _) = hosts();
        hosts.add("engine");
        hosts.add("other");
        assert!(hosts.any_has(&["engine"], ENGINE).await && hosts.any_has(&["other"], ENGINE).await);
        tokio::time::advance(RESOLVE_EVERY).await;
        assert!(!hosts.any_has(&["engine"], MOVED).await, "not known yet");
        let mut changes = hosts.resolved.subscribe();
        changes.mark_unchanged();
        changes.changed().await.unwrap();
        assert!(hosts.any_has(&["engine"], MOVED).await);
        hosts.keep(|host| host == "other");
        assert!(!hosts.any_has(&["engine"], MOVED).await);
        assert!(
            hosts.any_has(&["198.51.100.1", "::ffff:198.51.100.2"], "198.51.100.2".parse().unwrap()).await
        );
    }
}
