//! Reads Prometheus' text format as this program writes it: `kubectl bulkhead` learns from it what an agent knows.

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
    use crate::metrics::METRICS;

    #[test]
    fn what_is_written_is_read() {
        METRICS.pool_condition.with(["read-back", "shut_down"]).set(1.0);
        METRICS.pool_size.with(["read-back"]).set(958_246_912.0);
        let text = METRICS.text();
        let of_pool = |name: &str| {
            let is_it = |sample: &Sample<'_>| sample.name == name && sample.label("pool") == Some("read-back");
            samples(&text).find(is_it).unwrap()
        };
        assert_eq!(of_pool("bulkhead_pool_size_bytes").value, 958_246_912.0);
        let condition = of_pool("bulkhead_pool_condition");
        assert_eq!(
            (condition.label("condition"), condition.label("cond"), condition.value),
            (Some("shut_down"), None, 1.0)
        );
        assert!(samples(&text).any(|sample| sample.name == "bulkhead_events_dropped_total"), "one without labels");
    }

    #[test]
    fn what_is_no_sample_is_left_out() {
        assert_eq!(samples("# HELP a b\n\n<html>\nname{x=\"1\" 2\nname NotANumber\n").count(), 0);
    }
}
