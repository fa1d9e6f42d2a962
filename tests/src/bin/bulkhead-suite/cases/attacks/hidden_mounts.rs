//! A volume is in use where the helper cannot see it after a restart. Deleting it would destroy data in use.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{ErrorKind, MountFlags, Request, TargetPath};
use bulkhead_tests::cases;
use bulkhead_tests::daemon::Daemon;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::{
    self, HelperClient, attach, create, delete, detach, directory_spec, discard, image_spec, volume,
};
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::{self, Call, Fault, was_injected};
use rustix::mount::{UnmountFlags, mount_bind, unmount};

cases! {
    the_publish_directory_is_taken_out_of_the_configuration,
    a_mount_hides_the_targets_parent,
    another_mount_lies_on_the_target,
    a_part_of_the_volume_is_bound_elsewhere_as_for_a_subpath,
    the_kubelet_has_bound_the_device_once_more,
    the_directory_around_a_mount_is_renamed,
    a_volume_is_bound_while_it_has_another_name,
    the_publish_directory_is_visible_at_a_second_path,
    a_look_at_start_fails,
    every_look_at_start_fails_in_turn: Long,
}

const SIZE: u64 = 16 << 20;

fn target(path: &str) -> TargetPath {
    helper::target("work", path)
}

/// Creates a directory volume and a block volume, and publishes them.
fn publish(client: &HelperClient, directory: TargetPath, device: TargetPath) -> Result<()> {
    let flags = MountFlags::default();
    client.ask_all([
        create("vol-d", directory_spec(SIZE)),
        Request::BindMount { volume: volume("vol-d"), target: directory, flags, exclusive: false },
        create("vol-b", image_spec(SIZE)),
        attach("vol-b"),
        Request::MakeDevice { volume: volume("vol-b"), target: device, exclusive: false },
    ])
}

/// Unpublishes the volumes of [`publish`].
fn unpublish(rig: &Rig, directory: TargetPath, device: TargetPath) -> Result<()> {
    let unbind = Request::Unmount { volume: volume("vol-d"), target: directory };
    rig.helper()?.ask_all([unbind, Request::RemoveDevice { volume: volume("vol-b"), target: device }])
}

/// Checks that neither volume can be deleted, and that each refusal contains `part`.
fn check_kept(rig: &Rig, part: &str) -> Result<()> {
    let client = rig.helper()?;
    for id in ["vol-d", "vol-b"] {
        denied(client.request(&delete(id))?, ErrorKind::InUse, part)?;
        denied(client.request(&discard(id))?, ErrorKind::Refused, "")?;
    }
    denied(client.request(&detach("vol-b"))?, ErrorKind::InUse, part)?;
    rig.pool().holds(&["vol-b", "vol-d"])?;
    ensure!(fs::read(rig.pool().volume("vol-d").join("data/file"))? == b"content", "the content is lost");
    Ok(())
}

fn delete_both(rig: &Rig) -> Result<()> {
    rig.helper()?.ask_all([delete("vol-d"), delete("vol-b")])
}

fn take_away(path: &Path) -> Result<()> {
    unmount(path, UnmountFlags::NOFOLLOW).with_context(|| format!("unmount {}", path.display()))
}

fn mount_tmpfs(path: &Path) -> Result<()> {
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(path))
}

fn the_publish_directory_is_taken_out_of_the_configuration(rig: &mut Rig) -> Result<()> {
    let other = rig.work().join("other");
    fs::create_dir(&other)?;
    rig.kill_helper()?;
    rig.helper_flags = vec!["--publish-dir".to_owned(), format!("other={}", other.display())];
    rig.start_helper()?;
    publish(&rig.helper()?, helper::target("other", "d"), helper::target("other", "b"))?;
    fs::write(other.join("d/file"), "content")?;
    rig.kill_helper()?;
    rig.helper_flags.clear();
    rig.start_helper()?;
    check_kept(rig, &other.display().to_string())?;
    denied(rig.helper()?.request(&helper::bind_exclusively("vol-d", "d"))?, ErrorKind::InUse, "other/d")?;
    let exclusive = Request::MakeDevice { volume: volume("vol-b"), target: target("b"), exclusive: true };
    denied(rig.helper()?.request(&exclusive)?, ErrorKind::InUse, "other/b")?;
    for name in ["d", "b"] {
        take_away(&other.join(name))?;
    }
    // The host is asked again: no restart is needed.
    delete_both(rig)?;
    fs::remove_dir_all(&other)?;
    Ok(())
}

fn a_mount_hides_the_targets_parent(rig: &mut Rig) -> Result<()> {
    let parent = rig.target("parent");
    fs::create_dir(&parent)?;
    publish(&rig.helper()?, target("parent/d"), target("parent/b"))?;
    fs::write(parent.join("d/file"), "content")?;
    mount_tmpfs(&parent)?;
    rig.restart_helper()?;
    check_kept(rig, "parent/")?;
    take_away(&parent)?;
    check_kept(rig, "parent/")?;
    unpublish(rig, target("parent/d"), target("parent/b"))?;
    delete_both(rig)?;
    fs::remove_dir(&parent)?;
    Ok(())
}

