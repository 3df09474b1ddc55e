//! Two parameters at once: one cell per pair, with the value of a measure.

use super::text_width;
use crate::figures::{Figures, count};
use crate::measure::{Better, Measure};
use crate::report::{Report, Sweep};
use crate::svg::{Anchor, Drawing, heat};

const LEFT: f64 = 86.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 48.0;
const CELL: (f64, f64) = (86.0, 42.0);

/// Plots a measure of one policy. Dark is good.
pub fn surface(report: &Report, sweep: &Sweep, policy: &str, measure: &Measure) -> String {
    let (across, up) = (axis_values(report, 0), axis_values(report, 1));
    let cells: Vec<(usize, usize, f64)> = report
        .points
        .iter()
        .filter_map(|point| {
            let place =
                |values: &[f64], at: usize| values.iter().position(|value| *value == point.values[at]);
            Some((place(&across, 0)?, place(&up, 1)?, (measure.of)(&Figures::of(point, policy)?).mean))
        })
        .collect();
    let [x_name, y_name] = [0, 1].map(|at| sweep.parameters[at].as_str());
    let width = (CELL.0 * across.len() as f64).max(text_width(x_name));
    let height = (CELL.1 * up.len() as f64).max(text_width(y_name));
    let mut drawing = Drawing::new(LEFT + width + RIGHT, TOP + height + BOTTOM);
    let shade = shades(&cells, measure.better);
    for &(column, row, value) in &cells {
        let corner = (LEFT + column as f64 * CELL.0, TOP + (up.len() - 1 - row) as f64 * CELL.1);
        let (share, words) = (shade(value), (measure.words)(value));
        drawing.area(&heat(share), corner, (CELL.0 - 2.0, CELL.1 - 2.0), &words);
        let class = if share > 0.6 { "on-hot" } else { "on-cold" };
        let middle = (corner.0 + CELL.0 / 2.0 - 1.0, corner.1 + CELL.1 / 2.0 + 4.0);
        drawing.text(class, middle, Anchor::Middle, &words);
    }
    for (column, value) in across.iter().enumerate() {
        let x = LEFT + (column as f64 + 0.5) * CELL.0;
        drawing.text("tick", (x, TOP + height + 16.0), Anchor::Middle, &count(*value));
    }
    for (row, value) in up.iter().enumerate() {
        let y = TOP + (up.len() as f64 - 0.5 - row as f64) * CELL.1 + 4.0;
        drawing.text("tick", (LEFT - 10.0, y), Anchor::End, &count(*value));
    }
    drawing.text("label", (LEFT + width / 2.0, TOP + height + 38.0), Anchor::Middle, x_name);
    drawing.text_up("label", (18.0, TOP + height / 2.0), y_name);
    drawing.finish(&format!("{} of {policy} over two parameters", measure.label))
}

/// From a value to its place between the best (0) and the worst (1). Times by their ratios, so that one bad corner does
/// not hide the differences elsewhere; shares by their differences.
fn shades(cells: &[(usize, usize, f64)], better: Better) -> impl Fn(f64) -> f64 {
    let scaled = move |value: f64| match better {
        Better::Lower => value.max(0.01).ln(),
        Better::Higher => -value,
    };
    let all = || cells.iter().map(|cell| scaled(cell.2));
    let (best, worst) = (all().fold(f64::MAX, f64::min), all().fold(f64::MIN, f64::max));
    move |value| if worst > best { (scaled(value) - best) / (worst - best) } else { 0.0 }
}

fn axis_values(report: &Report, at: usize) -> Vec<f64> {
    let mut values: Vec<f64> =
        report.points.iter().filter_map(|point| point.values.get(at).copied()).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}
