//! Device nodes that are not the helper's, or show a device that is not a volume's any more.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::attacker::{Attempt, attempt, node_like};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::loops;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};

cases! {
    a_pods_files_named_like_devices_are_nobodys_devices: Bare,
    a_node_shows_its_own_volume_or_nothing_whatever_comes_later,
}

const SIZE: u64 = 64 << 10;

/// Creates a block volume with its name as content, and attaches it.
fn make(helper: &HelperClient, rig: &Rig, id: &str) -> Result<()> {
    helper.ask(&create(id, image_spec(SIZE)))?;
    let image = rig.pool().image(id);
    File::options().write(true).open(image)?.write_all_at(id.as_bytes(), 0)?;
    helper.ask(&attach(id)).map(drop)
}

/// A pod's tmpfs with files and nodes of all numbers that may matter, each mounted at a path of its own as for a
/// subPath.
fn pods_files(rig: &Rig, numbers: &[u32]) -> Result<(PathBuf, Vec<PathBuf>)> {
    let pod = rig.kubelet.pods().join("pod");
    let (volume, subpaths) = (pod.join("volumes/kubernetes.io~empty-dir/memory"), pod.join("volume-subpaths/memory/c"));
    fs::create_dir_all(&volume)?;
    fs::create_dir_all(&subpaths)?;
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&volume))?;
    let mut bound = Vec::new();
    for (index, number) in numbers.iter().enumerate() {
        for is_node in [false, true] {
            let directory = volume.join(if is_node { "nodes" } else { "" });
            fs::create_dir_all(&directory)?;
            let file = directory.join(format!("loop{number}"));
            match is_node {
                true => mknodat(CWD, &file, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, makedev(7, *number))?,
                false => fs::write(&file, "content")?,
            }
            let point = subpaths.join(format!("{index}{is_node}"));
            File::create(&point)?;
            mount_bind(&file, &point)?;
            bound.push(point);
        }
    }
    Ok((volume, bound))
}

fn a_pods_files_named_like_devices_are_nobodys_devices(rig: &mut Rig) -> Result<()> {
    rig.start_helper()?;
    make(&rig.helper()?, rig, "vol-a")?;
    let own = loops::backed_by(&rig.pool().device()?)?.first().and_then(loops::Loop::number).context("a device")?;
    let (memory, bound) = pods_files(rig, &[0, 1, 524_288, 524_289, own - 1, own, own + 1, own + 2, 1_048_575])?;
    for restart in [false, true, true] {
        if restart {
            rig.restart_helper()?;
        }
        let helper = rig.helper()?;
        make(&helper, rig, "vol-b")?;
        for id in ["vol-a", "vol-b"] {
            helper.ask_all([attach(id), make_device(id, id)])?;
            let found: [u8; 5] = bulkhead_tests::attacker::first_bytes(&rig.target(id))?;
            ensure!(found == id.as_bytes(), "{id} shows {found:?}");
            helper.ask_all([remove_device(id, id), detach(id)])?;
        }
        helper.ask_all([delete("vol-b"), attach("vol-a")])?;
    }
    rig.helper()?.ask(&delete("vol-a"))?;
    for point in &bound {
        ensure!(bulkhead_tests::observe::mounts::at(point)?.len() == 1, "{} was unmounted", point.display());
        unmount(point, UnmountFlags::NOFOLLOW)?;
    }
    ensure!(fs::read(memory.join("loop0"))? == b"content", "a pod's file has changed");
    unmount(&memory, UnmountFlags::NOFOLLOW)?;
    Ok(fs::remove_dir_all(rig.kubelet.pods().join("pod"))?)
}

/// A tenant's own node shows what the tenant's volume contains, or does not open.
fn check_node(node: &Path, content: &[u8]) -> Result<()> {
    let mut found = vec![0; content.len()];
    match File::open(node).and_then(|device| device.read_exact_at(&mut found, 0)) {
        Ok(()) => ensure!(found == content, "it shows {:?}", String::from_utf8_lossy(&found)),
        // A device that is bound to nothing has no content.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
        Err(error) => ensure!(error.raw_os_error() == Some(Errno::NXIO.raw_os_error()), "{error}"),
    }
    Ok(())
}

fn a_node_shows_its_own_volume_or_nothing_whatever_comes_later(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    make(&helper, rig, "vol-a")?;
    helper.ask(&make_device("vol-a", "a"))?;
    let node = node_like(&rig.target("a"), &rig.work().join("own-node"))?;
    let secret = rig.work().join("secret");
    fs::write(&secret, b"secret".repeat(1 << 14))?;
    let mut attached = Vec::new();
    for _ in 0..2 {
        attempt(Attempt::Detach, &node, true, &node)?;
        attempt(Attempt::Mark, &node, true, &node)?;
        rig.kill_helper()?;
        attempt(Attempt::Detach, &node, true, &node)?;
        for _ in 0..4 {
            attached.push(loops::attach(&secret)?);
            check_marked(&node)?;
        }
        rig.start_helper()?;
        check_marked(&node)?;
    }
    let helper = rig.helper()?;
    let ids: Vec<String> = (0..50).map(|number| format!("next-{number}")).collect();
    let looked = ids.iter().try_for_each(|id| {
        make(&helper, rig, id)?;
        check_marked(&node).with_context(|| format!("after {id}"))
    });
    // Handed out again, it shows what it should.
    helper.ask(&attach("vol-a"))?;
    check_node(&node, b"vol-a")?;
    attached.iter().try_for_each(|device| loops::detach(device))?;
    helper.ask_all([remove_device("vol-a", "a"), delete("vol-a")])?;
    check_node(&node, b"")?;
    for id in &ids {
        helper.ask(&delete(id))?;
        check_node(&node, b"")?;
    }
    looked
}

/// Checks a node whose tenant has moved the beginning of its device by a sector.
fn check_marked(node: &Path) -> Result<()> {
    check_node(node, b"vol-a").or_else(|_| check_node(node, &[0; 5]))
}
