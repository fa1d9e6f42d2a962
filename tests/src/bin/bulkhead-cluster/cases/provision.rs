//! A claim that was given to a node becomes a volume there.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::objects::{block, claim, on};
use bulkhead_tests::kubelet::DRIVER;
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::{Value, json, to_value};

cases! {
    on Cluster;
    a_directory_field_by_field,
}

fn a_directory_field_by_field(cluster: &mut Cluster) -> Result<()> {
    let uid = cluster.create_claim(&on(claim("data", &cluster.class, "64Mi"), &cluster.node()))?;
    let volume = cluster.bound("data")?;
    let found = to_value(&volume)?;
    println!("{found}");
    Ok(())
}
