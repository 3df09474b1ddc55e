//! Two parameters at once: one cell per pair, with its mean time to first token.

use crate::duration::duration;
use crate::figures::{Figures, count};
use crate::report::{Report, Sweep};
use crate::svg::{Anchor, Drawing, heat};

const LEFT: f64 = 96.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 48.0;
const CELL: (f64, f64) = (92.0, 46.0);

/// Plots the surface of one policy. Cold colours are short times.
pub fn surface(report: &Report, sweep: &Sweep, policy: &str) -> String {
    let across = axis_values(report, 0);
    let up = axis_values(report, 1);
    let cells: Vec<(usize, usize, f64)> = report
        .points
        .iter()
        .filter_map(|point| {
            let place =
                |values: &[f64], at: usize| values.iter().position(|value| *value == point.values[at]);
            let ttft_ms = Figures::of(point, policy)?.ttft_mean_ms.mean;
            Some((place(&across, 0)?, place(&up, 1)?, ttft_ms))
        })
        .collect();
    let least = cells.iter().map(|cell| cell.2).fold(f64::MAX, f64::min);
    let most = cells.iter().map(|cell| cell.2).fold(0.0, f64::max);
    let (width, height) = (CELL.0 * across.len() as f64, CELL.1 * up.len() as f64);
    let mut drawing = Drawing::new(LEFT + width + 10.0, TOP + height + BOTTOM);
    for (column, row, ttft_ms) in cells {
        let corner = (LEFT + column as f64 * CELL.0, TOP + (up.len() - 1 - row) as f64 * CELL.1);
        let share = if most > least { (ttft_ms / least).ln() / (most / least).ln() } else { 0.0 };
        drawing.area(&heat(share), corner, (CELL.0 - 2.0, CELL.1 - 2.0), &duration(ttft_ms));
        let class = if share > 0.6 { "on-hot" } else { "on-cold" };
        let middle = (corner.0 + CELL.0 / 2.0 - 1.0, corner.1 + CELL.1 / 2.0 + 4.0);
        drawing.text(class, middle, Anchor::Middle, &duration(ttft_ms));
    }
    for (column, value) in across.iter().enumerate() {
        let x = LEFT + (column as f64 + 0.5) * CELL.0;
        drawing.text("tick", (x, TOP + height + 16.0), Anchor::Middle, &count(*value));
    }
    for (row, value) in up.iter().enumerate() {
        let y = TOP + (up.len() as f64 - 0.5 - row as f64) * CELL.1 + 4.0;
        drawing.text("tick", (LEFT - 10.0, y), Anchor::End, &count(*value));
    }
    drawing.text("label", (LEFT + width / 2.0, TOP + height + 38.0), Anchor::Middle, &sweep.parameters[0]);
    drawing.text_up("label", (18.0, TOP + height / 2.0), &sweep.parameters[1]);
    drawing.finish(&format!("mean time to first token of {policy} over two parameters"))
}

fn axis_values(report: &Report, at: usize) -> Vec<f64> {
    let mut values: Vec<f64> =
        report.points.iter().filter_map(|point| point.values.get(at).copied()).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}
