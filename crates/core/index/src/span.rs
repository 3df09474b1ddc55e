//! A span: the smallest part of a prompt that a cache holds or does not hold.
//!
//! An engine's block is a span with a name (the engine's hash, opaque to us). A chunk cut by our own routing is a
//! span without a name. Both have a digest of their bytes, a length in bytes and a weight in tokens. In a token
//! chain, "bytes" are whatever unit the chain is cut in.

/// One span of a chain. The digest alone identifies a span among the children of its parent; the first store
/// determines its length and weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Digest of the span's bytes, computed by [`Digester`](crate::Digester) where prompts are looked up by bytes.
    pub digest: u64,
    /// Length in bytes, at most [`Span::BYTES_MAX`].
    pub bytes: u32,
    /// Weight in tokens, at most [`Span::TOKENS_MAX`].
    pub tokens: u32,
}

impl Span {
    /// The longest span, in bytes.
    pub const BYTES_MAX: u32 = (1 << 20) - 1;
    /// The heaviest span, in tokens.
    pub const TOKENS_MAX: u32 = (1 << 12) - 1;

    /// The span's size in one word, or `None` for a span that is empty or too large to index.
    pub(crate) fn size(&self) -> Option<Size> {
        let fits = self.bytes > 0 && self.bytes <= Self::BYTES_MAX && self.tokens <= Self::TOKENS_MAX;
        fits.then_some(Size(self.bytes << 12 | self.tokens))
    }
}

/// A span as an engine reports it, with the engine's own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedSpan {
    /// The engine's hash. It is opaque: it only resolves parents and removals of the same holder.
    pub name: u64,
    /// The named span.
    pub span: Span,
}

/// Bytes and tokens of a span, packed: 20 bits of bytes, 12 of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Size(pub u32);

impl Size {
    pub fn bytes(self) -> u32 {
        self.0 >> 12
    }

    pub fn tokens(self) -> u32 {
        self.0 & Span::TOKENS_MAX
    }
}

/// A distance from the start of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Whole spans.
    pub spans: u32,
    /// Their bytes.
    pub bytes: u32,
    /// Their tokens.
    pub tokens: u32,
}

impl Reach {
    /// The distance plus `count` spans of one size. It saturates at 4 GB.
    pub(crate) fn plus(self, size: Size, count: u32) -> Reach {
        Reach {
            spans: self.spans.saturating_add(count),
            bytes: self.bytes.saturating_add(size.bytes().saturating_mul(count)),
            tokens: self.tokens.saturating_add(size.tokens().saturating_mul(count)),
        }
    }
}

/// Digests compared at once.
const LANES: usize = 8;

/// How many leading digests two chains share.
#[inline]
pub(crate) fn common(a: &[u64], b: &[u64]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    // Most nodes match to their ends, and the C library compares memory with the widest vectors of the processor.
    if a == b {
        return len;
    }
    // Differences are collected without a branch per digest, so that the compiler vectorizes the comparison.
    let is_same = |a: &[u64], b: &[u64]| a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0;
    let lanes =
        a.chunks_exact(LANES).zip(b.chunks_exact(LANES)).take_while(|(a, b)| is_same(a, b)).count() * LANES;
    lanes + a[lanes..].iter().zip(&b[lanes..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_span_survives_packing() {
        let span = Span { digest: 1, bytes: Span::BYTES_MAX, tokens: Span::TOKENS_MAX };
        let size = span.size().unwrap();
        assert_eq!((size.bytes(), size.tokens()), (Span::BYTES_MAX, Span::TOKENS_MAX));
    }

    #[test]
    fn empty_and_oversized_spans_have_no_size() {
        for (bytes, tokens) in [(0, 1), (Span::BYTES_MAX + 1, 1), (1, Span::TOKENS_MAX + 1)] {
            assert_eq!(Span { digest: 1, bytes, tokens }.size(), None);
        }
    }

    #[test]
    fn common_counts_the_shared_head_exactly() {
        for len in 0..40u64 {
            let chain: Vec<u64> = (0..len).collect();
            assert_eq!(common(&chain, &chain), len as usize);
            for differs in 0..len as usize {
                let mut other = chain.clone();
                other[differs] = 99;
                assert_eq!(common(&chain, &other), differs);
                assert_eq!(common(&chain[..differs], &chain), differs);
            }
        }
    }
}
