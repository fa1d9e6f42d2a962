//! Tests that take much longer than they did, or are gone: compared with the run before, in which this machine may have
//! been faster or slower, so that the other tests say how much.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use quick_junit::{TestCase, TestSuite};

use super::results;

/// A test that takes fewer seconds is not worth a line, and its time is mostly chance.
const WORTH_A_LINE: f64 = 5.0;

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
    pub fn gone(&self, steps: &[TestSuite]) -> Vec<String> {
        let lacks = |now: &TestSuite, name: &str| {
            now.test_cases.iter().any(|test| test.time.is_some())
                && now.test_cases.iter().all(|test| *test.name != *name)
        };
        let gone = self.0.keys().filter(|(step, name)| steps.iter().any(|now| *now.name == **step && lacks(now, name)));
        gone.map(|(step, name)| format!("{step}: {name}")).collect()
    }

    /// A line for each test that has become slow.
    pub fn slower(&self, steps: &[TestSuite]) -> Vec<String> {
        let tests = steps.iter().flat_map(|step| step.test_cases.iter().map(move |test| (step, test)));
        let compared: Vec<_> = tests
            .filter_map(|(step, test)| {
                let name = (step.name.to_string(), test.name.to_string());
                let [now, before] = [test.time?, *self.0.get(&name)?].map(|time| time.as_secs_f64());
                (before > 0.0).then(|| (name, now, before, now / before))
            })
            .collect();
        let mut ratios: Vec<f64> = compared.iter().map(|(.., ratio)| *ratio).collect();
        ratios.sort_by(f64::total_cmp);
        let Some(usual) = ratios.get(ratios.len() / 2) else { return Vec::new() };
        let slower = compared.iter().filter(|(_, now, _, ratio)| *now >= WORTH_A_LINE && *ratio > SLOWER * usual);
        slower
            .map(|((step, name), now, before, _)| {
                format!(
                    "{step}: {name}: {now:.1} s, before {before:.1} s; the median test took {usual:.1} times as long"
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use quick_junit::TestCaseStatus;

    use super::*;

    #[test]
    fn what_is_slower_than_the_others_have_become_is_named() {
        let names = ["a", "b", "c", "d"];
        let former = Former(names.map(|name| (("host".to_owned(), name.to_owned()), Duration::from_secs(10))).into());
        let steps = |seconds: [u64; 4]| {
            let mut host = TestSuite::new("host");
            for (name, seconds) in names.iter().zip(seconds) {
                let mut test = TestCase::new(name, TestCaseStatus::success());
                test.set_time(Duration::from_secs(seconds));
                host.add_test_case(test);
            }
            [host]
        };
        assert_eq!(former.slower(&steps([10, 11, 9, 20])), Vec::<String>::new());
        let slower = former.slower(&steps([10, 11, 9, 24]));
        assert!(slower.len() == 1 && slower[0].starts_with("host: d: 24.0 s, before 10.0 s"), "{slower:?}");
        assert_eq!(former.slower(&steps([30, 31, 32, 50])), Vec::<String>::new(), "a slow machine slows all");
        assert_eq!(Former::default().slower(&steps([30, 31, 32, 50])), Vec::<String>::new());
        let mut without = steps([10, 11, 9, 20]);
        assert_eq!(former.gone(&without), Vec::<String>::new());
        without[0].test_cases.truncate(3);
        assert_eq!(former.gone(&without), ["host: d"]);
    }
}
