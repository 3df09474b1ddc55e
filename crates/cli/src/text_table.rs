//! A table as text that fits a terminal: it shortens heads and addresses first, then leaves out columns.
//!
//! Widths follow the cells, so a wide terminal shows everything in full and a narrow one the columns that matter most.

use std::io::IsTerminal;

use rustix::termios::tcgetwinsize;

/// Columns are left out before an address gets narrower than an IPv4 address with its port.
const ADDRESS_WIDTH_MIN: usize = 20;

/// How cells are aligned, and whether they may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    Left,
    Right,
    /// Aligned to the left. Where the table is too wide, all addresses lose their scheme, and then long ones their start,
    /// because their ends differ.
    Address,
}

/// How a column is headed, aligned and left out.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    head: &'static str,
    /// The head where the whole table does not fit otherwise.
    short_head: &'static str,
    kind: ColumnKind,
    /// Columns with the highest number are left out first. 0: never.
    drop_order: u8,
}

impl Column {
    pub const fn new(
        head: &'static str,
        short_head: &'static str,
        kind: ColumnKind,
        drop_order: u8,
    ) -> Column {
        Column { head, short_head, kind, drop_order }
    }
}

/// The columns with their rows.
pub struct TextTable<'a, const N: usize> {
    pub columns: &'a [Column; N],
    pub rows: Vec<[String; N]>,
}

impl<const N: usize> TextTable<'_, N> {
    /// The head and the rows, none wider than `width`.
    pub fn lines(&self, width: usize) -> Vec<String> {
        let heads = self.columns.map(|column| column.head);
        if let Some(lines) = self.whole(&heads, width) {
            return lines;
        }
        let heads = self.columns.map(|column| column.short_head);
        if let Some(lines) = self.whole(&heads, width) {
            return lines;
        }
        let bare = self.without_schemes();
        bare.whole(&heads, width).unwrap_or_else(|| bare.narrowed(&heads, width))
    }

    /// The same table with addresses such as `10.0.0.1:8000`.
    fn without_schemes(&self) -> TextTable<'_, N> {
        let bare = |row: &[String; N]| {
            std::array::from_fn(|index| match self.columns[index].kind {
                ColumnKind::Address => row[index].rsplit("://").next().unwrap_or_default().to_owned(),
                ColumnKind::Left | ColumnKind::Right => row[index].clone(),
            })
        };
        TextTable { columns: self.columns, rows: self.rows.iter().map(bare).collect() }
    }

    /// All columns in full, if they fit.
    fn whole(&self, heads: &[&str; N], width: usize) -> Option<Vec<String>> {
        let widths = self.widths(heads).map(Some);
        (total(&widths) <= width).then(|| self.laid_out(heads, &widths))
    }

    /// The most important columns, with addresses as wide as the rest allows.
    fn narrowed(&self, heads: &[&str; N], width: usize) -> Vec<String> {
        let full = self.widths(heads).map(Some);
        let mut widths = full;
        let address = self.columns.iter().position(|column| column.kind == ColumnKind::Address);
        if let Some(address) = address {
            widths[address] = full[address].map(|full| full.min(ADDRESS_WIDTH_MIN));
        }
        while total(&widths) > width {
            let shown = (0..N).filter(|&index| widths[index].is_some() && self.columns[index].drop_order > 0);
            let Some(last) = shown.max_by_key(|&index| self.columns[index].drop_order) else { break };
            widths[last] = None;
        }
        if let Some(address) = address {
            let others = total(&widths) - widths[address].unwrap_or(0);
            widths[address] = full[address].map(|full| full.min(width.saturating_sub(others)));
        }
        let lines = self.laid_out(heads, &widths).into_iter();
        lines.map(|line| line.chars().take(width).collect()).collect()
    }

    /// The widths that show every cell in full.
    fn widths(&self, heads: &[&str; N]) -> [usize; N] {
        let cells = |index: usize| self.rows.iter().map(move |row| row[index].chars().count());
        std::array::from_fn(|index| cells(index).fold(heads[index].chars().count(), usize::max))
    }

    fn laid_out(&self, heads: &[&str; N], widths: &[Option<usize>; N]) -> Vec<String> {
        let rows = self.rows.iter().map(|row| self.line(&row.each_ref().map(String::as_str), widths));
        std::iter::once(self.line(heads, widths)).chain(rows).collect()
    }

    fn line(&self, cells: &[&str; N], widths: &[Option<usize>; N]) -> String {
        let cells = self.columns.iter().zip(cells).zip(widths).filter_map(|((column, cell), width)| {
            let width = (*width)?;
            Some(match column.kind {
                ColumnKind::Left => format!("{cell:<width$}"),
                ColumnKind::Right => format!("{cell:>width$}"),
                ColumnKind::Address => format!("{:<width$}", cut(cell, width)),
            })
        });
        cells.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    }
}

/// The width of a line: the shown columns and a space between two.
fn total(widths: &[Option<usize>]) -> usize {
    let shown = widths.iter().flatten().count();
    widths.iter().flatten().sum::<usize>() + shown.saturating_sub(1)
}

fn cut(text: &str, width: usize) -> String {
    let len = text.chars().count();
    if len <= width {
        return text.to_owned();
    }
    std::iter::once('…').chain(text.chars().skip(len + 1 - width)).take(width).collect()
}

/// The columns of the terminal on stdout; `None` if stdout is none.
pub fn terminal_width() -> Option<usize> {
    let stdout = std::io::stdout();
    let size = stdout.is_terminal().then(|| tcgetwinsize(stdout).ok()).flatten()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::new("worker", "worker", ColumnKind::Address, 0),
        Column::new("state", "state", ColumnKind::Left, 0),
        Column::new("in flight", "flight", ColumnKind::Right, 1),
        Column::new("running", "run", ColumnKind::Right, 2),
    ];

    fn table() -> TextTable<'static, 4> {
        let row = ["http://10.20.30.40:8000", "ready", "12", "9"].map(str::to_owned);
        TextTable { columns: &COLUMNS, rows: vec![row] }
    }

    #[test]
    fn a_narrow_table_shortens_heads_then_addresses_then_leaves_out_columns() {
        for (width, head, row) in [
            (46, "worker                  state in flight running", ""),
            (
                47,
                "worker                  state in flight running",
                "http://10.20.30.40:8000 ready        12       9",
            ),
            (40, "worker                  state flight run", "http://10.20.30.40:8000 ready     12   9"),
            (39, "worker           state flight run", "10.20.30.40:8000 ready     12   9"),
            (32, "worker           state flight", "10.20.30.40:8000 ready     12"),
            (28, "worker           state", "10.20.30.40:8000 ready"),
            (18, "worker       state", "….30.40:8000 ready"),
            (4, " sta", " rea"),
        ] {
            let lines = table().lines(width);
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}: {lines:#?}");
            if row.is_empty() {
                assert_ne!(lines[0], head, "{width}");
            } else {
                assert_eq!([&*lines[0], &*lines[1]], [head, row], "{width}");
            }
        }
    }

    #[test]
    fn long_addresses_lose_their_start() {
        assert_eq!(cut("engine", 6), "engine");
        assert_eq!(cut("engine", 4), "…ine");
        assert_eq!(cut("engine", 0), "");
    }
}
