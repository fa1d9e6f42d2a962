//! A Prometheus that scrapes one agent.

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::daemon::Daemon;
use crate::{monitoring, wait};

/// The alerts that we deploy.
pub const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/monitoring/rules.yaml");

/// A running Prometheus. It ends when this is dropped.
#[derive(Debug)]
pub struct Prometheus {
    daemon: Option<Daemon>,
    address: String,
    _directory: TempDir,
}

impl Prometheus {
    /// Starts it with the deployed alerts and `target` as its only target.
    pub fn start(target: &str) -> Result<Self> {
        let program = std::env::var_os("BULKHEAD_PROMETHEUS")
            .context("$BULKHEAD_PROMETHEUS does not name Prometheus' program")?;
        let directory = tempfile::tempdir()?;
        // It cannot choose a port itself. No other process is likely to get this one so soon.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let configuration = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{RULES}']\n\
             scrape_configs: [{{job_name: bulkhead, static_configs: [{{targets: ['{target}']}}]}}]\n"
        );
        let file = directory.path().join("prometheus.yaml");
        fs::write(&file, configuration)?;
        let mut command = Command::new(program);
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        let daemon = Some(Daemon::start("prometheus", &mut command, directory.path())?);
        let prometheus = Self { daemon, address, _directory: directory };
        wait::until(crate::pace::patience(Duration::from_secs(60)), || prometheus.ask("status/runtimeinfo").map(drop))?;
        Ok(prometheus)
    }

    /// The data in its response to an API request.
    pub fn ask(&self, request: &str) -> Result<Value> {
        let (status, body) = monitoring::fetch(&self.address, &format!("/api/v1/{request}"))?;
        let mut answer: Value = serde_json::from_str(&body).with_context(|| format!("status {status}: {body}"))?;
        ensure!(answer["status"] == "success", "{body}");
        Ok(answer["data"].take())
    }

    /// The value of a query with one result, if there is any.
    pub fn value(&self, query: &str) -> Result<Option<f64>> {
        let query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let data = self.ask(&format!("query?query={query}"))?;
        match data["result"].as_array().map(Vec::as_slice) {
            Some([]) => Ok(None),
            Some([one]) => Ok(Some(one["value"][1].as_str().context("no value")?.parse()?)),
            _ => bail!("{data}"),
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            let _ = daemon.kill();
        }
    }
}
