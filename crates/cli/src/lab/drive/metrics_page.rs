//! An engine's Prometheus page: sums of counters and gauges, and histograms.
//!
//! Series of one name are added up, because an engine labels them by rank, model and process.

use std::collections::BTreeMap;

/// The samples of one page.
#[derive(Debug, Default)]
pub struct MetricsPage {
    /// Sums by sample name, buckets left out.
    sums: BTreeMap<String, f64>,
    /// Upper bounds and cumulative counts by histogram name, as on the page.
    buckets: BTreeMap<String, Vec<(f64, f64)>>,
}

impl MetricsPage {
    /// Reads the lines whose names begin with one of these prefixes.
    pub fn read(text: &str, prefixes: &[&str]) -> MetricsPage {
        let mut page = MetricsPage::default();
        let known = text.lines().filter(|line| prefixes.iter().any(|prefix| line.starts_with(prefix)));
        known.filter_map(sample).for_each(|sample| page.add(&sample));
        page
    }

    fn add(&mut self, sample: &Sample<'_>) {
        match (sample.name.strip_suffix("_bucket"), sample.bound) {
            (Some(name), Some(bound)) => {
                self.buckets.entry(name.to_owned()).or_default().push((bound, sample.value));
            }
            _ => *self.sums.entry(sample.name.to_owned()).or_default() += sample.value,
        }
    }

    /// Whether any name begins with this prefix.
    pub fn has(&self, prefix: &str) -> bool {
        self.sums.keys().any(|name| name.starts_with(prefix))
    }

    /// The sum of a counter's or gauge's series; `None` if the page does not have it.
    pub fn sum(&self, name: &str) -> Option<f64> {
        self.sums.get(name).copied()
    }

    /// The sum of a histogram's series; `None` if the page does not have it.
    pub fn histogram(&self, name: &str) -> Option<Histogram> {
        let mut bounds = BTreeMap::new();
        for &(bound, count) in self.buckets.get(name)? {
            // The bits of positive numbers are in the order of the numbers.
            bounds.entry(bound.to_bits()).or_insert((bound, 0.0)).1 += count;
        }
        let at_most = bounds.into_values().filter(|(bound, _)| bound.is_finite()).collect();
        Some(Histogram {
            at_most,
            count: self.sum(&format!("{name}_count"))?,
            sum: self.sum(&format!("{name}_sum"))?,
        })
    }
}

/// One line.
struct Sample<'a> {
    name: &'a str,
    /// The label `le`.
    bound: Option<f64>,
    value: f64,
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' '])?;
    let (labels, value) = line[end..].rsplit_once('}').unwrap_or(("", &line[end..]));
    let bound = labels.trim_start_matches('{').split(',').find_map(|label| label.strip_prefix("le=\""));
    Some(Sample {
        name: &line[..end],
        bound: bound.and_then(|bound| bound.trim_end_matches('"').parse().ok()),
        // A timestamp may follow.
        value: value.split_whitespace().next()?.parse().ok()?,
    })
}

/// A histogram. Within a bucket, observations count as evenly spread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Finite upper bounds, ascending, and the number of observations up to each.
    at_most: Vec<(f64, f64)>,
    pub count: f64,
    pub sum: f64,
}

impl Histogram {
    /// The observations since an earlier reading.
    pub fn since(&self, before: &Histogram) -> Histogram {
        let less = |&(bound, count): &(f64, f64)| (bound, count - before.up_to(bound));
        Histogram {
            at_most: self.at_most.iter().map(less).collect(),
            count: self.count - before.count,
            sum: self.sum - before.sum,
        }
    }

    /// The observations of both. Bounds may differ between kinds of engines.
    pub fn plus(&self, other: &Histogram) -> Histogram {
        let mut bounds: Vec<f64> =
            self.at_most.iter().chain(&other.at_most).map(|(bound, _)| *bound).collect();
        bounds.sort_unstable_by(f64::total_cmp);
        bounds.dedup();
        let both = |bound: f64| (bound, self.up_to(bound) + other.up_to(bound));
        Histogram {
            at_most: bounds.into_iter().map(both).collect(),
            count: self.count + other.count,
            sum: self.sum + other.sum,
        }
    }

