//! The place where two prompts part, and what both have after it.

use warmroute_prompt::{Field, Outline, OutlinePart};

/// Repeated bytes below which a place is no break: about the text around a turn.
const REPEATED_BYTES_MIN: u64 = 256;

/// Where a prompt parts from an earlier one although both have the same text later on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parting {
    /// The part of the later prompt, by its number.
    pub part: usize,
    /// The first cell that differs.
    pub cell: usize,
    /// Bytes of the part before that cell.
    pub byte: u32,
    /// Kind of the field that differs.
    pub field: Field,
    /// Whether only values differ in that cell: dates, ids, numbers.
    pub is_value: bool,
    /// Bytes after that place that the earlier prompt had too.
    pub repeated_bytes: u64,
}

impl Parting {
    /// Compares a prompt with an earlier one. `None` if it goes on where the earlier one ended, or repeats nothing after
    /// the place where they part.
    pub fn between(earlier: &Outline, later: &Outline) -> Option<Parting> {
        let same =
            |(a, b): &(&OutlinePart, &OutlinePart)| a.digest == b.digest && a.path.field == b.path.field;
        let part = earlier.parts().iter().zip(later.parts()).take_while(same).count();
        let (before, after) = (earlier.parts().get(part)?, later.parts().get(part)?);
        let (old, new) = (earlier.cells_of(before), later.cells_of(after));
        let cell = old.iter().zip(new).take_while(|(old, new)| old.digest == new.digest).count();
        let is_value = match (old.get(cell), new.get(cell)) {
            (Some(old), Some(new)) => old.frame == new.frame,
            _ => false,
        };
        let parting = Parting {
            part,
            cell,
            byte: new[..cell].iter().map(|cell| u32::from(cell.bytes)).sum(),
            field: before.path.field.min(after.path.field),
            is_value,
            repeated_bytes: repeated_bytes(earlier, later, part, cell),
        };
        (parting.repeated_bytes >= REPEATED_BYTES_MIN).then_some(parting)
    }
}

/// Bytes of the later prompt's cells from this one on that the earlier prompt has there too.
fn repeated_bytes(earlier: &Outline, later: &Outline, part: usize, cell: usize) -> u64 {
    let mut had: Vec<u32> = earlier.cells_from(part, cell).iter().map(|cell| cell.digest).collect();
    had.sort_unstable();
    let repeated = later.cells_from(part, cell).iter().filter(|cell| had.binary_search(&cell.digest).is_ok());
    repeated.map(|cell| u64::from(cell.bytes)).sum()
}
