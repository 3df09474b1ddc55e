//! The writer's list of nodes. Each node has a small id, by which names point to it, and a [`NodeMeta`].
//!
//! Entries come in groups of a fixed size, so the list grows without moving them, and an empty group returns its
//! memory. The metadata lives here and not in the nodes, because readers can reach the nodes.

#![allow(unsafe_code)]

use crate::name_table::NODES_MAX;
use crate::node::{NodeId, NodeMeta, NodePtr, NodeRef, Pinned};

/// Ids in a group: one bit each in a word.
const GROUP: usize = 64;
const GROUPS_MAX: usize = (NODES_MAX - 1) / GROUP;

/// A node with its metadata.
struct ArenaEntry {
    node: NodePtr,
    meta: NodeMeta,
}

/// A group of consecutive ids.
struct Group {
    entries: Box<[Option<ArenaEntry>]>,
    /// One bit for each id in use.
    taken: u64,
}

/// All linked nodes by id. Id zero is unused.
#[derive(Default)]
pub(crate) struct NodeArena {
    groups: Vec<Option<Group>>,
    /// Groups with free ids. Some of them may have filled up since.
    with_room: Vec<u32>,
    /// By group: whether it is in `with_room`.
    is_listed: Vec<bool>,
    /// Number of allocated groups.
    live: usize,
}

impl Group {
    fn new() -> Group {
        Group { entries: (0..GROUP).map(|_| None).collect(), taken: 0 }
    }

    fn free(&self) -> Option<usize> {
        (self.taken != u64::MAX).then(|| self.taken.trailing_ones() as usize)
    }
}

/// The group of an id, and the index in it.
#[inline]
fn split(id: NodeId) -> (usize, usize) {
    let at = id as usize - 1;
    (at / GROUP, at % GROUP)
}

impl NodeArena {
    /// Bytes of the arena, including the metadata.
    pub fn bytes(&self) -> usize {
        self.live * GROUP * size_of::<Option<ArenaEntry>>()
            + self.groups.capacity() * size_of::<Option<Group>>()
            + self.with_room.capacity() * size_of::<u32>()
            + self.is_listed.capacity()
    }

    /// The end of all ids that were ever given, less one.
    pub fn id_end(&self) -> usize {
        self.groups.len() * GROUP
    }

    /// Whether there are free ids.
    pub fn has_room(&self) -> bool {
        self.groups.len() < GROUPS_MAX || !self.with_room.is_empty()
    }

    /// A free id. [`NodeArena::put`] takes it.
    pub fn next(&mut self) -> NodeId {
        while let Some(&at) = self.with_room.last() {
            if let Some(index) = self.group(at as usize).free() {
                return (at as usize * GROUP + index + 1) as NodeId;
            }
            self.with_room.pop();
            self.is_listed[at as usize] = false;
        }
        self.groups.push(None);
        self.is_listed.push(false);
        self.list(self.groups.len() - 1);
        self.next()
    }

    /// The group, allocated where it is missing.
    fn group(&mut self, at: usize) -> &mut Group {
        let live = &mut self.live;
        self.groups[at].get_or_insert_with(|| {
            *live += 1;
            Group::new()
        })
    }

    fn list(&mut self, at: usize) {
        if !self.is_listed[at] {
            self.is_listed[at] = true;
            self.with_room.push(at as u32);
        }
    }

    /// Enters a node under its id.
    pub fn put(&mut self, node: NodeRef<'_>, meta: NodeMeta) {
        let (at, index) = split(node.id);
        let group = self.group(at);
        group.taken |= 1 << index;
        group.entries[index] = Some(ArenaEntry { node: node.as_ptr(), meta });
    }

    /// Removes a node. Its id may be reused.
    pub fn remove(&mut self, id: NodeId) -> NodeMeta {
        let (at, index) = split(id);
        let group = self.group(at);
        group.taken &= !(1 << index);
        let entry = group.entries[index].take().expect("only linked nodes are removed");
        let is_empty = group.taken == 0;
        self.list(at);
        if is_empty {
            self.groups[at] = None;
            self.live -= 1;
            self.shrink();
        }
        entry.meta
    }

    /// Returns all memory once the last group is gone.
    fn shrink(&mut self) {
        if self.live == 0 {
            *self = NodeArena::default();
        }
    }

    #[inline]
    fn entry(&self, id: NodeId) -> Option<&ArenaEntry> {
        let (at, index) = split(id);
        self.groups.get(at)?.as_ref()?.entries[index].as_ref()
    }

    /// The node with this id, if it is still linked.
    #[inline]
    pub fn living<'g>(&self, id: NodeId, pinned: Pinned<'g>) -> Option<NodeRef<'g>> {
        // SAFETY: the arena contains linked nodes only.
        self.entry(id).map(|entry| unsafe { entry.node.follow(pinned) })
    }

    /// The metadata of a linked node.
    #[inline]
    pub fn meta(&self, id: NodeId) -> &NodeMeta {
        &self.entry(id).expect("the writer keeps only ids of linked nodes").meta
    }

    /// The metadata of a linked node, mutable.
    #[inline]
    pub fn meta_mut(&mut self, id: NodeId) -> &mut NodeMeta {
        let (at, index) = split(id);
        let entry = self.groups[at].as_mut().and_then(|group| group.entries[index].as_mut());
        &mut entry.expect("the writer keeps only ids of linked nodes").meta
    }

    /// Removes and returns all nodes.
    pub fn drain(&mut self) -> impl Iterator<Item = NodePtr> {
        let groups = std::mem::take(self).groups;
        groups.into_iter().flatten().flat_map(|group| group.entries.into_iter().flatten().map(|m| m.node))
    }
}
