//! The CSI community's sanity suite against the running frontend: with mount access, with block access, and with mount
//! access to filesystems in images; nothing may be left over afterwards.

use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::runner::{self, Telling};
use bulkhead_tests::setting::program;
use bulkhead_tests::stand::Stand;

cases! {
    mount_access: Long,
    block_access: Long,
    filesystems_in_images: Bare + Long,
}

fn main() -> ExitCode {
    runner::main(cases(), Telling::Everything)
}

fn mount_access(stand: &mut Stand) -> Result<()> {
    // They are directories, which cannot be copied, even where the pool can copy others.
    sanity(stand, "mount", &["-uncopyable", "-attribute=inodes=2000"].map(str::to_owned))
}

fn block_access(stand: &mut Stand) -> Result<()> {
    sanity(stand, "block", &[])
}

fn filesystems_in_images(stand: &mut Stand) -> Result<()> {
    stand.add_pool_for_filesystems("default")?;
    stand.start()?;
    let sizes = [format!("-size={}", 320 << 20), format!("-expanded-size={}", 512 << 20)];
    let parameters = ["-parameter=backing=image", "-parameter=sparse=true"].map(str::to_owned);
    sanity(stand, "mount", &[sizes, parameters].concat())
}

fn sanity(stand: &mut Stand, access: &str, more: &[String]) -> Result<()> {
    // Targets are in a directory that the suite makes and removes, below the publish directory.
    let status = Command::new(program("bulkhead-csi-sanity")?)
        .arg(format!("-endpoint=unix://{}", stand.kubelet.csi_socket().display()))
        .arg(format!("-targets={}", stand.target("targets").display()))
        .arg(format!("-staging={}", stand.target("staging").display()))
        .arg(format!("-access={access}"))
        .args(more)
        .status()?;
    ensure!(status.success(), "csi-sanity with {access} access failed");
    Ok(())
}
