//! The types that every part of Warmroute shares.
//!
//! They contain no behaviour: they are the nouns that cross a crate boundary. A type that only one crate needs lives
//! in that crate.

pub mod backoff;
mod cache;
mod delivery;
mod load;
mod mix;
mod option_value;
mod packed;
mod quantity;
mod redact;
mod router;
mod setting;
mod time;
mod url;
mod view;
mod worker;

pub use cache::{
    Attention, CacheEvent, EventBatch, Group, Medium, MediumStart, RemovedBlocks, StoredBlocks,
    UnfollowedKind,
};
pub use delivery::Delivery;
pub use load::{CacheCapacity, LoadReport, PrefixCache, Usage};
pub use mix::mix;
pub use option_value::OptionValue;
pub use packed::Packed;
pub use quantity::{BadQuantity, parse_bytes, parse_count, parse_time};
pub use redact::{form_of, redact_values};
pub use router::{RouterId, To};
pub use setting::{AT_LEAST_1, BadSetting, check_settings};
pub use time::Micros;
pub use url::{BadUrl, NO_RANKS, base_url, mask_url};
pub use view::CacheView;
pub use worker::{Address, MAX_WORKERS, SourceReadiness, WorkerId, WorkerState};
