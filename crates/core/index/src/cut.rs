//! A correction: an engine said how much of a prompt it really found, so it can not hold what lies beyond.
//!
//! From the first span that ends beyond what was found, everything on that way goes: what the prompt goes through and
//! whatever continues it, because no engine keeps the end of a chain without its beginning.

use crate::chain::{Links, Point};
use crate::digest::Digester;
use crate::node::{NodeId, NodeRef};
use crate::tree::Tree;

/// Spans of one worker, by node, deepest nodes first.
pub(crate) type Spans = Vec<(NodeId, u64)>;

/// The spans that a worker can not hold if it holds no more than `keep_tokens` of a chain of chunks.
pub(crate) fn chunks(tree: &Tree, worker: u16, root: NodeRef, digests: &[u64], keep_tokens: u32) -> Spans {
    let mut point = Point { node: root, at: 0 };
    let mut links = Links { digests, sizes: &[] };
    while let Some(stretch) = tree.follow(point, links) {
        if let Some(cut) = first_beyond(stretch.node, stretch.from, stretch.from + stretch.count, keep_tokens)
        {
            return beyond(tree, worker, stretch.node, cut);
        }
        point = stretch.end();
        links.digests = &links.digests[stretch.count..];
    }
    Spans::new()
}

/// The same for a prompt's bytes, which may go several ways.
pub(crate) fn bytes(
    tree: &Tree,
    digester: &Digester,
    worker: u16,
    root: NodeRef,
    prompt: &[u8],
    keep_tokens: u32,
) -> Spans {
    let mut spans = Spans::new();
    let mut ways = vec![(root, 0)];
    while let Some((node, from)) = ways.pop() {
        let ends = matched_ends(node, digester, prompt, from);
        let matched = ends.len() - 1;
        let cut = first_beyond(node, 0, matched, keep_tokens);
        if let Some(cut) = cut {
            spans.append(&mut beyond(tree, worker, node, cut));
        }
        let last = cut.unwrap_or(matched);
        for twig in node.fan().map_or(&[][..], |fan| fan.twigs()) {
            let (at, length) = (twig.at as usize, twig.bytes as usize);
            let Some(span) =
                ends.get(at).filter(|_| at <= last).and_then(|&end| prompt.get(end..end + length))
            else {
                continue;
            };
            let child = tree.child(Point { node, at }, digester.digest(span));
            ways.extend(child.map(|child| (child, ends[at])));
        }
    }
    spans
}

/// Where in the prompt the matching spans of a node end, beginning with the node's own start.
fn matched_ends(node: NodeRef, digester: &Digester, prompt: &[u8], from: usize) -> Vec<usize> {
    let body = node.body();
    let mut ends = vec![from];
    let mut end = from;
    for (at, &digest) in body.digests(body.len()).iter().enumerate() {
        let start = end;
        end += body.size(at).bytes() as usize;
        match prompt.get(start..end) {
            Some(span) if digester.digest(span) == digest => ends.push(end),
            _ => break,
        }
    }
    ends
}

/// The first span of `from..to` that ends beyond this many tokens.
fn first_beyond(node: NodeRef, from: usize, to: usize, keep_tokens: u32) -> Option<usize> {
    (from..to).find(|&at| node.reach(at + 1).tokens > keep_tokens)
}

/// What a worker holds of a node from span `cut` on, and of all that continues it from there.
fn beyond(tree: &Tree, worker: u16, node: NodeRef, cut: usize) -> Spans {
    let mut spans = Spans::new();
    let mut open = vec![(node, cut)];
    while let Some((node, cut)) = open.pop() {
        let bits = tree.mask(node, worker) & u64::MAX.checked_shl(cut as u32).unwrap_or(0);
        if bits != 0 {
            spans.push((node.id, bits));
        }
        let mut child = tree.ledger(&node).first_child;
        while child != 0 {
            let node = tree.node(child);
            if node.at as usize > cut {
                open.push((node, 0));
            }
            child = tree.ledger(&node).sibling_after;
        }
    }
    spans.reverse();
    spans
}
