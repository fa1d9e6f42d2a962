//! Metrics of a running agent, and how deploy/monitoring uses them, checked with Prometheus' own tool.

use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::manifests;
use bulkhead_tests::cluster::objects::{claim, on};
use bulkhead_tests::cluster::prometheus::{self, Prometheus};
use bulkhead_tests::commands::Printed;
use bulkhead_tests::monitoring;
use bulkhead_tests::pace::patience;
use serde_json::Value;

cases! {
    on Cluster;
    an_agents_work_is_in_its_metrics,
    alerts_are_the_same_in_both_forms,
    each_alert_has_a_runbook: Bare,
    each_panel_is_explained_and_follows_the_selection: Bare,
    promtool_finds_no_fault_with_metrics_and_alerts: Long,
    prometheus_scrapes_an_agent: Long,
}

/// The files of alerts and of the dashboard, in one directory.
const FILES: (&str, &str) = ("rules.yaml", "dashboard.json");

/// The number of deployed alerts.
const ALERTS: usize = 33;

/// Metrics left by the provisioning of a volume.
const LEFT: [&str; 5] = [
    "bulkhead_provisioning_duration_seconds_count{stage=\"made\"}",
    "bulkhead_provisioning_duration_seconds_count{stage=\"acknowledged\"}",
    "bulkhead_api_request_duration_seconds_count{verb=\"create\",resource=\"persistentvolumes\",code=\"201\"}",
    "bulkhead_watch_up{resource=\"persistentvolumeclaims\"}",
    "bulkhead_pool_size_bytes{pool=\"default\"}",
];

fn metrics(cluster: &Cluster) -> Result<String> {
    let (status, text) = monitoring::get(&cluster.agents[0].rig, "/metrics")?;
    ensure!(status == 200, "status {status}");
    Ok(text)
}

fn an_agents_work_is_in_its_metrics(cluster: &mut Cluster) -> Result<()> {
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &cluster.node()))?;
    cluster.bound("data")?;
    cluster.access.wait(cluster.patience(), "the metrics of a volume", || {
        let text = metrics(cluster)?;
        for name in LEFT {
            let value =
                text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("{name}: {text}"))?;
            ensure!(value.trim().parse::<f64>()? >= 1.0, "{name} is {value}");
        }
        ensure!(text.contains("bulkhead_token_expiry_timestamp_seconds 1"), "the token's end: {text}");
        Ok(())
    })
}

fn alerts_are_the_same_in_both_forms(cluster: &mut Cluster) -> Result<()> {
    let file = prometheus::RULES.replace("rules.yaml", "prometheusrule.yaml");
    let object = ["label", "--local", "--output", "json", "--filename", &file, "test=yes"];
    let object: Value = serde_json::from_str(&manifests::kubectl(&cluster.access.kubeconfig(), &object)?)?;
    let rules = object["spec"]["groups"][0]["rules"].as_array().context("no rules")?;
    ensure!(rules.len() == ALERTS, "{} rules", rules.len());
    let text = fs::read_to_string(&file)?;
    let (_, spec) = text.split_once("\nspec:\n").context("no specification")?;
    let rules: String = spec.lines().map(|line| line.strip_prefix("  ").unwrap_or(line).to_owned() + "\n").collect();
    ensure!(rules == fs::read_to_string(prometheus::RULES)?, "the rules are not those of {}", prometheus::RULES);
    Ok(())
}

/// A section of a page, with the alert's name as its heading; and no section is without an alert.
fn each_alert_has_a_runbook(_: &mut Cluster) -> Result<()> {
    let rules = fs::read_to_string(prometheus::RULES)?;
    let named = |line: &'static str, text: &str| -> Vec<String> {
        text.lines().filter_map(|found| found.strip_prefix(line)).map(str::to_owned).collect()
    };
    let alerts = named("  - alert: ", &rules);
    let page = fs::read_to_string(prometheus::RULES.replace("deploy/monitoring/rules.yaml", "docs/alerts.md"))?;
    ensure!(named("## ", &page) == alerts, "the sections of docs/alerts.md are not the alerts, in their order");
    let addresses: Vec<_> = alerts.iter().map(|alert| format!("docs/alerts.md#{}", alert.to_lowercase())).collect();
    ensure!(named("      runbook_url: ", &rules) == addresses, "the addresses are not {addresses:?}");
    Ok(())
}

/// The panels of the dashboard that show something.
fn panels() -> Result<Vec<Value>> {
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(prometheus::RULES.replace(FILES.0, FILES.1))?)?;
    let panels = dashboard["panels"].as_array().context("no panels")?.clone();
    Ok(panels.into_iter().filter(|panel| panel["type"] != "row").collect())
}

