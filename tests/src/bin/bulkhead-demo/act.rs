//! The acts, in order.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pace::patience;
use bulkhead_tests::run_options::program;
use bulkhead_tests::wait;

use crate::node::{Node, STATE, tidy};
use crate::prompt::{ctl, ctl_refused, found, step};
use crate::writer::Writer;

const MIB: u64 = 1 << 20;
/// What is written to each volume and compared later.
const CONTENT: u64 = 24 * MIB;

pub fn prepare(node: &Node) -> Result<()> {
    step("Set up a pool, and check that this node can serve it");
    if node.here {
        println!("   Project quotas are not used on this host, so the sizes of directory volumes are not enforced.");
        println!("   The step that writes past a size therefore shows the block volume only. All else is the same.");
    }
    println!("   $ bulkhead-setup check {}", node.rig.base_flags().join(" "));
    let output = Command::new(program("bulkhead-setup")?).arg("check").args(node.rig.base_flags()).output()?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    text.lines().for_each(|line| println!("   | {line}"));
    ensure!(output.status.success(), "the check failed");
    Ok(())
}

pub fn make(node: &mut Node) -> Result<()> {
    step("Start both processes: the helper as root, the frontend as user 901 without any capabilities");
    node.rig.start()?;
    let frontend = node.rig.running_frontend()?.pid();
    let status = fs::read_to_string(format!("/proc/{frontend}/status"))?;
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim).unwrap_or_default();
    ensure!(value("CapEff:").trim_start_matches('0').is_empty() && value("Uid:").starts_with("901"), "{status}");
    found("the process that takes the requests has no privileges");
    println!("   $ export BULKHEAD_ENDPOINT=unix://{}", node.endpoint().display());
    let endpoint = node.endpoint();
    ctl(&endpoint, "node info")?;
    ctl(&endpoint, "capacity")?;
    step("Create a directory volume and a block volume");
    ctl(&endpoint, "volume create data --size 64Mi")?;
    ctl(&endpoint, "volume create disk --size 64Mi --block")?;
    ctl(&endpoint, "volume create data --size 64Mi")?;
    let listed = ctl(&endpoint, "volume list")?;
    ensure!(listed.lines().count() == 3, "the list does not show two volumes");
    found("creating a volume twice under one name gives one volume");
    Ok(())
}

pub fn use_them(node: &Node) -> Result<()> {
    step("Publish both volumes and fill them");
    publish(node)?;
    publish(node)?;
    check_published(node)?;
    found("publishing twice gives one mount and one loop device");
    fill(&node.target("data").join("content"))?;
    fill(&node.target("disk"))?;
    remember(node)?;
    found("24 MiB of random data written to each, and the checksums recorded");
    let text = ctl(&node.endpoint(), &format!("volume stats data {}", node.target("data").display()))?;
    ensure!(shows_size(&text, "64 MiB"), "the statistics do not show the size of 64 MiB");
    ctl(&node.endpoint(), &format!("volume stats disk {}", node.target("disk").display()))?;
    Ok(())
}

pub fn feel_the_size(node: &Node) -> Result<()> {
    step("Write more than the volumes hold");
    if node.enforces_sizes() {
        let file = node.target("data").join("too-much");
        let error = write_until_refused(&file)?;
        let felt = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&error.kind());
        ensure!(felt, "the write failed with an unexpected error: {error}");
        let written = file.metadata()?.len() / MIB;
        ensure!(written <= 40, "{written} MiB more could be written");
        found(&format!("after {written} MiB more the directory volume is full: {error}"));
        fs::remove_file(file)?;
    } else {
        println!("   The directory volume would take more than its 64 MiB: nothing enforces its size here.");
    }
    let device = File::options().write(true).open(node.target("disk"))?;
    ensure!(device.write_at(&[1; 4096], 64 * MIB).is_err(), "the device is larger than the volume");
    found("nothing can be written past the end of the block volume");
    compare(node)
}

