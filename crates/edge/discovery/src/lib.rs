//! Discovery of workers: a list, a watched file, DNS names, Kubernetes.
//!
//! ```text
//! list, file, DNS, Kubernetes ──Listing──▶ WorkerList ──joins and leaves──▶ the caller
//! ```
//!
//! A source repeatedly lists the workers that it knows. The [`WorkerList`] compares each listing with the source's last one
//! and with those of other sources. A source that cannot be read keeps its last listing: a typing error or a DNS outage
//! must not empty a fleet.

mod dns;
mod entry;
mod events_entry;
mod file;
mod kubernetes;
mod worker_list;

pub use dns::{BadDnsName, DnsName, watch_dns};
pub use entry::{BadWorkers, WorkerEntry, line_of, read_workers};
pub use events_entry::EventsEntry;
pub use file::watch_file;
pub use kubernetes::{
    BadAccess, BadPort, KubernetesAccess, KubernetesProblem, KubernetesReport, KubernetesSource,
    KubernetesTarget, WorkerPort, watch_kubernetes,
};
pub use worker_list::{Departure, ListedWorker, Listing, SourceId, WorkerList, WorkerListChange};
