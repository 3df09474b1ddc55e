//! The answer in a sentence or two.

use crate::figures::{Figures, count, duration, percent};
use crate::report::{Point, Report, Sweep};

/// What somebody with ten seconds should take away.
pub fn verdict(report: &Report) -> Vec<String> {
    let Some(point) = report.points.last() else { return Vec::new() };
    let mut said = Vec::new();
    match &report.sweep {
        None => said.extend(compare(report, point, "")),
        Some(sweep) if sweep.parameters.len() > 1 => {
            said.extend(report.policies().iter().filter_map(|policy| extremes(report, sweep, policy)));
        }
        Some(sweep) => {
            for point in [report.points.first(), report.points.last()].into_iter().flatten() {
                said.extend(compare(report, point, &format!("At {}: ", place(sweep, point))));
            }
        }
    }
    said.dedup();
    said
}

/// A point of a sweep in words.
fn place(sweep: &Sweep, point: &Point) -> String {
    let named = sweep.parameters.iter().zip(&point.values);
    named.map(|(name, value)| format!("{name} {}", count(*value))).collect::<Vec<_>>().join(", ")
}

/// Where on a surface a policy is best, and where worst.
fn extremes(report: &Report, sweep: &Sweep, policy: &str) -> Option<String> {
    let answered = report.points.iter().filter(|point| point.is_answered(policy));
    let mut ranked: Vec<(&Point, f64)> =
        answered.filter_map(|point| Some((point, Figures::of(point, policy)?.ttft_mean_ms.mean))).collect();
    ranked.sort_by(|one, other| one.1.total_cmp(&other.1));
    let (best, worst) = (ranked.first()?, ranked.last()?);
    Some(format!(
        "{policy} gives the first token soonest at {}: {} on average; latest at {}: {}.",
        place(sweep, best.0),
        duration(best.1),
        place(sweep, worst.0),
        duration(worst.1)
    ))
}

/// The best policy by mean TTFT, against the first one, and how near it is to what is possible.
fn compare(report: &Report, point: &Point, at: &str) -> Option<String> {
    let policies = report.policies();
    let mut ranked: Vec<(&str, Figures)> =
        policies.iter().filter_map(|policy| Some((*policy, Figures::of(point, policy)?))).collect();
    let (first, baseline) = *ranked.first()?;
    ranked.retain(|(policy, _)| point.is_answered(policy));
    if ranked.is_empty() {
        return Some(format!("{at}no policy got its requests answered: there is nothing to compare."));
    }
    ranked.sort_by(|one, other| one.1.ttft_mean_ms.mean.total_cmp(&other.1.ttft_mean_ms.mean));
    let (best, figures) = ranked[0];
    let ttft = duration(figures.ttft_mean_ms.mean);
    let hit = percent(figures.token_hit_ratio.mean);
    let mut sentence = format!(
        "{at}{best} gives the first token soonest: {ttft} on average, with {hit} of prompt tokens found in caches"
    );
    if best != first && point.is_answered(first) {
        let less = 1.0 - figures.ttft_mean_ms.mean / baseline.ttft_mean_ms.mean;
        let baseline_ttft = duration(baseline.ttft_mean_ms.mean);
        sentence += &format!(" — {} less than {first} ({baseline_ttft})", percent(less));
    }
    if let Some(bounds) = &point.bounds {
        let belady = bounds.pooled_belady_token_hit_ratio;
        if belady > 0.0 {
            sentence += &format!("; no router could find more than {}", percent(belady));
        }
    }
    if is_close(&ranked) {
        sentence += &format!(". {} is within its confidence", ranked[1].0);
    }
    Some(sentence + ".")
}

/// Whether the second could be the best as well.
fn is_close(ranked: &[(&str, Figures)]) -> bool {
    let [(_, best), (_, second), ..] = ranked else { return false };
    let doubt = best.ttft_mean_ms.within.unwrap_or(0.0) + second.ttft_mean_ms.within.unwrap_or(0.0);
    second.ttft_mean_ms.mean - best.ttft_mean_ms.mean < doubt
}