    /// Observations up to a value.
    fn up_to(&self, value: f64) -> f64 {
        let next = self.at_most.partition_point(|(bound, _)| *bound < value);
        let (low, below) = next.checked_sub(1).map_or((0.0, 0.0), |last| self.at_most[last]);
        self.at_most.get(next).map_or(below, |&(high, count)| {
            let share = if high > low { (value - low) / (high - low) } else { 1.0 };
            below + share * (count - below)
        })
    }

    /// The value that this share of observations does not exceed; `None` without observations. Above the last finite
    /// bound it is that bound.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let rank = share * self.count;
        let next = self.at_most.partition_point(|(_, count)| *count < rank);
        let (low, below) = next.checked_sub(1).map_or((0.0, 0.0), |last| self.at_most[last]);
        let within = |&(high, count): &(f64, f64)| low + (high - low) * (rank - below) / (count - below);
        (self.count > 0.0).then(|| self.at_most.get(next).map_or(low, within))
    }

    /// The arithmetic mean; `None` without observations.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# TYPE vllm:wait histogram
vllm:wait_bucket{engine=\"0\",le=\"1.0\",model_name=\"a,le=b\"} 2.0
vllm:wait_bucket{engine=\"0\",le=\"2.0\",model_name=\"a,le=b\"} 6.0
vllm:wait_bucket{engine=\"0\",le=\"+Inf\",model_name=\"a,le=b\"} 8.0
vllm:wait_count{engine=\"0\",model_name=\"a\"} 8.0
vllm:wait_sum{engine=\"0\",model_name=\"a\"} 12.0
vllm:wait_bucket{module=\"9\",engine=\"1\",le=\"1.0\"} 0.0
vllm:wait_bucket{module=\"9\",engine=\"1\",le=\"2.0\"} 2.0
vllm:wait_bucket{module=\"9\",engine=\"1\",le=\"+Inf\"} 2.0
vllm:wait_count{engine=\"1\"} 2.0
vllm:wait_sum{engine=\"1\"} 3.0
vllm:hits_total 5 1700000000
vllm:hits_total{engine=\"1\"} 1e2
python_gc_total 9
";

    fn histogram(at_most: &[(f64, f64)], count: f64, sum: f64) -> Histogram {
        Histogram { at_most: at_most.to_vec(), count, sum }
    }

    #[test]
    fn series_of_one_name_are_added_up() {
        let page = MetricsPage::read(PAGE, &["vllm:"]);
        assert_eq!(page.histogram("vllm:wait"), Some(histogram(&[(1.0, 2.0), (2.0, 8.0)], 10.0, 15.0)));
        assert_eq!(page.sum("vllm:hits_total"), Some(105.0));
        assert_eq!((page.sum("python_gc_total"), page.histogram("vllm:hits_total")), (None, None));
        assert!(page.has("vllm:") && !page.has("sglang:"));
    }

    #[test]
    fn percentiles_are_interpolated_within_their_bucket() {
        let all = histogram(&[(1.0, 2.0), (2.0, 6.0), (4.0, 8.0)], 10.0, 20.0);
        for (share, value) in [(0.1, 0.5), (0.2, 1.0), (0.5, 1.75), (0.8, 4.0), (0.99, 4.0)] {
            assert_eq!(all.quantile(share), Some(value), "{share}");
        }
        assert_eq!(all.mean(), Some(2.0));
        assert_eq!((Histogram::default().quantile(0.5), Histogram::default().mean()), (None, None));
    }

    #[test]
    fn a_difference_leaves_the_observations_in_between() {
        let before = histogram(&[(1.0, 2.0), (2.0, 6.0)], 6.0, 8.0);
        let after = histogram(&[(1.0, 3.0), (2.0, 10.0)], 11.0, 20.0);
        assert_eq!(after.since(&before), histogram(&[(1.0, 1.0), (2.0, 4.0)], 5.0, 12.0));
        assert_eq!(after.since(&Histogram::default()), after);
    }

    #[test]
    fn histograms_of_different_bounds_add_up() {
        let one = histogram(&[(1.0, 2.0), (3.0, 4.0)], 4.0, 6.0);
        let other = histogram(&[(2.0, 2.0)], 2.0, 2.0);
        assert_eq!(one.plus(&other), histogram(&[(1.0, 3.0), (2.0, 5.0), (3.0, 6.0)], 6.0, 8.0));
        assert_eq!(one.plus(&one), histogram(&[(1.0, 4.0), (3.0, 8.0)], 8.0, 12.0));
    }
}
