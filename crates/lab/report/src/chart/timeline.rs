//! Each worker over time: requests in flight, queue, KV use and hits, one row per worker.

use warmroute_sim::WorkerSample;

use crate::figures::percent;
use crate::report::RunDetail;
use crate::svg::{Anchor, Drawing, heat};

const WIDTH: f64 = 620.0;
const LEFT: f64 = 34.0;
const RIGHT: f64 = 6.0;
/// Height of a panel's title, and of the time below the last one.
const TITLE: f64 = 26.0;
const BOTTOM: f64 = 24.0;
/// Height of a panel's rows together.
const HEIGHT: f64 = 104.0;
/// Maximum of rows and columns drawn. With more workers or samples, a cell shows several.
const ROWS_MAX: usize = 26;
const COLUMNS_MAX: usize = 120;
/// Steps of the colour scale. Neighbours of one step are one shape, which keeps pages small.
const STEPS: f64 = 20.0;

/// One cell's measures.
#[derive(Clone, Copy, Default)]
struct Cell {
    in_flight: u32,
    waiting: u32,
    kv_use: f32,
    /// `None` where no prompt was looked up.
    hit_ratio: Option<f64>,
}

/// A measure's place on the colour scale, from 0 to 1; `None` where nothing is drawn.
type Share<'a> = &'a dyn Fn(&Cell) -> Option<f64>;

/// Values of the hottest colours, the same for all policies, so that they can be compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scales {
    /// Most requests in flight of a worker.
    pub in_flight: u32,
    /// Most requests that wait in an engine.
    pub waiting: u32,
}

impl Scales {
    /// The largest values of these runs.
    pub fn of(details: &[RunDetail]) -> Scales {
        let samples = details.iter().flat_map(|detail| detail.series.samples.iter().flatten());
        samples.fold(Scales::default(), |most, sample| Scales {
            in_flight: most.in_flight.max(sample.in_flight),
            waiting: most.waiting.max(sample.waiting),
        })
    }
}

/// Plots one run.
pub fn timeline(detail: &RunDetail, scales: Scales) -> String {
    let columns = columns(detail);
    let share = |value: u32, most: u32| Some(f64::from(value) / f64::from(most.max(1)));
    let panels: [(String, Share<'_>); 4] = [
        (format!("Requests in flight, 0 to {}", scales.in_flight), &|cell| {
            share(cell.in_flight, scales.in_flight)
        }),
        (format!("Waiting in the engine's queue, 0 to {}", scales.waiting), &|cell| {
            share(cell.waiting, scales.waiting)
        }),
        ("KV cache that running requests hold, 0 to 100 %".to_owned(), &|cell| Some(f64::from(cell.kv_use))),
        ("Prompt tokens found in the cache, 0 to 100 %".to_owned(), &|cell| cell.hit_ratio),
    ];
    let tall = panels.len() as f64 * (TITLE + HEIGHT);
    let mut drawing = Drawing::new(WIDTH, tall + BOTTOM);
    for (place, (title, share)) in panels.iter().enumerate() {
        let top = place as f64 * (TITLE + HEIGHT);
        drawing.text("label", (LEFT, top + 19.0), Anchor::Start, title);
        panel(&mut drawing, (top + TITLE, workers(detail)), &columns, share);
    }
    let end_s = detail.series.interval.as_secs_f64() * detail.series.samples.len() as f64;
    drawing.text("tick", (LEFT, tall + 17.0), Anchor::Start, "0 s");
    drawing.text("tick", (WIDTH - RIGHT, tall + 17.0), Anchor::End, &format!("{end_s:.0} s"));
    let workers = format!("{} workers, from top to bottom", workers(detail));
    drawing.text("tick", (WIDTH / 2.0, tall + 17.0), Anchor::Middle, &workers);
    drawing.finish(&format!("workers over time, {}", detail.policy))
}

/// Draws one measure: runs of equal colour are one shape.
fn panel(drawing: &mut Drawing, (top, workers): (f64, usize), columns: &[Vec<Cell>], share: Share<'_>) {
    let rows = columns.first().map_or(0, Vec::len);
    let (width, height) = ((WIDTH - LEFT - RIGHT) / columns.len().max(1) as f64, HEIGHT / rows.max(1) as f64);
    let gap = if rows > 12 { 0.0 } else { 1.0 };
    drawing.text("tick", (LEFT - 6.0, top + 10.0), Anchor::End, "0");
    if workers > 1 {
        drawing.text("tick", (LEFT - 6.0, top + HEIGHT - 2.0), Anchor::End, &(workers - 1).to_string());
    }
    let step = |column: usize, row: usize| share(&columns[column][row]).map(|at| (at * STEPS).round());
    for row in 0..rows {
        let mut from = 0;
        while from < columns.len() {
            let colour = step(from, row);
            let to = (from..columns.len()).find(|&at| step(at, row) != colour).unwrap_or(columns.len());
            if let Some(colour) = colour {
                let corner = (LEFT + from as f64 * width, top + row as f64 * height);
                // Slightly wider than the cells, so that no gaps show between them.
                let size = ((to - from) as f64 * width + 0.3, height - gap);
                drawing.area(&heat(colour / STEPS), corner, size, &percent(colour / STEPS));
            }
            from = to;
        }
    }
}

fn workers(detail: &RunDetail) -> usize {
    detail.series.samples.first().map_or(0, Vec::len)
}

/// Cells in columns of rows, reduced to what can be drawn.
fn columns(detail: &RunDetail) -> Vec<Vec<Cell>> {
    let samples = &detail.series.samples;
    let tall = workers(detail).div_ceil(ROWS_MAX).max(1);
    let wide = samples.len().div_ceil(COLUMNS_MAX).max(1);
    let column = |from: usize| {
        let to = (from + wide).min(samples.len());
        let rows = (0..workers(detail)).step_by(tall);
        rows.map(|row| cell(&samples[from.saturating_sub(1)..to], row..(row + tall).min(workers(detail))))
            .collect()
    };
    (0..samples.len()).step_by(wide).map(column).collect()
}

/// The largest values of some workers and samples. The first sample is the last one of the cell before: lookups are
/// counted from there.
fn cell(samples: &[Vec<WorkerSample>], workers: std::ops::Range<usize>) -> Cell {
    let mut cell = Cell::default();
    let (mut looked_up, mut hit) = (0, 0);
    for worker in workers {
        let own = || samples.iter().map(|sample| &sample[worker]);
        for sample in own() {
            cell.in_flight = cell.in_flight.max(sample.in_flight);
            cell.waiting = cell.waiting.max(sample.waiting);
            cell.kv_use = cell.kv_use.max(sample.kv_use);
        }
        if let (Some(first), Some(last)) = (own().next(), own().next_back()) {
            looked_up += last.looked_up_tokens.saturating_sub(first.looked_up_tokens);
            hit += last.hit_tokens.saturating_sub(first.hit_tokens);
        }
    }
    cell.hit_ratio = (looked_up > 0).then(|| (hit as f64 / looked_up as f64).min(1.0));
    cell
}
