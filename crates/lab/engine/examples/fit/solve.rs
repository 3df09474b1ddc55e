//! Finds the parameters that bring a model closest to its measurements (Levenberg-Marquardt).
//!
//! Parameters are searched as logarithms, which keeps them positive. What is made small is the sum of the fourth powers
//! of the relative errors: we promise a bound for every point, so the worst ones count most.

use crate::table::Point;

/// Predicts a measurement from parameters.
pub type Model<const N: usize> = fn(&[f64; N], &Point) -> f64;

/// More than enough: a fit from scratch takes some fifty.
const ROUNDS_MAX: usize = 2_000;
const NUDGE: f64 = 1e-6;

/// The best parameters, starting from a guess of the right magnitude.
pub fn solve<const N: usize>(model: Model<N>, points: &[Point], guess: [f64; N]) -> [f64; N] {
    let logs = guess.map(f64::ln);
    let squares = descend(model, points, logs, Norm::Squares);
    descend(model, points, squares, Norm::FourthPowers).map(f64::exp)
}

/// The relative error of a prediction, as a logarithm.
pub fn error<const N: usize>(model: Model<N>, parameters: &[f64; N], point: &Point) -> f64 {
    (model(parameters, point) / point.ms).ln()
}

#[derive(Clone, Copy)]
enum Norm {
    Squares,
    FourthPowers,
}

impl Norm {
    /// What is squared and summed for an error, and its derivative.
    fn residual(self, error: f64) -> (f64, f64) {
        match self {
            Norm::Squares => (error, 1.0),
            Norm::FourthPowers => (error * error.abs(), 2.0 * error.abs()),
        }
    }
}

fn descend<const N: usize>(model: Model<N>, points: &[Point], start: [f64; N], norm: Norm) -> [f64; N] {
    let (mut logs, mut damping, mut stalled) = (start, 1e-3, 0);
    let mut loss = sum_of_squares(model, points, &logs, norm);
    for _ in 0..ROUNDS_MAX {
        let Some(candidate) = newton_step(model, points, &logs, norm, damping) else { break };
        let candidate_loss = sum_of_squares(model, points, &candidate, norm);
        if candidate_loss < loss {
            stalled = if loss - candidate_loss < 1e-13 * loss { stalled + 1 } else { 0 };
            (logs, loss, damping) = (candidate, candidate_loss, damping / 3.0);
        } else {
            damping *= 4.0;
        }
        if stalled > 3 || damping > 1e12 {
            break;
        }
    }
    logs
}

fn sum_of_squares<const N: usize>(model: Model<N>, points: &[Point], logs: &[f64; N], norm: Norm) -> f64 {
    let parameters = logs.map(f64::exp);
    points.iter().map(|point| norm.residual(error(model, &parameters, point)).0.powi(2)).sum()
}

fn newton_step<const N: usize>(
    model: Model<N>,
    points: &[Point],
    logs: &[f64; N],
    norm: Norm,
    damping: f64,
) -> Option<[f64; N]> {
    let mut matrix = [[0.0; N]; N];
    let mut right = [0.0; N];
    for point in points {
        let (residual, factor) = norm.residual(error(model, &logs.map(f64::exp), point));
        let slopes = slopes(model, point, logs).map(|slope| slope * factor);
        for row in 0..N {
            right[row] -= slopes[row] * residual;
            (0..N).for_each(|column| matrix[row][column] += slopes[row] * slopes[column]);
        }
    }
    (0..N).for_each(|row| matrix[row][row] = matrix[row][row] * (1.0 + damping) + f64::MIN_POSITIVE);
    let step = eliminate(matrix, right)?;
    Some(std::array::from_fn(|at| logs[at] + step[at].clamp(-1.0, 1.0)))
}

fn slopes<const N: usize>(model: Model<N>, point: &Point, logs: &[f64; N]) -> [f64; N] {
    std::array::from_fn(|at| {
        let nudged = |by: f64| {
            let mut logs = *logs;
            logs[at] += by;
            error(model, &logs.map(f64::exp), point)
        };
        (nudged(NUDGE) - nudged(-NUDGE)) / (2.0 * NUDGE)
    })
}

/// Solves a system of linear equations; `None` when it has no single solution.
fn eliminate<const N: usize>(mut matrix: [[f64; N]; N], mut right: [f64; N]) -> Option<[f64; N]> {
    for column in 0..N {
        let pivot =
            (column..N).max_by(|&a, &b| matrix[a][column].abs().total_cmp(&matrix[b][column].abs()))?;
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        if matrix[column][column] == 0.0 {
            return None;
        }
        for row in column + 1..N {
            let factor = matrix[row][column] / matrix[column][column];
            (column..N).for_each(|at| matrix[row][at] -= factor * matrix[column][at]);
            right[row] -= factor * right[column];
        }
    }
    for row in (0..N).rev() {
        let known: f64 = (row + 1..N).map(|at| matrix[row][at] * right[at]).sum();
        right[row] = (right[row] - known) / matrix[row][row];
    }
    right.iter().all(|value| value.is_finite()).then_some(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_parameters_are_found_again() {
        let line: Model<2> = |[base, slope], point| base + slope * f64::from(point.row);
        let points: Vec<Point> =
            (0..9).map(|row| Point { row, column: 0, ms: 3.0 + 0.25 * f64::from(row) }).collect();
        let [base, slope] = solve(line, &points, [1.0, 1.0]);
        assert!((base - 3.0).abs() < 1e-3 && (slope - 0.25).abs() < 1e-3, "{base} {slope}");
    }

    #[test]
    fn equations_are_solved() {
        assert_eq!(eliminate([[0.0, 2.0], [4.0, 0.0]], [6.0, 4.0]), Some([1.0, 3.0]));
        assert_eq!(eliminate([[1.0, 1.0], [1.0, 1.0]], [1.0, 2.0]), None);
    }
}
