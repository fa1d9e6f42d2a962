//! What has changed between two runs.
//!
//! Compares ratios, not times: each is relative to a baseline of its own run, so it does not matter if the whole
//! machine is slower. Figures without a baseline are compared directly.

use serde_json::{Value, json};

use super::report::{Figure, Report};
use super::table;

/// Smaller changes are of no interest, however certain.
const LEAST: f64 = 0.05;

/// The number of standard errors that a change must exceed.
const SURE: f64 = 3.0;

/// What a change means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Within the noise.
    Same,
    /// Beyond the noise.
    Better,
    /// Beyond the noise.
    Worse,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Better => "better",
            Self::Worse => "worse",
        }
    }
}

/// A figure that both runs have.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    /// The figure of the later run.
    pub figure: &'a Figure,
    /// The earlier run's ratio, or its median if the figure has no ratio.
    pub before: f64,
    /// The later run's ratio or median.
    pub after: f64,
    /// What the change means.
    pub verdict: Verdict,
}

/// All figures that both runs have.
pub fn compare<'a>(before: &Report, after: &'a Report) -> Vec<Change<'a>> {
    let earlier = |figure: &Figure| before.find(&figure.section, &figure.subject, &figure.condition).cloned();
    after.figures.iter().filter_map(|figure| change(&earlier(figure)?, figure)).collect()
}

fn change<'a>(earlier: &Figure, later: &'a Figure) -> Option<Change<'a>> {
    let by_ratio = earlier.ratio().zip(later.ratio());
    let (before, after) = by_ratio.unwrap_or((earlier.summary.median, later.summary.median));
    if before <= 0.0 || after <= 0.0 {
        return None;
    }
    let baselines = [earlier, later].map(|figure| figure.baseline.as_ref().map_or(0.0, |own| own.relative_error));
    let errors = [earlier, later].map(|figure| figure.summary.relative_error());
    let counted = errors.into_iter().chain(baselines.into_iter().filter(|_| by_ratio.is_some()));
    let noise = SURE * counted.map(|error| error * error).sum::<f64>().sqrt();
    let grown = (after / before).ln();
    let verdict = match grown.abs() > noise.max(LEAST) {
        false => Verdict::Same,
        true if (grown > 0.0) == later.unit.more_is_better() => Verdict::Better,
        true => Verdict::Worse,
    };
    Some(Change { figure: later, before, after, verdict })
}

/// The comparison for human readers: first what has changed beyond the noise, then how much has not.
pub fn to_text(changes: &[Change<'_>]) -> String {
    let rows: Vec<Vec<String>> = changes.iter().filter(|own| own.verdict != Verdict::Same).map(row).collect();
    let same = changes.len() - rows.len();
    let mut text = String::new();
    if !rows.is_empty() {
        let header = ["changed", "", "", "before", "after", "change", ""].map(str::to_owned).into();
        text += &table::aligned(header, rows);
    }
    text + &format!("{same} of {} figures are the same within noise\n", changes.len())
}

/// The comparison for programs.
pub fn to_json(changes: &[Change<'_>]) -> Value {
    let object = |own: &Change<'_>| {
        let Figure { section, subject, condition, .. } = own.figure;
        json!({
            "section": section, "subject": subject, "condition": condition,
            "before": own.before, "after": own.after, "verdict": own.verdict.name(),
        })
    };
    changes.iter().map(object).collect()
}

fn row(change: &Change<'_>) -> Vec<String> {
    let figure = change.figure;
    let of = if figure.baseline.is_some() { "ratio" } else { figure.unit.name() };
    vec![
        format!("{}: {}", figure.section, figure.subject),
        figure.condition.clone(),
        of.to_owned(),
        table::number(change.before),
        table::number(change.after),
        format!("{:+.0}%", (change.after / change.before - 1.0) * 100.0),
        change.verdict.name().to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::{Baseline, Unit};
    use crate::bench::statistics::Summary;

    fn figure(median: f64, deviation: f64, unit: Unit, baseline: Option<f64>) -> Figure {
        Figure {
            section: "calls".to_owned(),
            subject: "publish".to_owned(),
            condition: "kept".to_owned(),
            unit,
            summary: Summary { median, p99: median * 3.0, deviation, samples: 100 },
            baseline: baseline.map(|median| Baseline { name: "Probe".to_owned(), median, relative_error: 0.01 }),
        }
    }

    fn verdict(before: Figure, after: Figure) -> Verdict {
        let [before, after] = [before, after].map(|own| Report { figures: vec![own], ..Report::default() });
        compare(&before, &after)[0].verdict
    }

    #[test]
    fn a_slower_machine_changes_nothing() {
        let before = figure(200.0, 10.0, Unit::Microseconds, Some(100.0));
        let after = figure(400.0, 20.0, Unit::Microseconds, Some(200.0));
        assert_eq!(verdict(before, after), Verdict::Same);
    }

    #[test]
    fn a_change_counts_only_beyond_the_noise() {
        let time = |median, deviation| figure(median, deviation, Unit::Microseconds, None);
        assert_eq!(verdict(time(100.0, 2.0), time(120.0, 2.0)), Verdict::Worse);
        assert_eq!(verdict(time(120.0, 2.0), time(100.0, 2.0)), Verdict::Better);
        assert_eq!(verdict(time(100.0, 50.0), time(120.0, 50.0)), Verdict::Same);
        assert_eq!(verdict(time(100.0, 0.0), time(103.0, 0.0)), Verdict::Same);
    }

    #[test]
    fn a_higher_rate_is_better() {
        let rate = |median| figure(median, 1.0, Unit::PerSecond, None);
        assert_eq!(verdict(rate(100.0), rate(150.0)), Verdict::Better);
        assert_eq!(verdict(rate(150.0), rate(100.0)), Verdict::Worse);
    }

    #[test]
    fn what_only_one_run_has_is_not_compared() {
        let report = Report { figures: vec![figure(1.0, 0.1, Unit::Kibibytes, None)], ..Report::default() };
        assert!(compare(&Report::default(), &report).is_empty());
        assert!(compare(&report, &Report::default()).is_empty());
    }

    #[test]
    fn only_changes_are_listed() {
        let before = Report { figures: vec![figure(100.0, 1.0, Unit::Microseconds, None)], ..Report::default() };
        let after = Report { figures: vec![figure(150.0, 1.0, Unit::Microseconds, None)], ..Report::default() };
        let text = to_text(&compare(&before, &after));
        assert!(text.contains("+50%") && text.contains("worse"), "{text}");
        assert!(text.ends_with("0 of 1 figures are the same within noise\n"), "{text}");
        assert_eq!(to_json(&compare(&before, &after))[0]["verdict"], "worse");
        assert_eq!(to_text(&compare(&before, &before)), "1 of 1 figures are the same within noise\n");
    }
}
