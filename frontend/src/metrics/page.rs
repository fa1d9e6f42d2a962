//! The page of the documentation that lists all metrics, and the conditions of pools that one of them names.

use bulkhead_model::volumes::{ConditionKind, Severity, Subject};

use super::ROWS;

/// The text before the tables.
const BEGINNING: &str = "\
# Metrics

The frontend serves these at `http://ADDRESS:PORT/metrics` with [`--metrics-address`](operate.md#metrics-and-probes);
dashboard and alerts are in [deploy/monitoring](../deploy/monitoring/README.md). No label names a volume, a claim or a
pod: numbers per volume come from the kubelet (`kubelet_volume_stats_*`). Namespaces are named only where [their
share](kubernetes.md#share-nodes-among-namespaces) is limited, of each pool 20 at most.

`BULKHEAD_WRITE_DOCS=1 cargo test -p bulkhead-frontend metrics::page` makes this page from the code.

| metric | type | labels | meaning |
|---|---|---|---|
";

/// The text about snapshots, which have few metrics of their own.
const SNAPSHOTS: &str = "
## Snapshots

`bulkhead_helper_request_duration_seconds` says how long a snapshot (`request=create-snapshot`) or a copy of a volume
(`create-from`) takes, and why it is refused. Where a pool can copy volumes, these refusals are counted from zero:

| outcome | meaning |
|---|---|
| `ok` | taken, or found |
| `TooFragmented` | [the image is in too many pieces](alerts.md#bulkheadsnapshotstoofragmented) |
| `NoRoom`, `NoSpace` | [the pool has no room](alerts.md#bulkheadsnapshotsnoroom) |
| `Unsupported` | the volume or the pool [cannot be copied](snapshots.md) |
| any other | [errors.md](errors.md#kinds-of-errors) |

The volume's writers wait for less than that: while the list of the image's extents is copied, about a second for each
40,000, and while what they have written is written out. An agent repeats what is refused until somebody deletes the
VolumeSnapshot, so the count is one of attempts.
";

/// The text between the tables.
const CONDITIONS: &str = "
## Conditions of pools

The values of the label `condition`. A failure concerns all volumes of the pool, a notice is intended.
The events on the Node name the remedy, and [errors.md](errors.md#conditions-of-pools) has what is beyond that.

| condition | severity | meaning |
|---|---|---|
";

/// The page.
pub fn page() -> String {
    let mut page = BEGINNING.to_owned();
    for row in ROWS {
        let labels = row.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        page += &format!("| `{}` | {} | {labels} | {} |\n", row.name, row.kind, row.help.trim_end_matches('.'));
    }
    page += SNAPSHOTS;
    page += CONDITIONS;
    for ConditionKind { name, severity, meaning, .. } in of_pools() {
        let severity = match severity {
            Severity::Failure => "failure",
            Severity::Warning => "warning",
            Severity::Notice => "notice",
        };
        page += &format!("| `{name}` | {severity} | {meaning} |\n");
    }
    page
}

fn of_pools() -> impl Iterator<Item = &'static ConditionKind> {
    ConditionKind::ALL.iter().filter(|kind| kind.subject == Subject::Pool)
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
    fn every_condition_that_is_not_intended_has_an_alert() {
        let rules = deployed("rules.yaml");
        let alerts: Vec<_> = rules.split("- alert: ").collect();
        for kind in of_pools() {
            let is_about = |alert: &&&str| {
                let conditions = alert.split(['~', '"', '|']).any(|part| part == kind.name);
                conditions || alert.contains(&format!("bulkhead_pool_{}_bytes", kind.name))
            };
            let found: Vec<_> = alerts.iter().filter(is_about).collect();
            assert_eq!(found.len(), usize::from(kind.severity != Severity::Notice), "{kind:?}: {found:?}");
            let is_critical = found.iter().any(|alert| alert.contains("severity: critical"));
            assert_eq!(is_critical, kind.severity == Severity::Failure, "{kind:?}");
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
