//! A disk that `bulkhead-setup prepare` has made a pool is mounted by systemd from then on, and a successor stays mounted.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::commands::Printed;
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pool::{output, run};
use bulkhead_tests::run_options::program;
use bulkhead_tests::wait;

use crate::node::Node;
use crate::unit::systemctl;

cases! {
    on Node;
    a_prepared_disk_and_its_successor_are_mounted_by_systemd: Bare,
}

const FSTAB: &str = "/etc/fstab";
const DIRECTORY: &str = "/srv/prepared";
const UNIT: &str = "srv-prepared-disk\\x2d1.mount";

/// A disk: a file behind a device that neither the helper nor another test takes.
struct Disk(PathBuf);

impl Disk {
    fn add(node: &Node, number: u32) -> Result<Self> {
        let image = node.work.join(format!("disk-{number}"));
        File::create_new(&image)?.set_len(320 << 20)?;
        let device = PathBuf::from(format!("/dev/loop{number}"));
        run(Command::new("losetup").args([&device, &image]))?;
        Ok(Self(device))
    }

    fn prepare(&self, more: &[&str]) -> Result<String> {
        let mut command = Command::new(program("bulkhead-setup")?);
        command.args(["prepare", "--type=loop", "--yes", "--directory", DIRECTORY, "--path"]).arg(&self.0);
        Printed::by(command.args(more))?.succeeded()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = mounts::unmount_all(Path::new(DIRECTORY));
        let _ = loops::detach(&self.0);
    }
}

/// The machine's own table of mounts, which is put back in the end.
struct Fstab(Option<String>);

impl Drop for Fstab {
    fn drop(&mut self) {
        let _ = match &self.0 {
            Some(text) => fs::write(FSTAB, text),
            None => fs::remove_file(FSTAB),
        };
        let _ = systemctl(&["daemon-reload"]);
    }
}

fn property(name: &str) -> Result<String> {
    output(Command::new("systemctl").args(["show", "--value", "--property", name, UNIT]))
}

fn is_mounted() -> Result<()> {
    let mounted = mounts::at(&Path::new(DIRECTORY).join("disk-1"))?;
    let has_quotas = mounted.first().is_some_and(|mount| mount.super_options.iter().any(|own| own == "prjquota"));
    ensure!(mounted.len() == 1 && has_quotas, "{mounted:?}");
    ensure!(property("ActiveState")? == "active" && property("SourcePath")? == FSTAB, "systemd has not mounted it");
    Ok(())
}

fn a_prepared_disk_and_its_successor_are_mounted_by_systemd(node: &mut Node) -> Result<()> {
    let _fstab = Fstab(fs::read_to_string(FSTAB).ok());
    let first = Disk::add(node, 97)?;
    first.prepare(&[])?;
    let patience = node.patience(Duration::from_secs(10));
    wait::until(patience, is_mounted)?;
    // As at a boot.
    systemctl(&["stop", UNIT])?;
    ensure!(mounts::at(&Path::new(DIRECTORY).join("disk-1"))?.is_empty());
    systemctl(&["start", UNIT])?;
    wait::until(patience, is_mounted)?;
    let said = first.prepare(&[])?;
    ensure!(said.contains("nothing is to be done"), "{said}");

    drop(first);
    let second = Disk::add(node, 98)?;
    second.prepare(&["--replace", "disk-1"])?;
    wait::until(patience, is_mounted)?;
    // What systemd would unmount, it does within a moment.
    std::thread::sleep(Duration::from_secs(3));
    is_mounted()?;
    drop(second);
    fs::remove_dir_all(DIRECTORY)?;
    Ok(())
}
