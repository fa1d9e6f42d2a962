//! Summaries of many measured values.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Fewer values than this say nothing about their own noise.
const FEW: usize = 5;

/// The relative error of a median of few values.
const ERROR_OF_FEW: f64 = 0.07;

/// A summary of many values of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Half of the values are below this.
    pub median: f64,
    /// All but one in a hundred are at most this.
    pub p99: f64,
    /// The median of the distances from the median.
    pub deviation: f64,
    /// How many values there are.
    pub samples: usize,
}

impl Summary {
    /// Summarizes values; without any, everything is 0.
    pub fn of(values: &[f64]) -> Self {
        let median = rank(values, 0.5);
        let distances: Vec<f64> = values.iter().map(|value| (value - median).abs()).collect();
        Self { median, p99: rank(values, 0.99), deviation: rank(&distances, 0.5), samples: values.len() }
    }

    /// Summarizes times, in microseconds.
    pub fn of_times(times: &[Duration]) -> Self {
        let values: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
        Self::of(&values)
    }

    /// Returns how far the median itself may be off, relative to it: its standard error, with the median absolute
    /// deviation as the measure of noise, so that a few late answers do not count.
    pub fn relative_error(&self) -> f64 {
        if self.samples < FEW || self.median == 0.0 {
            return ERROR_OF_FEW;
        }
        // For normally distributed values, the standard deviation is 1.4826 times the median absolute deviation, and
        // the standard error of a median is 1.2533 times that of a mean.
        1.4826 * 1.2533 * self.deviation / (self.samples as f64).sqrt() / self.median
    }
}

/// The value that the fraction `part` of all values do not exceed.
fn rank(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    // There are a few hundred values, so the product is small.
    sorted.get((last as f64 * part).round() as usize).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_late_answers_change_neither_the_median_nor_the_noise() {
        let mut values: Vec<f64> = (0..99).map(|number| 100.0 + f64::from(number % 3)).collect();
        let quiet = Summary::of(&values);
        values.push(1e6);
        let disturbed = Summary::of(&values);
        assert_eq!((quiet.median, quiet.deviation), (101.0, 1.0));
        assert_eq!((disturbed.median, disturbed.deviation), (101.0, 1.0));
        assert_eq!(Summary::of(&[1.0, 2.0, 1e6]).p99, 1e6);
    }

    #[test]
    fn nothing_and_one_value_are_summed_up_too() {
        assert_eq!(Summary::of(&[]), Summary { median: 0.0, p99: 0.0, deviation: 0.0, samples: 0 });
        assert_eq!(Summary::of(&[7.0]), Summary { median: 7.0, p99: 7.0, deviation: 0.0, samples: 1 });
        assert_eq!(Summary::of_times(&[Duration::from_millis(2)]).median, 2000.0);
    }

    #[test]
    fn more_values_leave_less_doubt_and_few_values_much() {
        let summary = |samples| Summary { median: 100.0, p99: 200.0, deviation: 10.0, samples };
        assert!(summary(400).relative_error() < summary(100).relative_error());
        assert!((summary(100).relative_error() - 0.0186).abs() < 1e-3);
        assert_eq!(summary(1).relative_error(), ERROR_OF_FEW);
    }
}
