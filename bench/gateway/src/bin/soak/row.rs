//! What was seen at one time, and what is thought of all of it.

use std::fmt;
use std::time::Duration;

use warmroute_bench_gateway::usage::Usage;

const MIB: f64 = 1024.0 * 1024.0;
/// The promise.
const RSS_MIB_MAX: f64 = 150.0;
/// What the allocator may move in the second half. 40 bytes kept of each of half a million requests would be four times as much.
const GROWTH_MIB_MAX: f64 = 5.0;

/// One row of the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row {
    requests: u64,
    elapsed: Duration,
    requests_per_s: f64,
    cpu_us_per_request: f64,
    usage: Usage,
}

impl Row {
    /// What the columns are.
    pub const HEAD: &str = "requests   seconds     req/s    CPU µs   RSS MiB     files";

    /// Before the first request.
    pub fn first(usage: Usage) -> Row {
        Row { usage, ..Row::default() }
    }

    /// After so many requests in all; rates are since the row before.
    pub fn after(before: &Row, requests: u64, elapsed: Duration, usage: Usage) -> Row {
        let new = (requests - before.requests) as f64;
        Row {
            requests,
            elapsed,
            requests_per_s: new / (elapsed - before.elapsed).as_secs_f64(),
            cpu_us_per_request: (usage.cpu_us - before.usage.cpu_us) as f64 / new,
            usage,
        }
    }

    fn rss_mib(&self) -> f64 {
        self.usage.rss_bytes as f64 / MIB
    }
}

impl fmt::Display for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, rss_mib) = (self.elapsed.as_secs_f64(), self.rss_mib());
        let Row { requests, requests_per_s, cpu_us_per_request, usage, .. } = self;
        write!(
            out,
            "{requests:>8} {seconds:>9.1} {requests_per_s:>9.0} {cpu_us_per_request:>9.1} {rss_mib:>9.1} {:>9}",
            usage.files
        )
    }
}

/// Whether memory and files stayed within their bounds.
pub fn verdict(rows: &[Row], files_max: usize) -> Result<(), String> {
    let second_half = &rows[rows.len() / 2..];
    let (half, last) = (&second_half[0], &second_half[second_half.len() - 1]);
    let most_mib = rows.iter().map(Row::rss_mib).fold(0.0, f64::max);
    let grown_mib = last.rss_mib() - half.rss_mib();
    println!("at most {most_mib:.1} MiB; {grown_mib:+.1} MiB in the second half");
    if most_mib > RSS_MIB_MAX {
        return Err(format!("more than {RSS_MIB_MAX} MiB"));
    }
    if grown_mib > GROWTH_MIB_MAX {
        return Err(format!("it grew by more than {GROWTH_MIB_MAX} MiB in the second half"));
    }
    // Of several rows, because the last one is taken when clients are leaving.
    let files_most = second_half.iter().map(|row| row.usage.files).max().unwrap_or(0);
    if files_most > files_max {
        return Err(format!("{files_most} files were open; connections need at most {files_max}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rss_mib: [u64; 3], files: [usize; 3]) -> Vec<Row> {
        let row = |n: usize| Row::first(Usage { cpu_us: 0, rss_bytes: rss_mib[n] << 20, files: files[n] });
        (0..3).map(row).collect()
    }

    #[test]
    fn flat_passes_and_what_grows_does_not() {
        assert_eq!(verdict(&rows([10, 40, 44], [20, 60, 61]), 80), Ok(()));
        assert!(verdict(&rows([10, 40, 46], [20, 60, 60]), 80).is_err(), "memory");
        assert!(verdict(&rows([10, 151, 40], [20, 60, 60]), 80).is_err(), "too much at one time");
        assert!(verdict(&rows([10, 40, 40], [20, 60, 90]), 80).is_err(), "files");
    }
}
