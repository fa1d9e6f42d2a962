//! The life of a filesystem in an image.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{Condition, ErrorKind, Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::expect::{denied, no_room};
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::PoolFilesystem;
use rustix::io::Errno;

use super::{SIZE, check_detached, check_image, end, start};

cases! {
    a_filesystem_lives_and_grows_and_is_found_again: Bare + Filesystem,
    a_preallocated_image_stays_preallocated: Bare + Filesystem,
    a_pool_has_no_more_filesystems_than_it_is_configured_for: Bare,
    a_pool_that_is_not_configured_for_them_has_none: Bare,
    a_full_filesystem_is_its_own_business: Bare + Filesystem,
    what_is_offered_is_only_what_fits: Bare,
}

fn a_filesystem_lives_and_grows_and_is_found_again(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    for _ in 0..2 {
        ensure!(helper.ask(&create(own("vol-a"), filesystem_spec(SIZE)))? == Reply::Size(bytes(SIZE)));
    }
    check_image(rig, own("vol-a")).context("a fresh image")?;
    let none = helper.usage(own("vol-a"), None)?;
    ensure!(none.used_bytes.is_none() && none.available_inodes.is_none() && none.condition.is_none(), "{none:?}");
    denied(helper.request(&bind(own("vol-a"), "a"))?, ErrorKind::Invalid, "mount it first")?;

    helper.ask_all([mount_filesystem(own("vol-a")), mount_filesystem(own("vol-a"))])?;
    helper.ask_all([bind(own("vol-a"), "a"), bind_read_only(own("vol-a"), "b"), bind(own("vol-a"), "a")])?;
    let [mount] = &mounts::at(&rig.target("a"))?[..] else { anyhow::bail!("not one mount") };
    ensure!(mount.filesystem == "xfs" && mount.root.to_str() == Some("/data"), "{mount:?}");
    ensure!(mount.has("nosuid") && mount.has("nodev") && !mount.has("ro"), "{mount:?}");
    let top = fs::metadata(rig.target("a"))?;
    ensure!(top.permissions().mode() & 0o7777 == 0o755 && top.uid() == 0, "{top:?}");
    File::create(rig.target("a/file"))?.write_all(b"content")?;
    ensure!(fs::read(rig.target("b/file"))? == b"content");
    let refused = File::create(rig.target("b/other")).err().and_then(|error| error.raw_os_error());
    ensure!(refused == Some(Errno::ROFS.raw_os_error()), "{refused:?}");
    let device = rig.pool().only_device()?;
    ensure!(device.block_size == 4096 && device.size()? == SIZE, "{device:?}");

    let before = helper.usage(own("vol-a"), Some(target("work", "a")))?;
    let whole = before.used_bytes.unwrap_or(0) + before.available_bytes.unwrap_or(0);
    ensure!(whole > SIZE * 7 / 10 && whole < SIZE, "{before:?}");
    ensure!(before.available_inodes.is_some_and(|number| number > 1000), "{before:?}");
    let wanted = (!device.direct).then_some(Condition::NotDirect);
    ensure!(before.condition == wanted && before.targets == 2, "{before:?}");

    // In use, and seen at once.
    let large = 2 * SIZE;
    for _ in 0..2 {
        ensure!(helper.ask(&grow_filesystem(own("vol-a"), large))? == Reply::Size(bytes(large)));
    }
    ensure!(helper.ask(&grow_filesystem(own("vol-a"), SIZE))? == Reply::Size(bytes(large)), "never smaller");
    let space = rustix::fs::statvfs(rig.target("a"))?;
    ensure!(space.f_blocks * space.f_frsize > SIZE * 3 / 2, "{} blocks", space.f_blocks);
    let after = helper.usage(own("vol-a"), Some(target("work", "b")))?;
    ensure!(after.available_bytes > before.available_bytes && after.spec.size == bytes(large), "{after:?}");

    denied(helper.request(&unmount_filesystem(own("vol-a")))?, ErrorKind::InUse, own("vol-a"))?;
    denied(helper.request(&delete(own("vol-a")))?, ErrorKind::InUse, own("vol-a"))?;
    helper.ask(&unbind(own("vol-a"), "a"))?;
    denied(helper.request(&unmount_filesystem(own("vol-a")))?, ErrorKind::InUse, "b")?;
    helper.ask(&unbind(own("vol-a"), "b"))?;
    helper.ask_all([unmount_filesystem(own("vol-a")), unmount_filesystem(own("vol-a"))])?;
    check_detached(rig)?;
    check_image(rig, own("vol-a")).context("after the first life")?;

    // Not mounted, it grows when it is mounted next.
    ensure!(helper.ask(&grow_filesystem(own("vol-a"), 3 * SIZE))? == Reply::Size(bytes(3 * SIZE)));
    helper.ask_all([mount_filesystem(own("vol-a")), bind(own("vol-a"), "a")])?;
    ensure!(fs::read(rig.target("a/file"))? == b"content");
    let space = rustix::fs::statvfs(rig.target("a"))?;
    ensure!(space.f_blocks * space.f_frsize > SIZE * 5 / 2, "{} blocks", space.f_blocks);
    helper.ask_all([unbind(own("vol-a"), "a"), unmount_filesystem(own("vol-a"))])?;
    check_image(rig, own("vol-a")).context("after the second life")?;
    helper.ask(&mount_filesystem(own("vol-a")))?;
    // What is mounted and not published is deleted with its device.
    helper.ask(&delete(own("vol-a")))?;
    check_detached(rig)?;
    helper.ask(&unmount_filesystem(own("vol-a"))).map(drop)
}

