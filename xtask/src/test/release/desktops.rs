//! Whether the plugin's archives for macOS and Windows can be used.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use super::Transcript;
use crate::desktop::Desktop;
use crate::directory::run_directory;
use crate::packages;
use crate::process::{capture, command, run_quietly};
use crate::release::{VERSION, archive_of_plugin};
use crate::workspace::{Architecture, Workspace};
use crate::zig::Zig;

/// Where Debian has wine, which is not in the PATH.
const WINE: &str = "/usr/lib/wine";

/// They are unpacked, and what can be started here is.
pub fn the_plugin_is_in_its_archives(workspace: &Workspace, directory: &Path, _: &mut Transcript<'_>) -> Result<()> {
    for desktop in Desktop::with(&Architecture::ALL) {
        let scratch = run_directory(&workspace.runs())?;
        let (name, file) = archive_of_plugin(desktop);
        let archive = directory.join(&file);
        match desktop.is_windows() {
            true => {
                run_quietly(command("python3").args(["-m", "zipfile", "--extract"]).arg(&archive).arg(scratch.path()))
            }
            false => run_quietly(command("tar").arg("-xzf").arg(&archive).current_dir(scratch.path())),
        }?;
        let unpacked = scratch.path().join(name);
        let program = unpacked.join(desktop.program());
        for path in [&unpacked.join("LICENSE"), &program] {
            let length = fs::metadata(path)?.len();
            ensure!(length > 0, "{} is empty", path.display());
        }
        if desktop.is_windows() && Architecture::host() == Architecture::Amd64 {
            start_on_windows(scratch.path(), &unpacked, desktop)?;
        }
    }
    Ok(())
}

/// wine stands for Windows.
fn start_on_windows(scratch: &Path, unpacked: &Path, desktop: Desktop) -> Result<()> {
    packages::require(&["wine64"])?;
    add_to_wine(unpacked, desktop)?;
    let wine = |name: &str| {
        let mut wine = Command::new(Path::new(WINE).join(name));
        // The system that it makes here has no kubeconfig.
        wine.env("WINEPREFIX", scratch.join("wine")).env("WINEDEBUG", "-all").env_remove("KUBECONFIG");
        wine
    };
    let plugin = |arguments: &[&str]| {
        let mut plugin = wine("wine64");
        plugin.arg(unpacked.join(desktop.program())).args(arguments);
        plugin
    };
    let checked = (|| {
        let printed = capture(&mut plugin(&["--version"]))?;
        ensure!(printed.trim().ends_with(VERSION), "the plugin for Windows says {printed}");
        let offered = capture(&mut plugin(&["complete", "--", "vol"]))?;
        ensure!(offered.starts_with("volumes\t"), "the plugin for Windows offers {offered}");
        let script = capture(&mut plugin(&["completion"]))?;
        ensure!(script.contains("@kubectl-bulkhead complete -- %*\r\n"), "cmd is given {script}");
        let failed = plugin(&["nodes", "--output", "json"]).output().context("start the plugin for Windows")?;
        let said = String::from_utf8_lossy(&failed.stderr);
        ensure!(failed.status.code() == Some(1) && said.contains(r#""code":"#), "without a cluster it says {said}");
        Ok(())
    })();
    // What wine has started in the background would go on writing to the directory. It is an error if there is nothing.
    let _ = run_quietly(wine("wineserver64").arg("-k"));
    checked
}

/// Makes the library that wine lacks, where Windows looks first: beside the program.
fn add_to_wine(unpacked: &Path, desktop: Desktop) -> Result<()> {
    let source = unpacked.join("bcryptprimitives.c");
    fs::write(&source, include_str!("bcryptprimitives.c"))?;
    let zig = Zig::provide()?;
    let mut compile = Command::new(zig.program());
    compile.envs(zig.environment()).args(["cc", "-target", &desktop.zig(), "-shared", "-o", "bcryptprimitives.dll"]);
    run_quietly(compile.arg(source).arg("-ladvapi32").current_dir(unpacked))
}
