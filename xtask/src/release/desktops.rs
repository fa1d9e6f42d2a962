//! The archives of the plugin for macOS and Windows.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::VERSION;
use super::origin::Origin;
use crate::archive::zip::zip;
use crate::archive::{Archive, gzip};
use crate::desktop::{Desktop, PLUGIN};

/// The archive: the directory in it, and the file that it is.
///
/// Windows itself opens zip archives. krew unpacks both kinds everywhere.
pub fn archive(desktop: Desktop) -> (String, String) {
    let name = format!("{PLUGIN}-{VERSION}-{}", desktop.name());
    let file = format!("{name}.{}", if desktop.system() == "windows" { "zip" } else { "tar.gz" });
    (name, file)
}

/// Writes the archive of a plugin that is built.
pub fn write(desktop: Desktop, plugin: &Path, source: &Path, origin: &Origin, directory: &Path) -> Result<()> {
    let (name, file) = archive(desktop);
    let read = |path: &Path| fs::read(path).with_context(|| format!("read {}", path.display()));
    let files = [
        (format!("{name}/LICENSE"), 0o644, read(&source.join("LICENSE"))?),
        (format!("{name}/{}", desktop.program()), 0o755, read(plugin)?),
    ];
    let packed = if desktop.system() == "windows" {
        zip(&files, &origin.date)?
    } else {
        let mut archive = Archive::new(origin.seconds);
        archive.directory(&name)?;
        files.iter().try_for_each(|(path, mode, content)| archive.file(path, *mode, content))?;
        gzip(&archive.finish()?)?
    };
    let path = directory.join(file);
    fs::write(&path, packed).with_context(|| format!("write {}", path.display()))
}
