//! A pod controls its loop device, and a compromised frontend helps it: it must never get to see another volume.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{ErrorKind, Reply, Request};
use bulkhead_tests::another_helper::AnotherHelper;
use bulkhead_tests::attacker::{Attempt, attempt, errno, first_bytes, node_like};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::{create, delete, detach, image_spec, make_device, remove_device, target, volume};
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;

cases! {
    a_tenant_detaches_its_device_and_waits_for_the_next_volume,
    a_tenant_detaches_its_device_and_the_helper_is_killed,
    a_tenant_detaches_its_device_and_root_attaches_a_file: Alone("it takes all free loop devices"),
    a_tenant_marks_its_device_and_the_helper_is_killed_while_it_is_open,
    a_reader_puts_a_file_of_its_own_behind_the_device,
    a_dying_device_is_handed_to_a_second_pod,
    a_dying_device_is_handed_to_a_second_pod_after_a_kill,
    a_tenants_marks_go_when_the_device_is_handed_out_again,
    a_start_leaves_all_nodes_where_they_are,
    a_start_leaves_the_nodes_of_another_helper,
    an_administrator_detaches_a_device_while_the_helper_is_down,
    an_administrator_detaches_a_device_of_a_running_helper,
    devices_of_past_volumes_do_not_pile_up,
}

/// Small, so that there can be one for each device on this host.
const SIZE: u64 = 64 << 10;

const OF_A: &[u8; 7] = b"of-volA";

fn attach(id: &str, read_only: bool) -> Request {
    Request::LoopAttach { volume: volume(id), read_only }
}

/// Creates vol-a, with its name as content, publishes it at `a`, and returns the node that a container makes for
/// itself.
fn published(rig: &Rig, read_only: bool) -> Result<PathBuf> {
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", image_spec(SIZE)))?;
    File::options().write(true).open(rig.pool().image("vol-a"))?.write_all_at(OF_A, 0)?;
    helper.ask_all([attach("vol-a", read_only), make_device("vol-a", "a")])?;
    node_like(&rig.target("a"), &rig.work().join("own-node"))
}

fn check_shows_a(path: &Path) -> Result<()> {
    let found = first_bytes(path)?;
    ensure!(&found == OF_A, "{} shows {:?}", path.display(), String::from_utf8_lossy(&found));
    Ok(())
}

/// Attaches volumes until every device of this helper that was free has one, and checks that the node shows none of them.
fn check_no_volume_comes_into_sight(rig: &Rig, node: &Path) -> Result<()> {
    let helper = rig.helper()?;
    let first = rustix::fs::minor(fs::metadata(node)?.rdev());
    let existed = loops::made_since(first)?;
    let mut ids = Vec::new();
    let used_up = loop {
        let id = format!("vol-next-{}", ids.len());
        helper.ask(&create(&id, image_spec(SIZE)))?;
        let image = rig.pool().image(&id);
        File::options().write(true).open(&image)?.write_all_at(b"of-next", 0)?;
        helper.ask(&attach(&id, false))?;
        ids.push(id);
        // A free device has no content.
        if first_bytes(node).is_ok_and(|found: [u8; 7]| &found != OF_A) {
            break Err("the next volume is in the sight of the first volume's tenant");
        }
        if !loops::made_since(first)?.is_subset(&existed) {
            break Ok(());
        }
        if ids.len() > 2 * existed.len() + 8 {
            break Err("the devices that were free are not used up");
        }
    };
    for id in ids {
        helper.ask_all([detach(&id), delete(&id)])?;
    }
    used_up.or_else(|complaint| bail!(complaint))
}

fn take_down(rig: &Rig, paths: &[&str]) -> Result<()> {
    let helper = rig.helper()?;
    for path in paths {
        helper.ask(&remove_device("vol-a", path))?;
    }
    helper.ask(&detach("vol-a"))?;
    let left = loops::backed_by(&rig.pool().device()?)?;
    ensure!(left.is_empty(), "the device is said to be detached: {left:?}");
    helper.ask(&delete("vol-a")).map(drop)
}

fn a_tenant_detaches_its_device_and_waits_for_the_next_volume(rig: &mut Rig) -> Result<()> {
    let node = published(rig, false)?;
    let device = rig.pool().only_device()?.path;
    for writing in [false, true] {
        ensure!(attempt(Attempt::Detach, &node, writing, &node)? == 0, "the kernel asks no capability for this");
        ensure!(rig.pool().only_device()?.path == device);
        check_shows_a(&node)?;
    }
    check_no_volume_comes_into_sight(rig, &node)?;
    check_shows_a(&node)?;
    take_down(rig, &["a"])
}

