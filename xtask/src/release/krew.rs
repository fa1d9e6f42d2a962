//! The manifest with which krew installs `kubectl bulkhead` from an archive of the release.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::VERSION;
use crate::checksum::sha256;
use crate::workspace::Architecture;

const HEAD: &str = "deploy/krew/bulkhead.yaml";
const PLUGIN: &str = "kubectl-bulkhead";

/// Writes the manifest for the archives that are in the directory.
pub fn write(source: &Path, architectures: &[Architecture], directory: &Path) -> Result<()> {
    let path = source.join(HEAD);
    let head = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut manifest = format!("{head}  version: v{VERSION}\n  platforms:\n");
    for architecture in architectures {
        let name = format!("bulkhead-{VERSION}-linux-{}", architecture.debian());
        let archive = directory.join(format!("{name}.tar.gz"));
        let content = fs::read(&archive).with_context(|| format!("read {}", archive.display()))?;
        manifest += &platform(architecture.debian(), &name, &sha256(&content));
    }
    let path = directory.join(format!("bulkhead-{VERSION}-krew.yaml"));
    fs::write(&path, manifest).with_context(|| format!("write {}", path.display()))
}

/// Where the archive will be published is not known here: its name stands for that, and krew is given the file.
fn platform(architecture: &str, name: &str, sha256: &str) -> String {
    format!(
        "  - selector:\n      matchLabels: {{os: linux, arch: {architecture}}}\n    uri: {name}.tar.gz\n    \
         sha256: {sha256}\n    files:\n    - {{from: {name}/bin/{PLUGIN}, to: .}}\n    - {{from: {name}/LICENSE, to: .}}\n    \
         bin: {PLUGIN}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_has_the_checksum_of_each_archive() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let directory = tempfile::tempdir().unwrap();
        let both = [Architecture::Amd64, Architecture::Arm64];
        for name in both.map(|one| format!("bulkhead-{VERSION}-linux-{}.tar.gz", one.debian())) {
            fs::write(directory.path().join(&name), &name).unwrap();
        }
        write(&source, &both, directory.path()).unwrap();
        let manifest = fs::read_to_string(directory.path().join(format!("bulkhead-{VERSION}-krew.yaml"))).unwrap();
        for line in [
            format!("  version: v{VERSION}"),
            "      matchLabels: {os: linux, arch: arm64}".to_owned(),
            format!("    sha256: {}", sha256(format!("bulkhead-{VERSION}-linux-arm64.tar.gz").as_bytes())),
            format!("    - {{from: bulkhead-{VERSION}-linux-amd64/bin/kubectl-bulkhead, to: .}}"),
            "    bin: kubectl-bulkhead".to_owned(),
        ] {
            assert!(manifest.lines().any(|found| found == line), "{line:?} is not in:\n{manifest}");
        }
        assert!(!manifest.contains("://"), "it names an address that may not exist");
    }
}
