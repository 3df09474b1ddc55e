//! Load of each worker over time: one row per worker, hot colours for many requests in flight.

use crate::report::Load;
use crate::svg::{Anchor, Drawing, heat};

const WIDTH: f64 = 620.0;
const LEFT: f64 = 40.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 24.0;
const HEIGHT: f64 = 150.0;
/// Maximum of rows drawn. With more workers or samples, a cell shows the maximum of several.
const ROWS_MAX: usize = 48;
const COLUMNS_MAX: usize = 160;

/// Plots the load with `most` requests as the hottest colour, so that policies can be compared.
pub fn load(load: &Load, most: u32) -> String {
    let cells = cells(load);
    let rows = cells.first().map_or(0, Vec::len);
    let mut drawing = Drawing::new(WIDTH, TOP + HEIGHT + BOTTOM);
    let (width, height) = ((WIDTH - LEFT) / cells.len().max(1) as f64, HEIGHT / rows.max(1) as f64);
    for (column, samples) in cells.iter().enumerate() {
        for (row, &in_flight) in samples.iter().enumerate() {
            let corner = (LEFT + column as f64 * width, TOP + row as f64 * height);
            let share = f64::from(in_flight) / f64::from(most.max(1));
            // Slightly wider than the cell, so that no gaps show between cells.
            drawing.area(&heat(share), corner, (width + 0.4, height - if rows > 24 { 0.0 } else { 1.0 }), "");
        }
    }
    let end_s = load.series.interval.as_secs_f64() * load.series.samples.len() as f64;
    drawing.text("tick", (LEFT, TOP + HEIGHT + 17.0), Anchor::Start, "0 s");
    drawing.text("tick", (WIDTH, TOP + HEIGHT + 17.0), Anchor::End, &format!("{end_s:.0} s"));
    drawing.text_up("tick", (16.0, TOP + HEIGHT / 2.0), &format!("{} workers", workers(load)));
    drawing.finish(&format!("requests in flight by worker over time, {}", load.policy))
}

fn workers(load: &Load) -> usize {
    load.series.samples.first().map_or(0, Vec::len)
}

/// Cells in columns of rows, reduced to what can be drawn.
fn cells(load: &Load) -> Vec<Vec<u32>> {
    let samples = &load.series.samples;
    let (tall, wide) = (workers(load).div_ceil(ROWS_MAX).max(1), samples.len().div_ceil(COLUMNS_MAX).max(1));
    let most = |samples: &[Vec<u32>], workers: std::ops::Range<usize>| {
        samples.iter().flat_map(|sample| sample[workers.clone()].iter().copied()).max().unwrap_or(0)
    };
    let column = |samples: &[Vec<u32>]| {
        let count = samples.first().map_or(0, Vec::len);
        (0..count).step_by(tall).map(|from| most(samples, from..(from + tall).min(count))).collect()
    };
    samples.chunks(wide).map(column).collect()
}
