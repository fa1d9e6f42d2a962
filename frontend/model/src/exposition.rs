//! Reads Prometheus' text format as the frontend writes it: `kubectl bulkhead` learns from it what an agent knows.

/// A value, with the labels that distinguish it from others of the metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'t> {
    /// The metric's name.
    pub name: &'t str,
    labels: &'t str,
    /// The value.
    pub value: f64,
}

impl<'t> Sample<'t> {
    /// The value of a label. None of ours contains a quotation mark or a comma.
    pub fn label(&self, name: &str) -> Option<&'t str> {
        let value = |pair: &'t str| pair.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"');
        self.labels.split(',').find_map(value)
    }

    fn of(line: &'t str) -> Option<Self> {
        let (metric, value) = line.rsplit_once(' ')?;
        let (name, labels) = match metric.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}')?),
            None => (metric, ""),
        };
        Some(Self { name, labels, value: value.parse().ok()? })
    }
}

/// The samples of an exposition. Lines that are not samples are left out.
pub fn samples(text: &str) -> impl Iterator<Item = Sample<'_>> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(Sample::of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_sample_is_left_out() {
        assert_eq!(samples("# HELP a b\n\n<html>\nname{x=\"1\" 2\nname NotANumber\n").count(), 0);
    }
}
