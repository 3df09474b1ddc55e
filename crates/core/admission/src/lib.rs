//! Who may come in now, who waits, and who is asked to come back.
//!
//! ```text
//! request ──▶ Rates ──▶ Admission ──────────▶ routed now
//!             per key    │      ▲
//!                        ▼      │ one has ended
//!                       Queue ──┘ fair between tenants, classes first, bounded, with deadlines
//! ```
//!
//! Pure: `now` is an argument, and what waits is whatever the driver needs to wake it. Whoever waits has not been routed: a
//! worker is chosen when the request is let in, by what is true then.

mod admission;
mod bucket;
mod class;
mod drain;
mod queue;
mod rates;
mod usual;

pub use admission::{Admission, Config, Refused};
pub use bucket::Bucket;
pub use class::Class;
pub use drain::Drain;
pub use queue::{Ask, Full, Place, Queue};
pub use rates::{Exceeded, Expected, Limit, Limits, Rates, Reserved};
