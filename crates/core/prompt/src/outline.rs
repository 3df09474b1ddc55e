//! Outline of a prompt: digests of its pieces with the fields that they come from, and no text.
//!
//! Two outlines show where two prompts part and what both have after that place, which an engine computes twice.
//!
//! ```text
//! part  tools[0]   tools[1]   system[0]               messages[0].content   …   as the template orders them
//! cell  ██ ██ ██   ██ ██      ██ ██ ██ ██ ██ ██ ██    ██ ██
//! ```
//!
//! A part is one field; a cell is about a line of it. A cell ends between words, and its length counts only words
//! without digits: a date or an id that is longer in the next prompt moves no later cell. Besides its digest a
//! cell has one without those words. If only the first differs, a value changed and not the text around it; short digests
//! of the values tell which.

mod cells;
mod field_path;
mod parts;
mod words;

pub use field_path::{Field, FieldPath, Role};
pub use words::{Word, words};

use crate::{Api, Attribution, Body};
use cells::CellCutter;
use parts::visit_parts;

/// Most parts of an outline. Later parts are left out.
const PARTS_MAX: usize = 512;

/// Most cells of an outline. Later text is left out.
const CELLS_MAX: usize = 2_048;

/// Most digests of values in an outline. Of later values it is not known which differ.
const VALUES_MAX: usize = 2_048;

/// Bytes of a part that make its opening and its closing digest.
const EDGE_BYTES: usize = 512;

/// Digests of a prompt's pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    parts: Vec<OutlinePart>,
    cells: Vec<Cell>,
    /// Short digests of the values, cell by cell.
    values: Vec<u16>,
    /// What prompts of one application share, whatever values are in it.
    pub likeness: Likeness,
}

/// Digests of words without digits. They are equal for prompts that differ in dates and ids only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Likeness {
    /// Beginning of the system prompt, or of the first turn if there is none.
    pub front: u64,
    /// End of the same text.
    pub back: u64,
    /// Beginning of the first turn after the system prompt.
    pub opening: u64,
}

/// A field of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutlinePart {
    /// Where it is.
    pub path: FieldPath,
    /// Digest of the whole text.
    pub digest: u64,
    /// Where its cells lie in the outline's list.
    cells: std::ops::Range<u32>,
}

/// About a line of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Digest of the text.
    pub digest: u32,
    /// Digest of the words without digits.
    pub frame: u32,
    /// Length in bytes.
    pub bytes: u16,
    /// Values whose digests are kept.
    values: u8,
}

impl Outline {
    /// Outlines a prompt. `digest` should be keyed, so that digests of known texts tell nothing.
    pub fn of(body: &Body<'_>, api: Api, attribution: Attribution, digest: impl Fn(&[u8]) -> u64) -> Outline {
        let mut outline = Outline::default();
        let mut cutter = CellCutter::new(&digest);
        let (mut has_front, mut has_opening) = (false, false);
        visit_parts(body, api, attribution, |path, text| {
            if outline.parts.len() == PARTS_MAX || outline.cells.len() >= CELLS_MAX {
                return false;
            }
            let is_turn = path.field == Field::Turns && path.role != Role::System;
            if !has_front && (path.field == Field::System || path.field == Field::Turns) {
                has_front = true;
                outline.likeness.front = words_digest(front_of(text), &digest);
                outline.likeness.back = words_digest(back_of(text), &digest);
            }
            if !has_opening && is_turn {
                has_opening = true;
                outline.likeness.opening = words_digest(front_of(text), &digest);
            }
            let start = outline.cells.len() as u32;
            let whole = cutter.cut(text, path.field, &mut outline.cells, &mut outline.values);
            let end = outline.cells.len() as u32;
            outline.parts.push(OutlinePart { path, digest: whole, cells: start..end });
            true
        });
        outline
    }

    /// The parts, in the order in which a template writes them.
    pub fn parts(&self) -> &[OutlinePart] {
        &self.parts
    }

    /// Cells of a part.
    pub fn cells_of(&self, part: &OutlinePart) -> &[Cell] {
        &self.cells[part.cells.start as usize..part.cells.end as usize]
    }

    /// Digests of the first values in a cell of a part.
    pub fn values_of(&self, part: &OutlinePart, cell: usize) -> &[u16] {
        let at = part.cells.start as usize + cell;
        let Some(&Cell { values, .. }) = self.cells.get(at) else { return &[] };
        let start: usize = self.cells[..at].iter().map(|cell| usize::from(cell.values)).sum();
        &self.values[start..start + usize::from(values)]
    }

    /// Cells from a cell of a part to the end of the prompt.
    pub fn cells_from(&self, part: usize, cell: usize) -> &[Cell] {
        let start = self.parts.get(part).map_or(self.cells.len(), |part| part.cells.start as usize + cell);
        &self.cells[start.min(self.cells.len())..]
    }

    /// Bytes of text that the outline covers.
    pub fn text_bytes(&self) -> u64 {
        self.cells.iter().map(|cell| u64::from(cell.bytes)).sum()
    }

    /// Bytes of memory, about.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Outline>()
            + self.parts.capacity() * size_of::<OutlinePart>()
            + self.cells.capacity() * size_of::<Cell>()
            + self.values.capacity() * size_of::<u16>()
    }

    /// Text of one part, from the body that was outlined.
    pub fn text_of(body: &Body<'_>, api: Api, attribution: Attribution, part: usize) -> Option<Vec<u8>> {
        let (mut at, mut found) = (0, None);
        visit_parts(body, api, attribution, |_, text| {
            if at == part {
                found = Some(text.to_vec());
            }
            at += 1;
            found.is_none()
        });
        found
    }
}

fn front_of(text: &[u8]) -> &[u8] {
    &text[..text.len().min(EDGE_BYTES)]
}

fn back_of(text: &[u8]) -> &[u8] {
    &text[text.len().saturating_sub(EDGE_BYTES)..]
}

/// Digest of a value, short: enough to tell whether it differs.
pub fn value_digest(value: &[u8], digest: impl Fn(&[u8]) -> u64) -> u16 {
    digest(value) as u16
}

/// Digest of the words without digits.
fn words_digest(text: &[u8], digest: &impl Fn(&[u8]) -> u64) -> u64 {
    let mut kept = Vec::with_capacity(text.len());
    words(text).filter(|word| !word.is_value).for_each(|word| kept.extend_from_slice(word.text));
    digest(&kept)
}

#[cfg(test)]
mod tests;
