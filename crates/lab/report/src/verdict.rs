//! The answer in a sentence or two.

use crate::figures::{Figures, duration, percent};
use crate::report::{Point, Report};

/// What somebody with ten seconds should take away.
pub fn verdict(report: &Report) -> Vec<String> {
    let Some(point) = report.points.last() else { return Vec::new() };
    let mut said = Vec::new();
    match &report.sweep {
        None => said.extend(compare(report, point, "")),
        Some(sweep) => {
            for point in [report.points.first(), report.points.last()].into_iter().flatten() {
                let at: Vec<String> = sweep
                    .parameters
                    .iter()
                    .zip(&point.values)
                    .map(|(name, value)| format!("{name} {}", crate::figures::count(*value)))
                    .collect();
                said.extend(compare(report, point, &format!("At {}: ", at.join(", "))));
            }
        }
    }
    said.dedup();
    said
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
