//! Disks of every sort, each a file behind a loop device, and what programs know them by.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::commands::Printed;
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::program;
use serde_json::Value;

/// Large enough for XFS.
pub const SIZE: u64 = 320 << 20;
const SECTOR: usize = 512;

/// A machine's disks, and the directory of its pools; all is gone at the end.
pub struct Disks {
    directory: PathBuf,
    devices: Vec<PathBuf>,
}

impl Disks {
    pub fn of(rig: &Rig) -> Result<Self> {
        let directory = rig.work().join("disks");
        fs::create_dir_all(directory.join("made"))?;
        Ok(Self { directory, devices: Vec::new() })
    }

    /// The file behind a disk.
    pub fn image(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Adds an empty disk, and returns its device.
    pub fn add(&mut self, name: &str) -> Result<PathBuf> {
        self.add_with(name, SIZE, &[])
    }

    /// Adds a disk with these bytes.
    pub fn add_with(&mut self, name: &str, size: u64, bytes: &[(u64, Vec<u8>)]) -> Result<PathBuf> {
        let image = File::create_new(self.image(name))?;
        image.set_len(size)?;
        for (offset, bytes) in bytes {
            image.write_all_at(bytes, *offset)?;
        }
        self.attach(name)
    }

    /// Attaches a file that is there.
    pub fn attach(&mut self, name: &str) -> Result<PathBuf> {
        let device = loops::attach(&self.image(name))?;
        self.devices.push(device.clone());
        Ok(device)
    }

    /// Takes a disk out of the machine, and unmounts it if it is mounted.
    pub fn remove(&mut self, device: &Path) -> Result<()> {
        self.unmount()?;
        self.devices.retain(|own| own != device);
        loops::detach(device)
    }

    pub fn unmount(&self) -> Result<()> {
        mounts::unmount_all(&self.directory)
    }

    pub fn fstab(&self) -> PathBuf {
        self.directory.join("fstab")
    }

    /// Where a pool is mounted.
    pub fn pool(&self, name: &str) -> PathBuf {
        self.directory.join("made").join(name)
    }

    /// `bulkhead-setup prepare` for these disks.
    pub fn command(&self, devices: &[&Path], more: &[&str]) -> Result<Command> {
        let mut command = Command::new(program("bulkhead-setup")?);
        command.args(["prepare", "--type", "loop", "--fstab"]).arg(self.fstab());
        command.arg("--directory").arg(self.directory.join("made"));
        for device in devices {
            command.arg("--path").arg(device);
        }
        command.args(more);
        Ok(command)
    }

    pub fn prepare(&self, devices: &[&Path], more: &[&str]) -> Result<Printed> {
        Printed::by(&mut self.command(devices, more)?)
    }

    /// Checks that a disk is the pool with this name, and that another run has nothing to do.
    pub fn is_pool(&self, device: &Path, name: &str) -> Result<()> {
        let fstab = fs::read_to_string(self.fstab())?;
        let said = self.prepare(&[device], &["--yes"])?.succeeded()?;
        ensure!(said.contains("nothing is to be done") && said.contains(&format!("--pool {name}=")), "{said}");
        ensure!(fs::read_to_string(self.fstab())? == fstab, "another run changes {fstab}");
        let point = self.pool(name);
        let mounted = mounts::at(&point)?;
        let [mount] = mounted.as_slice() else { anyhow::bail!("{mounted:?} at {}", point.display()) };
        ensure!(mount.filesystem == "xfs" && mount.super_options.iter().any(|own| own == "prjquota"), "{mount:?}");
        let marker = fs::read_to_string(point.join(".bulkhead"))?;
        ensure!(marker.contains(&format!("name {name}\n")), "{marker}");
        let line =
            fstab.lines().find(|line| line.starts_with("UUID=") && line.contains(&format!(" {} ", point.display())));
        ensure!(line.is_some_and(|line| line.contains(" xfs prjquota,nofail ")), "{fstab}");
        Ok(())
    }

    /// The first and the last MiBs of a disk.
    pub fn ends(&self, name: &str) -> Result<Vec<u8>> {
        let image = File::open(self.image(name))?;
        let part = image.metadata()?.len().min(8 << 20);
        let mut bytes = vec![0; usize::try_from(part)? * 2];
        let (first, last) = bytes.split_at_mut(usize::try_from(part)?);
        image.read_exact_at(first, 0)?;
        image.read_exact_at(last, image.metadata()?.len() - part)?;
        Ok(bytes)
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        let _ = self.unmount();
        for device in &self.devices {
            let _ = loops::detach(device);
        }
    }
}

/// Why a device is not taken, in JSON that was printed.
pub fn reason(printed: &Value, device: &Path) -> Result<String> {
    let devices = printed["devices"].as_array().context("no devices are listed")?;
    let found = devices.iter().find(|listed| listed["path"] == device.to_string_lossy().as_ref());
    let found = found.with_context(|| format!("{} is not listed: {printed}", device.display()))?;
    Ok(found["reason"].as_str().unwrap_or_default().to_owned())
}

/// Formats a disk as others do.
pub fn format(filesystem: &str, device: &Path) -> Result<()> {
    run(Command::new(format!("mkfs.{filesystem}")).arg("-q").arg(device))
}

/// What LVM writes to a physical volume.
pub fn lvm() -> Vec<(u64, Vec<u8>)> {
    let mut label = vec![0; SECTOR];
    put(&mut label, 0, b"LABELONE");
    put(&mut label, 8, &1_u64.to_le_bytes());
    put(&mut label, 20, &32_u32.to_le_bytes());
    put(&mut label, 24, b"LVM2 001");
    put(&mut label, 32, &[b'a'; 32]);
    let sum = crc(&label[20..], 0xf597_a6cf);
    put(&mut label, 16, &sum.to_le_bytes());
    vec![(SECTOR as u64, label)]
}

/// The superblock of a member of a RAID, version 1.2.
pub fn raid() -> Vec<(u64, Vec<u8>)> {
    let mut superblock = vec![0; 256];
    put(&mut superblock, 0, &0xa92b_4efc_u32.to_le_bytes());
    put(&mut superblock, 4, &1_u32.to_le_bytes());
    put(&mut superblock, 16, &[7; 16]);
    put(&mut superblock, 144, &8_u64.to_le_bytes());
    vec![(4096, superblock)]
}

/// A partition table of the old kind, with one partition.
pub fn mbr(kind: u8) -> Vec<(u64, Vec<u8>)> {
    let mut sector = vec![0; SECTOR];
    sector[446 + 4] = kind;
    put(&mut sector, 446 + 8, &1_u32.to_le_bytes());
    put(&mut sector, 446 + 12, &u32::try_from(SIZE / 512 - 1).expect("it is small").to_le_bytes());
    put(&mut sector, 510, &[0x55, 0xaa]);
    vec![(0, sector)]
}

/// A partition table of the new kind, with no partition.
pub fn gpt() -> Vec<(u64, Vec<u8>)> {
    let last = SIZE / 512 - 1;
    let mut header = vec![0; SECTOR];
    put(&mut header, 0, b"EFI PART");
    for (place, value) in [(8, 0x1_0000_u32), (12, 92), (80, 128), (84, 128), (88, !crc(&[0; 128 * 128], !0))] {
        put(&mut header, place, &value.to_le_bytes());
    }
    for (place, value) in [(24, 1), (32, last), (40, 34), (48, last - 33), (72, 2_u64)] {
        put(&mut header, place, &value.to_le_bytes());
    }
    put(&mut header, 56, &[9; 16]);
    let sum = !crc(&header[..92], !0);
    put(&mut header, 16, &sum.to_le_bytes());
    let mut all = mbr(0xee);
    all.push((SECTOR as u64, header));
    all
}

/// What mkswap writes.
pub fn swap() -> Vec<(u64, Vec<u8>)> {
    let mut page = vec![0; 4096];
    put(&mut page, 1024, &1_u32.to_le_bytes());
    put(&mut page, 1028, &100_u32.to_le_bytes());
    put(&mut page, 4086, b"SWAPSPACE2");
    vec![(0, page)]
}

/// The header of an encrypted disk.
pub fn luks() -> Vec<(u64, Vec<u8>)> {
    let mut header = vec![0; 592];
    put(&mut header, 0, b"LUKS\xba\xbe\0\x01");
    vec![(0, header)]
}

fn put(bytes: &mut [u8], place: usize, value: &[u8]) {
    bytes[place..place + value.len()].copy_from_slice(value);
}

/// The checksum of LVM, and that of GPT before its last step.
fn crc(bytes: &[u8], begin: u32) -> u32 {
    bytes.iter().fold(begin, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg()))
    })
}
