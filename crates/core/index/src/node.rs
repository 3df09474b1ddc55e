//! A node of the tree: a body that readers see, and a ledger that only the writer touches (kept apart, in `numbers.rs`).
//!
//! A node continues its parent after the parent's first `at` spans, wherever that is: a chain that diverges in the
//! middle of a node hangs a child there and leaves the node whole. So a span never moves while its node lives, and
//! `(node, offset)` is an address that names can point to. The root of a namespace is a node without spans.
//!
//! [`NodeRef`] is a plain pointer with a promise. Nodes are freed by epoch after they were unlinked, so a `NodeRef`
//! may be followed by whoever holds the writer's lock or has been pinned since before it was found; none is kept
//! longer than that, except by the writer for nodes that are linked.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::body::{self, Body, Head};
use crate::fan::Fan;
use crate::prefetch;
use crate::span::Reach;

/// Cache lines of a body's head and its 64 digests.
const BODY_LINES: usize = 9;
/// Cache lines that a node's first 64 bytes may straddle.
const NODE_LINES: usize = 2;

/// A node's number, by which the writer finds it; given to another when the node is gone. Zero is nobody.
pub(crate) type NodeId = u32;

/// A node's birth number, never given twice: a reader that still holds a dead node can not mistake another node's
/// children for its own. Zero is the parent of all roots.
pub(crate) type Serial = u64;

/// One node. What a reader needs comes first and fits one cache line.
#[repr(C)]
pub(crate) struct Node {
    body: AtomicPtr<Head>,
    /// A child that probably comes next, so that a long chain is walked without asking the child table.
    next: AtomicPtr<Node>,
    /// The first span's digest; for a root, its key.
    pub digest: u64,
    pub serial: Serial,
    /// The parent's serial, zero for a root.
    pub stem: Serial,
    /// Where the node begins, from the start of its chain.
    pub start: Reach,
    /// How many of the parent's spans come before this node.
    pub at: u32,
    fan: AtomicPtr<Fan>,
    pub id: NodeId,
}

/// What only the writer needs to know about a node.
#[derive(Default)]
pub(crate) struct Ledger {
    /// The name under which most know each span; empty where spans have no names.
    pub names: Vec<u64>,
    /// Which of `names` are in the shared name table. A span has such a name only while somebody holds it.
    pub named: u64,
    pub parent: Option<NodeRef>,
    pub children: u32,
    /// No child hangs beyond this offset.
    pub children_end: u32,
    pub first_child: NodeId,
    pub sibling_before: NodeId,
    pub sibling_after: NodeId,
    /// Whether the parent's fan counts this node.
    pub is_in_fan: bool,
}

/// A pointer to a node that is alive: see the module's promise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeRef(NonNull<Node>);

// SAFETY: a node is shared between threads by design: all of it is atomics and what never changes.
unsafe impl Send for NodeRef {}

impl Deref for NodeRef {
    type Target = Node;

    #[inline]
    fn deref(&self) -> &Node {
        // SAFETY: the module's promise: whoever has a `NodeRef` is pinned or holds the lock.
        unsafe { self.0.as_ref() }
    }
}

/// Where a new node goes.
pub(crate) struct Birth {
    pub id: NodeId,
    pub serial: Serial,
    pub stem: Serial,
    pub at: u32,
    pub digest: u64,
    pub start: Reach,
    pub body: NonNull<Head>,
}

impl NodeRef {
    pub fn new(birth: Birth) -> NodeRef {
        let node = Box::new(Node {
            body: AtomicPtr::new(birth.body.as_ptr()),
            next: AtomicPtr::new(ptr::null_mut()),
            fan: AtomicPtr::new(ptr::null_mut()),
            digest: birth.digest,
            start: birth.start,
            serial: birth.serial,
            stem: birth.stem,
            id: birth.id,
            at: birth.at,
        });
        NodeRef(NonNull::from(Box::leak(node)))
    }

    pub fn from_raw(raw: *mut Node) -> Option<NodeRef> {
        NonNull::new(raw).map(NodeRef)
    }

    pub fn as_ptr(self) -> *mut Node {
        self.0.as_ptr()
    }

    /// Frees the node with its body and fan.
    ///
    /// # Safety
    /// Nobody can reach it any more, and it is freed once.
    pub unsafe fn free(self) {
        // SAFETY: the caller's contract; all three came from boxes or `Plan::build`.
        unsafe {
            let node = Box::from_raw(self.0.as_ptr());
            free_body(node.body.load(Ordering::Relaxed));
            free_fan(node.fan.load(Ordering::Relaxed));
        }
    }
}

impl Node {
    #[inline]
    pub fn body(&self) -> Body<'_> {
        let head = NonNull::new(self.body.load(Ordering::Acquire)).expect("a node always has a body");
        // SAFETY: a body is freed by epoch after it was replaced, and `&self` means pinned or locked.
        unsafe { Body::new(head) }
    }

    pub fn fan(&self) -> Option<&Fan> {
        // SAFETY: as for the body.
        unsafe { self.fan.load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    pub fn next(&self) -> Option<NodeRef> {
        NodeRef::from_raw(self.next.load(Ordering::Acquire))
    }

    /// Sets or clears the child that probably comes next. Cleared before that child is unlinked.
    pub fn set_next(&self, next: Option<NodeRef>) {
        self.next.store(next.map_or(ptr::null_mut(), NodeRef::as_ptr), Ordering::Release);
    }

    /// Puts another body in place and returns the old one, to be freed by epoch.
    pub fn swap_body(&self, body: NonNull<Head>) -> *mut Head {
        self.body.swap(body.as_ptr(), Ordering::AcqRel)
    }

    /// Puts another fan in place and returns the old one, to be freed by epoch. May be null.
    pub fn swap_fan(&self, fan: Fan) -> *mut Fan {
        let fan = if fan.twigs().is_empty() { ptr::null_mut() } else { Box::into_raw(Box::new(fan)) };
        self.fan.swap(fan, Ordering::AcqRel)
    }

    /// Whether this is the child that continues the node `stem` at `at` with `digest`.
    #[inline]
    pub fn continues(&self, stem: Serial, at: usize, digest: u64) -> bool {
        self.digest == digest && self.stem == stem && self.at as usize == at
    }

    /// Brings this node's body into the cache, and the head of the node that probably follows it.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::lines(self.body.load(Ordering::Relaxed), BODY_LINES);
        prefetch::lines(self.next.load(Ordering::Relaxed), NODE_LINES);
    }

    /// How far the chain reaches with the first `count` spans of this node.
    pub fn reach(&self, count: usize) -> Reach {
        self.body().reach(self.start, count)
    }
}

/// Frees a body that [`Node::swap_body`] returned.
///
/// # Safety
/// As for [`body::free`]; null is nothing to free.
pub(crate) unsafe fn free_body(head: *mut Head) {
    if let Some(head) = NonNull::new(head) {
        // SAFETY: the caller's contract.
        unsafe { body::free(head) };
    }
}

/// Frees a fan that [`Node::swap_fan`] returned.
///
/// # Safety
/// It came from there, nobody can reach it any more, and it is freed once; null is nothing to free.
pub(crate) unsafe fn free_fan(fan: *mut Fan) {
    if !fan.is_null() {
        // SAFETY: the caller's contract.
        drop(unsafe { Box::from_raw(fan) });
    }
}
