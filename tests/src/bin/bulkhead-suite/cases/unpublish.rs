//! Removing volumes from their targets.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::expect::refused;
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::rig::Rig;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
use tonic::Code;

cases! {
    the_target_is_gone_and_repeating_is_done,
    what_was_unmounted_by_hand_is_unpublished,
    what_was_removed_by_hand_is_unpublished,
    stacked_mounts_of_the_volume_are_all_undone,
    a_request_undoes_so_many_stacked_mounts_and_says_that_there_are_more,
    a_foreign_mount_at_the_target_stays,
    a_directory_with_content_at_the_target_stays,
    a_mount_inside_the_volume_keeps_it_busy,
    an_open_file_inside_the_volume_keeps_it_busy,
    an_open_device_is_released_when_it_is_closed,
    a_short_look_at_the_device_does_not_fail_the_call,
    another_volumes_device_is_never_touched,
    an_unknown_volume_or_target_is_done,
}

const SIZE: i64 = 16 * MIB;

fn the_target_is_gone_and_repeating_is_done(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for (id, capability) in [("vol-a", mount()), ("vol-b", block())] {
        let target = rig.target(id);
        csi.create_volume(create(id, SIZE, capability.clone()))?;
        csi.node_unpublish_volume(unpublish(id, &target))?;
        csi.node_publish_volume(publish(id, &target, capability))?;
        for _ in 0..5 {
            csi.node_unpublish_volume(unpublish(id, &target))?;
            ensure!(fs::symlink_metadata(&target).is_err());
        }
        csi.delete_volume(delete(id))?;
        csi.node_unpublish_volume(unpublish(id, &target))?;
    }
    Ok(())
}

fn what_was_unmounted_by_hand_is_unpublished(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for (id, capability) in [("vol-a", mount()), ("vol-b", block())] {
        let target = rig.target(id);
        csi.create_volume(create(id, SIZE, capability.clone()))?;
        csi.node_publish_volume(publish(id, &target, capability.clone()))?;
        unmount(&target, UnmountFlags::NOFOLLOW)?;
        // When it is published again, it is mounted again.
        csi.node_publish_volume(publish(id, &target, capability))?;
        ensure!(mounts::at(&target)?.len() == 1);
        unmount(&target, UnmountFlags::NOFOLLOW)?;
        csi.node_unpublish_volume(unpublish(id, &target))?;
        ensure!(!target.exists());
    }
    Ok(())
}

fn what_was_removed_by_hand_is_unpublished(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for (id, capability) in [("vol-a", mount()), ("vol-b", block())] {
        let parent = rig.target(id);
        let target = parent.join("t");
        fs::create_dir(&parent)?;
        csi.create_volume(create(id, SIZE, capability.clone()))?;
        csi.node_publish_volume(publish(id, &target, capability))?;
        unmount(&target, UnmountFlags::NOFOLLOW)?;
        fs::remove_dir_all(&parent)?;
        csi.node_unpublish_volume(unpublish(id, &target))?;
    }
    Ok(())
}

fn stacked_mounts_of_the_volume_are_all_undone(rig: &mut Rig) -> Result<()> {
    let (csi, target) = rig.published(create("vol-a", SIZE, mount()))?;
    mount_bind(rig.pool().volume("vol-a").join("data"), &target)?;
    ensure!(mounts::at(&target)?.len() == 2);
    csi.node_unpublish_volume(unpublish("vol-a", &target))?;
    ensure!(mounts::at(&target)?.is_empty() && !target.exists());
    Ok(())
}

fn a_foreign_mount_at_the_target_stays(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let target = rig.target("a");
    csi.create_volume(create("vol-a", SIZE, mount()))?;
    fs::create_dir(&target)?;
    mount_bind(rig.logs(), &target)?;
    refused(csi.node_publish_volume(publish("vol-a", &target, mount())), Code::AlreadyExists, "mounted")?;
    refused(csi.node_unpublish_volume(unpublish("vol-a", &target)), Code::FailedPrecondition, "mounted")?;
    ensure!(mounts::at(&target)?.len() == 1);
    unmount(&target, UnmountFlags::NOFOLLOW)?;
    // The directory does not belong to the helper: there is nothing to do.
    csi.node_unpublish_volume(unpublish("vol-a", &target))?;
    fs::remove_dir(&target)?;
    Ok(())
}

fn a_directory_with_content_at_the_target_stays(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let target = rig.target("a");
    csi.create_volume(create("vol-a", SIZE, mount()))?;
    fs::create_dir(&target)?;
    fs::write(target.join("precious"), "content")?;
    refused(csi.node_publish_volume(publish("vol-a", &target, mount())), Code::FailedPrecondition, "is not empty")?;
    // The volume is not published there, and the directory does not belong to the helper.
    csi.node_unpublish_volume(unpublish("vol-a", &target))?;
    ensure!(fs::read(target.join("precious"))? == b"content");
    fs::remove_dir_all(&target)?;
    Ok(())
}

fn a_mount_inside_the_volume_keeps_it_busy(rig: &mut Rig) -> Result<()> {
    let (csi, target) = rig.published(create("vol-a", SIZE, mount()))?;
    fs::create_dir(target.join("inner"))?;
    mount_bind(rig.logs(), target.join("inner"))?;
    refused(csi.node_unpublish_volume(unpublish("vol-a", &target)), Code::Aborted, "busy")?;
    ensure!(mounts::at(&target)?.len() == 1 && mounts::at(&target.join("inner"))?.len() == 1);
    refused(csi.delete_volume(delete("vol-a")), Code::FailedPrecondition, "vol-a")?;
    unmount(target.join("inner"), UnmountFlags::NOFOLLOW)?;
    Ok(())
}

