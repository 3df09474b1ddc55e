//! Follows the lists of workers.

mod departures;
mod sources;

pub use departures::Listings;
pub use sources::{FollowedSources, Sources, follow_sources};
