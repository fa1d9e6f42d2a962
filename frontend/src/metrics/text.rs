//! Prometheus' text format, which more programs can read than OpenMetrics, the format that the library writes. The two
//! differ in how a counter is described, and in the last line.

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

/// The content type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of `registry`.
pub(super) fn encode(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode_registry(&mut text, registry);
    translated(&text)
}

fn translated(text: &str) -> String {
    let mut result = String::with_capacity(text.len() + text.len() / 16);
    let mut lines = text.lines().peekable();
    let mut is_counter = false;
    while let Some(line) = lines.next() {
        if line.starts_with("# HELP ") {
            is_counter = lines.peek().is_some_and(|next| next.ends_with(" counter"));
        }
        match line.strip_prefix("# ").map(|comment| comment.splitn(3, ' ').collect::<Vec<_>>()).as_deref() {
            Some([word, name, rest]) if is_counter => result += &format!("# {word} {name}_total {rest}"),
            Some(_) => result += line,
            // A metric without labels.
            None => result += &line.replacen("{} ", " ", 1),
        }
        result.push('\n');
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_described_by_its_full_name() {
        let theirs = "# HELP calls All of them.\n# TYPE calls counter\ncalls_total{} 1\n# HELP room Left.\n# TYPE room gauge\nroom{pool=\"a\"} 2\n";
        let ours = "# HELP calls_total All of them.\n# TYPE calls_total counter\ncalls_total 1\n# HELP room Left.\n# TYPE room gauge\nroom{pool=\"a\"} 2\n";
        assert_eq!(translated(theirs), ours);
    }
}