fn a_tenant_detaches_its_device_and_the_helper_is_killed(rig: &mut Rig) -> Result<()> {
    let node = published(rig, false)?;
    let device = rig.pool().only_device()?.path;
    for _ in 0..3 {
        for writing in [false, true] {
            attempt(Attempt::Detach, &node, writing, &node)?;
        }
        rig.kill_helper()?;
        // Nobody has the device open any more but the kernel itself, for the device on top of it.
        attempt(Attempt::Detach, &node, true, &node)?;
        check_shows_a(&node)?;
        rig.start_helper()?;
        let found = rig.pool().only_device()?;
        ensure!(found.path == device && !found.autoclear, "{found:?}");
        check_no_volume_comes_into_sight(rig, &node)?;
    }
    check_shows_a(&rig.target("a"))?;
    take_down(rig, &["a"])
}

/// Whatever happens, a node shows its own volume or nothing: the devices of other programs come from other numbers.
fn a_tenant_detaches_its_device_and_root_attaches_a_file(rig: &mut Rig) -> Result<()> {
    let node = published(rig, false)?;
    attempt(Attempt::Detach, &node, true, &node)?;
    rig.kill_helper()?;
    let secret = rig.work().join("secret");
    fs::write(&secret, b"secret".repeat(1 << 16))?;
    let mut attached = Vec::new();
    for _ in 0..fs::read_dir("/sys/block")?.count() + 4 {
        attached.push(loops::attach(&secret)?);
        check_shows_a(&node)?;
    }
    attached.iter().try_for_each(|device| loops::detach(device))?;
    rig.start_helper()?;
    check_shows_a(&rig.target("a"))?;
    take_down(rig, &["a"])
}

fn a_tenant_marks_its_device_and_the_helper_is_killed_while_it_is_open(rig: &mut Rig) -> Result<()> {
    let node = published(rig, false)?;
    let open = File::open(&node)?;
    attempt(Attempt::Detach, &node, true, &node)?;
    rig.restart_helper()?;
    ensure!(!rig.pool().only_device()?.autoclear, "the mark outlives the helper's start");
    drop(open);
    check_no_volume_comes_into_sight(rig, &node)?;
    check_shows_a(&rig.target("a"))?;
    take_down(rig, &["a"])
}

/// Creates vol-a, publishes it at `path`, kills the helper and detaches the device by hand. Returns a container's node.
fn detached(rig: &mut Rig, path: &str) -> Result<(PathBuf, loops::Loop)> {
    let helper = rig.helper()?;
    helper.ask_all([create("vol-a", image_spec(SIZE)), attach("vol-a", false), make_device("vol-a", path)])?;
    let node = node_like(&rig.target(path), &rig.work().join("own-node"))?;
    let device = rig.pool().only_device()?;
    rig.kill_helper()?;
    loops::detach_by_hand(&device)?;
    Ok((node, device))
}

/// A start judges no node: neither its own, nor a device manager's, nor another helper's.
fn a_start_leaves_all_nodes_where_they_are(rig: &mut Rig) -> Result<()> {
    let (node, device) = detached(rig, "a")?;
    // A device manager's node has the same name, and is also on a tmpfs.
    let (manager, others) = (rig.work().join("manager"), rig.target("others"));
    let managed = manager.join(format!("loop{}", device.number().context("a loop device without a number")?));
    fs::create_dir(&manager)?;
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&manager))?;
    node_like(Path::new(&device.path), &managed)?;
    File::create_new(&others)?;
    run(Command::new("mount").arg("--bind").args([&managed, &others]))?;
    rig.start_helper()?;
    for target in ["a", "others"] {
        ensure!(mounts::at(&rig.target(target))?.len() == 1, "the node at {target} is unmounted");
    }
    check_no_volume_comes_into_sight(rig, &node)?;
    mounts::unmount_all(&others)?;
    mounts::unmount_all(&manager)?;
    fs::remove_file(others)?;
    // A node that shows nothing any more may be unpublished.
    rig.helper()?.ask(&remove_device("vol-a", "a"))?;
    ensure!(mounts::at(&rig.target("a"))?.is_empty(), "the node is still mounted");
    Ok(())
}

