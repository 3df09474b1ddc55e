//! A node of the tree: the part that readers see. The writer's part is [`NodeMeta`], which lives in `node_arena.rs`.
//!
//! A node continues its parent after the parent's first `at` spans: a chain that diverges inside a node becomes a
//! child at that offset and leaves the node whole. So a span never moves while its node lives, and `(node, offset)`
//! is an address that names can point to. The root of a namespace is a node without spans.
//!
//! Nodes are freed by epoch after they are unlinked. Access to a node therefore needs an epoch guard: [`NodeRef`]
//! carries the guard's lifetime, and readers and the writer alike get one only with a [`Pinned`]. Between operations
//! the writer keeps ids and [`NodePtr`]s, which give no access.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use crossbeam_epoch::Guard;

use crate::body::{self, Body, Head, NewBody};
use crate::child_lengths::ChildLengths;
use crate::prefetch;
use crate::span::Reach;

/// Cache lines of a body's head and its 64 digests.
const BODY_LINES: usize = 9;
/// Cache lines that a node's first 64 bytes may straddle.
const NODE_LINES: usize = 2;

/// A node's id, by which the writer finds it. An id is reused after its node is gone. Zero is no node.
pub(crate) type NodeId = u32;

/// A node's serial number, never reused: a reader that still sees an unlinked node cannot mistake another node's
/// children for its own. Zero is the parent of all roots.
pub(crate) type Serial = u64;

/// One node. The fields that readers need come first and fit one cache line.
#[repr(C)]
pub(crate) struct Node {
    body: AtomicPtr<Head>,
    /// A child that probably comes next, so that a long chain is walked without the child table.
    next: AtomicPtr<Node>,
    /// The first span's digest; for a root, its key.
    pub digest: u64,
    pub serial: Serial,
    /// The parent's serial, zero for a root.
    pub parent_serial: Serial,
    /// The position of the node's first span in its chain.
    pub start: Reach,
    /// How many of the parent's spans precede this node.
    pub at: u32,
    child_lengths: AtomicPtr<ChildLengths>,
    pub id: NodeId,
}

/// The data about a node that only the writer needs.
#[derive(Default)]
pub(crate) struct NodeMeta {
    /// The shared name of each span; empty where spans have no names.
    pub names: Vec<u64>,
    /// Which of `names` are in the shared name table. A span has a shared name only while a holder holds it.
    pub named: u64,
    pub parent: Option<NodePtr>,
    pub children: u32,
    /// The largest offset that any child had since the node last had none.
    pub children_end: u32,
    pub first_child: NodeId,
    pub sibling_before: NodeId,
    pub sibling_after: NodeId,
    /// Whether the parent's child lengths count this node.
    pub is_length_counted: bool,
}

/// Proof that an epoch guard is held for `'g`: what is retired meanwhile is freed after `'g` ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pinned<'g>(PhantomData<&'g Guard>);

impl<'g> Pinned<'g> {
    #[inline]
    pub fn by(_guard: &'g Guard) -> Pinned<'g> {
        Pinned(PhantomData)
    }
}

/// The address of a node. Following it takes a [`Pinned`] and a promise; storing and comparing it takes neither.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodePtr(NonNull<Node>);

// SAFETY: an address alone gives no access, and a node itself is shared between threads: it consists of atomics and
// of fields that never change.
unsafe impl Send for NodePtr {}

impl NodePtr {
    /// The node at an address that was loaded from the tree.
    ///
    /// # Safety
    /// The address came from [`NodeRef::as_raw`], and the node was linked at some time since `pinned` began.
    #[inline]
    pub unsafe fn from_raw<'g>(raw: *mut Node, pinned: Pinned<'g>) -> Option<NodeRef<'g>> {
        NonNull::new(raw).map(|node| NodeRef { node: NodePtr(node), pinned })
    }

    /// The node at this address.
    ///
    /// # Safety
    /// The node was linked at some time since `pinned` began.
    #[inline]
    pub unsafe fn follow(self, pinned: Pinned<'_>) -> NodeRef<'_> {
        NodeRef { node: self, pinned }
    }

    /// Frees the node with its body and child lengths.
    ///
    /// # Safety
    /// The node is unreachable for readers and for the writer, and is freed once.
    pub unsafe fn free(self) {
        // SAFETY: the caller's contract; all three came from boxes or `NewBody`.
        unsafe {
            let node = Box::from_raw(self.0.as_ptr());
            free_body(node.body.load(Ordering::Relaxed));
            free_child_lengths(node.child_lengths.load(Ordering::Relaxed));
        }
    }
}

/// A node that stays allocated for `'g`, the lifetime of an epoch guard.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeRef<'g> {
    node: NodePtr,
    pinned: Pinned<'g>,
}

