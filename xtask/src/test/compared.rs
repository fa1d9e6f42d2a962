//! Tests that take much longer than they did, or are gone: compared with the run before, in which this machine may have
//! been faster or slower, so that the other tests say how much.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use quick_junit::TestCase;

use super::results;
use super::step::Step;
use super::transcript::Notable;

/// A test that takes less is not worth a line, and its time is mostly chance.
const WORTH_A_LINE: Duration = Duration::from_secs(5);

/// How much slower a test is that is named.
const SLOWER: f64 = 2.0;

/// The times of the run before, by step and test.
#[derive(Default)]
pub struct Former(BTreeMap<(String, String), Duration>);

impl Former {
    /// Reads them from the file that the run wrote. Without one there is nothing to compare with.
    pub fn read(file: &Path) -> Self {
        let mut times = BTreeMap::new();
        for suite in results::read(file) {
            let timed = |case: &TestCase| Some(((suite.name.to_string(), case.name.to_string()), case.time?));
            times.extend(suite.test_cases.iter().filter_map(timed));
        }
        Self(times)
    }

    /// A line for each test that these steps had, and have no more.
    pub fn gone(&self, steps: &[(Step, Notable)]) -> Vec<String> {
        let has = |name: &str, of: &Notable| {
            of.times.iter().any(|test| test.name == name) || of.failed.iter().any(|test| test.name == name)
        };
        let gone = self.0.keys().filter(|(step, name)| {
            steps.iter().any(|(now, notable)| now.name() == step && !notable.times.is_empty() && !has(name, notable))
        });
        gone.map(|(step, name)| format!("{step}: {name}")).collect()
    }

    /// A line for each test that has become slow.
    pub fn slower(&self, steps: &[(Step, Notable)]) -> Vec<String> {
        let tests = steps.iter().flat_map(|(step, notable)| notable.times.iter().map(move |test| (step, test)));
        let compared: Vec<_> = tests
            .filter_map(|(step, test)| {
                let before = *self.0.get(&(step.name().to_owned(), test.name.clone()))?;
                (!before.is_zero()).then(|| (step, test, before, test.time.as_secs_f64() / before.as_secs_f64()))
            })
            .collect();
        let mut ratios: Vec<f64> = compared.iter().map(|(.., ratio)| *ratio).collect();
        ratios.sort_by(f64::total_cmp);
        let Some(usual) = ratios.get(ratios.len() / 2) else { return Vec::new() };
        let is_slower = |time: Duration, ratio: f64| time >= WORTH_A_LINE && ratio > SLOWER * usual;
        compared
            .iter()
            .filter(|(_, test, _, ratio)| is_slower(test.time, *ratio))
            .map(|(step, test, before, _)| {
                let [now, before] = [test.time, *before].map(|time| time.as_secs_f64());
                format!(
                    "{}: {}: {now:.1} s, before {before:.1} s; the median test took {usual:.1} times as long",
                    step.name(),
                    test.name
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::transcript::TimedTest;

    #[test]
    fn what_is_slower_than_the_others_have_become_is_named() {
        let names = ["a", "b", "c", "d"];
        let former = Former(names.map(|name| (("host".to_owned(), name.to_owned()), Duration::from_secs(10))).into());
        let steps = |seconds: [u64; 4]| {
            let times = names
                .iter()
                .zip(seconds)
                .map(|(name, seconds)| TimedTest { time: Duration::from_secs(seconds), name: (*name).to_owned() });
            [(Step::Host, Notable { times: times.collect(), failed: Vec::new() })]
        };
        assert_eq!(former.slower(&steps([10, 11, 9, 20])), Vec::<String>::new());
        let slower = former.slower(&steps([10, 11, 9, 24]));
        assert!(slower.len() == 1 && slower[0].starts_with("host: d: 24.0 s, before 10.0 s"), "{slower:?}");
        assert_eq!(former.slower(&steps([30, 31, 32, 50])), Vec::<String>::new(), "a slow machine slows all");
        assert_eq!(Former::default().slower(&steps([30, 31, 32, 50])), Vec::<String>::new());
        let mut without = steps([10, 11, 9, 20]);
        assert_eq!(former.gone(&without), Vec::<String>::new());
        without[0].1.times.truncate(3);
        assert_eq!(former.gone(&without), ["host: d"]);
    }
}