pub fn read_only(node: &Node) -> Result<()> {
    step("Publish the directory volume a second time, read-only");
    let readers = node.target("readers");
    ctl(&node.endpoint(), &format!("volume publish data {} --read-only", readers.display()))?;
    let error = fs::write(readers.join("file"), "x").err().context("a reader could write")?;
    ensure!(error.kind() == io::ErrorKind::ReadOnlyFilesystem, "the write failed with an unexpected error: {error}");
    ensure!(checksum(&readers.join("content"))? == remembered("data")?, "a reader sees different content");
    found(&format!("a reader sees the same content and cannot write: {error}"));
    let beside = node.target("beside");
    ctl_refused(&node.endpoint(), &format!("volume publish disk {} --block --read-only", beside.display()))?;
    ensure!(!beside.exists(), "a refused publish leaves something behind");
    found("a block volume that is published read-write cannot be published read-only as well");
    ctl(&node.endpoint(), &format!("volume unpublish data {}", readers.display()))?;
    Ok(())
}

pub fn grow_while_written(node: &Node) -> Result<()> {
    step("Grow both volumes while they are being written to");
    let writers = writers(node)?;
    let before = counts(&writers);
    ctl(&node.endpoint(), "volume expand data --size 128Mi")?;
    ctl(&node.endpoint(), &format!("volume expand disk --size 128Mi --path {}", node.target("disk").display()))?;
    go_on(&writers, &before)?;
    let device = File::options().write(true).open(node.target("disk"))?;
    device.write_all_at(&[1; 4096], 128 * MIB - 4096)?;
    ensure!(device.write_at(&[1; 4096], 128 * MIB).is_err(), "the device is larger than the volume");
    drop(device);
    if node.enforces_sizes() {
        let file = node.target("data").join("more");
        write_all(&file, 64)?;
        fs::remove_file(&file)?;
        found("the directory volume now takes 64 MiB more");
    }
    stop(writers)?;
    found("both volumes have their new size, and the writers were not interrupted");
    let text = ctl(&node.endpoint(), &format!("volume stats data {}", node.target("data").display()))?;
    ensure!(shows_size(&text, "128 MiB"), "the statistics do not show the new size of 128 MiB");
    compare(node)
}

pub fn kill_both_while_written(node: &mut Node) -> Result<()> {
    step("Kill both processes (SIGKILL) while the volumes are being written to, and start them again");
    let writers = writers(node)?;
    let before = counts(&writers);
    node.rig.kill_frontend()?;
    node.rig.kill_helper()?;
    go_on(&writers, &before)?;
    found("the writers continue while neither process runs");
    let before = counts(&writers);
    node.rig.start()?;
    publish(node)?;
    check_published(node)?;
    go_on(&writers, &before)?;
    stop(writers)?;
    found("publishing again finds the mount and the loop device that exist, and adds none");
    compare(node)
}

pub fn leave(node: &mut Node) -> Result<()> {
    rustix::fs::sync();
    if node.here {
        step("Stop both processes; the volumes stay published");
        node.rig.stop()?;
        check_published(node)
    } else {
        step("Leave the volumes published, and reboot the machine");
        Ok(())
    }
}

pub fn come_back(node: &mut Node) -> Result<()> {
    if node.here {
        step("This host was not rebooted: the volumes are still published");
        check_published(node)?;
    } else {
        step("After the reboot: no mounts and no loop devices; the volumes are in their pool");
        let pool = node.pool();
        ensure!(mounts::below(&node.target(""))?.is_empty(), "something is still published");
        ensure!(loops::backed_by(&pool.device()?)?.is_empty(), "a loop device is still attached");
        ensure!(pool.entries()? == ["data", "disk"], "the pool holds {:?}", pool.entries()?);
        found("the reboot has taken every mount and device, and the pool still has both volumes");
    }
    node.rig.start()
}

pub fn find_again(node: &Node) -> Result<()> {
    step("Publish both volumes again and compare their content");
    ctl(&node.endpoint(), "volume list")?;
    publish(node)?;
    check_published(node)?;
    compare(node)?;
    ensure!(loops::backed_by(&node.pool().device()?)?[0].size()? == 128 * MIB, "the device has a different size");
    found("the sizes are unchanged");
    Ok(())
}

