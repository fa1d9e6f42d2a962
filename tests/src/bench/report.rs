//! All figures of a run, and how they are saved and read again.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::statistics::Summary;
use super::table;

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Time.
    #[serde(rename = "us")]
    Microseconds,
    /// Calls or volumes.
    #[serde(rename = "per_second")]
    PerSecond,
    /// Data.
    #[serde(rename = "mib_per_second")]
    MebibytesPerSecond,
    /// Memory.
    #[serde(rename = "kib")]
    Kibibytes,
    /// Threads.
    #[serde(rename = "number")]
    Number,
}

impl Unit {
    /// As shown in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "µs",
            Self::PerSecond => "/s",
            Self::MebibytesPerSecond => "MiB/s",
            Self::Kibibytes => "KiB",
            Self::Number => "",
        }
    }

    /// Returns whether a larger figure is better.
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::PerSecond | Self::MebibytesPerSecond)
    }
}

/// What a figure is compared with in its own run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// What it consists of.
    pub name: String,
    /// Its median, in the unit of the figure.
    pub median: f64,
    /// How far the median may be off, relative to it.
    pub relative_error: f64,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The part of the report.
    pub section: String,
    /// What was measured.
    pub subject: String,
    /// The conditions under which it was measured.
    pub condition: String,
    /// What it counts.
    pub unit: Unit,
    /// The values.
    #[serde(flatten)]
    pub summary: Summary,
    /// What it is compared with, unless it is a baseline itself.
    pub baseline: Option<Baseline>,
}

impl Figure {
    /// The median as a multiple of the baseline's.
    pub fn ratio(&self) -> Option<f64> {
        let baseline = self.baseline.as_ref().filter(|baseline| baseline.median > 0.0)?;
        Some(self.summary.median / baseline.median)
    }

    /// This figure as the baseline of others.
    pub fn as_baseline(&self, name: &str) -> Baseline {
        let relative_error = self.summary.relative_error();
        Baseline { name: name.to_owned(), median: self.summary.median, relative_error }
    }
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The machine, the kernel, the pool, and how busy it was: one line each.
    pub machine: Vec<String>,
    /// All figures, in the order in which they were measured.
    pub figures: Vec<Figure>,
    /// What was not measured, and why.
    pub left_out: Vec<String>,
}

impl Report {
    /// Reads the report of an earlier run.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("read the report {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not a report of this bench", path.display()))
    }

    /// Writes the report to a file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(path, text + "\n").with_context(|| format!("write the report {}", path.display()))
    }

    /// The figure for this, if it was measured.
    pub fn find(&self, section: &str, subject: &str, condition: &str) -> Option<&Figure> {
        let is_it = |own: &&Figure| own.section == section && own.subject == subject && own.condition == condition;
        self.figures.iter().find(is_it)
    }

    /// The report for human readers: one table for each part.
    pub fn to_text(&self) -> String {
        let mut text = self.machine.join("\n") + "\n";
        let mut sections: Vec<&str> = self.figures.iter().map(|own| own.section.as_str()).collect();
        sections.dedup();
        for section in sections {
            let rows = by_subject(self.figures.iter().filter(|own| own.section == section)).map(row).collect();
            let header = [section, "", "median", "p99", "unit", "ratio", "to"].map(str::to_owned).into();
            text += "\n";
            text += &table::aligned(header, rows);
        }
        for reason in &self.left_out {
            text += &format!("\nnot measured: {reason}");
        }
        text
    }
}

/// Groups the figures by subject, in the order in which the subjects were first measured.
fn by_subject<'a>(figures: impl Iterator<Item = &'a Figure>) -> impl Iterator<Item = &'a Figure> {
    let mut groups: Vec<Vec<&Figure>> = Vec::new();
    for figure in figures {
        match groups.iter_mut().find(|group| group[0].subject == figure.subject) {
            Some(group) => group.push(figure),
            None => groups.push(vec![figure]),
        }
    }
    groups.into_iter().flatten()
}

fn row(figure: &Figure) -> Vec<String> {
    // The p99 of a single value would suggest too much.
    let p99 = if figure.summary.samples > 1 { table::number(figure.summary.p99) } else { String::new() };
    vec![
        figure.subject.clone(),
        figure.condition.clone(),
        table::number(figure.summary.median),
        p99,
        figure.unit.name().to_owned(),
        figure.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2}")),
        figure.baseline.as_ref().map_or_else(String::new, |baseline| baseline.name.clone()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let figure = |subject: &str, values: &[f64], baseline| Figure {
            section: "calls".to_owned(),
            subject: subject.to_owned(),
            condition: "kept, 1".to_owned(),
            unit: Unit::Microseconds,
            summary: Summary::of(values),
            baseline,
        };
        let probe = figure("Probe", &[100.0, 110.0, 90.0], None);
        let baseline = probe.as_baseline("Probe");
        let publish = figure("publish", &[250.0], Some(baseline));
        let left_out = vec!["the rest: no time".to_owned()];
        Report { machine: vec!["a machine".to_owned()], figures: vec![probe, publish], left_out }
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("report.json");
        report().write(&path).expect("written");
        assert_eq!(Report::read(&path).expect("read"), report());
        fs::write(&path, "{}").expect("written");
        let error = Report::read(&path).expect_err("another file");
        assert!(format!("{error:#}").contains("is not a report of this bench"), "{error:#}");
    }

    #[test]
    fn people_see_medians_ratios_and_what_is_missing() {
        let text = report().to_text();
        let line = |word: &str| text.lines().find(|line| line.starts_with(word)).unwrap_or_default().to_owned();
        assert!(
            line("publish").split_whitespace().eq(["publish", "kept,", "1", "250", "µs", "2.50", "Probe"]),
            "{text}"
        );
        assert!(line("Probe").split_whitespace().eq(["Probe", "kept,", "1", "100", "110", "µs"]), "{text}");
        assert!(text.ends_with("not measured: the rest: no time"), "{text}");
    }

    #[test]
    fn a_ratio_needs_a_baseline_above_zero() {
        let mut figure = report().figures.remove(1);
        assert_eq!(figure.ratio(), Some(2.5));
        figure.baseline.as_mut().expect("a baseline").median = 0.0;
        assert_eq!(figure.ratio(), None);
    }
}