impl Deref for NodeRef<'_> {
    type Target = Node;

    #[inline]
    fn deref(&self) -> &Node {
        // SAFETY: the node was linked since the guard was taken, so it is not freed before the guard is dropped.
        unsafe { self.node.0.as_ref() }
    }
}

/// The fields of a new node.
pub(crate) struct NewNode {
    pub id: NodeId,
    pub serial: Serial,
    pub parent_serial: Serial,
    pub at: u32,
    pub digest: u64,
    pub start: Reach,
    pub body: NewBody,
}

impl<'g> NodeRef<'g> {
    /// Allocates a node. Its owner is the caller, until the node is linked.
    pub fn new(new: NewNode, pinned: Pinned<'g>) -> NodeRef<'g> {
        let node = Box::new(Node {
            body: AtomicPtr::new(new.body.into_raw()),
            next: AtomicPtr::new(ptr::null_mut()),
            child_lengths: AtomicPtr::new(ptr::null_mut()),
            digest: new.digest,
            start: new.start,
            serial: new.serial,
            parent_serial: new.parent_serial,
            id: new.id,
            at: new.at,
        });
        NodeRef { node: NodePtr(NonNull::from(Box::leak(node))), pinned }
    }

    pub fn pinned(self) -> Pinned<'g> {
        self.pinned
    }

    /// The node's address, to be stored.
    pub fn as_ptr(self) -> NodePtr {
        self.node
    }

    pub fn as_raw(self) -> *mut Node {
        self.node.0.as_ptr()
    }

    /// The child that probably comes next.
    #[inline]
    pub fn next(self) -> Option<NodeRef<'g>> {
        // SAFETY: a child's address is cleared here before the child is unlinked, so the child was linked when its
        // address was loaded, which is after the guard was taken.
        unsafe { NodePtr::from_raw(self.next.load(Ordering::Acquire), self.pinned) }
    }
}

impl Node {
    #[inline]
    pub fn body(&self) -> Body<'_> {
        let head = NonNull::new(self.body.load(Ordering::Acquire)).expect("a node always has a body");
        // SAFETY: the body came from `NewBody`. It is freed by epoch after it was replaced, and a `&Node` exists only while a
        // guard is held.
        unsafe { Body::new(head) }
    }

    pub fn child_lengths(&self) -> Option<&ChildLengths> {
        // SAFETY: as for the body.
        unsafe { self.child_lengths.load(Ordering::Acquire).as_ref() }
    }

    /// Sets or clears the probable next child. The writer clears it before it unlinks that child.
    pub fn set_next(&self, next: Option<NodeRef<'_>>) {
        self.next.store(next.map_or(ptr::null_mut(), NodeRef::as_raw), Ordering::Release);
    }

    /// Installs another body and returns the old one, to be freed by epoch.
    pub fn swap_body(&self, body: NewBody) -> *mut Head {
        self.body.swap(body.into_raw(), Ordering::AcqRel)
    }

    /// Installs other child lengths and returns the old ones, to be freed by epoch. May return null.
    pub fn swap_child_lengths(&self, child_lengths: ChildLengths) -> *mut ChildLengths {
        let child_lengths = if child_lengths.as_slice().is_empty() {
            ptr::null_mut()
        } else {
            Box::into_raw(Box::new(child_lengths))
        };
        self.child_lengths.swap(child_lengths, Ordering::AcqRel)
    }

    /// Whether this node continues the node with this serial at `at`, beginning with `digest`.
    #[inline]
    pub fn continues(&self, parent_serial: Serial, at: usize, digest: u64) -> bool {
        self.digest == digest && self.parent_serial == parent_serial && self.at as usize == at
    }

    /// Prefetches this node's body, and the head of the node that probably follows.
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

/// The offsets of the bits that are set, in ascending order.
#[inline]
pub(crate) fn offsets(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let offset = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (offset < 64).then_some(offset)
    })
}

/// Frees a body that [`Node::swap_body`] returned. Null is allowed.
///
/// # Safety
/// As for [`body::free`].
pub(crate) unsafe fn free_body(head: *mut Head) {
    if let Some(head) = NonNull::new(head) {
        // SAFETY: the caller's contract.
        unsafe { body::free(head) };
    }
}

/// Frees child lengths that [`Node::swap_child_lengths`] returned. Null is allowed.
///
/// # Safety
/// The pointer came from there, readers cannot reach it any more, and it is freed once.
pub(crate) unsafe fn free_child_lengths(child_lengths: *mut ChildLengths) {
    if !child_lengths.is_null() {
        // SAFETY: the caller's contract.
        drop(unsafe { Box::from_raw(child_lengths) });
    }
}