/// Two helpers share a publish directory, and one of them is started anew.
fn a_start_leaves_the_nodes_of_another_helper(rig: &mut Rig) -> Result<()> {
    let node = published(rig, false)?;
    let mut other = AnotherHelper::start(rig)?;
    for _ in 0..2 {
        let path = PathBuf::from("/dev").join(rig.pool().only_device()?.path.file_name().context("a name")?);
        ensure!(mounts::at(&rig.target("a"))?.len() == 1, "the node of the first helper is unmounted");
        check_shows_a(&node)?;
        denied(other.client()?.request(&remove_device("vol-a", "a"))?, ErrorKind::InUse, "vol-a")?;
        ensure!(path.exists(), "the device is gone");
        other.restart()?;
    }
    other.stop()?;
    take_down(rig, &["a"])
}

fn a_reader_puts_a_file_of_its_own_behind_the_device(rig: &mut Rig) -> Result<()> {
    let node = published(rig, true)?;
    let own = rig.work().join("own-file");
    fs::write(&own, vec![b'!'; usize::try_from(SIZE)?])?;
    for round in 0..2 {
        for writing in [false, true] {
            let ended = attempt(Attempt::Exchange, &node, writing, &own)?;
            ensure!(ended == errno::INVALID, "an exchange ends with {ended} in round {round}");
            let ended = attempt(Attempt::AllowWrites, &node, writing, &own)?;
            ensure!([errno::ACCESS, errno::PERM].contains(&ended), "allowing writes ends with {ended}");
        }
        let ended = attempt(Attempt::Write, &node, true, &own)?;
        ensure!(ended == errno::PERM, "a write ends with {ended} in round {round}");
        check_shows_a(&rig.target("a"))?;
        let helper = rig.restarted_helper()?;
        denied(helper.request(&attach("vol-a", false))?, ErrorKind::InUse, "read-only")?;
        helper.ask_all([attach("vol-a", true), make_device("vol-a", "a")])?;
    }
    let device = rig.pool().only_device()?.path;
    take_down(rig, &["a"])?;
    // The next user of the device number does not inherit read-only mode. Where there are very many devices, the device
    // is removed.
    rig.eventually(10, || {
        let output = Command::new("blockdev").arg("--getro").arg(&device).output()?;
        let is_gone = !Path::new("/sys/block").join(Path::new(&device).file_name().context("a name")?).exists();
        ensure!(output.stdout.trim_ascii() == b"0" || is_gone, "{output:?}");
        Ok(())
    })
}

fn a_dying_device_is_handed_to_a_second_pod(rig: &mut Rig) -> Result<()> {
    hand_to_a_second_pod(rig, |_| Ok(()))
}

fn a_dying_device_is_handed_to_a_second_pod_after_a_kill(rig: &mut Rig) -> Result<()> {
    hand_to_a_second_pod(rig, Rig::restart_helper)
}

fn hand_to_a_second_pod(rig: &mut Rig, meanwhile: fn(&mut Rig) -> Result<()>) -> Result<()> {
    let node = published(rig, false)?;
    let first_pod = File::open(&node)?;
    let helper = rig.helper()?;
    helper.ask(&remove_device("vol-a", "a"))?;
    denied(helper.request(&detach("vol-a"))?, ErrorKind::Busy, "open")?;
    denied(helper.request(&delete("vol-a"))?, ErrorKind::Busy, "open")?;
    meanwhile(rig)?;
    let helper = rig.helper()?;
    helper.ask(&make_device("vol-a", "b"))?;
    drop(first_pod);
    ensure!(!rig.pool().only_device()?.autoclear, "the second pod has a dying device");
    check_no_volume_comes_into_sight(rig, &node)?;
    check_shows_a(&rig.target("b"))?;
    take_down(rig, &["b"])
}

fn a_tenants_marks_go_when_the_device_is_handed_out_again(rig: &mut Rig) -> Result<()> {
    let node = published(rig, false)?;
    let helper = rig.helper()?;
    for request in [make_device("vol-a", "b"), attach("vol-a", false)] {
        ensure!(attempt(Attempt::Mark, &node, true, &node)? == 0, "the kernel asks no capability for this");
        ensure!(rig.pool().only_device()?.autoclear && first_bytes::<7>(&node)? != *OF_A, "the marks are in place");
        helper.ask(&request)?;
        ensure!(!rig.pool().only_device()?.autoclear, "{request:?} leaves the device dying");
        check_shows_a(&node)?;
    }
    // The kernel offers no way to stop showing partitions; that ends with the device.
    helper.ask(&remove_device("vol-a", "b"))?;
    take_down(rig, &["a"])
}

