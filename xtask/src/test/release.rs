//! A release: whether anyone can build the same bytes, and whether its files can be used.

mod desktops;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fs_err as fs;

use super::count::Count;
use super::transcript::Transcript;
use crate::checksum::sha256;
use crate::directory::run_directory;
use crate::image;
use crate::packages;
use crate::process::{capture, command, run_quietly};
use crate::release::{self, Contents, Origin, VERSION};
use crate::vm::{AGENT, Machine, Options, require_packages};
use crate::workspace::{Architecture, Profile, Selection, Workspace};

/// The images.
const IMAGES: [&str; 2] = ["bulkhead-frontend", "bulkhead-privhelper"];

/// The user of the frontend's image.
const USER: &str = "10001";

/// How long the machine may take for the whole life of its volumes.
const PATIENCE: Duration = Duration::from_secs(900);

/// A test of the release in the given directory.
type Test = fn(&Workspace, &Path, &mut Transcript<'_>) -> Result<()>;

const TESTS: [(&str, Test); 5] = [
    ("two_builds_are_the_same", two_builds_are_the_same),
    ("the_programs_archive_is_complete", the_programs_archive_is_complete),
    ("the_plugin_is_in_its_archives", desktops::the_plugin_is_in_its_archives),
    ("another_program_reads_the_images", another_program_reads_the_images),
    ("the_images_run_on_arm64", the_images_run_on_arm64),
];

/// Makes a release and tests it. If it cannot be built, that counts as one failure.
pub fn run(workspace: &Workspace, transcript: &mut Transcript<'_>) -> Result<Count> {
    let directory = workspace.target.join("tested-release");
    release::write(workspace, &contents(&Origin::of(workspace)?), &directory)?;
    let mut count = Count::default();
    for (name, test) in TESTS {
        let start = Instant::now();
        match test(workspace, &directory, transcript) {
            Ok(()) => {
                transcript.say(&format!("ok      {name}"));
                count.passed += 1;
            }
            Err(error) => {
                transcript.say(&format!("FAILED  {name}\n{error:#}"));
                count.failed += 1;
            }
        }
        transcript.took(name, start.elapsed());
    }
    Ok(count)
}

fn contents(origin: &Origin) -> Contents<'_> {
    Contents { origin, architectures: &Architecture::ALL, registry: None }
}

fn two_builds_are_the_same(workspace: &Workspace, directory: &Path, _: &mut Transcript<'_>) -> Result<()> {
    let differences = release::check(workspace, &contents(&Origin::of(workspace)?), directory)?;
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    run_quietly(command("sha256sum").args(["--check", "--quiet", release::CHECKSUMS]).current_dir(directory))
}

/// The archive is used as intended: it is unpacked, and the programs are started.
fn the_programs_archive_is_complete(workspace: &Workspace, directory: &Path, _: &mut Transcript<'_>) -> Result<()> {
    let scratch = run_directory(&workspace.runs())?;
    let name = format!("bulkhead-{VERSION}-linux-{}", Architecture::host().debian());
    let archive = directory.join(format!("{name}.tar.gz"));
    run_quietly(command("tar").arg("-xzf").arg(archive).current_dir(scratch.path()))?;
    let unpacked = scratch.path().join(name);
    for program in ["bulkhead-frontend", "bulkhead-privhelper", "bulkhead-setup", "bulkheadctl", "kubectl-bulkhead"] {
        let printed = capture(command(unpacked.join("bin").join(program)).arg("--version"))?;
        ensure!(printed.trim().ends_with(VERSION), "{program} says {printed}");
    }
    for file in [
        "LICENSE",
        "README.md",
        "SECURITY.md",
        "deploy/prepare/eks-user-data.txt",
        "deploy/systemd/bulkhead-privhelper.service",
        "deploy/systemd/bulkhead-privhelper.socket",
        "deploy/systemd/bulkhead-frontend.service",
        "deploy/systemd/bulkhead.sysusers",
        "deploy/systemd/bulkhead.tmpfiles",
        "deploy/udev/59-bulkhead.rules",
        "docs/install.md",
        "share/bash-completion/completions/bulkheadctl",
        "share/fish/vendor_completions.d/bulkheadctl.fish",
        "share/zsh/site-functions/_bulkheadctl",
        "share/man/man1/bulkheadctl.1",
        "share/man/man1/bulkheadctl-volume-create.1",
        "share/man/man8/bulkhead-frontend.8",
        "share/man/man8/bulkhead-privhelper.8",
        "share/man/man8/bulkhead-setup.8",
    ] {
        let length = fs::metadata(unpacked.join(file))?.len();
        ensure!(length > 0, "{file} is empty");
    }
    Ok(())
}

/// The program is skopeo, which reads an archive as registries and container runtimes do, and checks every digest in
/// it.
fn another_program_reads_the_images(workspace: &Workspace, directory: &Path, _: &mut Transcript<'_>) -> Result<()> {
    packages::require(&["skopeo"])?;
    let manifest = fs::read_to_string(directory.join(format!("bulkhead-{VERSION}-container.yaml")))?;
    for image in IMAGES {
        let archive = format!("oci-archive:{}", directory.join(format!("{image}-{VERSION}.oci.tar")).display());
        let index = capture(command("skopeo").args(["inspect", "--raw", &archive]))?;
        let digest = sha256(index.as_bytes());
        ensure!(
            manifest.contains(&format!("{image}:{VERSION}@sha256:{digest}\n")),
            "{image}: no manifest has {digest}"
        );
        for architecture in Architecture::ALL {
            let name = architecture.debian();
            let platform = ["--override-os", "linux", "--override-arch", name];
            let found =
                capture(command("skopeo").args(platform).args(["inspect", "--format", "{{.Architecture}}", &archive]))?;
            ensure!(found.trim() == name, "{image}: skopeo takes {found} for {name}");
        }
        let scratch = run_directory(&workspace.runs())?;
        let copy = format!("dir:{}", scratch.path().display());
        run_quietly(
            command("skopeo").args(["--insecure-policy", "copy", "--all", "--preserve-digests", &archive, &copy]),
        )?;
    }
    Ok(())
}

/// In a machine with such a processor: volumes of both kinds, from creation to deletion.
fn the_images_run_on_arm64(workspace: &Workspace, directory: &Path, transcript: &mut Transcript<'_>) -> Result<()> {
    let architecture = Architecture::Arm64;
    require_packages(architecture)?;
    let scratch = run_directory(&workspace.runs())?;
    let mut files: Vec<PathBuf> = workspace.build(Selection::Only(&[AGENT]), architecture, Profile::Dev)?;
    for image in IMAGES {
        let (layer, config) =
            image::read_released(&directory.join(format!("{image}-{VERSION}.oci.tar")), architecture)?;
        ensure!(config["architecture"] == "arm64", "{image} is for {}", config["architecture"]);
        let user = if image == "bulkhead-frontend" { USER } else { "0" };
        ensure!(config["config"]["User"] == format!("{user}:{user}"), "{image} runs as {}", config["config"]["User"]);
        let path = scratch.path().join(format!("{image}.layer"));
        fs::write(&path, layer)?;
        files.push(path);
    }
    let options = Options { architecture, ..Options::new(files) };
    let mut machine = Machine::boot(workspace, &options)?;
    let script = format!("USER_ID={USER}\n{}", include_str!("guest/images"));
    let status = machine.run_with(&script, PATIENCE, &mut |output, bytes| transcript.push(output, bytes))?;
    ensure!(status.success(), "the programs in the machine: {status}");
    Ok(())
}