fn another_mount_lies_on_the_target(rig: &mut Rig) -> Result<()> {
    publish(&rig.helper()?, target("d"), target("b"))?;
    let (directory, device) = (rig.target("d"), rig.target("b"));
    fs::write(directory.join("file"), "content")?;
    mount_tmpfs(&directory)?;
    mount_bind("/dev/null", &device)?;
    rig.restart_helper()?;
    check_kept(rig, "publish/")?;
    for path in [&directory, &device] {
        take_away(path)?;
    }
    check_kept(rig, "publish/")?;
    // Another mount of the same volume does not count: it goes with the target.
    for path in [&directory, &device] {
        mount_bind(path, path)?;
    }
    rig.restart_helper()?;
    check_kept(rig, "work:")?;
    unpublish(rig, target("d"), target("b"))?;
    delete_both(rig)
}

fn a_part_of_the_volume_is_bound_elsewhere_as_for_a_subpath(rig: &mut Rig) -> Result<()> {
    let published = rig.kubelet.prepare("vol-d", "pv-d", "pod")?;
    let of_kubelet = |path: &str| helper::target("kubelet-pods", path);
    let path = "pod/volumes/kubernetes.io~csi/pv-d/mount";
    publish(&rig.helper()?, of_kubelet(path), target("b"))?;
    fs::create_dir_all(published.join("sub/removed"))?;
    fs::write(published.join("file"), "content")?;
    let subpaths = rig.kubelet.root().join("pods/pod/volume-subpaths/pv-d/container");
    for (source, name) in [("sub", "0"), ("sub/removed", "1")] {
        fs::create_dir_all(subpaths.join(name))?;
        mount_bind(published.join(source), subpaths.join(name))?;
    }
    // The pod removes and renames directories that are bound elsewhere.
    fs::remove_dir(published.join("sub/removed"))?;
    fs::rename(published.join("sub"), published.join("renamed"))?;
    let client = rig.restarted_helper()?;
    // The kubelet publishes again, and the helper finds it published; only one target is allowed.
    let again = |target: TargetPath| Request::BindMount {
        volume: volume("vol-d"),
        target,
        flags: MountFlags::default(),
        exclusive: true,
    };
    client.ask(&again(of_kubelet(path)))?;
    unpublish(rig, of_kubelet(path), target("b"))?;
    for name in ["0", "1"] {
        denied(client.request(&delete("vol-d"))?, ErrorKind::InUse, &format!("volume-subpaths/pv-d/container/{name}"))?;
        denied(client.request(&again(target("d")))?, ErrorKind::InUse, "volume-subpaths")?;
        take_away(&subpaths.join(name))?;
        fs::remove_dir(subpaths.join(name))?;
    }
    fs::remove_dir_all(rig.kubelet.root().join("pods/pod"))?;
    // It works again without a restart.
    delete_both(rig)
}

fn the_kubelet_has_bound_the_device_once_more(rig: &mut Rig) -> Result<()> {
    let published = rig.kubelet.prepare_block("vol-b", "pv-b", "pod")?;
    let device = helper::target("kubelet-csi", "volumeDevices/publish/pv-b/pod");
    publish(&rig.helper()?, target("d"), device.clone())?;
    let global = rig.kubelet.map_globally(&published, "pv-b", "pod")?;
    let client = rig.restarted_helper()?;
    client.ask(&Request::MakeDevice { volume: volume("vol-b"), target: device.clone(), exclusive: true })?;
    unpublish(rig, target("d"), device)?;
    denied(client.request(&detach("vol-b"))?, ErrorKind::InUse, "/dev/pod")?;
    denied(client.request(&Request::LoopAttach { volume: volume("vol-b"), read_only: true })?, ErrorKind::InUse, "")?;
    denied(client.request(&delete("vol-b"))?, ErrorKind::InUse, "/dev/pod")?;
    rig.kubelet.unmap_globally(&global)?;
    client.ask(&detach("vol-b"))?;
    delete_both(rig)
}

/// A path proves nothing if somebody else can rename what it leads to.
/// Where it is bound says nothing of the volume then, and nothing is told when it has its name again.
fn a_volume_is_bound_while_it_has_another_name(rig: &mut Rig) -> Result<()> {
    let client = rig.helper()?;
    client.ask(&create("vol-d", directory_spec(SIZE)))?;
    let (own, bound) = (rig.pool().volume("vol-d"), rig.work().join("bound"));
    let aside = own.with_file_name("aside");
    fs::write(own.join("data/file"), "content")?;
    fs::create_dir(&bound)?;
    fs::rename(&own, &aside)?;
    mount_bind(aside.join("data"), &bound)?;
    // What is told meanwhile is read under the other name.
    client.ask_all([create("vol-e", directory_spec(SIZE)), delete("vol-e")])?;
    fs::rename(&aside, &own)?;
    denied(client.request(&delete("vol-d"))?, ErrorKind::InUse, "bound")?;
    ensure!(fs::read(own.join("data/file"))? == b"content", "the content is lost");
    take_away(&bound)?;
    fs::remove_dir(&bound)?;
    client.ask(&delete("vol-d")).map(drop)
}

