//! The words that every part of Warmroute shares.
//!
//! Nothing here does anything: these are the nouns that cross a crate boundary. A type that only one crate needs
//! lives in that crate.

mod cache;
mod delivery;
mod load;
mod packed;
mod router;
mod time;
mod url;
mod valueless;
mod view;
mod worker;

pub use cache::{
    Attention, CacheEvent, Cut, EventBatch, Group, Medium, RemovedBlocks, Restored, StoredBlocks,
};
pub use delivery::Delivery;
pub use load::{CacheCapacity, LoadReport, PrefixCache, Usage};
pub use packed::Packed;
pub use router::{RouterId, To};
pub use time::Micros;
pub use url::{BadUrl, masked};
pub use valueless::valueless;
pub use view::CacheView;
pub use worker::{Address, MAX_WORKERS, WorkerId, WorkerState};
