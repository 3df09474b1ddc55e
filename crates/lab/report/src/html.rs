//! The report as one self-contained HTML file, without scripts, fonts or external images.

use warmroute_sim::Estimate;

use crate::chart::{AxisRange, Marks, Plot, PlotAxis, Scales, Series, ranges, shares, surface, timeline};
use crate::duration::duration;
use crate::figures::{Figures, count, percent, round_duration};
use crate::measure::{self, Measure};
use crate::report::{Point, Report, Sweep};
use crate::svg::{Ink, escaped, ink};
use crate::table::{FLEET_HEADS, HEADS, bound_rows, cells, fleet_cells, heading, ttft_unit};
use crate::verdict::verdict;

const STYLE: &str = include_str!("style.css");

/// Renders the page.
pub fn html(report: &Report) -> String {
    let title = escaped(&report.title);
    let lead: String =
        verdict(report).iter().map(|said| format!("<p class=\"lead\">{}</p>\n", escaped(said))).collect();
    let plots = match &report.sweep {
        None => report.points.iter().map(|point| single_plots(report, point)).collect(),
        Some(sweep) => sweep_plots(report, sweep),
    };
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style></head>\n<body><main>\n<h1>{title}</h1>\n{lead}{plots}{timelines}{figures}{made}</main></body></html>\n",
        timelines = timelines(report),
        figures = figures(report),
        made = how_made(report),
    )
}

fn figure(caption: &str, about: &str, plot: &str) -> String {
    format!(
        "<figure><figcaption>{}<span>{}</span></figcaption>{plot}</figure>\n",
        escaped(caption),
        escaped(about)
    )
}

fn single_plots(report: &Report, point: &Point) -> String {
    let plots = [
        figure(
            "Time to first token",
            "Large dot: mean. Small dots: median, p95, p99. Further left is better.",
            &ranges(report, point),
        ),
        figure(
            "Prompt tokens found in a cache",
            "Dashed: what one cache of all workers' size would find, by its eviction.",
            &shares(report, point),
        ),
        figure(
            "Distribution of the time to first token",
            "Share of requests answered within a time, first seed. Further left is better.",
            &distribution(report),
        ),
        figure(
            "Hits against balance",
            "One dot for each seed. Right: more tokens found. Down: requests spread more evenly.",
            &balance(report),
        ),
    ];
    format!("<h2>The answer</h2>\n{}<div class=\"plots\">\n{}</div>\n", legend(report), plots.concat())
}

fn sweep_plots(report: &Report, sweep: &Sweep) -> String {
    if let [_, _] = &sweep.parameters[..] {
        return surfaces(report, sweep);
    }
    let x = &sweep.parameters[0];
    let plots = measure::LINES
        .iter()
        .map(|measure| figure(measure.caption, measure.about, &lines(report, x, measure)))
        .chain([figure(
            "Hits against balance",
            "One dot for each value and seed. Right: more tokens found. Down: requests spread more evenly.",
            &balance(report),
        )]);
    let plots: String = plots.collect();
    format!("<h2>The answer</h2>\n{}<div class=\"plots\">\n{plots}</div>\n", legend(report))
}

fn surfaces(report: &Report, sweep: &Sweep) -> String {
    let of_policy = |policy: &&str| {
        let plots: String = measure::SURFACES
            .iter()
            .map(|measure| {
                figure(measure.caption, "Dark is better.", &surface(report, sweep, policy, measure))
            })
            .collect();
        format!("<h3>{}</h3>\n<div class=\"plots\">\n{plots}</div>\n", escaped(policy))
    };
    let policies: String = report.policies().iter().map(of_policy).collect();
    format!("<h2>The answer</h2>\n{policies}")
}

fn lines(report: &Report, x: &str, measure: &Measure) -> String {
    let policies = report.policies();
    let at = |point: &Point| point.values.first().copied();
    let mut series: Vec<Series<'_>> = policies
        .iter()
        .enumerate()
        .map(|(place, &policy)| {
            let points = report
                .points
                .iter()
                .filter_map(|point| Some((at(point)?, (measure.of)(&Figures::of(point, policy)?))));
            Series { name: policy, place: Some(place), points: points.collect() }
        })
        .collect();
    if let Some(bound) = measure.bound {
        let value = |point: &Point| Some((at(point)?, exactly(bound(point.bounds.as_ref()?))));
        series.push(Series {
            name: "bound",
            place: None,
            points: report.points.iter().filter_map(value).collect(),
        });
    }
    let Measure { label, words, tick_words, .. } = *measure;
    let x = PlotAxis { label: x, words: count, tick_words: count, range: AxisRange::Around };
    let y = PlotAxis { label, words, tick_words, range: AxisRange::Around };
    Plot { name: &format!("{label} against {}", x.label), x, y, marks: Marks::LinesAndDots, series }.draw()
}

/// The cumulative distribution of the time to first token.
fn distribution(report: &Report) -> String {
    let policies = report.policies();
    let series = report.details.iter().map(|detail| Series {
        name: &detail.policy,
        place: policies.iter().position(|policy| *policy == detail.policy),
        points: detail.ttft_ms.iter().map(|&(ms, share)| (ms, exactly(share))).collect(),
    });
    let x = PlotAxis {
        label: "time to first token",
        words: duration,
        tick_words: round_duration,
        range: AxisRange::Around,
    };
    let y =
        PlotAxis { label: "requests", words: percent, tick_words: whole_percent, range: AxisRange::FromZero };
    let series = series.collect();
    Plot { name: "distribution of the time to first token", x, y, marks: Marks::Lines, series }.draw()
}

