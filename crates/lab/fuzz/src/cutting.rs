//! Bytes split into reads, as a socket might deliver them. Results must not depend on the split.

use crate::Dice;

/// The same bytes split in several ways: whole, byte by byte, and twice at random. The random splits depend
/// only on the bytes.
pub fn cuttings(bytes: &[u8]) -> [Vec<&[u8]>; 4] {
    let mut dice = Dice::of(bytes);
    let one_by_one = bytes.chunks(1).collect();
    let (few, many) = (cut(bytes, bytes.len() / 2 + 2, &mut dice), cut(bytes, 12, &mut dice));
    [vec![bytes], one_by_one, few, many]
}

/// Pieces of at most `longest` bytes. Some are empty, as reads may be.
fn cut<'a>(mut bytes: &'a [u8], longest: usize, dice: &mut Dice) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(dice.below(longest + 1).min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitting_loses_no_byte() {
        let bytes: Vec<u8> = (0..=255).collect();
        let all = cuttings(&bytes);
        assert!(all.iter().all(|pieces| pieces.concat() == bytes));
        assert_eq!(all.each_ref().map(Vec::len)[..2], [1, 256]);
        assert_eq!(all, cuttings(&bytes));
        assert!(cuttings(b"").iter().all(|pieces| pieces.concat().is_empty()));
    }
}