fn an_open_file_inside_the_volume_keeps_it_busy(rig: &mut Rig) -> Result<()> {
    let (csi, target) = rig.published(create("vol-a", SIZE, mount()))?;
    let open = fs::File::create(target.join("file"))?;
    refused(csi.node_unpublish_volume(unpublish("vol-a", &target)), Code::Aborted, "busy")?;
    drop(open);
    Ok(())
}

fn an_open_device_is_released_when_it_is_closed(rig: &mut Rig) -> Result<()> {
    let (csi, target) = rig.published(create("vol-a", SIZE, block()))?;
    // Open as in a container: through a separate node, not through the target.
    let device = loops::backed_by(&rig.pool().device()?)?;
    let open = fs::File::open(&device[0].path)?;
    refused(csi.node_unpublish_volume(unpublish("vol-a", &target)), Code::Aborted, "open")?;
    refused(csi.delete_volume(delete("vol-a")), Code::Aborted, "open")?;
    drop(open);
    csi.node_unpublish_volume(unpublish("vol-a", &target))?;
    ensure!(loops::backed_by(&rig.pool().device()?)?.is_empty());
    // Open through the target itself.
    csi.node_publish_volume(publish("vol-a", &target, block()))?;
    let open = fs::File::open(&target)?;
    refused(csi.node_unpublish_volume(unpublish("vol-a", &target)), Code::Aborted, "busy")?;
    drop(open);
    Ok(())
}

/// Device managers briefly open every device that changes.
fn a_short_look_at_the_device_does_not_fail_the_call(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let target = rig.target("a");
    csi.create_volume(create("vol-a", SIZE, block()))?;
    for _ in 0..5 {
        csi.node_publish_volume(publish("vol-a", &target, block()))?;
        let device = loops::backed_by(&rig.pool().device()?)?;
        let open = fs::File::open(&device[0].path)?;
        let look = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(15));
            drop(open);
        });
        csi.node_unpublish_volume(unpublish("vol-a", &target))?;
        ensure!(look.join().is_ok());
        ensure!(loops::backed_by(&rig.pool().device()?)?.is_empty());
    }
    Ok(())
}

fn another_volumes_device_is_never_touched(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let (a, b) = (rig.target("a"), rig.target("b"));
    for (id, target) in [("vol-a", &a), ("vol-b", &b)] {
        csi.create_volume(create(id, SIZE, block()))?;
        csi.node_publish_volume(publish(id, target, block()))?;
    }
    let before = loops::backed_by(&rig.pool().device()?)?;
    refused(csi.node_unpublish_volume(unpublish("vol-a", &b)), Code::FailedPrecondition, "vol-b")?;
    // Another program puts one volume's device on the other's target.
    unmount(&a, UnmountFlags::NOFOLLOW)?;
    mount_bind(&b, &a)?;
    refused(csi.node_unpublish_volume(unpublish("vol-a", &a)), Code::FailedPrecondition, "mounted")?;
    ensure!(loops::backed_by(&rig.pool().device()?)? == before && mounts::at(&b)?.len() == 1);
    unmount(&a, UnmountFlags::NOFOLLOW)?;
    Ok(())
}

fn an_unknown_volume_or_target_is_done(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for id in ["vol-z", "No Id"] {
        for target in [rig.target("a"), rig.target("a/b/c"), "/etc/x".into()] {
            csi.node_unpublish_volume(unpublish(id, &target))?;
        }
    }
    csi.create_volume(create("vol-a", SIZE, mount()))?;
    csi.node_unpublish_volume(unpublish("vol-a", &rig.target("a/b/c")))?;
    let foreign = csi.node_unpublish_volume(unpublish("vol-a", Path::new("/etc/x")));
    refused(foreign, Code::InvalidArgument, "publish directory")
}

/// Root mounts a volume there again and again: one request does not go on for ever.
fn a_request_undoes_so_many_stacked_mounts_and_says_that_there_are_more(rig: &mut Rig) -> Result<()> {
    let (csi, target) = (rig.csi()?, rig.target("vol-a"));
    csi.create_volume(create("vol-a", SIZE, mount()))?;
    csi.node_publish_volume(publish("vol-a", &target, mount()))?;
    // By way of a private mount: otherwise each would appear below all that are there, and they would double.
    let private = rig.work().join("private");
    fs::create_dir(&private)?;
    mount_bind(&rig.pool().directory, &private)?;
    mount_change(&private, MountPropagationFlags::PRIVATE)?;
    let data = rig.pool().volume("vol-a").join("data");
    let data = private.join(data.strip_prefix(&rig.pool().directory)?);
    for _ in 0..300 {
        mount_bind(&data, &target)?;
    }
    unmount(&private, UnmountFlags::NOFOLLOW)?;
    fs::remove_dir(&private)?;
    refused(csi.node_unpublish_volume(unpublish("vol-a", &target)), Code::Aborted, "mounts were unmounted at target")?;
    ensure!(mounts::at(&target)?.len() == 301 - 256, "{} are left", mounts::at(&target)?.len());
    csi.node_unpublish_volume(unpublish("vol-a", &target))?;
    ensure!(fs::symlink_metadata(&target).is_err());
    csi.delete_volume(delete("vol-a"))?;
    Ok(())
}
