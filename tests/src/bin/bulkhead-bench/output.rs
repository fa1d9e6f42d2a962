//! Where a report goes: to files, and to the terminal.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use bulkhead_tests::bench::compare::{compare, to_json, to_text};
use bulkhead_tests::bench::plot::{Line, draw};
use bulkhead_tests::bench::report::{Figure, Report, Unit};
use serde_json::json;

use crate::options::Options;

/// The conditions shown in the plot of latencies.
const PLOTTED: &str = "kept connection, 1 in flight";

/// Writes the report, its plots, and the changes since the earlier report.
pub fn write(options: &Options, report: &Report, earlier: Option<&Report>) -> Result<()> {
    let directory = &options.output;
    fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    let path = directory.join("report.json");
    if path.exists() {
        fs::rename(&path, directory.join("previous.json")).context("keep the previous report")?;
    }
    report.write(&path)?;
    plot(report, directory)?;
    let changes = earlier.map(|earlier| compare(earlier, report));
    if options.json {
        println!("{:#}", json!({ "report": report, "changes": changes.as_deref().map(to_json) }));
        return Ok(());
    }
    println!("{}", report.to_text());
    if let Some(changes) = changes {
        println!("{}", to_text(&changes));
    }
    println!("written to {}: report.json, latency.svg, density.svg", directory.display());
    Ok(())
}

fn plot(report: &Report, directory: &Path) -> Result<()> {
    fs::write(directory.join("latency.svg"), latency(report)?)?;
    Ok(fs::write(directory.join("density.svg"), density(report)?)?)
}

fn latency(report: &Report) -> Result<String> {
    let calls: Vec<&Figure> =
        report.figures.iter().filter(|own| own.section == "calls" && own.condition == PLOTTED).collect();
    let places: Vec<String> = calls.iter().map(|own| own.subject.clone()).collect();
    let line = |name: &str, value: fn(&Figure) -> Option<f64>| Line {
        name: name.to_owned(),
        values: calls.iter().map(|own| value(own)).collect(),
    };
    let lines = [
        line("p99", |own| Some(own.summary.p99)),
        line("median", |own| Some(own.summary.median)),
        line("baseline", |own| own.baseline.as_ref().map(|baseline| baseline.median)),
    ];
    draw(&format!("Calls, {PLOTTED}"), Unit::Microseconds.name(), &places, &lines)
}

fn density(report: &Report) -> Result<String> {
    let of_section = || report.figures.iter().filter(|own| own.section == "density" && own.unit == Unit::Microseconds);
    let unique = |name: fn(&Figure) -> &str| {
        let mut names: Vec<String> = Vec::new();
        for name in of_section().map(name) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names
    };
    let places = unique(|own| &own.condition);
    let line = |subject: String| Line {
        values: places
            .iter()
            .map(|place| report.find("density", &subject, place).map(|own| own.summary.median))
            .collect(),
        name: subject,
    };
    let lines: Vec<Line> = unique(|own| &own.subject).into_iter().map(line).collect();
    draw("Medians beside published volumes of each kind", Unit::Microseconds.name(), &places, &lines)
}
