//! One table: a group of rows for each case, a row for each target, the median of all rounds.

use std::fmt::Write as _;

use crate::case::Case;
use crate::measure::Sample;
use crate::stats::Spread;
use crate::target::Target;

const MIB: f64 = 1024.0 * 1024.0;

/// One case through one target, a sample for each round.
pub struct Row {
    /// Index of the case.
    pub case: usize,
    /// Index of the target.
    pub target: usize,
    /// What was found, round by round.
    pub samples: Vec<Sample>,
}

impl Row {
    /// Every target for every case.
    pub fn grid(cases: &[Case], targets: &[Target]) -> Vec<Row> {
        let row = |case, target| Row { case, target, samples: Vec::new() };
        (0..cases.len()).flat_map(|case| (0..targets.len()).map(move |target| row(case, target))).collect()
    }

    fn spread(&self, of: impl Fn(&Sample) -> f64) -> Spread {
        Spread::of(self.samples.iter().map(of))
    }

    /// How much more than the baseline, round by round: what disturbs one round disturbs both.
    fn added(&self, baseline: &Row, of: impl Fn(&Sample) -> f64) -> f64 {
        let pairs = self.samples.iter().zip(&baseline.samples);
        Spread::of(pairs.map(|(mine, base)| of(mine) - of(base))).median
    }

    fn errors(&self) -> u64 {
        self.samples.iter().map(|sample| sample.errors).sum()
    }
}

/// The table as text.
pub fn render(rows: &[Row], cases: &[Case], targets: &[Target]) -> String {
    let mut text = format!(
        "{:<8}{:<28}{:>9}{:>16}{:>9}{:>9}{:>9}{:>9}{:>9}{:>8}\n",
        "case",
        "through",
        "CPU µs",
        "min..max",
        "x nginx",
        "+p50 µs",
        "+p99 µs",
        "req/s",
        "RSS MiB",
        "errors"
    );
    for (index, case) in cases.iter().enumerate() {
        let group: Vec<&Row> = rows.iter().filter(|row| row.case == index).collect();
        for row in &group {
            writeln!(text, "{}", line(row, &group, case, targets)).expect("a String takes everything");
        }
    }
    text
}

fn line(row: &Row, group: &[&Row], case: &Case, targets: &[Target]) -> String {
    let target = &targets[row.target];
    let requests_per_s = row.spread(|sample| sample.requests_per_s).median;
    let (start, end) = (format!("{:<8}{:<28}", case.name, target.name), row.errors());
    match group.iter().find(|other| targets[other.target].is_baseline()) {
        Some(baseline) if !target.is_baseline() => {
            let cost = cost_columns(row, nginx_cost(group, targets));
            let (p50, p99) = (row.added(baseline, |s| s.p50_us), row.added(baseline, |s| s.p99_us));
            let rss_mib = row.samples.last().map_or(0.0, |sample| sample.rss_bytes as f64 / MIB);
            format!("{start}{cost}{p50:>+9.0}{p99:>+9.0}{requests_per_s:>9.0}{rss_mib:>9.1}{end:>8}")
        }
        _ => baseline_line(row, &start, requests_per_s, end),
    }
}

/// For the engine itself the latency columns hold the whole latency, in brackets.
fn baseline_line(row: &Row, start: &str, requests_per_s: f64, errors: u64) -> String {
    let (p50, p99) = (row.spread(|s| s.p50_us).median, row.spread(|s| s.p99_us).median);
    let (p50, p99) = (format!("({p50:.0})"), format!("({p99:.0})"));
    format!(
        "{start}{:>9}{:>16}{:>9}{p50:>9}{p99:>9}{requests_per_s:>9.0}{:>9}{errors:>8}",
        "-", "-", "-", "-"
    )
}

fn cost_columns(row: &Row, nginx_us: Option<f64>) -> String {
    let cpu = row.spread(|sample| sample.cpu_us);
    let range = format!("{:.1}..{:.1}", cpu.min, cpu.max);
    let ratio = nginx_us.map_or_else(|| "-".to_owned(), |nginx_us| format!("{:.2}", cpu.median / nginx_us));
    format!("{:>9.1}{range:>16}{ratio:>9}", cpu.median)
}

fn nginx_cost(group: &[&Row], targets: &[Target]) -> Option<f64> {
    let nginx = group.iter().find(|row| targets[row.target].name == "nginx")?;
    Some(nginx.spread(|sample| sample.cpu_us).median).filter(|cpu_us| *cpu_us > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(p50s_us: &[f64]) -> Row {
        let sample = |p50_us: &f64| Sample { p50_us: *p50_us, ..Sample::default() };
        Row { case: 0, target: 0, samples: p50s_us.iter().map(sample).collect() }
    }

    #[test]
    fn what_is_added_is_compared_within_a_round() {
        let (quiet_then_loud, baseline) = (row(&[110.0, 510.0, 120.0]), row(&[100.0, 500.0, 100.0]));
        assert_eq!(quiet_then_loud.added(&baseline, |sample| sample.p50_us), 10.0);
    }
}
