//! The manifest with which krew installs `kubectl bulkhead` from an archive of the release.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::{VERSION, desktops};
use crate::checksum::sha256;
use crate::desktop::{Desktop, PLUGIN};
use crate::workspace::Architecture;

const HEAD: &str = "deploy/krew/bulkhead.yaml";

/// A platform, and where the plugin for it is.
struct Platform {
    system: &'static str,
    architecture: &'static str,
    archive: String,
    license: String,
    plugin: String,
}

/// Writes the manifest for the archives that are in the directory.
pub fn write(source: &Path, architectures: &[Architecture], directory: &Path) -> Result<()> {
    let path = source.join(HEAD);
    let head = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut manifest = format!("{head}  version: v{VERSION}\n  platforms:\n");
    for platform in architectures.iter().map(linux).chain(Desktop::with(architectures).map(desktop)) {
        let archive = directory.join(&platform.archive);
        let content = fs::read(&archive).with_context(|| format!("read {}", archive.display()))?;
        manifest += &entry(&platform, &sha256(&content));
    }
    let path = directory.join(format!("bulkhead-{VERSION}-krew.yaml"));
    fs::write(&path, manifest).with_context(|| format!("write {}", path.display()))
}

fn linux(architecture: &Architecture) -> Platform {
    let name = format!("bulkhead-{VERSION}-linux-{}", architecture.debian());
    Platform {
        system: "linux",
        architecture: architecture.debian(),
        archive: format!("{name}.tar.gz"),
        license: format!("{name}/LICENSE"),
        plugin: format!("{name}/bin/{PLUGIN}"),
    }
}

fn desktop(desktop: Desktop) -> Platform {
    let (name, archive) = desktops::archive(desktop);
    Platform {
        system: desktop.system(),
        architecture: desktop.architecture().debian(),
        archive,
        license: format!("{name}/LICENSE"),
        plugin: format!("{name}/{}", desktop.program()),
    }
}

/// Returns where the archive will be published is not known here: its name stands for that, and krew is given the file.
fn entry(platform: &Platform, sha256: &str) -> String {
    let Platform { system, architecture, archive, license, plugin } = platform;
    let program = plugin.rsplit('/').next().unwrap_or(plugin);
    format!(
        "  - selector:\n      matchLabels: {{os: {system}, arch: {architecture}}}\n    uri: {archive}\n    \
         sha256: {sha256}\n    files:\n    - {{from: {plugin}, to: .}}\n    - {{from: {license}, to: .}}\n    \
         bin: {program}\n"
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
        for name in Desktop::with(&both).map(|one| desktops::archive(one).1) {
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
            "      matchLabels: {os: darwin, arch: arm64}".to_owned(),
            format!("    - {{from: kubectl-bulkhead-{VERSION}-darwin-amd64/kubectl-bulkhead, to: .}}"),
            "      matchLabels: {os: windows, arch: amd64}".to_owned(),
            format!("    sha256: {}", sha256(format!("kubectl-bulkhead-{VERSION}-windows-amd64.zip").as_bytes())),
            "    bin: kubectl-bulkhead.exe".to_owned(),
        ] {
            assert!(manifest.lines().any(|found| found == line), "{line:?} is not in:\n{manifest}");
        }
        assert!(!manifest.contains("://"), "it names an address that may not exist");
    }
}