fn a_preallocated_image_stays_preallocated(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    helper.ask(&create(own("vol-a"), preallocated_filesystem_spec(SIZE)))?;
    let allocated = |rig: &Rig| Ok::<_, anyhow::Error>(fs::metadata(rig.pool().image(own("vol-a")))?.blocks() * 512);
    ensure!(allocated(rig)? >= SIZE);
    helper.ask_all([mount_filesystem(own("vol-a")), bind(own("vol-a"), "a")])?;
    fs::write(rig.target("a/file"), vec![7; 1 << 20])?;
    helper.ask(&grow_filesystem(own("vol-a"), 2 * SIZE))?;
    ensure!(allocated(rig)? >= 2 * SIZE);
    helper.ask_all([unbind(own("vol-a"), "a"), unmount_filesystem(own("vol-a"))])?;
    ensure!(allocated(rig)? >= 2 * SIZE);
    check_image(rig, own("vol-a"))
}

/// Checks how many filesystems in images the pool may have, and has.
fn check_counts(helper: &HelperClient, wanted: (u32, u32)) -> Result<()> {
    let reply = helper.ask(&Request::PoolCounts { pool: "default".parse()? })?;
    let Reply::Counts { filesystem_limit, filesystems, .. } = reply else { bail!("{reply:?}") };
    ensure!((filesystem_limit, filesystems) == wanted, "{reply:?}");
    Ok(())
}

fn a_pool_has_no_more_filesystems_than_it_is_configured_for(rig: &mut Rig) -> Result<()> {
    start(rig, 2)?;
    let helper = rig.helper()?;
    let number = |wanted| check_counts(&helper, (2, wanted));
    number(0)?;
    helper.ask_all([own("vol-a"), own("vol-b")].map(|id| create(id, filesystem_spec(SIZE))))?;
    number(2)?;
    denied(helper.request(&create(own("vol-c"), filesystem_spec(SIZE)))?, ErrorKind::NoSpace, "filesystems=2")?;
    helper.ask_all([create(own("vol-d"), directory_spec(1 << 20)), delete(own("vol-a"))])?;
    number(1)?;
    helper.ask(&create(own("vol-c"), filesystem_spec(SIZE))).map(drop)
}

