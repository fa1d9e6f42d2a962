//! Failed tests, as test programs report them at their end: `---- theme::test ----`, or with ` stdout` after the name,
//! followed by what the test said.

use super::count::Count;

/// How many lines of what a test said are kept, so that the summary stays one.
const LINES: usize = 25;

/// How many lines are kept of what its programs had logged. The logs come after what the test itself said.
const LOG_LINES: usize = 10;

/// How the first line of a log begins.
const LOG: &str = "--- the last lines of ";

/// A failed test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FailedTest {
    /// Its name.
    pub name: String,
    /// What it said last: at most [`LINES`] lines, and [`LOG_LINES`] of its programs' logs.
    pub said: Vec<String>,
}

/// Reads failed tests from the lines of an output.
#[derive(Debug, Default)]
pub struct Failures {
    /// The failed tests so far.
    pub all: Vec<FailedTest>,
    /// Whether the lines belong to the last test.
    inside: bool,
    /// The line at which that test's logs begin.
    log: Option<usize>,
}

impl Failures {
    /// Reads the next line.
    pub fn read(&mut self, line: &str) {
        if let Some(name) = heading(line) {
            self.all.push(FailedTest { name: name.to_owned(), said: Vec::new() });
            (self.inside, self.log) = (true, None);
        } else if line == "failures:" || line == "stack backtrace:" || Count::of_line(line).is_some() {
            self.inside = false;
        } else if let Some(test) = self.all.last_mut().filter(|_| self.inside && !line.is_empty()) {
            if self.log.is_none() && line.starts_with(LOG) {
                self.log = Some(test.said.len());
            }
            let (first, most) = self.log.map_or((0, LINES), |log| (log, LOG_LINES));
            if test.said.len() - first == most {
                test.said.remove(first);
            }
            test.said.push(line.to_owned());
        }
    }
}

fn heading(line: &str) -> Option<&str> {
    let name = line.strip_prefix("---- ")?.strip_suffix(" ----")?;
    Some(name.strip_suffix(" stdout").unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_read_with_what_they_said() {
        let mut failures = Failures::default();
        let output = "test a::b ... FAILED\n\nfailures:\n\n---- a::b ----\nfirst\n\nsecond\n\n---- c stdout ----\n\
                      third\nstack backtrace:\n   0: begin\n\n\nfailures:\n    a::b\n    c\n\ntest result: FAILED. 0 passed; 2 failed\nother\n\
                      ---- d: e ----\nfourth\n\n2 passed, 1 failed\nlast";
        output.lines().for_each(|line| failures.read(line));
        let test = |name: &str, said: &[&str]| FailedTest {
            name: name.to_owned(),
            said: said.iter().map(|&line| line.to_owned()).collect(),
        };
        assert_eq!(
            failures.all,
            [test("a::b", &["first", "second"]), test("c", &["third"]), test("d: e", &["fourth"])]
        );
    }

    #[test]
    fn of_a_long_report_the_end_is_kept() {
        let mut failures = Failures::default();
        failures.read("---- a ----");
        (0..=LINES).for_each(|number| failures.read(&number.to_string()));
        let said = failures.all.remove(0).said;
        assert_eq!((said.len(), said[0].as_str()), (LINES, "1"));
    }

    #[test]
    fn logs_do_not_take_the_room_of_what_the_test_said() {
        let mut failures = Failures::default();
        ["---- a ----", "wrong", "--- the last lines of one"].iter().for_each(|line| failures.read(line));
        (0..LINES).for_each(|number| failures.read(&number.to_string()));
        failures.read("--- the last lines of another");
        let said = failures.all.remove(0).said;
        let last = said.last().map(String::as_str);
        assert_eq!(
            (said.len(), said[0].as_str(), last),
            (1 + LOG_LINES, "wrong", Some("--- the last lines of another"))
        );
    }
}
