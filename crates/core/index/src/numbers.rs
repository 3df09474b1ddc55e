//! The writer's list of nodes: each has a small number, by which names and books point to it, and a ledger.
//!
//! Members come in groups of a fixed size, so that the list grows without moving anything, and a group that has become
//! empty gives its memory back. The ledgers lie here and not in the nodes: readers see nodes, so what only the writer
//! may touch is where only the writer can reach it.

use crate::node::{Ledger, NodeId, NodeRef};
use crate::places::NODES_MAX;

/// Numbers in a group: one bit each in a word.
const GROUP: usize = 64;
const GROUPS_MAX: usize = (NODES_MAX - 1) / GROUP;

/// A node with its ledger.
struct Member {
    node: NodeRef,
    ledger: Ledger,
}

/// Some consecutive numbers.
struct Group {
    members: Box<[Option<Member>]>,
    /// A bit for each number that is given.
    taken: u64,
}

/// All living nodes by number. Number zero is nobody.
#[derive(Default)]
pub(crate) struct Numbers {
    groups: Vec<Option<Group>>,
    /// Groups that have room, and perhaps some that no longer have.
    roomy: Vec<u32>,
    /// By group: whether it is in `roomy`.
    is_roomy: Vec<bool>,
    /// Groups that are there.
    live: usize,
}

impl Group {
    fn new() -> Group {
        Group { members: (0..GROUP).map(|_| None).collect(), taken: 0 }
    }

    fn free(&self) -> Option<usize> {
        (self.taken != u64::MAX).then(|| self.taken.trailing_ones() as usize)
    }
}

/// The group and the place in it of a number.
#[inline]
fn split(id: NodeId) -> (usize, usize) {
    let at = id as usize - 1;
    (at / GROUP, at % GROUP)
}

impl Numbers {
    /// Bytes of the list with the ledgers in it.
    pub fn bytes(&self) -> usize {
        self.live * GROUP * size_of::<Option<Member>>()
            + self.groups.capacity() * size_of::<Option<Group>>()
            + self.roomy.capacity() * size_of::<u32>()
            + self.is_roomy.capacity()
    }

    /// Whether there are numbers left.
    pub fn has_room(&self) -> bool {
        self.groups.len() < GROUPS_MAX || !self.roomy.is_empty()
    }

    /// A number that nobody has. It is given by [`Numbers::put`].
    pub fn next(&mut self) -> NodeId {
        while let Some(&at) = self.roomy.last() {
            if let Some(place) = self.group(at as usize).free() {
                return (at as usize * GROUP + place + 1) as NodeId;
            }
            self.roomy.pop();
            self.is_roomy[at as usize] = false;
        }
        self.groups.push(None);
        self.is_roomy.push(false);
        self.list(self.groups.len() - 1);
        self.next()
    }

    /// The group, made where it is not there.
    fn group(&mut self, at: usize) -> &mut Group {
        let live = &mut self.live;
        self.groups[at].get_or_insert_with(|| {
            *live += 1;
            Group::new()
        })
    }

    fn list(&mut self, at: usize) {
        if !self.is_roomy[at] {
            self.is_roomy[at] = true;
            self.roomy.push(at as u32);
        }
    }

    /// Enters a node under its number.
    pub fn put(&mut self, node: NodeRef, ledger: Ledger) {
        let (at, place) = split(node.id);
        let group = self.group(at);
        group.taken |= 1 << place;
        group.members[place] = Some(Member { node, ledger });
    }

    /// Strikes a node off; its number may be given again.
    pub fn remove(&mut self, id: NodeId) -> Ledger {
        let (at, place) = split(id);
        let group = self.group(at);
        group.taken &= !(1 << place);
        let member = group.members[place].take().expect("only living nodes are struck off");
        let is_empty = group.taken == 0;
        self.list(at);
        if is_empty {
            self.groups[at] = None;
            self.live -= 1;
            self.shrink();
        }
        member.ledger
    }

    /// When all are gone, the lists go too.
    fn shrink(&mut self) {
        if self.live == 0 {
            *self = Numbers::default();
        }
    }

    #[inline]
    fn member(&self, id: NodeId) -> Option<&Member> {
        let (at, place) = split(id);
        self.groups.get(at)?.as_ref()?.members[place].as_ref()
    }

    /// The node with this number, if it is still there.
    #[inline]
    pub fn living(&self, id: NodeId) -> Option<NodeRef> {
        self.member(id).map(|member| member.node)
    }

    /// The ledger of a living node.
    #[inline]
    pub fn ledger(&self, id: NodeId) -> &Ledger {
        &self.member(id).expect("the writer keeps only numbers of living nodes").ledger
    }

    /// The ledger of a living node, to be changed.
    #[inline]
    pub fn ledger_mut(&mut self, id: NodeId) -> &mut Ledger {
        let (at, place) = split(id);
        let member = self.groups[at].as_mut().and_then(|group| group.members[place].as_mut());
        &mut member.expect("the writer keeps only numbers of living nodes").ledger
    }

    /// All nodes, taken out.
    pub fn drain(&mut self) -> impl Iterator<Item = NodeRef> {
        let groups = std::mem::take(self).groups;
        groups.into_iter().flatten().flat_map(|group| group.members.into_iter().flatten().map(|m| m.node))
    }
}
