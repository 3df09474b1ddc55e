//! Cuts a part's text into cells.

use super::Field;
use super::words::words;
use crate::outline::{CELLS_MAX, Cell, VALUES_MAX, value_digest};

/// Stable bytes after which a cell ends, and after which it ends with the next line.
#[derive(Clone, Copy)]
struct CellSize {
    stable_max: usize,
    line_min: usize,
}

/// Of most texts: a place is known to about a line.
const FINE: CellSize = CellSize { stable_max: 48, line_min: 16 };

/// Of tools, and of texts after the first cells.
const COARSE: CellSize = CellSize { stable_max: 1_024, line_min: 512 };

/// Fine cells of an outline.
const FINE_CELLS: usize = 1_024;

/// Largest cell, whatever it contains.
const CELL_BYTES_MAX: usize = 2_048;

/// Values of a cell whose digests are kept.
const CELL_VALUES_MAX: u8 = 64;

/// Cuts texts and digests the pieces. Its buffers are reused.
pub(super) struct CellCutter<'d, D> {
    digest: &'d D,
    frame: Vec<u8>,
    /// Values of the current cell whose digests were kept.
    values: u8,
}

impl<'d, D: Fn(&[u8]) -> u64> CellCutter<'d, D> {
    pub(super) fn new(digest: &'d D) -> CellCutter<'d, D> {
        CellCutter { digest, frame: Vec::new(), values: 0 }
    }

    /// Appends the cells of a text and the digests of its values. Returns the digest of the whole text.
    pub(super) fn cut(
        &mut self,
        text: &[u8],
        field: Field,
        cells: &mut Vec<Cell>,
        values: &mut Vec<u16>,
    ) -> u64 {
        let mut start = 0;
        for word in words(text) {
            if cells.len() == CELLS_MAX {
                break;
            }
            if !word.is_value {
                self.frame.extend_from_slice(word.text);
            } else if self.values < CELL_VALUES_MAX && values.len() < VALUES_MAX {
                values.push(value_digest(word.text, self.digest));
                self.values += 1;
            }
            let end = word.at + word.text.len();
            let size = if field == Field::Tools || cells.len() >= FINE_CELLS { COARSE } else { FINE };
            let ends_line = word.text.ends_with(b"\n") && self.frame.len() >= size.line_min;
            if ends_line || self.frame.len() >= size.stable_max || end - start >= CELL_BYTES_MAX {
                self.push(&text[start..end], cells);
                start = end;
            }
        }
        if start < text.len() && cells.len() < CELLS_MAX {
            self.push(&text[start..], cells);
        }
        (self.digest)(text)
    }

    fn push(&mut self, text: &[u8], cells: &mut Vec<Cell>) {
        let digest = (self.digest)(text) as u32;
        let frame = (self.digest)(&self.frame) as u32;
        cells.push(Cell { digest, frame, bytes: text.len() as u16, values: self.values });
        self.frame.clear();
        self.values = 0;
    }
}
