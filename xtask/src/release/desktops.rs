//! The archives of the plugin for macOS and Windows.

use std::path::Path;

use anyhow::Result;
use fs_err as fs;

use super::VERSION;
use super::origin::Origin;
use crate::archive::{Archive, gzip, zip};
use crate::desktop::{Desktop, PLUGIN};

/// The archive: the directory in it, and the file that it is.
///
/// Windows itself opens zip archives. krew unpacks both kinds everywhere.
pub fn archive(desktop: Desktop) -> (String, String) {
    let name = format!("{PLUGIN}-{VERSION}-{}", desktop.name());
    let file = format!("{name}.{}", if desktop.is_windows() { "zip" } else { "tar.gz" });
    (name, file)
}

/// Writes the archive of a plugin that is built.
pub fn write(desktop: Desktop, plugin: &Path, source: &Path, origin: &Origin, directory: &Path) -> Result<()> {
    let (name, file) = archive(desktop);
    let files = [
        (format!("{name}/LICENSE"), 0o644, fs::read(source.join("LICENSE"))?),
        (format!("{name}/{}", desktop.program()), 0o755, fs::read(plugin)?),
    ];
    let packed = if desktop.is_windows() {
        zip(&files, origin.date)?
    } else {
        let mut archive = Archive::new(origin.date);
        files.iter().try_for_each(|(path, mode, content)| archive.file(path, *mode, content))?;
        gzip(&archive.finish()?)?
    };
    Ok(fs::write(directory.join(file), packed)?)
}
