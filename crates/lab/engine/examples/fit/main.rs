//! Recomputes the parameters in `src/profile.rs` from the measured tables in `profiles/`, and shows how good they are.
//!
//! For every point there are two errors: that of the fit to all points, and that of a fit to all the others, which
//! has never seen it. The second says what to expect between the points, and at the table's edge what to expect
//! beyond it. Run it with `cargo run --release -p warmroute-engine --example fit`.
#![expect(clippy::print_stdout, reason = "a command for people: what it prints is what it is for")]

mod solve;
mod table;

use solve::{Model, error, solve};
use table::{Kind, Point};
use warmroute_engine::{DecodeCost, PrefillCost, Profile, StepWork};

fn main() {
    for profile in Profile::ALL {
        let prefill = Fit::prefill(profile);
        println!("{profile}\n{:#?}", prefill_cost(&prefill.parameters));
        print_errors("prefill: rows cached tokens, columns new tokens", &prefill);
        let decode = Fit::decode(profile);
        println!("{:#?}", decode_cost(&decode.parameters));
        print_errors("decode: rows sequences, columns tokens of context", &decode);
    }
}

/// Parameters, and the errors they leave.
struct Fit<const N: usize> {
    model: Model<N>,
    points: Vec<Point>,
    parameters: [f64; N],
}

impl Fit<7> {
    fn prefill(profile: Profile) -> Fit<7> {
        let guess = [4.0, 0.02, 1e-6, 0.2, 3e-7, 3e-7, 0.3];
        Fit::new(prefill_ms, table::points(profile, Kind::Prefill), guess)
    }
}

impl Fit<3> {
    fn decode(profile: Profile) -> Fit<3> {
        Fit::new(decode_ms, table::points(profile, Kind::Decode), [4.0, 0.01, 3e-5])
    }
}

impl<const N: usize> Fit<N> {
    fn new(model: Model<N>, points: Vec<Point>, guess: [f64; N]) -> Fit<N> {
        Fit { model, parameters: solve(model, &points, guess), points }
    }

    /// By how much the fit misses a point it has seen, in percent.
    fn error_percent(&self, point: &Point) -> f64 {
        percent(error(self.model, &self.parameters, point))
    }

    /// By how much a fit to all other points misses this one.
    fn left_out_percent(&self, point: &Point) -> f64 {
        let others: Vec<Point> = self.points.iter().filter(|other| *other != point).copied().collect();
        percent(error(self.model, &solve(self.model, &others, self.parameters), point))
    }
}

fn percent(log: f64) -> f64 {
    100.0 * log.exp_m1()
}

fn prefill_cost(parameters: &[f64; 7]) -> PrefillCost {
    let [floor_ms, token_ms, context_ms, narrow, square_ms, masked_ms, reach_ms] = *parameters;
    PrefillCost { floor_ms, token_ms, context_ms, narrow, square_ms, masked_ms, reach_ms }
}

fn decode_cost(parameters: &[f64; 3]) -> DecodeCost {
    let [step_ms, sequence_ms, context_ms] = *parameters;
    DecodeCost { step_ms, sequence_ms, context_ms }
}

fn prefill_ms(parameters: &[f64; 7], point: &Point) -> f64 {
    let mut work = StepWork::default();
    work.add_prefill(point.row, point.column);
    prefill_cost(parameters).ms(&work)
}

fn decode_ms(parameters: &[f64; 3], point: &Point) -> f64 {
    let mut work = StepWork::default();
    (0..point.row).for_each(|_| work.add_decode(point.column));
    decode_cost(parameters).ms(&work)
}

fn print_errors<const N: usize>(title: &str, fit: &Fit<N>) {
    let mut columns: Vec<u32> = fit.points.iter().map(|point| point.column).collect();
    columns.sort_unstable();
    columns.dedup();
    println!("{title}; error of the fit / of a fit without the point, in %");
    println!("{:>7}{}", "", columns.iter().map(|column| format!("{column:>14}")).collect::<String>());
    for row in fit.points.chunk_by(|one, next| one.row == next.row) {
        let cell =
            |point: &Point| format!("{:+.1} / {:+.1}", fit.error_percent(point), fit.left_out_percent(point));
        let cells: String = row.iter().map(|point| format!("{:>14}", cell(point))).collect();
        println!("{:>7}{cells}", row[0].row);
    }
    let worst = fit.points.iter().map(|point| fit.left_out_percent(point).abs()).fold(0.0, f64::max);
    println!("worst point left out: {worst:.1} %\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(committed: f64, fitted: f64) {
        assert!((committed / fitted - 1.0).abs() < 1e-3, "committed {committed}, fitted {fitted}");
    }

    #[test]
    fn the_committed_parameters_are_what_the_fit_gives() {
        for profile in Profile::ALL {
            let PrefillCost { floor_ms, token_ms, context_ms, narrow, square_ms, masked_ms, reach_ms } =
                profile.cost().prefill;
            let committed = [floor_ms, token_ms, context_ms, narrow, square_ms, masked_ms, reach_ms];
            let fitted = Fit::prefill(profile).parameters;
            committed.into_iter().zip(fitted).for_each(|(committed, fitted)| assert_close(committed, fitted));
            let DecodeCost { step_ms, sequence_ms, context_ms } = profile.cost().decode;
            let fitted = Fit::decode(profile).parameters;
            [step_ms, sequence_ms, context_ms]
                .into_iter()
                .zip(fitted)
                .for_each(|(committed, fitted)| assert_close(committed, fitted));
        }
    }

    fn assert_left_out_points_are_predicted<const N: usize>(fit: &Fit<N>) {
        for point in &fit.points {
            let error = fit.left_out_percent(point);
            assert!(error.abs() < 10.0, "{point:?} is missed by {error:.1} %");
        }
    }

    #[test]
    fn every_point_left_out_of_the_fit_is_predicted_within_10_percent() {
        for profile in Profile::ALL {
            assert_left_out_points_are_predicted(&Fit::prefill(profile));
            assert_left_out_points_are_predicted(&Fit::decode(profile));
        }
    }
}
