//! The script in the user data for EKS, as a node runs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::commands::Printed;
use bulkhead_tests::documented::REPOSITORY;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::program;

use super::disks::Disks;
use super::stand_in_for;

cases! {
    // The machine lacks Python.
    a_node_of_eks_installs_the_program_and_prepares_its_disk: Bare + Host,
}

/// Prints the scripts that cloud-init, which is in Python too, finds in user data.
const SCRIPTS: &str = "\
import email, sys
for part in email.message_from_file(open(sys.argv[1])).walk():
    if part.get_content_type() == 'text/x-shellscript':
        print(part.get_payload(decode=True).decode('ascii'), end='')
";

/// Disks are only looked at: pools need quotas, which this host may not have.
fn a_node_of_eks_installs_the_program_and_prepares_its_disk(rig: &mut Rig) -> Result<()> {
    let mut disks = Disks::of(rig)?;
    let device = disks.add("disk")?;
    let (installed, archive) = (rig.work().join("bin"), archive(rig)?);
    fs::create_dir(&installed)?;
    let path = stand_in_for(rig, "curl", &fetch(&archive))?;
    stand_in_for(rig, "udevadm", "[ \"$*\" = settle ]")?;
    let prepare = disks.command(&[&device], &[])?;
    let prepare: Vec<_> = prepare.get_args().map(|word| word.to_string_lossy()).collect();
    let sum = Printed::by(Command::new("sha256sum").arg(&archive))?.succeeded()?;
    let sum = sum.split_whitespace().next().context("no checksum")?.to_owned();

    let script = script()?;
    let filled = |checksum: &str| -> Result<String> {
        let mut script = script.clone();
        for (word, own) in [
            ("VERSION", env!("CARGO_PKG_VERSION")),
            ("=CHECKSUM\n", &format!("={checksum}\n")),
            // This machine's directory, and its rule.
            ("/usr/local/bin", &installed.to_string_lossy()),
            ("prepare --model 'Amazon EC2 NVMe Instance Storage' --yes", &prepare.join(" ")),
        ] {
            ensure!(script.contains(word), "{word} is not in it: {script}");
            script = script.replace(word, own);
        }
        Ok(script)
    };
    let node = |script: &str| Printed::by(Command::new("sh").args(["-c", script]).env("PATH", &path));

    // An archive that has another content.
    let said = node(&filled(&"0".repeat(64))?)?.failed()?;
    ensure!(said.contains("FAILED") && !said.contains("DEVICE"), "{said}");
    ensure!(fs::read_dir(&installed)?.next().is_none(), "a program was installed: {said}");

    let said = node(&filled(&sum)?)?.succeeded()?;
    ensure!(said.contains("pool disk-1: to be formatted"), "{said}");
    ensure!(fs::read(installed.join("bulkhead-setup"))? == fs::read(program("bulkhead-setup")?)?);
    Ok(())
}

/// The only script in the user data.
fn script() -> Result<String> {
    let recipe = Path::new(REPOSITORY).join("deploy/prepare/eks-user-data.txt");
    let script = Printed::by(Command::new("/usr/bin/python3").args(["-c", SCRIPTS]).arg(recipe))?.succeeded()?;
    ensure!(script.starts_with("#!/bin/sh\n") && script.matches("#!").count() == 1, "{script}");
    Ok(script)
}

/// A release's archive with the program.
fn archive(rig: &Rig) -> Result<PathBuf> {
    let name = format!("bulkhead-{}-linux-amd64", env!("CARGO_PKG_VERSION"));
    let programs = rig.work().join(&name).join("bin");
    fs::create_dir_all(&programs)?;
    fs::copy(program("bulkhead-setup")?, programs.join("bulkhead-setup"))?;
    let archive = rig.work().join("release.tar.gz");
    run(Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(rig.work()).arg(name))?;
    Ok(archive)
}

/// Gives this archive to whoever asks for a release's.
fn fetch(archive: &Path) -> String {
    format!(
        "for url do :; done\n\
         case $url in https://*/releases/download/v*/bulkhead-*-linux-amd64.tar.gz) ;; *) exit 22 ;; esac\n\
         while [ \"$1\" != --output ]; do shift; done\n\
         cp {} \"$2\"",
        archive.display()
    )
}
