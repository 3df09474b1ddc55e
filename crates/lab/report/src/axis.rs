//! Axes: positions of values on a drawing, and round tick values.

/// One axis: a range of values mapped to a range of the drawing.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    from: f64,
    to: f64,
    paper: (f64, f64),
    scale: AxisScale,
}

/// Scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisScale {
    /// Linear.
    Linear,
    /// Logarithmic.
    Log,
}

impl Axis {
    /// Linear axis from zero to slightly above the largest value.
    pub fn from_zero(values: impl Iterator<Item = f64>, paper: (f64, f64)) -> Axis {
        let most = values.fold(0.0, f64::max);
        Axis { from: 0.0, to: if most > 0.0 { most * 1.06 } else { 1.0 }, paper, scale: AxisScale::Linear }
    }

    /// Linear axis from slightly below the smallest value to slightly above the largest.
    pub fn spanning(values: impl Iterator<Item = f64>, paper: (f64, f64)) -> Axis {
        let (least, most) =
            values.fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
        if least > most {
            return Axis::from_zero(std::iter::empty(), paper);
        }
        let margin = (0.08 * (most - least)).max(0.02 * most.abs()).max(0.001);
        Axis { from: least - margin, to: most + margin, paper, scale: AxisScale::Linear }
    }

    /// Axis for positive values: logarithmic if they span more than one order of magnitude, linear from zero
    /// otherwise.
    pub fn around(values: impl Iterator<Item = f64> + Clone, paper: (f64, f64)) -> Axis {
        let positive = values.clone().filter(|value| *value > 0.0);
        let (least, most) =
            positive.fold((f64::MAX, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
        if most <= 12.0 * least || least == f64::MAX {
            return Axis::from_zero(values, paper);
        }
        Axis { from: least / 1.3, to: most * 1.3, paper, scale: AxisScale::Log }
    }

    /// Position of a value. Values below a logarithmic axis are at its edge.
    pub fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            AxisScale::Linear => (value - self.from) / (self.to - self.from),
            AxisScale::Log => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
        };
        self.paper.0 + share * (self.paper.1 - self.paper.0)
    }

    /// Scale of the axis.
    pub fn scale(&self) -> AxisScale {
        self.scale
    }

    /// About five round tick values.
    pub fn ticks(&self) -> Vec<f64> {
        match self.scale {
            AxisScale::Linear => self.linear_ticks(),
            AxisScale::Log => self.log_ticks(),
        }
    }

    fn linear_ticks(&self) -> Vec<f64> {
        let rough = (self.to - self.from) / 5.0;
        let magnitude = 10_f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 2.5, 5.0, 10.0].map(|round| round * magnitude).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.from / step).ceil() as i64;
        let last = (self.to / step).floor() as i64;
        (first..=last).map(|tick| tick as f64 * step).collect()
    }

    fn log_ticks(&self) -> Vec<f64> {
        let decades = (self.to / self.from).log10();
        let rounds: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let (first, last) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
        let all = (first..=last).flat_map(|power| rounds.iter().map(move |round| round * 10_f64.powi(power)));
        all.filter(|tick| (self.from..=self.to).contains(tick)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let axis = Axis::from_zero([0.0, 730.0].into_iter(), (0.0, 100.0));
        assert_eq!(axis.ticks(), [0.0, 200.0, 400.0, 600.0]);
        let wide = Axis::around([40.0, 9_000.0].into_iter(), (0.0, 100.0));
        assert_eq!(wide.scale(), AxisScale::Log);
        assert!(wide.ticks().contains(&100.0) && wide.ticks().len() < 10, "{:?}", wide.ticks());
        let narrow = Axis::around([40.0, 90.0].into_iter(), (0.0, 100.0));
        assert_eq!(narrow.scale(), AxisScale::Linear);
        let one = Axis::spanning([1.0].into_iter(), (0.0, 100.0));
        assert!((one.at(1.0) - 50.0).abs() < 1.0 && one.ticks().len() > 2, "{:?}", one.ticks());
    }

    #[test]
    fn positions_are_ordered_and_inside_the_axis() {
        for axis in [
            Axis::around([1.0, 1_000.0].into_iter(), (50.0, 10.0)),
            Axis::from_zero([3.0].into_iter(), (50.0, 10.0)),
            Axis::spanning([0.5, 3.0].into_iter(), (50.0, 10.0)),
        ] {
            let places = [0.5, 1.0, 2.0, 3.0].map(|value| axis.at(value));
            assert!(places.windows(2).all(|pair| pair[0] >= pair[1]), "{places:?}");
            assert!(places.iter().all(|place| (10.0..=50.0).contains(place)), "{places:?}");
        }
    }
}
