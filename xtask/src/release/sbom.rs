//! The crates in the programs, listed in the CycloneDX format.

use std::path::Path;

use anyhow::{Result, ensure};
use fs_err as fs;

use super::VERSION;
use super::origin::Origin;
use crate::cargo_tool::CYCLONEDX;
use crate::desktop::{Desktop, PLUGIN};
use crate::process::run_quietly;
use crate::workspace::Architecture;

/// The packages whose programs are shipped, with the directories of their manifests. The last is shipped for all systems.
const PACKAGES: [(&str, &str); 4] = [
    ("bulkhead-frontend", "frontend"),
    ("bulkhead-privhelper", "privhelper"),
    ("bulkheadctl", "frontend/bulkheadctl"),
    (PLUGIN, "frontend/kubectl-bulkhead"),
];

/// Writes a list for each package and target. The tool leaves files in the source directory, which is a copy.
pub fn write(source: &Path, architectures: &[Architecture], origin: &Origin, directory: &Path) -> Result<()> {
    let linux = architectures.iter().map(|one| (one.triple(), format!("linux-{}", one.debian()), &PACKAGES[..]));
    let desktops = Desktop::with(architectures).map(|one| (one.triple(), one.name(), &PACKAGES[PACKAGES.len() - 1..]));
    for (triple, target, packages) in linux.chain(desktops) {
        let mut cyclonedx = CYCLONEDX.command()?;
        cyclonedx.arg("cyclonedx").current_dir(source).env("SOURCE_DATE_EPOCH", origin.date.as_second().to_string());
        cyclonedx.args(["--format", "json", "--spec-version", "1.5", "--target", triple, "--quiet"]);
        run_quietly(&mut cyclonedx)?;
        for (package, place) in packages {
            let made = source.join(place).join(format!("{package}.cdx.json"));
            let list = fs::read_to_string(&made)?;
            // The location of the source is part of the ids of our own packages.
            let list = list.replace(&format!("path+file://{}/", source.display()), "path+file:///");
            ensure!(!list.contains(&*source.to_string_lossy()), "the list of {package} names {}", source.display());
            let path = directory.join(format!("{package}-{VERSION}-{target}.cdx.json"));
            fs::write(&path, list)?;
        }
    }
    Ok(())
}