pub fn remove(node: &mut Node) -> Result<()> {
    step("Unpublish and delete both volumes");
    ctl_refused(&node.endpoint(), "volume delete data --yes")?;
    found("a published volume cannot be deleted");
    for id in ["data", "disk"] {
        ctl(&node.endpoint(), &format!("volume unpublish {id} {}", node.target(id).display()))?;
        ctl(&node.endpoint(), &format!("volume delete {id} --yes"))?;
    }
    let pool = node.pool();
    wait::until(patience(Duration::from_secs(60)), || pool.holds(&[]))?;
    ensure!(mounts::below(&node.target(""))?.is_empty(), "a mount is left");
    ensure!(loops::backed_by(&pool.device()?)?.is_empty(), "a loop device is left");
    ensure!(fs::read_dir(node.target(""))?.next().is_none(), "a target is left");
    node.rig.stop()?;
    tidy(node.here)?;
    found("nothing is left: no mounts, loop devices, targets or files in the pool");
    Ok(())
}

fn publish(node: &Node) -> Result<()> {
    let (data, disk) = (node.target("data"), node.target("disk"));
    ctl(&node.endpoint(), &format!("volume publish data {}", data.display()))?;
    ctl(&node.endpoint(), &format!("volume publish disk {} --block", disk.display()))?;
    Ok(())
}

fn check_published(node: &Node) -> Result<()> {
    for id in ["data", "disk"] {
        let number = mounts::at(&node.target(id))?.len();
        ensure!(number == 1, "{id} is mounted {number} times, not once");
    }
    let devices = loops::backed_by(&node.pool().device()?)?;
    ensure!(devices.len() == 1, "there are {} loop devices, not one: {devices:?}", devices.len());
    Ok(())
}

fn fill(path: &Path) -> Result<()> {
    let mut random = File::open("/dev/urandom")?.take(CONTENT);
    let mut file = File::options().create(!path.exists()).write(true).open(path)?;
    io::copy(&mut random, &mut file)?;
    Ok(file.sync_all()?)
}

fn write_all(path: &Path, mebibytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    for _ in 0..mebibytes {
        file.write_all(&[1; MIB as usize])?;
    }
    Ok(file.sync_all()?)
}

fn write_until_refused(path: &Path) -> Result<io::Error> {
    let mut file = File::create(path)?;
    for _ in 0..256 {
        // Lack of space may not show until the data is written back.
        if let Err(error) = file.write_all(&[1; MIB as usize]).and_then(|()| file.sync_data()) {
            return Ok(error);
        }
    }
    anyhow::bail!("256 MiB could be written into a volume of 64 MiB")
}

fn writers(node: &Node) -> Result<[Writer; 2]> {
    Ok([
        Writer::start(&node.target("data").join("journal"), 0, 256)?,
        Writer::start(&node.target("disk"), 32 * MIB, 256)?,
    ])
}

fn counts(writers: &[Writer; 2]) -> [u64; 2] {
    [writers[0].count(), writers[1].count()]
}

fn go_on(writers: &[Writer; 2], before: &[u64; 2]) -> Result<()> {
    writers.iter().zip(before).try_for_each(|(writer, before)| writer.check_goes_on(*before))
}

fn stop(writers: [Writer; 2]) -> Result<()> {
    writers.into_iter().try_for_each(|writer| writer.stop().map(drop))
}

/// The SHA-256 of what was written at first, computed by sha256sum(1).
fn checksum(path: &Path) -> Result<String> {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut content = File::open(path).with_context(|| format!("open {}", path.display()))?.take(CONTENT);
    io::copy(&mut content, &mut child.stdin.take().context("no pipe to sha256sum")?)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "sha256sum failed");
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().next().context("sha256sum printed nothing")?.to_owned())
}

fn checksums(node: &Node) -> Result<[(&'static str, String); 2]> {
    Ok([("data", checksum(&node.target("data").join("content"))?), ("disk", checksum(&node.target("disk"))?)])
}

fn remember(node: &Node) -> Result<()> {
    for (id, sum) in checksums(node)? {
        fs::write(Path::new(STATE).join(format!("{id}.sha256")), sum)?;
    }
    Ok(())
}

fn remembered(id: &str) -> Result<String> {
    fs::read_to_string(Path::new(STATE).join(format!("{id}.sha256"))).context("no checksum was recorded")
}

fn compare(node: &Node) -> Result<()> {
    for (id, sum) in checksums(node)? {
        ensure!(sum == remembered(id)?, "the content of {id} has changed");
    }
    found("the checksums of both volumes are unchanged");
    Ok(())
}

/// Returns whether statistics show this as the volume's size, as opposed to the space used or left.
fn shows_size(text: &str, size: &str) -> bool {
    text.contains(&format!("of {size} used")) || text.contains(&format!("{size} total"))
}
