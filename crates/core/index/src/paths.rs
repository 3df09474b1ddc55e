//! A prompt's ways through the tree, as the writer walks them to change what lies on them.
//!
//! Like a lookup, but with nobody to score: whoever walks is told each node with how many of its spans match, and says
//! how many of them it goes on through. A prompt of chunks has one way, a prompt of bytes may have several.

use crate::chain::Point;
use crate::digest::Digester;
use crate::index::Prompt;
use crate::node::NodeRef;
use crate::span::common;
use crate::tree::Tree;

/// Shows every node on the prompt's ways to `pass`, with the number of its first spans that match; `pass` says through
/// how many of them to go on.
pub(crate) fn walk(
    tree: &Tree,
    digester: &Digester,
    root: u64,
    prompt: Prompt<'_>,
    mut pass: impl FnMut(NodeRef, usize) -> usize,
) {
    let Some(root) = tree.root(root) else { return };
    match prompt {
        Prompt::Chunks(digests) => chunks(tree, root, digests, &mut pass),
        Prompt::Bytes(text) => bytes(tree, digester, root, text, &mut pass),
    }
}

fn chunks(tree: &Tree, root: NodeRef, digests: &[u64], pass: &mut impl FnMut(NodeRef, usize) -> usize) {
    let mut point = Point { node: root, at: 0 };
    let mut rest = digests;
    while let Some(node) = rest.first().and_then(|&digest| tree.child(point, digest)) {
        let body = node.body();
        let matched = common(body.digests(body.len()), rest);
        if pass(node, matched) < matched {
            return;
        }
        point = Point { node, at: matched };
        rest = &rest[matched..];
    }
}

fn bytes(
    tree: &Tree,
    digester: &Digester,
    root: NodeRef,
    prompt: &[u8],
    pass: &mut impl FnMut(NodeRef, usize) -> usize,
) {
    let mut ways = vec![(root, 0)];
    while let Some((node, from)) = ways.pop() {
        let ends = matched_ends(node, digester, prompt, from);
        let last = if node == root { 0 } else { pass(node, ends.len() - 1) };
        for twig in node.fan().map_or(&[][..], |fan| fan.twigs()) {
            let (at, length) = (twig.at as usize, twig.bytes as usize);
            let end = ends.get(at).filter(|_| at <= last);
            let Some(span) = end.and_then(|&end| prompt.get(end..end + length)) else { continue };
            let child = tree.child(Point { node, at }, digester.digest(span));
            ways.extend(child.map(|child| (child, ends[at])));
        }
    }
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