/// The expressions of a panel.
fn expressions(panel: &Value) -> impl Iterator<Item = &str> {
    panel["targets"].as_array().into_iter().flatten().filter_map(|target| target["expr"].as_str())
}

fn each_panel_is_explained_and_follows_the_selection(_: &mut Cluster) -> Result<()> {
    let panels = panels()?;
    ensure!(panels.len() >= 30, "{} panels", panels.len());
    for panel in &panels {
        ensure!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "no description: {panel:#}");
        ensure!(expressions(panel).count() > 0, "it shows nothing: {panel:#}");
        for expression in expressions(panel) {
            for selected in ["group=~\"$group\"", "node=~\"$node\""] {
                ensure!(expression.contains(selected), "{}: no {selected} in {expression}", panel["title"]);
            }
            let of_pools =
                expression.matches("bulkhead_pool_").count() + expression.matches("_share_used_ratio").count();
            let selected = expression.matches("pool=~\"$pool\"").count();
            ensure!(selected >= of_pools, "{}: any pool's in {expression}", panel["title"]);
        }
    }
    let mut places: Vec<_> = panels.iter().map(|panel| panel["gridPos"].to_string()).collect();
    places.sort();
    places.dedup();
    ensure!(places.len() == panels.len(), "two panels are in one place");
    Ok(())
}

/// As a file of rules, which promtool reads.
fn as_rules(panels: &[Value]) -> String {
    let expressions = panels.iter().flat_map(expressions);
    let rules = expressions.enumerate().map(|(number, expression)| {
        // Variables stand inside strings, so they are no fault.
        format!("  - {{record: 'panel:{number}', expr: '{}'}}\n", expression.replace('\'', "''"))
    });
    format!("groups:\n- name: panels\n  rules:\n{}", rules.collect::<String>())
}

fn promtool_finds_no_fault_with_metrics_and_alerts(cluster: &mut Cluster) -> Result<()> {
    let program =
        std::env::var_os("BULKHEAD_PROMTOOL").context("$BULKHEAD_PROMTOOL does not name promtool's program")?;
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &cluster.node()))?;
    cluster.bound("data")?;
    let scratch = tempfile::NamedTempFile::new()?;
    fs::write(scratch.path(), metrics(cluster)?)?;
    // `Printed` passes no input to a command.
    let checked = Command::new(&program).args(["check", "metrics"]).stdin(File::open(scratch.path())?).output()?;
    let faults = String::from_utf8_lossy(&checked.stdout) + String::from_utf8_lossy(&checked.stderr);
    ensure!(checked.status.success() && faults.is_empty(), "{faults}");
    let mut check = Command::new(&program);
    let checked = Printed::by(check.args(["check", "rules", "--lint-fatal", prometheus::RULES]))?.succeeded()?;
    ensure!(checked.contains(&format!("SUCCESS: {ALERTS} rules found")), "{checked}");
    let panels = panels()?;
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), as_rules(&panels))?;
    let mut check = Command::new(&program);
    Printed::by(check.args(["check", "rules"]).arg(file.path()))?.succeeded()?;
    // Whether they fire when they should.
    let mut test = Command::new(&program);
    Printed::by(test.args(["test", "rules", &prometheus::RULES.replace(".yaml", "_test.yaml")]))?.succeeded().map(drop)
}

/// With the deployed alerts, none of which a healthy agent triggers.
fn prometheus_scrapes_an_agent(cluster: &mut Cluster) -> Result<()> {
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &cluster.node()))?;
    cluster.bound("data")?;
    let prometheus = Prometheus::start(&monitoring::address(&cluster.agents[0].rig)?)?;
    let promised = "bulkhead_pool_promised_bytes{pool=\"default\"}";
    cluster.access.wait(cluster.patience(), "Prometheus to have scraped the agent", || {
        ensure!(prometheus.value("up")? == Some(1.0), "the agent cannot be scraped: {}", prometheus.ask("targets")?);
        ensure!(prometheus.value(promised)? == Some(f64::from(8 << 20)), "another {promised}");
        Ok(())
    })?;
    let rules = prometheus.ask("rules")?;
    let groups = rules["groups"].as_array().context("no rules")?;
    let rules: Vec<_> = groups.iter().filter_map(|group| group["rules"].as_array()).flatten().collect();
    ensure!(rules.len() == ALERTS, "{} rules", rules.len());
    for rule in rules {
        ensure!(rule["health"] != "err" && rule["state"] != "firing", "{rule}");
    }
    let samples = prometheus.value("scrape_samples_scraped")?.context("no samples")?;
    let seconds = prometheus.value("scrape_duration_seconds")?.context("no duration")?;
    let limit = patience(Duration::from_secs(1)).as_secs_f64();
    ensure!(samples >= 100.0 && seconds < limit, "{samples} samples in {seconds} s");
    Ok(())
}
