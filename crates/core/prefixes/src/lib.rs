//! What breaks prefixes: where successive prompts part, why, and how much is computed again for it.
//!
//! ```text
//! request ─▶ Outline ─▶ PrefixWatch: the last outline of its session, conversation or application
//!                          └─ Parting::between ─▶ the place, and the text after it that both have
//!                               └─ Cause ─▶ a date, an id, other tools, …
//!                                    └─ tally per model and place ─▶ PrefixReport
//! ```
//!
//! Prompts that grow at their end part nowhere. Prompts of different users part where the users' text begins, and
//! share nothing after that. A break is a place after which the later prompt repeats text of the earlier one: an
//! engine computes that text again, because caches match from the beginning only.
//!
//! Nothing here contains text: outlines are keyed digests, places are field names and byte positions.

mod cause;
mod parting;
mod report;
mod tally;
mod value_kind;
mod watch;

pub use cause::Cause;
pub use parting::Parting;
pub use report::{BreakReport, ModelReport, PrefixReport};
pub use watch::{PrefixWatch, WatchedPrompt, outline};
