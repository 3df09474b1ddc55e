//! The measured tables, read from `profiles/`.

use warmroute_engine::Profile;

/// One measurement: for a prefill the cached and the new tokens, for a decode the batch and its context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub row: u32,
    pub column: u32,
    pub ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Prefill,
    Decode,
}

/// All measurements of one kind.
pub fn points(profile: Profile, kind: Kind) -> Vec<Point> {
    parse(text(profile, kind))
}

fn text(profile: Profile, kind: Kind) -> &'static str {
    match (profile, kind) {
        (Profile::Llama3_2_3b, Kind::Prefill) => include_str!("../../profiles/llama-3.2-3b.prefill.csv"),
        (Profile::Llama3_2_3b, Kind::Decode) => include_str!("../../profiles/llama-3.2-3b.decode.csv"),
        (Profile::Llama3_1_8b, Kind::Prefill) => include_str!("../../profiles/llama-3.1-8b.prefill.csv"),
        (Profile::Llama3_1_8b, Kind::Decode) => include_str!("../../profiles/llama-3.1-8b.decode.csv"),
    }
}

fn parse(text: &str) -> Vec<Point> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let columns: Vec<u32> =
        lines.next().into_iter().flat_map(|head| head.split(',').skip(1)).map(number).collect();
    lines.flat_map(|line| parse_row(line, &columns)).collect()
}

fn parse_row(line: &str, columns: &[u32]) -> Vec<Point> {
    let mut cells = line.split(',');
    let row = number(cells.next().unwrap_or_default());
    let measured = columns.iter().zip(cells).filter(|(_, cell)| !cell.is_empty());
    measured.map(|(&column, cell)| Point { row, column, ms: number(cell) }).collect()
}

fn number<T: std::str::FromStr>(cell: &str) -> T {
    cell.parse().unwrap_or_else(|_| panic!("the committed tables hold numbers, not {cell:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_read_whole() {
        for profile in Profile::ALL {
            assert_eq!(points(profile, Kind::Prefill).len(), 40);
            assert_eq!(points(profile, Kind::Decode).len(), 22, "two cells did not fit into memory");
        }
        let points = points(Profile::Llama3_1_8b, Kind::Prefill);
        assert_eq!(points[9], Point { row: 1_024, column: 64, ms: 5.9291 });
    }
}
