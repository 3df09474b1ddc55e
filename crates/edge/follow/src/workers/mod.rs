//! Follows the lists of workers.

mod departures;
mod kubernetes_settings;
mod source_settings;
mod sources;

pub use departures::Listings;
pub use kubernetes_settings::KubernetesSettings;
pub use source_settings::SourceSettings;
pub use sources::{FollowedSources, Sources, follow_sources};