/// Removes a device that is neither bound nor open: LOOP_CTL_REMOVE. Returns 0 or the errno.
fn remove_by_number(device: &loops::Loop) -> Result<i32> {
    let number = device.number().context("a loop device without a number")?.to_string();
    let script = "open(my $control, '+<', '/dev/loop-control') or exit 99;
        exit(defined(ioctl($control, 0x4c81, $ARGV[0] + 0)) ? 0 : $! + 0)";
    Command::new("perl").args(["-e", script, &number]).status()?.code().context("perl was killed")
}

fn an_administrator_detaches_a_device_while_the_helper_is_down(rig: &mut Rig) -> Result<()> {
    for removed in [false, true] {
        let node = published(rig, false)?;
        let device = rig.pool().only_device()?;
        rig.kill_helper()?;
        loops::detach_by_hand(&device)?;
        if removed {
            // The helper of another test may have removed it as it started.
            let ended = remove_by_number(&device)?;
            ensure!([0, errno::NO_DEVICE].contains(&ended), "the removal of the device ends with {ended}");
        }
        let helper = rig.started_helper()?;
        helper.usage("vol-a", None)?;
        let at = Request::Usage { volume: volume("vol-a"), target: Some(target("work", "a")) };
        denied(helper.request(&at)?, ErrorKind::NotFound, "not published")?;
        ensure!(helper.ask(&Request::LoopResize { volume: volume("vol-a") })? == Reply::Size(image_spec(SIZE).size));
        denied(helper.request(&make_device("vol-a", "a"))?, ErrorKind::Invalid, "attach it first")?;
        helper.ask_all([remove_device("vol-a", "a"), delete("vol-a")])?;
        fs::remove_file(node)?;
    }
    Ok(())
}

fn an_administrator_detaches_a_device_of_a_running_helper(rig: &mut Rig) -> Result<()> {
    published(rig, false)?;
    let device = rig.pool().only_device()?;
    loops::detach(&device.path)?;
    ensure!(remove_by_number(&device)? == errno::BUSY);
    let helper = rig.helper()?;
    helper.usage("vol-a", Some(target("work", "a")))?;
    helper.ask(&make_device("vol-a", "a"))?;
    check_shows_a(&rig.target("a"))?;
    take_down(rig, &["a"])
}

fn devices_of_past_volumes_do_not_pile_up(rig: &mut Rig) -> Result<()> {
    const KEPT: usize = 16;
    let helper = rig.helper()?;
    let ids: Vec<String> = (0..40).map(|number| format!("vol-{number}")).collect();
    for id in &ids {
        helper.ask_all([create(id, image_spec(SIZE)), attach(id, false)])?;
    }
    let devices = loops::backed_by(&rig.pool().device()?)?;
    let first = devices.iter().filter_map(loops::Loop::number).min().context("a loop device without a number")?;
    // A device manager opens each device for a moment, and an open device cannot be removed.
    let mut looked_at = Vec::new();
    for id in &ids {
        let image = fs::metadata(rig.pool().image(id))?.ino();
        let device =
            devices.iter().find(|device| device.backing_inode == image).context("a volume without a device")?;
        helper.ask(&detach(id))?;
        // It may be gone already.
        looked_at.extend(File::open(&device.path));
    }
    std::thread::sleep(Duration::from_millis(300));
    drop(looked_at);
    let left_behind = || loops::made_since(first).map(|devices| devices.len());
    // The kernel takes some time to remove them, and no operation waits for that.
    rig.eventually(30, || {
        let left = left_behind()?;
        ensure!(left <= KEPT, "{left} devices are left of {}", 2 * ids.len());
        Ok(())
    })?;
    // What a helper leaves when it is killed, the next one removes.
    helper.ask(&attach("vol-0", false))?;
    rig.restart_helper()?;
    rig.eventually(30, || {
        let left = left_behind()?;
        ensure!(left <= 2, "{left} devices are left, and one volume is attached");
        Ok(())
    })?;
    Ok(())
}