fn a_pool_that_is_not_configured_for_them_has_none(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    helper.ask_all([
        create(own("vol-a"), filesystem_spec(SIZE)),
        mount_filesystem(own("vol-a")),
        bind(own("vol-a"), "a"),
    ])?;
    // A helper that is configured for none still lets go of what is there.
    let options = rig.pools[0].options.clone();
    rig.pools[0].options = options.replace(",filesystems=3", "");
    rig.helper_flags.clear();
    drop(helper);
    let helper = rig.restarted_helper()?;
    ensure!(super::mounter(rig).is_err(), "there is a mounter");
    check_counts(&helper, (0, 1))?;
    for request in [
        create(own("vol-b"), filesystem_spec(SIZE)),
        mount_filesystem(own("vol-a")),
        grow_filesystem(own("vol-a"), 2 * SIZE),
    ] {
        denied(helper.request(&request)?, ErrorKind::Unsupported, "configured")?;
    }
    ensure!(fs::metadata(rig.pool().image(own("vol-a")))?.len() == SIZE, "the image has grown");
    ensure!(helper.usage(own("vol-a"), None)?.used_bytes.is_none());
    helper.ask_all([unbind(own("vol-a"), "a"), unmount_filesystem(own("vol-a"))])?;
    check_image(rig, own("vol-a"))
}

fn a_full_filesystem_is_its_own_business(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    for id in [own("vol-a"), own("vol-b")] {
        helper.ask_all([create(id, filesystem_spec(SIZE)), mount_filesystem(id), bind(id, id)])?;
    }
    let mut file = File::create(rig.target(own("vol-a")).join("file"))?;
    let part = vec![7; 4 << 20];
    let error = loop {
        if let Err(error) = file.write_all(&part).and_then(|()| file.sync_data()) {
            break error;
        }
    };
    ensure!(error.raw_os_error() == Some(Errno::NOSPC.raw_os_error()), "{error}");
    drop(file);
    ensure!(
        fs::metadata(rig.pool().image(own("vol-a")))?.blocks() * 512 <= SIZE + (1 << 20),
        "the image takes more than its size"
    );
    let full = helper.usage(own("vol-a"), None)?;
    ensure!(full.available_bytes.is_some_and(|left| left < 8 << 20), "{full:?}");
    fs::write(rig.target(own("vol-b")).join("file"), &part)?;
    // Room helps at once.
    helper.ask(&grow_filesystem(own("vol-a"), 2 * SIZE))?;
    fs::write(rig.target(own("vol-a")).join("more"), &part)?;
    end(rig, &helper, &[own("vol-a"), own("vol-b")])
}

fn what_is_offered_is_only_what_fits(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    for size in [(300 << 20) - 4096, (64 << 40) + 4096] {
        denied(helper.request(&create(own("vol-a"), filesystem_spec(size)))?, ErrorKind::Invalid, "at least 300 MiB")?;
    }
    no_room(helper.request(&create(own("vol-a"), filesystem_spec(100 << 30)))?)?;
    ensure!(rig.run_options.pool_fs != PoolFilesystem::Xfs || rig.pool().entries()?.is_empty());
    helper.ask(&create(own("vol-a"), filesystem_spec(300 << 20)))?;
    let other = helper.request(&create(own("vol-a"), filesystem_spec(SIZE)))?;
    ensure!(other == Ok(Reply::Size(bytes(300 << 20))), "{other:?}");
    denied(helper.request(&create(own("vol-a"), image_spec(SIZE)))?, ErrorKind::AlreadyExists, own("vol-a"))?;
    // Each group that it has takes time at each mount.
    denied(helper.request(&grow_filesystem(own("vol-a"), (300 << 30) + 4096))?, ErrorKind::Invalid, "made too small")?;
    no_room(helper.request(&grow_filesystem(own("vol-a"), 300 << 30))?).map(drop)
}
