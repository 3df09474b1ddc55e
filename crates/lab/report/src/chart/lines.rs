//! A measure against a parameter: one line per policy, with confidence intervals.

use warmroute_sim::Estimate;

use crate::axis::{Axis, AxisScale};
use crate::svg::{Anchor, Drawing, colour};

const SIZE: (f64, f64) = (620.0, 380.0);
const LEFT: f64 = 74.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;

/// Data of a line plot.
pub struct Lines<'a> {
    pub name: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    pub words: fn(f64) -> String,
    /// Formats tick values.
    pub tick_words: fn(f64) -> String,
    pub series: Vec<Series<'a>>,
}

/// One line.
pub struct Series<'a> {
    pub name: &'a str,
    /// Index of the colour; `None` for a bound, drawn thin and dashed.
    pub place: Option<usize>,
    pub points: Vec<(f64, Estimate)>,
}

impl Lines<'_> {
    /// Renders the plot.
    pub fn draw(&self) -> String {
        let (x, y) = (self.x_axis(), self.y_axis());
        let mut drawing = Drawing::new(SIZE.0, SIZE.1);
        self.draw_frame(&mut drawing, &x, &y);
        for series in self.series.iter().filter(|series| series.place.is_none()) {
            bound(&mut drawing, series, &x, &y);
        }
        for series in &self.series {
            if let Some(place) = series.place {
                self.line(&mut drawing, series, colour(place), &x, &y);
            }
        }
        drawing.finish(self.name)
    }

    fn all(&self) -> impl Iterator<Item = &(f64, Estimate)> + Clone {
        self.series.iter().flat_map(|series| &series.points)
    }

    fn x_axis(&self) -> Axis {
        Axis::around(self.all().map(|(x, _)| *x), (LEFT, SIZE.0 - RIGHT))
    }

    fn y_axis(&self) -> Axis {
        Axis::around(self.all().map(|(_, y)| y.mean), (SIZE.1 - BOTTOM, TOP))
    }

    fn draw_frame(&self, drawing: &mut Drawing, x: &Axis, y: &Axis) {
        for tick in y.ticks() {
            let at = y.at(tick);
            drawing.rule("grid", (LEFT, at), (SIZE.0 - RIGHT, at));
            drawing.text("tick", (LEFT - 8.0, at + 4.0), Anchor::End, &(self.tick_words)(tick));
        }
        let mut at_values: Vec<f64> = self.all().map(|(x, _)| *x).collect();
        at_values.sort_by(f64::total_cmp);
        at_values.dedup();
        // Ticks at the values that were run if they fit, else at round values.
        let ticks = if at_values.len() <= 8 { at_values } else { x.ticks() };
        for tick in ticks {
            let at = x.at(tick);
            drawing.rule("grid", (at, SIZE.1 - BOTTOM), (at, SIZE.1 - BOTTOM + 5.0));
            drawing.text("tick", (at, SIZE.1 - BOTTOM + 19.0), Anchor::Middle, &crate::figures::count(tick));
        }
        drawing.rule("axis", (LEFT, SIZE.1 - BOTTOM), (SIZE.0 - RIGHT, SIZE.1 - BOTTOM));
        let is_log = if y.scale() == AxisScale::Log { " (log)" } else { "" };
        drawing.text_up("label", (14.0, (TOP + SIZE.1 - BOTTOM) / 2.0), &format!("{}{is_log}", self.y));
        drawing.text("label", ((LEFT + SIZE.0 - RIGHT) / 2.0, SIZE.1 - 6.0), Anchor::Middle, self.x);
    }

    fn line(&self, drawing: &mut Drawing, series: &Series<'_>, colour: &str, x: &Axis, y: &Axis) {
        let places: Vec<(f64, f64)> =
            series.points.iter().map(|(at, value)| (x.at(*at), y.at(value.mean))).collect();
        drawing.path(colour, &places);
        for ((at, value), &place) in series.points.iter().zip(&places) {
            if let Some(within) = value.within {
                let (low, high) = (y.at((value.mean - within).max(0.0)), y.at(value.mean + within));
                drawing.stroke(colour, 1.4, (place.0, low.min(SIZE.1 - BOTTOM)), (place.0, high.max(TOP)));
            }
            let says = format!(
                "{}, {} {}: {}",
                series.name,
                self.x,
                crate::figures::count(*at),
                (self.words)(value.mean)
            );
            drawing.dot(colour, place, 4.0, &says);
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
