//! The prefix index: for a prompt, how far from its start does each worker's cache reach?
//!
//! A cached prefix is a chain of [`Span`]s under the root of its [`Namespace`]. Engines report spans under names of
//! their own ([`Index::store`], [`Index::remove`]). Where they do not, routing presumes what it caused
//! ([`Index::presume`]). Both live in one tree, under different roots, and [`Index::lookup`] answers for all workers at
//! once. The crate is pure: `now` is an argument, and it uses no randomness, files or sockets.
//!
//! ```text
//!   names (writer only)            tree (readers: no lock)                     one body, one allocation
//!   name -> address  8 B a slot    root -> node -> node -> node                digests  d0 d1 d2 .. d63
//!   ┌──────┬──────────┐                     \      \                            holders  w3  mask 1111..1
//!   │ hash │ node, at │---------> (node, at)  node   node                               w7  mask 1101..0  a hole
//!   └──────┴──────────┘            children: tables (parent, at, digest)       set      bit per worker: holds all
//! ```
//!
//! * A **node** is up to 64 consecutive spans. A chain that diverges inside a node becomes a child at that offset and
//!   leaves the node whole. So a span never moves while its node lives, and names can point to its address.
//! * **Holders** are masks per worker and node: a hole in the middle is a zero bit and ends that worker's overlap
//!   exactly there. Workers that hold all of a node are bits in a sparse set: a thousand of them cost sixteen words,
//!   and a lookup ANDs words, not workers.
//! * A **lookup** compares digests in sequence and drops workers as they fall behind. It writes nothing, takes no lock
//!   (except a short one while presumptions wait for a writer), and allocates nothing once its buffer has grown. A writer changes single atomic words in place; everything else is
//!   replaced as a whole and freed by epoch.
//! * **Names** are counted per worker. Where engines agree on names, one shared table serves all of them; the names
//!   that differ are kept per worker. Spans whose parent is unknown wait, bounded, and are inserted when it arrives.
//! * **Presumed** spans age as in the engine: by the worker's capacity in tokens, least recently used first and from
//!   the end of a chain, and by a time to live. Unanswered requests neither evict nor are evicted. A budget of bytes
//!   bounds everything together.
//! * Presumed spans can be exported as a [`Snapshot`] and restored into another index ([`Index::begin_restore`]).
//! * An engine may have several **holders**: one for what it certainly holds, one for what it may hold, one for any
//!   tier of its cache. One lookup answers for all of them; [`Index::copy_prefix`] copies spans from one to another.
//! * **Work under the lock is bounded.** Tables grow and shrink in small parts. An operation on many spans runs in
//!   pieces, and releases the lock in between.
//!
//! Deliberately absent: token ids, text, clocks, a background thread, a lock per node, merging of nodes.

mod body;
mod chain;
mod child_lengths;
mod children;
mod config;
mod cut;
mod digest;
mod holder_bits;
mod holder_id;
mod holder_names;
mod holders;
mod index;
mod live_set;
mod lookup;
mod name_table;
mod node;
mod node_arena;
mod node_uses;
mod number_map;
mod operation;
mod orphans;
mod overlap;
mod paths;
mod pending;
mod prefetch;
mod prefix_heads;
mod presumed;
mod presumed_lru;
mod reported;
mod retired;
mod root;
mod snapshot;
mod span;
mod stats;
mod table_hash;
mod trail;
mod tree;
mod waiting_uses;
mod writer;
mod writer_lock;

pub use config::{Config, IndexError};
pub use digest::{Digester, Hash};
pub use holder_bits::HOLDERS_MAX;
pub use holder_id::HolderId;
pub use index::{Index, LongWork, PendingRestore, Presumption};
pub use operation::{Parent, Prompt, Removed, Stored};
pub use overlap::{MatchEnd, Overlap, Overlaps};
pub use prefix_heads::PrefixHead;
pub use root::{Namespace, RootKey, Source};
pub use snapshot::{BadSnapshot, BoundedSnapshot, Snapshot};
pub use span::{NamedSpan, Reach, Span};
pub use stats::{Bytes, Stats};
pub use table_hash::TableHash;
pub use trail::{Boundary, BoundaryKey, Recording, Trail, TrailPlace};
