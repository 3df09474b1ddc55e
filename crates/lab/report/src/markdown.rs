//! The report as Markdown, for a repository or a pull request.

use crate::figures::Figures;
use crate::report::{Point, Report};
use crate::table::{FLEET_HEADS, HEADS, bound_rows, cells, fleet_cells, heading, ttft_unit};
use crate::verdict::verdict;

/// Renders the report.
pub fn markdown(report: &Report) -> String {
    let mut text = format!("# {}\n\n", report.title);
    verdict(report).iter().for_each(|sentence| text += &format!("**{sentence}**\n\n"));
    for point in &report.points {
        if let Some(heading) = heading(report, point) {
            text += &format!("### {heading}\n\n");
        }
        text += &rows(report, point);
    }
    text += "## How this was made\n\n";
    report.setup.iter().for_each(|(word, value)| text += &format!("- {word}: {value}\n"));
    report.remarks().iter().for_each(|note| text += &format!("- {note}\n"));
    text += &format!("\n```text\n{}\n```\n", report.command);
    text
}

fn rows(report: &Report, point: &Point) -> String {
    let mut text = format!("| {} |\n|---|{}\n", HEADS.join(" | "), "---:|".repeat(HEADS.len() - 1));
    let unit = ttft_unit(report, point);
    for policy in report.policies() {
        if let Some(figures) = Figures::of(point, policy) {
            text += &format!("| {} |\n", cells(policy, &figures, point.bounds.as_ref(), unit).join(" | "));
        }
    }
    text += &format!("\n| {} |\n|---|{}\n", FLEET_HEADS.join(" | "), "---:|".repeat(FLEET_HEADS.len() - 1));
    for policy in report.policies() {
        if let Some(figures) = Figures::of(point, policy) {
            text += &format!("| {} |\n", fleet_cells(policy, &figures).join(" | "));
        }
    }
    text.push('\n');
    if let Some(bounds) = &point.bounds {
        for (name, value) in bound_rows(bounds) {
            text += &format!("- bound: {name}: {value}\n");
        }
        text.push('\n');
    }
    text
}
