//! The reference client.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Ranges;
use crate::cluster::Cluster;
use crate::commands::Printed;

impl Cluster {
    /// Runs the reference client as an account of the test's namespace.
    pub fn reference_client(&self, account: &str, flags: &[&str]) -> Result<Printed> {
        let program = std::env::var_os("BULKHEAD_CHANGED_BLOCKS_CLIENT");
        let program = program.context("$BULKHEAD_CHANGED_BLOCKS_CLIENT is not set; cargo xtask sets it")?;
        let mut client = Command::new(program);
        client.arg("-kubeconfig").arg(self.access.kubeconfig());
        client.args(["-namespace", &self.namespace, "-service-account-namespace", &self.namespace]);
        Printed::by(client.args(["-service-account", account]).args(flags))
    }

    /// The ranges that the reference client lists.
    pub fn listed(&self, account: &str, flags: &[&str]) -> Result<Ranges> {
        let printed = self.reference_client(account, flags)?.succeeded()?;
        let records: Vec<Value> = serde_json::from_str(&printed).with_context(|| format!("no JSON: {printed}"))?;
        let blocks = records.iter().filter_map(|record| record["block_metadata"].as_array()).flatten();
        // Zeros are left out.
        let number = |value: &Value| value.as_i64().unwrap_or_default();
        Ok(blocks.map(|block| (number(&block["byte_offset"]), number(&block["size_bytes"]))).collect())
    }

    /// Has the reference client make a copy of an earlier snapshot, or zeros, the same as `source`, by the ranges that it is
    /// told, and compare the two.
    pub fn verify(&self, account: &str, source: &Path, target: &Path, flags: &[&str]) -> Result<()> {
        let (source, target) = (source.to_string_lossy(), target.to_string_lossy());
        let devices = ["-source-device-path", &source, "-target-device-path", &target];
        self.reference_client(account, &[devices.as_slice(), flags].concat())?.succeeded().map(drop)
    }
}
