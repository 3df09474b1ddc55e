//! Share of prompt tokens found in caches, beside the bounds.

use super::{names_width, short_name, text_width};
use crate::axis::Axis;
use crate::figures::{Figures, percent};
use crate::report::{Point, Report};
use crate::svg::{Anchor, Drawing, ink};

const WIDTH: f64 = 760.0;
const RIGHT: f64 = 66.0;
const ROW: f64 = 30.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 28.0;

/// Plots one point.
pub fn shares(report: &Report, point: &Point) -> String {
    let policies = report.policies();
    let rows: Vec<(&str, Figures)> =
        policies.iter().filter_map(|policy| Some((*policy, Figures::of(point, policy)?))).collect();
    let bounds = point.bounds.as_ref().map(|bounds| {
        [
            ("LRU", bounds.pooled_lru_token_hit_ratio),
            ("Belady", bounds.pooled_belady_token_hit_ratio),
            ("infinite", bounds.infinite_cache_token_hit_ratio),
        ]
    });
    let values = rows.iter().map(|(_, row)| row.token_hit_ratio.mean);
    let values = values.chain(bounds.iter().flatten().map(|(_, value)| *value));
    let left = names_width(policies.iter().copied());
    let axis = Axis::from_zero(values, (left, WIDTH - RIGHT));
    let height = TOP + ROW * rows.len() as f64 + BOTTOM;
    let mut drawing = Drawing::new(WIDTH, height);
    for tick in axis.ticks() {
        let x = axis.at(tick);
        drawing.rule("grid", (x, TOP), (x, height - BOTTOM));
        drawing.text("tick", (x, height - BOTTOM + 18.0), Anchor::Middle, &percent(tick));
    }
    for (place, (policy, row)) in rows.iter().enumerate() {
        let y = TOP + ROW * place as f64;
        let (share, x) = (row.token_hit_ratio.mean, axis.at(row.token_hit_ratio.mean));
        drawing.text("row", (left - 14.0, y + ROW / 2.0 + 4.0), Anchor::End, &short_name(policy));
        drawing.area(ink(place).colour, (left, y + 6.0), ((x - left).max(1.0), ROW - 12.0), &percent(share));
        // In a column of their own, clear of the bounds' lines.
        drawing.text("value", (WIDTH - 6.0, y + ROW / 2.0 + 4.0), Anchor::End, &percent(share));
    }
    mark_bounds(&mut drawing, &axis, height, bounds);
    drawing.finish("share of prompt tokens found in caches by policy")
}

/// Draws the bounds; equal ones share a label.
fn mark_bounds(drawing: &mut Drawing, axis: &Axis, height: f64, bounds: Option<[(&str, f64); 3]>) {
    let mut marks: Vec<(String, f64)> = Vec::new();
    for (name, value) in bounds.into_iter().flatten() {
        match marks.last_mut().filter(|(_, last)| axis.at(value) - axis.at(*last) < 60.0) {
            Some((names, last)) => {
                *names += &format!(", {name}");
                *last = value;
            }
            None => marks.push((name.to_owned(), value)),
        }
        let x = axis.at(value);
        drawing.rule("bound", (x, TOP - 6.0), (x, height - BOTTOM));
    }
    // Labels are stacked, so that long names do not overlap.
    for (row, (names, value)) in marks.iter().rev().enumerate() {
        let y = TOP - 11.0 - 15.0 * row as f64;
        let words = format!("pooled: {names}");
        let end = (axis.at(*value) + 4.0).max(text_width(&words));
        drawing.text("bound-name", (end, y), Anchor::End, &words);
    }
}
