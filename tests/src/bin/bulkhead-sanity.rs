//! The CSI community's sanity suite against the running frontend, with mount and with block access; nothing may be left
//! over afterwards.

use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::runner::{self, Telling};
use bulkhead_tests::setting::program;
use bulkhead_tests::stand::Stand;

cases! {
    mount_access: Long,
    block_access: Long,
}

fn main() -> ExitCode {
    runner::main(cases(), Telling::Everything)
}

fn mount_access(stand: &mut Stand) -> Result<()> {
    sanity(stand, "mount")
}

fn block_access(stand: &mut Stand) -> Result<()> {
    sanity(stand, "block")
}

fn sanity(stand: &mut Stand, access: &str) -> Result<()> {
    // Targets are in a directory that the suite makes and removes, below the publish directory.
    let status = Command::new(program("bulkhead-csi-sanity")?)
        .arg(format!("-endpoint=unix://{}", stand.kubelet.csi_socket().display()))
        .arg(format!("-targets={}", stand.target("targets").display()))
        .arg(format!("-staging={}", stand.target("staging").display()))
        .arg(format!("-access={access}"))
        .status()?;
    ensure!(status.success(), "csi-sanity with {access} access failed");
    Ok(())
}