fn the_directory_around_a_mount_is_renamed(rig: &mut Rig) -> Result<()> {
    publish(&rig.helper()?, target("d"), target("b"))?;
    fs::write(rig.target("d/file"), "content")?;
    let theirs = rig.kubelet.root().join("pods/theirs");
    let at = |name: &str| -> [PathBuf; 2] { ["d", "b"].map(|volume| theirs.join(name).join(volume)) };
    let make = |name: &str| -> Result<()> {
        fs::create_dir_all(theirs.join(name).join("d"))?;
        fs::File::create(theirs.join(name).join("b"))?;
        Ok(())
    };
    fs::create_dir(&theirs)?;
    make("before")?;
    fs::set_permissions(&theirs, PermissionsExt::from_mode(0o777))?;
    for (source, bound) in [rig.target("d"), rig.target("b")].iter().zip(at("before")) {
        mount_bind(source, &bound)?;
    }
    rig.restart_helper()?;
    unpublish(rig, target("d"), target("b"))?;
    check_kept(rig, "theirs/before")?;
    fs::rename(theirs.join("before"), theirs.join("after"))?;
    check_kept(rig, "theirs/after")?;
    make("before")?;
    check_kept(rig, "theirs/after")?;
    rig.restart_helper()?;
    check_kept(rig, "theirs/after")?;
    for bound in at("after") {
        take_away(&bound)?;
    }
    fs::remove_dir_all(&theirs)?;
    // There is nothing left that anybody could have renamed.
    delete_both(rig)
}

/// The copies that the kernel makes there disappear with their originals, and do not prevent the deletion of a volume.
fn the_publish_directory_is_visible_at_a_second_path(rig: &mut Rig) -> Result<()> {
    let alias = rig.work().join("alias");
    fs::create_dir(&alias)?;
    mount_bind(rig.publish_directory(), &alias)?;
    publish(&rig.helper()?, target("d"), target("b"))?;
    fs::write(alias.join("d/file"), "content")?;
    ensure!(mounts::at(&alias.join("d"))?.len() == 1, "no copy was made");
    rig.restart_helper()?;
    check_kept(rig, "work:")?;
    unpublish(rig, target("d"), target("b"))?;
    ensure!(mounts::below(&alias)?.is_empty(), "the copies have not gone with their originals");
    delete_both(rig)?;
    take_away(&alias)?;
    fs::remove_dir(&alias)?;
    Ok(())
}

fn a_look_at_start_fails(rig: &mut Rig) -> Result<()> {
    looks_fail(rig, 5)
}

fn every_look_at_start_fails_in_turn(rig: &mut Rig) -> Result<()> {
    looks_fail(rig, 1)
}

/// Every `stride`th call with which a start looks for mounts fails: the helper refuses to serve, or keeps every volume
/// that it served before.
fn looks_fail(rig: &mut Rig, stride: usize) -> Result<()> {
    publish(&rig.helper()?, target("d"), target("b"))?;
    fs::write(rig.target("d/file"), "content")?;
    rig.kill_helper()?;
    // The call may be forbidden once the helper serves; then its failure must not end the helper.
    rig.helper_flags = vec!["--seccomp=log".to_owned()];
    for (name, error) in [
        ("statx", "ENOMEM"),
        ("openat2", "ENOMEM"),
        ("getdents64", "ENOMEM"),
        ("ioctl", "EIO"),
        ("read", "EIO"),
        ("readlink", "ENOMEM"),
    ] {
        for number in (1..).step_by(stride) {
            let call = Call { name: name.to_owned(), number };
            if !look_fails(rig, &call, Fault::Error(error)).with_context(|| format!("{error} at {call}"))? {
                break;
            }
        }
    }
    rig.start_helper()?;
    unpublish(rig, target("d"), target("b"))?;
    delete_both(rig)
}

/// Starts a helper with a fault, and returns whether it got as far as that call.
fn look_fails(rig: &Rig, call: &Call, fault: Fault) -> Result<bool> {
    let traced = rig.work().join("trace");
    let mut command = strace::started(&rig.helper_command()?, &traced, Some((call, fault)));
    let mut daemon = Daemon::start("helper", &mut command, &rig.logs())?;
    let limit = rig.patience(Duration::from_secs(20));
    let mut client = None;
    let served = daemon.wait_until(limit, || {
        client = Some(HelperClient::welcomed(&rig.helper_socket())?);
        Ok(())
    });
    let injected = was_injected(&fs::read_to_string(&traced)?);
    match client {
        Some(client) => {
            for id in ["vol-d", "vol-b"] {
                let response = client.request(&delete(id))?;
                ensure!(response.is_err(), "{id} was deleted");
            }
            daemon.kill()?;
        }
        None => {
            ensure!(injected, "it does not serve: {served:?}");
            ensure!(daemon.wait(limit)?.code() == Some(1), "it did not refuse in an orderly way");
        }
    }
    rig.pool().holds(&["vol-b", "vol-d"])?;
    ensure!(fs::read(rig.target("d/file"))? == b"content", "the content is lost");
    Ok(injected)
}
