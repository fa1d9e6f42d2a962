//! A release: everything that users download, made from one commit. The same commit always yields the same bytes.

mod chart;
mod check;
mod desktops;
mod krew;
mod origin;
mod programs;
mod sbom;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fs_err as fs;

pub use self::check::check;
pub use self::desktops::archive as archive_of_plugin;
pub use self::origin::Origin;
use crate::cache;
use crate::cargo_tool::CYCLONEDX;
use crate::checksum::sha256;
use crate::desktop::Desktop;
use crate::files::files;
use crate::go_tool::HELM;
use crate::image;
use crate::progress::timed;
use crate::workspace::{Architecture, Profile, Selection, Workspace, cargo_home};
use crate::zig::Zig;

/// The version of the release.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The file with the checksums of all others.
pub const CHECKSUMS: &str = "SHA256SUMS";

/// How the names of all others begin.
const OURS: [&str; 3] = ["bulkhead-", "bulkheadctl-", "kubectl-bulkhead-"];

/// What a release is made of.
pub struct Contents<'a> {
    /// The commit.
    pub origin: &'a Origin,
    /// The processors. The plugin is also built for other systems with these.
    pub architectures: &'a [Architecture],
    /// Where the images will be pushed to; without it they are meant to be imported on nodes.
    pub registry: Option<&'a str>,
}

/// Builds the programs and writes all files into a directory, replacing those of an earlier release.
pub fn write(workspace: &Workspace, contents: &Contents<'_>, directory: &Path) -> Result<()> {
    let copy = origin::copy(workspace)?;
    write_from(copy.path(), workspace, contents, directory)
}

/// The same; what is not compiled is taken from a directory that contains the source and nothing else.
fn write_from(source: &Path, workspace: &Workspace, contents: &Contents<'_>, directory: &Path) -> Result<()> {
    let Contents { origin, architectures, .. } = contents;
    empty(directory)?;
    let helm = HELM.provide(workspace)?;
    CYCLONEDX.command()?;
    let zig = Zig::provide()?;
    // The program for this host writes the manual pages and the completions for all architectures.
    let host = Architecture::host();
    for architecture in [host].iter().chain(architectures.iter().filter(|one| **one != host)) {
        timed(format_args!("building for {}", architecture.name()), || {
            let built = workspace.build(Selection::Shipped, *architecture, Profile::Release)?;
            built.iter().try_for_each(|program| names_no_path(workspace, program))
        })?;
    }
    for desktop in Desktop::with(architectures) {
        timed(format_args!("building the plugin for {}", desktop.name()), || {
            let plugin = desktop.build(workspace, &zig)?;
            names_no_path(workspace, &plugin)?;
            desktops::write(desktop, &plugin, source, origin, directory)
        })?;
    }
    let common = programs::common(workspace, source)?;
    for architecture in *architectures {
        programs::write(workspace, *architecture, &common, origin.date, directory)?;
    }
    let program = |name: &str, architecture| workspace.program(name, architecture, Profile::Release);
    let images = image::write_released(program, contents, directory)?;
    krew::write(source, architectures, directory)?;
    chart::write(source, &images, origin, &helm, directory)?;
    sbom::write(source, architectures, origin, directory)?;
    let lines: String = checksums(directory)?.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
    fs::write(directory.join(CHECKSUMS), lines).context("write the checksums")
}

/// Writes what a registry gets of a release, into an empty directory, from programs that are already built for this host.
pub fn write_for_registry(
    workspace: &Workspace,
    built: impl Fn(&str) -> PathBuf,
    registry: &str,
    directory: &Path,
) -> Result<()> {
    let origin = &Origin::of(workspace)?;
    let contents = Contents { origin, architectures: &[Architecture::host()], registry: Some(registry) };
    let images = image::write_released(|name, _| built(name), &contents, directory)?;
    chart::write(&workspace.root, &images, origin, &HELM.provide(workspace)?, directory)
}

/// Removes the files of an earlier release, and nothing else.
fn empty(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    let names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
    let ours =
        |name: &str| OURS.iter().any(|start| name.starts_with(start)) || [CHECKSUMS, chart::MANIFEST].contains(&name);
    for name in &names {
        ensure!(
            ours(&name.to_string_lossy()),
            "{} has files that are of no release, such as {}: choose an empty directory",
            directory.display(),
            name.display()
        );
    }
    Ok(names.iter().try_for_each(|name| fs::remove_file(directory.join(name)))?)
}

/// A program that contains a path of the machine that built it would differ on another machine.
fn names_no_path(workspace: &Workspace, program: &Path) -> Result<()> {
    let content = fs::read(program)?;
    for place in [&workspace.root, &workspace.target, &cargo_home()?, &cache::directory("tools")?] {
        let path = place.to_string_lossy();
        let named = content.windows(path.len()).any(|window| window == path.as_bytes());
        ensure!(
            !named,
            "{} has the path {path} in it: another machine's build would not be the same",
            program.display()
        );
    }
    Ok(())
}

/// The checksum of each file by its name.
pub fn checksums(directory: &Path) -> Result<BTreeMap<String, String>> {
    let others = files(directory)?.into_iter().filter(|(name, _)| name != CHECKSUMS);
    Ok(others.map(|(name, content)| (name, sha256(&content))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_deployed_has_this_version() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (file, line) in [
            ("deploy/helm/bulkhead/Chart.yaml", format!("version: {VERSION}")),
            ("deploy/helm/bulkhead/Chart.yaml", format!("appVersion: {VERSION}")),
            ("deploy/kubernetes/frontend/daemonset.yaml", format!("image: bulkhead-frontend:{VERSION}")),
            ("deploy/kubernetes/overlays/container/privhelper.yaml", format!("image: bulkhead-privhelper:{VERSION}")),
            ("deploy/kubernetes/overlays/root-pool/pool.yaml", format!("image: bulkhead-privhelper:{VERSION}")),
        ] {
            let text = fs::read_to_string(root.join(file)).unwrap();
            assert!(text.lines().any(|found| found.trim() == line), "{file} does not say {line}");
        }
    }

    #[test]
    fn a_program_that_names_a_directory_of_this_machine_is_not_released() {
        let workspace = Workspace::load().unwrap();
        let program = tempfile::NamedTempFile::new().unwrap();
        fs::write(&program, "panicked at /bulkhead/frontend/src/main.rs").unwrap();
        names_no_path(&workspace, program.path()).unwrap();
        fs::write(&program, format!("panicked at {}/frontend/src/main.rs", workspace.root.display())).unwrap();
        assert!(names_no_path(&workspace, program.path()).is_err());
    }

    #[test]
    fn only_an_earlier_release_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("bulkhead-0.0.1.tgz"), "").unwrap();
        fs::write(at(CHECKSUMS), "").unwrap();
        empty(directory.path()).unwrap();
        assert!(!at(CHECKSUMS).exists());
        for name in ["bulkhead-0.0.1.tgz", "notes"] {
            fs::write(at(name), "").unwrap();
        }
        assert!(empty(directory.path()).unwrap_err().to_string().contains("notes"));
        assert!(at("bulkhead-0.0.1.tgz").exists());
    }
}