/// Hits and evenness of every run.
fn balance(report: &Report) -> String {
    let runs = |policy| report.points.iter().flat_map(move |point: &Point| point.of(policy));
    let policies = report.policies();
    let series = policies.iter().enumerate().map(|(place, &policy)| Series {
        name: policy,
        place: Some(place),
        points: runs(policy).map(|run| (run.token_hit_ratio, exactly(run.load_max_over_mean))).collect(),
    });
    let x = PlotAxis { label: "token hit", words: percent, tick_words: percent, range: AxisRange::Spanning };
    let y = PlotAxis {
        label: "busiest worker over mean",
        words: two_digits,
        tick_words: two_digits,
        range: AxisRange::Spanning,
    };
    let series = series.collect();
    Plot { name: "token hit against the busiest worker's load", x, y, marks: Marks::Dots, series }.draw()
}

fn exactly(mean: f64) -> Estimate {
    Estimate { mean, within: None }
}

fn whole_percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn two_digits(value: f64) -> String {
    format!("{value:.2}")
}

fn legend(report: &Report) -> String {
    let policies = report.policies();
    let entries = policies.iter().enumerate().map(|(place, policy)| {
        let Ink { colour, is_dashed } = ink(place);
        let fill = if is_dashed { "none" } else { colour };
        format!("<span><i style=\"background:{fill};border-color:{colour}\"></i>{}</span>", escaped(policy))
    });
    format!("<div class=\"legend\">{}</div>\n", entries.collect::<String>())
}

fn timelines(report: &Report) -> String {
    if report.details.is_empty() {
        return String::new();
    }
    let scales = Scales::of(&report.details);
    let plots: String = report
        .details
        .iter()
        .map(|detail| {
            figure(&detail.policy, "One row for each worker, first seed.", &timeline(detail, scales))
        })
        .collect();
    format!(
        "<h2>Each worker over time</h2>\n<p class=\"about\">From the least <span class=\"scale\"></span> to the most, \
         with the same colours in all. Stripes across are workers that are always busy; columns are bursts that all feel. \
         Nothing is drawn where no prompt was looked up.</p>\n<div class=\"plots\">\n{plots}</div>\n"
    )
}

fn figures(report: &Report) -> String {
    let tables: String = report.points.iter().map(|point| point_table(report, point)).collect();
    let seeds = report
        .points
        .first()
        .map_or(0, |point| report.policies().first().map_or(0, |policy| point.of(policy).count()));
    let confidence = match seeds {
        0 | 1 => "One seed: no confidence can be given.".to_owned(),
        _ => format!(
            "Means over {seeds} seeds; ± is the 95 % confidence of the mean (Student's t), shown where it is above 0.2 %."
        ),
    };
    format!("<h2>All figures</h2>\n<p class=\"about\">{confidence}</p>\n{tables}")
}

fn point_table(report: &Report, point: &Point) -> String {
    let rows: Vec<(&str, Figures)> = report
        .policies()
        .into_iter()
        .filter_map(|policy| Some((policy, Figures::of(point, policy)?)))
        .collect();
    // As in the verdict, a policy that left requests unanswered is not the best, however short its times.
    let answered = rows.iter().filter(|(policy, _)| point.is_answered(policy));
    let best = answered.min_by(|one, other| one.1.ttft_mean_ms.mean.total_cmp(&other.1.ttft_mean_ms.mean));
    let best = best.map(|(policy, _)| *policy);
    let class = |policy: &str| if best == Some(policy) { " class=\"best\"" } else { "" };
    let unit = ttft_unit(report, point);
    let times = rows
        .iter()
        .map(|(policy, row)| table_row(class(policy), &cells(policy, row, point.bounds.as_ref(), unit)));
    let times = scrolled_table(&HEADS, &times.collect::<String>());
    let fleet = rows.iter().map(|(policy, row)| table_row("", &fleet_cells(policy, row)));
    let fleet = scrolled_table(&FLEET_HEADS, &fleet.collect::<String>());
    let heading =
        heading(report, point).map_or(String::new(), |heading| format!("<h3>{}</h3>\n", escaped(&heading)));
    let bounds = point.bounds.as_ref().map_or(String::new(), |bounds| {
        let rows = bound_rows(bounds).map(|(name, value)| format!("<dt>{name}</dt><dd>{value}</dd>"));
        format!("<dl>{}</dl>\n", rows.join("\n"))
    });
    format!("{heading}{times}{fleet}{bounds}")
}

fn table_row(class: &str, cells: &[String]) -> String {
    let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
    format!("<tr{class}>{cells}</tr>\n")
}

fn scrolled_table(heads: &[&str], body: &str) -> String {
    let heads: String = heads.iter().map(|head| format!("<th>{head}</th>")).collect();
    format!(
        "<div class=\"scroll\"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}</tbody></table></div>\n"
    )
}

fn how_made(report: &Report) -> String {
    let setup: String = report
        .setup
        .iter()
        .map(|(word, value)| format!("<dt>{}</dt><dd>{}</dd>\n", escaped(word), escaped(value)))
        .collect();
    let notes: String = report.remarks().iter().map(|note| format!("<li>{}</li>\n", escaped(note))).collect();
    format!(
        "<h2>How this was made</h2>\n<p class=\"about\">The production router and a model of vLLM's scheduler, in virtual time. The same seed \
         gives the same figures on every machine.</p>\n<dl>{setup}</dl>\n<ul>{notes}</ul>\n<pre>{}</pre>\n",
        escaped(&report.command)
    )
}

#[cfg(test)]
mod tests;
