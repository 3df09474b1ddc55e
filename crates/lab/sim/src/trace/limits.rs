//! Limits for recorded requests: lengths that a model could take, and times close to each other.
//!
//! One wrong length would make a run name hundreds of millions of blocks, and one wrong timestamp would make
//! it tick through centuries. Such lines count as unreadable. Times start at zero with the first request.

use warmroute_types::Micros;

use super::Reading;

/// Maximum tokens of a request, prompt and answer: the longest context announced for any model.
pub const TOKENS_MAX: u64 = 10_000_000;
/// Maximum distance from the median arrival. Published traces last from an hour to some weeks.
pub const SPAN_MAX: Micros = Micros::from_secs(62 * 24 * 60 * 60);

/// Checks the length of a request.
pub fn check_tokens(prompt_tokens: u32, output_tokens: u32) -> Result<(), String> {
    let tokens = u64::from(prompt_tokens) + u64::from(output_tokens);
    if tokens > TOKENS_MAX {
        Err(format!("{tokens} tokens: no request has more than {TOKENS_MAX}"))
    } else {
        Ok(())
    }
}

/// Shifts times, in microseconds, so that the first is zero. Rows too far from the median time count as
/// unreadable. The median is the reference because a wrong timestamp may be the first.
pub fn rebased<T>(
    mut rows: Vec<(usize, T)>,
    at_us: fn(&mut T) -> &mut u64,
    reading: &mut Reading<'_>,
) -> Vec<(usize, T)> {
    let mut stamps: Vec<u64> = rows.iter_mut().map(|(_, row)| *at_us(row)).collect();
    stamps.sort_unstable();
    let Some(&middle) = stamps.get(stamps.len() / 2) else { return rows };
    let is_near = |stamp: u64| stamp.abs_diff(middle) <= SPAN_MAX.0;
    rows.retain_mut(|(number, row)| {
        let is_near = is_near(*at_us(row));
        if !is_near {
            reading.bad(*number, "its time is months from that of the others");
        }
        is_near
    });
    let first = stamps.into_iter().find(|stamp| is_near(*stamp)).unwrap_or(0);
    rows.iter_mut().for_each(|(_, row)| *at_us(row) -= first);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    fn kept(stamps: &[u64]) -> (Vec<u64>, u64) {
        let mut reading = Reading::new(Path::new("trace"));
        let rows = (1..).zip(stamps.iter().copied()).collect();
        let rows = rebased(rows, |stamp| stamp, &mut reading);
        (rows.into_iter().map(|(_, stamp)| stamp).collect(), reading.bad_lines_total)
    }

    #[test]
    fn one_wrong_timestamp_drops_only_its_own_row() {
        let unix_us = 1_700_000_000_000_000;
        assert_eq!(kept(&[unix_us, unix_us + 7, unix_us + 2]), (vec![0, 7, 2], 0));
        assert_eq!(kept(&[0, unix_us, unix_us + 7]), (vec![0, 7], 1));
        assert_eq!(kept(&[5, u64::MAX, 6, 9]), (vec![0, 1, 4], 1));
        assert_eq!(kept(&[]), (vec![], 0));
    }

    proptest! {
        #[test]
        fn kept_times_start_at_zero_and_are_near(stamps in prop::collection::vec(any::<u64>(), 1..20)) {
            let (rows, bad) = kept(&stamps);
            prop_assert_eq!(rows.len() + bad as usize, stamps.len());
            prop_assert_eq!(rows.iter().min(), Some(&0));
            prop_assert!(rows.iter().all(|stamp| *stamp <= 2 * SPAN_MAX.0));
        }
    }

    #[test]
    fn lengths_are_added_without_overflow() {
        assert!(check_tokens(9_000_000, 1_000_000).is_ok());
        assert!(check_tokens(10_000_000, 1).is_err());
        assert!(check_tokens(u32::MAX, u32::MAX).unwrap_err().starts_with("8589934590 tokens"));
    }
}
