//! The CSI community's sanity suite against the running frontend: with mount access, with block access, and with mount
//! access to filesystems in images; nothing may be left over afterwards.

use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::program;
use bulkhead_tests::runner::{self, Verbosity};

cases! {
    mount_access: Long,
    block_access: Long,
    filesystems_in_images: Bare + Long,
    an_unmodified_run_fails_where_directories_would_be_copied: Long,
}

/// The tests that copy a volume, by a part of their names, and how many they are. docs/development/csi-sanity.md names
/// the figures.
const COPYING: [&str; 5] = [
    "should create volume from an existing source",
    "ListSnapshots",
    "GetSnapshot",
    "DeleteSnapshot",
    "CreateSnapshot",
];
const FAIL: usize = 12;

fn main() -> ExitCode {
    runner::main(cases(), Verbosity::Everything)
}

fn mount_access(rig: &mut Rig) -> Result<()> {
    // They are directories, which cannot be copied, even where the pool can copy others.
    sanity(rig, "mount", &["-volumes=directory", "-uncopyable", "-attribute=inodes=2000"].map(str::to_owned))
}

fn block_access(rig: &mut Rig) -> Result<()> {
    sanity(rig, "block", &[])
}

fn filesystems_in_images(rig: &mut Rig) -> Result<()> {
    rig.add_pool_for_filesystems("default")?;
    rig.start()?;
    let sizes = [format!("-size={}", 320 << 20), format!("-expanded-size={}", 512 << 20)];
    let parameters = ["-volumes=filesystem", "-parameter=backing=image", "-parameter=sparse=true"].map(str::to_owned);
    sanity(rig, "mount", &[&sizes[..], &parameters].concat())
}

fn an_unmodified_run_fails_where_directories_would_be_copied(rig: &mut Rig) -> Result<()> {
    let output = suite(rig, "mount")?.arg("-volumes=unmodified").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let failed: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("---- ")?.strip_suffix(" ----")).collect();
    let others: Vec<_> = failed.iter().filter(|name| !COPYING.iter().any(|part| name.contains(part))).collect();
    ensure!(others.is_empty() && failed.len() == FAIL, "{failed:#?}");
    ensure!(text.lines().any(|line| line == format!("75 passed, {FAIL} failed")), "{text}");
    // Of this test, which is one.
    println!("1 passed, 0 failed");
    Ok(())
}

fn sanity(rig: &mut Rig, access: &str, more: &[String]) -> Result<()> {
    let status = suite(rig, access)?.args(more).status()?;
    ensure!(status.success(), "csi-sanity with {access} access failed");
    Ok(())
}

fn suite(rig: &Rig, access: &str) -> Result<Command> {
    let mut command = Command::new(program("bulkhead-csi-sanity")?);
    // Targets are in a directory that the suite makes and removes, below the publish directory.
    command
        .arg(format!("-endpoint=unix://{}", rig.kubelet.csi_socket().display()))
        .arg(format!("-targets={}", rig.target("targets").display()))
        .arg(format!("-staging={}", rig.target("staging").display()))
        .arg(format!("-access={access}"));
    Ok(command)
}
