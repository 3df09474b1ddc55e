//! One measure against another: one line, or a cloud of dots, per policy.

use warmroute_sim::Estimate;

use super::text_width;
use crate::axis::{Axis, AxisScale};
use crate::svg::{Anchor, Drawing, Ink, ink};

const SIZE: (f64, f64) = (620.0, 380.0);
const LEFT: f64 = 82.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 18.0;
const BOTTOM: f64 = 46.0;
/// Up to this many values of the horizontal axis have a tick each.
const VALUES_MAX: usize = 8;

/// A plot.
pub struct Plot<'a> {
    pub name: &'a str,
    pub x: PlotAxis<'a>,
    pub y: PlotAxis<'a>,
    pub marks: Marks,
    pub series: Vec<Series<'a>>,
}

/// One axis of a plot.
#[derive(Clone, Copy)]
pub struct PlotAxis<'a> {
    pub label: &'a str,
    /// Formats values in tooltips.
    pub words: fn(f64) -> String,
    /// Formats tick values.
    pub tick_words: fn(f64) -> String,
    pub range: AxisRange,
}

/// Values that an axis covers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AxisRange {
    /// From zero; logarithmic where values differ by more than an order of magnitude.
    Around,
    /// From zero, never logarithmic.
    FromZero,
    /// From the smallest to the largest value.
    Spanning,
}

/// What is drawn for a series.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// A line with a dot at each value of the horizontal axis.
    LinesAndDots,
    /// A line alone, for curves of many points.
    Lines,
    /// Dots alone.
    Dots,
}

/// One policy's points.
pub struct Series<'a> {
    pub name: &'a str,
    /// Index of the policy; `None` for a bound, drawn thin and dashed.
    pub place: Option<usize>,
    pub points: Vec<(f64, Estimate)>,
}

impl PlotAxis<'_> {
    fn over(&self, values: impl Iterator<Item = f64> + Clone, paper: (f64, f64)) -> Axis {
        match self.range {
            AxisRange::Around => Axis::around(values, paper),
            AxisRange::FromZero => Axis::from_zero(values, paper),
            AxisRange::Spanning => Axis::spanning(values, paper),
        }
    }

    fn title(&self, axis: &Axis) -> String {
        let is_log = if axis.scale() == AxisScale::Log { " (log)" } else { "" };
        format!("{}{is_log}", self.label)
    }
}

impl Plot<'_> {
    /// Renders the plot.
    pub fn draw(&self) -> String {
        let x = self.x.over(self.all().map(|(x, _)| *x), (LEFT, SIZE.0 - RIGHT));
        let y = self.y.over(self.all().map(|(_, y)| y.mean), (SIZE.1 - BOTTOM, TOP));
        let mut drawing = Drawing::new(SIZE.0, SIZE.1);
        self.draw_frame(&mut drawing, &x, &y);
        for series in &self.series {
            match series.place {
                None => bound(&mut drawing, series, &x, &y),
                Some(place) => self.draw_series(&mut drawing, series, ink(place), &x, &y),
            }
        }
        drawing.finish(self.name)
    }

    fn all(&self) -> impl Iterator<Item = &(f64, Estimate)> + Clone {
        self.series.iter().flat_map(|series| &series.points)
    }

    fn draw_frame(&self, drawing: &mut Drawing, x: &Axis, y: &Axis) {
        let floor = SIZE.1 - BOTTOM;
        for tick in y.ticks() {
            let at = y.at(tick);
            drawing.rule("grid", (LEFT, at), (SIZE.0 - RIGHT, at));
            drawing.text("tick", (LEFT - 8.0, at + 4.0), Anchor::End, &(self.y.tick_words)(tick));
        }
        // A label that would touch the one before it is left out.
        let mut free_from = f64::MIN;
        for tick in self.x_ticks(x) {
            let (at, words) = (x.at(tick), (self.x.tick_words)(tick));
            let half = text_width(&words) / 2.0;
            drawing.rule("grid", (at, floor), (at, floor + 5.0));
            if at - half >= free_from {
                drawing.text("tick", (at, floor + 19.0), Anchor::Middle, &words);
                free_from = at + half + 2.0;
            }
        }
        drawing.rule("axis", (LEFT, floor), (SIZE.0 - RIGHT, floor));
        drawing.text_up("label", (14.0, (TOP + floor) / 2.0), &self.y.title(y));
        drawing.text(
            "label",
            ((LEFT + SIZE.0 - RIGHT) / 2.0, SIZE.1 - 6.0),
            Anchor::Middle,
            &self.x.title(x),
        );
    }

    /// Ticks at the values that were run if they fit, else at round values.
    fn x_ticks(&self, x: &Axis) -> Vec<f64> {
        let mut values: Vec<f64> = self.all().map(|(x, _)| *x).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        if self.marks == Marks::LinesAndDots && values.len() <= VALUES_MAX { values } else { x.ticks() }
    }

    fn draw_series(&self, drawing: &mut Drawing, series: &Series<'_>, ink: Ink, x: &Axis, y: &Axis) {
        let places: Vec<(f64, f64)> =
            series.points.iter().map(|(at, value)| (x.at(*at), y.at(value.mean))).collect();
        if self.marks != Marks::Dots {
            drawing.path(ink, &places);
        }
        if self.marks == Marks::Lines {
            return;
        }
        for ((at, value), &place) in series.points.iter().zip(&places) {
            if let Some(within) = value.within {
                let (low, high) = (y.at((value.mean - within).max(0.0)), y.at(value.mean + within));
                let (low, high) = (low.min(SIZE.1 - BOTTOM), high.max(TOP));
                drawing.stroke(ink.colour, 1.4, (place.0, low), (place.0, high));
            }
            let (x, y) = ((self.x.words)(*at), (self.y.words)(value.mean));
            let says = format!("{}: {} {x}, {} {y}", series.name, self.x.label, self.y.label);
            drawing.dot(ink, place, 4.0, &says);
        }
    }
}

fn bound(drawing: &mut Drawing, series: &Series<'_>, x: &Axis, y: &Axis) {
    for pair in series.points.windows(2) {
        let place = |(at, value): &(f64, Estimate)| (x.at(*at), y.at(value.mean));
        drawing.rule("bound", place(&pair[0]), place(&pair[1]));
    }
    if let Some((at, value)) = series.points.last() {
        drawing.text("bound-name", (x.at(*at) - 4.0, y.at(value.mean) - 5.0), Anchor::End, series.name);
    }
}
