//! The definitions in `proto/` match the public ones on the wire.
//!
//! The expected listings were generated from CSI 1.13.0, k8s.io/kubelet 0.34.0 and external-snapshot-metadata 1.1.0. What CSI 1.12.0 had beyond 1.13.0 is
//! listed apart: the numbers are reserved for it.

#[path = "wire/listing.rs"]
mod listing;

use std::collections::BTreeSet;
use std::path::Path;

use listing::listing;

fn listed(file: &str, services: &[&str]) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    let files = protox::compile([file], [directory]).unwrap();
    listing(files.file.iter().find(|known| known.name() == file).unwrap(), services)
}

#[test]
fn csi_is_the_public_one() {
    let ours = listed("csi.proto", &["Identity", "Controller", "Node", "GroupController", "SnapshotMetadata"]);
    let (public, former) = (include_str!("wire/csi.txt"), include_str!("wire/csi-1.12.txt"));
    let expected: BTreeSet<_> = public.lines().chain(former.lines()).collect();
    assert_eq!(ours.lines().collect::<BTreeSet<_>>(), expected);
}

#[test]
fn plugin_registration_is_the_public_one() {
    assert_eq!(listed("pluginregistration.proto", &["Registration"]), include_str!("wire/pluginregistration.txt"));
}

#[test]
fn snapshot_metadata_is_the_public_one() {
    assert_eq!(listed("snapshotmetadata.proto", &["SnapshotMetadata"]), include_str!("wire/snapshotmetadata.txt"));
}
