//! The page of the documentation that lists all metrics.

use super::ROWS;

/// What stands before the table.
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
    use std::fs;

    use super::*;

    #[test]
    fn the_page_in_the_documentation_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        if std::env::var_os("BULKHEAD_WRITE_DOCS").is_some() {
            fs::write(path, page()).unwrap();
        }
        assert_eq!(fs::read_to_string(path).unwrap(), page(), "set BULKHEAD_WRITE_DOCS=1 to write it");
    }
}
