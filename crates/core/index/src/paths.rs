//! The paths of a prompt through the tree, as the writer walks them to change the spans on them.
//!
//! The walk resembles a lookup without scores. It calls back for each node with the number of spans that match, and
//! the callback returns through how many of them to continue. A prompt of chunks has one path; a prompt of bytes may
//! have several.

use crate::chain::Point;
use crate::digest::Digester;
use crate::node::NodeRef;
use crate::operation::Prompt;
use crate::span::common;
use crate::tree::PinnedTree;

/// Calls `pass` for every node on the prompt's paths, with the number of its first spans that match. `pass` returns
/// through how many of them to continue.
pub(crate) fn walk(
    tree: &PinnedTree<'_, '_>,
    digester: &Digester,
    root: u64,
    prompt: Prompt<'_>,
    mut pass: impl FnMut(&PinnedTree<'_, '_>, NodeRef<'_>, usize) -> usize,
) {
    let Some(root) = tree.root(root) else { return };
    match prompt {
        Prompt::Chunks(digests) => chunks(tree, root, digests, &mut pass),
        Prompt::Bytes(text) => bytes(tree, digester, root, text, &mut pass),
    }
}

fn chunks(
    tree: &PinnedTree<'_, '_>,
    root: NodeRef<'_>,
    digests: &[u64],
    pass: &mut impl FnMut(&PinnedTree<'_, '_>, NodeRef<'_>, usize) -> usize,
) {
    let mut point = Point { node: root, at: 0 };
    let mut rest = digests;
    while let Some(node) = rest.first().and_then(|&digest| tree.child(point, digest)) {
        let body = node.body();
        let matched = common(body.digests(body.len()), rest);
        if pass(tree, node, matched) < matched {
            return;
        }
        point = Point { node, at: matched };
        rest = &rest[matched..];
    }
}

fn bytes(
    tree: &PinnedTree<'_, '_>,
    digester: &Digester,
    root: NodeRef<'_>,
    prompt: &[u8],
    pass: &mut impl FnMut(&PinnedTree<'_, '_>, NodeRef<'_>, usize) -> usize,
) {
    let mut paths = vec![(root, 0)];
    while let Some((node, from)) = paths.pop() {
        let ends = matched_ends(node, digester, prompt, from);
        let last = if node == root { 0 } else { pass(tree, node, ends.len() - 1) };
        for child in node.child_lengths().map_or(&[][..], |child_lengths| child_lengths.as_slice()) {
            let (at, length) = (child.at as usize, child.bytes as usize);
            let end = ends.get(at).filter(|_| at <= last);
            let Some(span) = end.and_then(|&end| prompt.get(end..end + length)) else { continue };
            let child = tree.child(Point { node, at }, digester.digest(span));
            paths.extend(child.map(|child| (child, ends[at])));
        }
    }
}

/// Byte positions in the prompt where the matching spans of a node end, starting with the node's own beginning.
fn matched_ends(node: NodeRef<'_>, digester: &Digester, prompt: &[u8], from: usize) -> Vec<usize> {
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
