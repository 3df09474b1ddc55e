//! Who holds which prefix: for a prompt, how far from its start does each worker's cache reach?
//!
//! A cached prefix is a chain of [`Span`]s under the root of its [`Namespace`]. Engines report spans under names of
//! their own ([`Index::store`], [`Index::remove`]); where they do not, routing presumes what it caused
//! ([`Index::presume`]). Both live in one tree, under different roots, and [`Index::lookup`] answers for all workers at
//! once. Everything is pure: `now` is an argument, nothing is random, nothing is read or written outside.
//!
//! ```text
//!   names (writer only)            tree (readers: no lock)                     one body, one allocation
//!   name -> place  8 B a slot      root -> node -> node -> node                digests  d0 d1 d2 .. d63
//!   ┌──────┬──────────┐                     \      \                            holders  w3  mask 1111..1
//!   │ hash │ node, at │---------> (node, at)  node   node                               w7  mask 1101..0  a hole
//!   └──────┴──────────┘            children: tables (parent, at, digest)       set      bit per worker: holds all
//! ```
//!
//! * A **node** is up to 64 consecutive spans. A chain that diverges inside a node hangs a child at that offset and
//!   leaves the node whole, so a span never moves while its node lives and its address can be given to a name.
//! * **Who holds what** is a mask per worker and node, so a hole in the middle is a zero bit and ends that worker's
//!   overlap exactly there. Where many hold all of a node they are bits in a sparse set: a thousand workers cost
//!   sixteen words, and a lookup ANDs words, not workers.
//! * A **lookup** compares digests in sequence and drops workers as they fall behind. It writes to nothing, takes no
//!   lock, and allocates nothing once its buffer has grown. What it may read while a writer changes it is one atomic
//!   word; everything else is replaced whole and freed by epoch.
//! * **Names** are counted per worker. Where engines agree on them, one shared table serves all; what differs is in a
//!   book per worker. Spans whose parent is unknown wait, bounded, and are grafted when it comes.
//! * **Presumed** spans age as in the engine: by the worker's capacity in tokens, longest unused first and from the
//!   end of a chain, and by a time to live; unanswered requests neither evict nor are evicted. All together stay within
//!   a budget of bytes.
//! * What is presumed can be taken out as a [`Snapshot`] and brought back into another index ([`Index::recall`]);
//!   what one worker has reported as its [`Holdings`] ([`Index::hold`]).
//! * A worker is a **seat**, and an engine may have several: what it certainly holds, what it may hold, what lies in any
//!   tier of its cache. One lookup answers for all; [`Index::adopt`] carries spans from one to another.
//! * **Work under the lock is bounded.** Tables grow and shrink in small parts, and what touches many spans is done in
//!   pieces, with the lock free in between.
//!
//! What is deliberately absent: token ids, text, clocks, a background thread, a lock per node, merging of nodes.

mod account;
mod body;
mod book;
mod chain;
mod children;
mod config;
mod cut;
mod digest;
mod fan;
mod garbage;
mod hash;
mod holders;
mod holdings;
mod index;
mod node;
mod numbers;
mod orphans;
mod overlap;
mod party;
mod paths;
mod places;
mod prefetch;
mod presumed;
mod record;
mod reported;
mod root;
mod seats;
mod snapshot;
mod span;
mod stats;
mod tree;
mod walk;
mod writer;

pub use config::{BUDGET_BYTES_MIN, Config, ConfigError, IndexError};
pub use digest::{Digester, Hash, UnknownHash};
pub use holdings::{BadHoldings, Holdings};
pub use index::{Index, Parent, Presumption, Prompt, Recalled, Removed, Stored};
pub use overlap::{Overlap, Overlaps};
pub use root::{Namespace, RootKey, Source};
pub use seats::SEATS_MAX;
pub use snapshot::{BadSnapshot, Before, Newest, Snapshot, Used};
pub use span::{NamedSpan, Reach, Span};
pub use stats::{Bytes, Stats};
