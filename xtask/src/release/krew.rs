//! The manifest with which krew installs `kubectl bulkhead` from an archive of the release.

use std::path::Path;

use anyhow::Result;
use fs_err as fs;

use super::{VERSION, desktops};
use crate::checksum::sha256;
use crate::desktop::{Desktop, PLUGIN};
use crate::workspace::Architecture;

const HEAD: &str = "deploy/krew/bulkhead.yaml";

/// Writes the manifest for the archives that are in the directory.
pub fn write(source: &Path, architectures: &[Architecture], directory: &Path) -> Result<()> {
    let head = fs::read_to_string(source.join(HEAD))?;
    let mut manifest = format!("{head}  version: v{VERSION}\n  platforms:\n");
    let linux = architectures.iter().map(|architecture| {
        let name = format!("bulkhead-{VERSION}-linux-{}", architecture.debian());
        ("linux", *architecture, format!("{name}.tar.gz"), format!("{name}/bin"), PLUGIN.to_owned())
    });
    let desktops = Desktop::with(architectures).map(|desktop| {
        let (name, archive) = desktops::archive(desktop);
        (desktop.system(), desktop.architecture(), archive, name, desktop.program())
    });
    for (system, architecture, archive, place, program) in linux.chain(desktops) {
        let sha256 = sha256(&fs::read(directory.join(&archive))?);
        let top = place.split('/').next().unwrap_or(&place);
        // Where the archive will be published is not known here: its name stands for that, and krew is given the file.
        manifest += &format!(
            "  - selector:\n      matchLabels: {{os: {system}, arch: {}}}\n    uri: {archive}\n    \
             sha256: {sha256}\n    files:\n    - {{from: {place}/{program}, to: .}}\n    \
             - {{from: {top}/LICENSE, to: .}}\n    bin: {program}\n",
            architecture.debian()
        );
    }
    Ok(fs::write(directory.join(format!("bulkhead-{VERSION}-krew.yaml")), manifest)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_has_the_checksum_of_each_archive() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let directory = tempfile::tempdir().unwrap();
        let linux = Architecture::ALL.map(|one| format!("bulkhead-{VERSION}-linux-{}.tar.gz", one.debian()));
        for name in linux.into_iter().chain(Desktop::with(&Architecture::ALL).map(|one| desktops::archive(one).1)) {
            fs::write(directory.path().join(&name), &name).unwrap();
        }
        write(&source, &Architecture::ALL, directory.path()).unwrap();
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
