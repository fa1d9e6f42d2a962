//! The page of the documentation that lists all metrics.

use super::ROWS;

/// The text before the table.
const BEGINNING: &str = "\
# Metrics

The frontend serves its metrics to Prometheus at `http://ADDRESS:PORT/metrics` if it is started with
`--metrics-address ADDRESS:PORT` (`BULKHEAD_METRICS_ADDRESS`), and two probes beside them: see
[operate.md](operate.md#metrics-and-probes). The manifests of `deploy/kubernetes` switch it on at port 9808;
`deploy/monitoring` has a dashboard, alerts and what the Prometheus operator needs. The privileged helper has no network.

The labels have few values: none names a volume, a claim or a pod. Numbers per volume come from the kubelet
(`kubelet_volume_stats_*`). This page is made from the code: `BULKHEAD_WRITE_DOCS=1 cargo test -p bulkhead-frontend
metrics::page` writes it.

| metric | type | labels | meaning |
|---|---|---|---|
";

/// The page.
pub fn page() -> String {
    let mut page = BEGINNING.to_owned();
    for row in ROWS {
        let labels = row.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        page += &format!("| `{}` | {} | {labels} | {} |\n", row.name, row.kind, row.help.trim_end_matches('.'));
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    fn deployed(file: &str) -> String {
        fs::read_to_string(format!("{}/../deploy/monitoring/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    }

    #[test]
    fn alerts_and_panels_are_about_metrics_that_exist_and_labels_that_these_have() {
        for file in ["rules.yaml", "dashboard.json"] {
            let text = deployed(file);
            let words: BTreeSet<_> =
                text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_').collect();
            let named: Vec<_> = words.iter().filter(|word| word.starts_with("bulkhead_")).collect();
            assert!(named.len() > 5, "{file}");
            for name in named {
                let plain =
                    ["_bucket", "_count", "_sum"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
                assert!(ROWS.iter().any(|row| row.name == plain), "{file}: {name}");
            }
        }
    }

    #[test]
    fn the_operators_rules_are_those_of_the_rule_file() {
        let operators = deployed("prometheusrule.yaml");
        let (_, rules) = operators.split_once("\nspec:\n").unwrap();
        let plain: Vec<_> = rules.lines().map(|line| line.strip_prefix("  ").unwrap()).collect();
        assert_eq!(plain, deployed("rules.yaml").lines().collect::<Vec<_>>());
    }

    #[test]
    fn the_page_in_the_documentation_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        if std::env::var_os("BULKHEAD_WRITE_DOCS").is_some() {
            fs::write(path, page()).unwrap();
        }
        assert_eq!(fs::read_to_string(path).unwrap(), page(), "set BULKHEAD_WRITE_DOCS=1 to write it");
    }
}
