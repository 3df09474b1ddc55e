//! Time to first token, one row per policy: median, mean, 95th and 99th percentile.

use super::{names_width, short_name, text_width};
use crate::axis::Axis;
use crate::duration::duration;
use crate::figures::{Figures, round_duration};
use crate::report::{Point, Report};
use crate::svg::{Anchor, Drawing, Ink, ink};

const WIDTH: f64 = 760.0;
const RIGHT: f64 = 66.0;
const ROW: f64 = 34.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 30.0;

/// Plots one point.
pub fn ranges(report: &Report, point: &Point) -> String {
    let policies = report.policies();
    let rows: Vec<(&str, Figures)> =
        policies.iter().filter_map(|policy| Some((*policy, Figures::of(point, policy)?))).collect();
    let floor = point.bounds.as_ref().map(|bounds| bounds.zero_queue_ttft_ms.mean);
    let values = rows.iter().flat_map(|(_, row)| [row.ttft_p50_ms, row.ttft_mean_ms, row.ttft_p99_ms]);
    let values = values.map(|estimate| estimate.mean).chain(floor);
    let left = names_width(policies.iter().copied());
    let axis = Axis::around(values.collect::<Vec<_>>().into_iter(), (left, WIDTH - RIGHT));
    let height = TOP + ROW * rows.len() as f64 + BOTTOM;
    let mut drawing = Drawing::new(WIDTH, height);
    frame(&mut drawing, &axis, height, floor);
    for (place, (policy, row)) in rows.iter().enumerate() {
        let y = TOP + ROW * (place as f64 + 0.5);
        drawing.text("row", (left - 14.0, y + 4.0), Anchor::End, &short_name(policy));
        draw_row(&mut drawing, &axis, y, ink(place), row);
    }
    drawing.finish("time to first token by policy")
}

fn frame(drawing: &mut Drawing, axis: &Axis, height: f64, floor: Option<f64>) {
    for tick in axis.ticks() {
        let x = axis.at(tick);
        drawing.rule("grid", (x, TOP), (x, height - BOTTOM));
        drawing.text("tick", (x, height - BOTTOM + 18.0), Anchor::Middle, &round_duration(tick));
    }
    if let Some(floor) = floor {
        let x = axis.at(floor);
        drawing.rule("bound", (x, TOP - 4.0), (x, height - BOTTOM));
        let words = "mean if no request waited";
        let half = text_width(words) / 2.0;
        let x = x.clamp(half, WIDTH - half);
        drawing.text("bound-name", (x, TOP - 9.0), Anchor::Middle, words);
    }
}

fn draw_row(drawing: &mut Drawing, axis: &Axis, y: f64, ink: Ink, row: &Figures) {
    let [p50, mean, p95, p99] =
        [row.ttft_p50_ms, row.ttft_mean_ms, row.ttft_p95_ms, row.ttft_p99_ms].map(|estimate| estimate.mean);
    drawing.stroke(ink.colour, 3.0, (axis.at(p50), y), (axis.at(p99), y));
    for (value, radius, name) in
        [(p50, 4.0, "median"), (p95, 4.0, "p95"), (p99, 4.0, "p99"), (mean, 7.0, "mean")]
    {
        drawing.dot(ink, (axis.at(value), y), radius, &format!("{name} {}", duration(value)));
    }
    drawing.text("value", (axis.at(p99) + 9.0, y + 4.0), Anchor::Start, &duration(p99));
}
