//! The report as one self-contained HTML file, without scripts, fonts or external images.

use warmroute_sim::{Bounds, Estimate};

use crate::chart::{Lines, Series, load, ranges, shares, surface};
use crate::duration::duration;
use crate::figures::{Figures, count, percent, round_duration};
use crate::report::{Point, Report, Sweep};
use crate::svg::{colour, escaped};
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
         <style>\n{STYLE}</style></head>\n<body><main>\n<h1>{title}</h1>\n{lead}{plots}{loads}{figures}{made}</main></body></html>\n",
        loads = loads(report),
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
    let first = figure(
        "Time to first token",
        "Large dot: mean. Small dots: median, p95, p99. Further left is better.",
        &ranges(report, point),
    );
    let second = figure(
        "Prompt tokens found in a cache",
        "Dashed: what one cache of all workers' size would find, by its eviction.",
        &shares(report, point),
    );
    format!("<h2>The answer</h2>\n<div class=\"plots\">\n{first}{second}</div>\n")
}

fn sweep_plots(report: &Report, sweep: &Sweep) -> String {
    if let [_, _] = &sweep.parameters[..] {
        let surfaces: String = report
            .policies()
            .iter()
            .map(|policy| {
                figure(policy, "Mean time to first token. Dark is soon.", &surface(report, sweep, policy))
            })
            .collect();
        return format!("<h2>The answer</h2>\n<div class=\"plots\">\n{surfaces}</div>\n");
    }
    let x = &sweep.parameters[0];
    let plots: String = MEASURES
        .iter()
        .map(|measure| figure(measure.caption, measure.about, &lines(report, x, measure)))
        .collect();
    format!("<h2>The answer</h2>\n{}<div class=\"plots\">\n{plots}</div>\n", legend(report))
}

/// A measure plotted against the parameter of a sweep.
struct Measure {
    caption: &'static str,
    about: &'static str,
    /// Label of the axis.
    label: &'static str,
    words: fn(f64) -> String,
    tick_words: fn(f64) -> String,
    of: fn(&Figures) -> Estimate,
    bound: Option<fn(&Bounds) -> f64>,
}

const MEASURES: [Measure; 6] = [
    Measure {
        caption: "Time to first token, mean",
        about: "Lower is better. Dashed: if no request waited.",
        label: "TTFT mean",
        words: duration,
        tick_words: round_duration,
        of: |row| row.ttft_mean_ms,
        bound: Some(|bounds| bounds.zero_queue_ttft_ms.mean),
    },
    Measure {
        caption: "Time to first token, 99th percentile",
        about: "Lower is better.",
        label: "TTFT p99",
        words: duration,
        tick_words: round_duration,
        of: |row| row.ttft_p99_ms,
        bound: None,
    },
    Measure {
        caption: "Prompt tokens found in a cache",
        about: "Higher is better. Dashed: pooled Belady, the most any router could find; only about, where clients wait for answers.",
        label: "token hit",
        words: percent,
        tick_words: percent,
        of: |row| row.token_hit_ratio,
        bound: Some(|bounds| bounds.pooled_belady_token_hit_ratio),
    },
    Measure {
        caption: "Goodput",
        about: "Requests a second that meet the SLO. Higher is better.",
        label: "goodput per second",
        words: count,
        tick_words: count,
        of: |row| row.goodput_rps,
        bound: None,
    },
    Measure {
        caption: "Throughput",
        about: "Output tokens a second. Higher is better; with open arrivals it equals the traffic.",
        label: "output tokens per second",
        words: count,
        tick_words: count,
        of: |row| row.output_tokens_per_s,
        bound: None,
    },
    Measure {
        caption: "Wait in the engine's queue, mean",
        about: "Lower is better.",
        label: "queue mean",
        words: duration,
        tick_words: round_duration,
        of: |row| row.queue_mean_ms,
        bound: None,
    },
];

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
        let value = |point: &Point| {
            Some((at(point)?, Estimate { mean: bound(point.bounds.as_ref()?), within: None }))
        };
        series.push(Series {
            name: "bound",
            place: None,
            points: report.points.iter().filter_map(value).collect(),
        });
    }
    let Measure { label: y, words, tick_words, .. } = *measure;
    Lines { name: &format!("{y} against {x}"), x, y, words, tick_words, series }.draw()
}

fn legend(report: &Report) -> String {
    let policies = report.policies();
    let entries = policies.iter().enumerate().map(|(place, policy)| {
        format!("<span><i style=\"background:{}\"></i>{}</span>", colour(place), escaped(policy))
    });
    format!("<div class=\"legend\">{}</div>\n", entries.collect::<String>())
}

fn loads(report: &Report) -> String {
    if report.loads.is_empty() {
        return String::new();
    }
    let most =
        report.loads.iter().flat_map(|load| load.series.samples.iter().flatten().copied()).max().unwrap_or(0);
    let plots: String = report
        .loads
        .iter()
        .map(|one| figure(&one.policy, "One row for each worker.", &load(one, most)))
        .collect();
    format!(
        "<h2>Each worker's load over time</h2>\n<p class=\"about\">Requests in flight: 0 <span class=\"scale\"></span> {most}. \
         The same colours in all. Stripes across are workers that are always busy; columns are bursts that all feel.</p>\n\
         <div class=\"plots\">\n{plots}</div>\n"
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
