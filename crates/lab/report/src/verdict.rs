//! Verdict of a report: the answer in one or two sentences.

use warmroute_sim::{Estimate, Summary};

use crate::duration::duration;
use crate::figures::{Figures, count, percent};
use crate::report::{Point, Report, Sweep};

/// The sentences for a reader with ten seconds.
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

/// Points of a surface where a policy is best and worst.
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

/// The best policy by mean TTFT, compared with the first one and with the bounds.
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
    // A single run has no confidence interval.
    let once = if figures.ttft_mean_ms.within.is_none() { " in one run" } else { "" };
    let mut sentence = format!(
        "{at}{best} gives the first token soonest{once}: {ttft} on average, with {hit} of prompt tokens found in caches"
    );
    if best != first && point.is_answered(first) {
        let less = 1.0 - figures.ttft_mean_ms.mean / baseline.ttft_mean_ms.mean;
        let baseline_ttft = duration(baseline.ttft_mean_ms.mean);
        sentence += &format!(" — {} less than {first} ({baseline_ttft})", percent(less));
    }
    if let Some(bounds) = &point.bounds {
        let belady = bounds.pooled_belady_token_hit_ratio;
        // With closed-loop clients the order of requests differs from Belady's.
        let about = if bounds.is_closed_loop { "about " } else { "" };
        if belady > 0.0 {
            sentence += &format!("; no router could find more than {about}{}", percent(belady));
        }
    }
    let rivals: Vec<&str> =
        ranked[1..].iter().map(|(policy, _)| *policy).filter(|rival| is_close(point, best, rival)).collect();
    match &rivals[..] {
        [] => {}
        [rival] => sentence += &format!(". {rival} may be as soon, within 95 % confidence"),
        [rivals @ .., last] => {
            let rivals = rivals.join(", ");
            sentence += &format!(". {rivals} and {last} may be as soon, within 95 % confidence");
        }
    }
    Some(sentence + ".")
}

/// Whether a policy could equal the best. Both see the same arrivals per seed, so the test is on their
/// differences per seed, however much seeds vary. A single seed decides nothing.
fn is_close(point: &Point, best: &str, rival: &str) -> bool {
    let later = |run: &Summary| {
        let same_seed = point.of(best).find(|other| other.seed == run.seed)?;
        Some(run.ttft_ms.mean - same_seed.ttft_ms.mean)
    };
    let difference = Estimate::of(&point.of(rival).filter_map(later).collect::<Vec<_>>());
    difference.within.is_some_and(|within| difference.mean <= within)
}

#[cfg(test)]
mod tests;
