//! What is edited, copied, renamed or linked, in objects or in the pool, has no image mounted that a tenant could write.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{ErrorKind, Request};
use bulkhead_tests::cases;
use bulkhead_tests::commands::{Printed, bulkheadctl};
use bulkhead_tests::csi::requests::{self, MIB, block, mount, mount_with_filesystem, parameters};
use bulkhead_tests::csi::v1::{CreateVolumeRequest, NodePublishVolumeRequest};
use bulkhead_tests::expect::{denied, refused};
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pool::{RECORD, run};
use bulkhead_tests::rig::Rig;
use rustix::fs::{RenameFlags, XattrFlags, fremovexattr, fsetxattr, renameat_with};
use tonic::Code;

use super::{SIZE, check_detached, check_image, start};

cases! {
    objects_that_are_edited_change_no_kind: Bare,
    what_is_copied_renamed_or_linked_in_a_pool_changes_no_kind: Bare + Filesystem,
    what_is_exchanged_while_it_is_served_changes_no_kind: Bare,
}

const MARK: &str = "trusted.bulkhead.filesystem";

/// Makes vol-f with a filesystem, and vol-b, a block volume with a perfect copy of it, as a tenant could write it.
fn make(helper: &HelperClient, rig: &Rig) -> Result<()> {
    helper.ask_all([create("vol-f", filesystem_spec(SIZE)), create("vol-b", image_spec(SIZE))])?;
    helper.ask_all([mount_filesystem("vol-f"), bind("vol-f", "f")])?;
    fs::write(rig.target("f/file"), "content")?;
    helper.ask_all([unbind("vol-f", "f"), unmount_filesystem("vol-f")])?;
    fs::copy(rig.pool().image("vol-f"), rig.pool().image("vol-b"))?;
    Ok(())
}

fn exchange(one: &Path, other: &Path) -> Result<()> {
    Ok(renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, other, RenameFlags::EXCHANGE)?)
}

/// What somebody does to the two volumes, and how often it is undone by the same.
type Forgery = (&'static str, &'static [&'static str], fn(&Rig) -> Result<Box<dyn FnOnce() -> Result<()>>>);

/// Puts the record of one volume onto another.
fn copy_record(rig: &Rig, from: &str, to: &str) -> Result<Box<dyn FnOnce() -> Result<()>>> {
    let ((_, copied), (outer, own)) = (rig.pool().record(from)?, rig.pool().record(to)?);
    fsetxattr(&outer, RECORD, &copied, XattrFlags::REPLACE)?;
    Ok(Box::new(move || Ok(fsetxattr(&outer, RECORD, &own, XattrFlags::REPLACE)?)))
}

/// Puts something else in the place of a volume's image.
fn replace(rig: &Rig, id: &str, by: impl FnOnce(&Path) -> Result<()>) -> Result<Box<dyn FnOnce() -> Result<()>>> {
    let (own, aside) = (rig.pool().image(id), rig.pool().image(id).with_extension("aside"));
    fs::rename(&own, &aside)?;
    by(&own)?;
    Ok(Box::new(move || Ok(fs::rename(aside, own)?)))
}

/// Each with the volumes that are not served for it.
const FORGERIES: [Forgery; 8] = [
    ("the record of the filesystem is copied to the block volume", &["vol-b"], |rig| {
        copy_record(rig, "vol-f", "vol-b")
    }),
    ("the record of the block volume is copied to the filesystem", &["vol-f"], |rig| {
        copy_record(rig, "vol-b", "vol-f")
    }),
    ("the images are exchanged", &["vol-b", "vol-f"], |rig| {
        let (one, other) = (rig.pool().image("vol-f"), rig.pool().image("vol-b"));
        exchange(&one, &other)?;
        Ok(Box::new(move || exchange(&one, &other)))
    }),
    ("the block volume's image is copied over the filesystem's", &["vol-f"], |rig| {
        let from = rig.pool().image("vol-b");
        replace(rig, "vol-f", |own| run(Command::new("cp").arg("-a").args([from.as_path(), own])))
    }),
    ("the filesystem's image is copied over the block volume's", &["vol-b"], |rig| {
        let from = rig.pool().image("vol-f");
        replace(rig, "vol-b", |own| run(Command::new("cp").arg("-a").args([from.as_path(), own])))
    }),
    ("the block volume's image is a link", &["vol-f"], |rig| {
        replace(rig, "vol-f", |own| Ok(std::os::unix::fs::symlink("../vol-b/image", own)?))
    }),
    ("the filesystem's image has another name as the block volume's", &["vol-b"], |rig| {
        let from = rig.pool().image("vol-f");
        replace(rig, "vol-b", |own| Ok(fs::hard_link(&from, own)?))
    }),
    ("the block volume's image has another name as the filesystem's", &["vol-f"], |rig| {
        let from = rig.pool().image("vol-b");
        replace(rig, "vol-f", |own| Ok(fs::hard_link(&from, own)?))
    }),
];

/// Checks that what is not served of the two volumes is not to be had in any way, nor anything that a tenant wrote mounted.
fn check_not_to_be_had(rig: &Rig, not_served: &[&str]) -> Result<()> {
    let helper = rig.helper()?;
    for id in ["vol-f", "vol-b"] {
        let is_served = !not_served.contains(&id);
        for request in [mount_filesystem(id), bind(id, "x"), grow_filesystem(id, 2 * SIZE), attach(id), delete(id)] {
            if is_served && (request == delete(id) || id == "vol-b" && request == attach(id)) {
                continue;
            }
            if is_served && id == "vol-f" && !matches!(request, Request::LoopAttach { .. }) {
                continue;
            }
            let kind = if is_served { ErrorKind::WrongKind } else { ErrorKind::PoolBroken };
            denied(helper.request(&request)?, kind, id).with_context(|| format!("{request:?}"))?;
        }
    }
    ensure!(mounts::below(&rig.publish_directory())?.is_empty());
    check_detached(rig)
}

fn what_is_copied_renamed_or_linked_in_a_pool_changes_no_kind(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let quotas = rig.run_options.enforces_sizes();
    make(&rig.helper()?, rig)?;
    for (what, not_served, forge) in FORGERIES {
        // Where there are quotas, the kernel itself refuses (EXDEV): no file gets a name in another project's directory.
        if quotas && (what.contains("another name") || what.contains("exchanged")) {
            continue;
        }
        rig.kill_helper()?;
        let undo = forge(rig).context(what)?;
        for _ in 0..2 {
            rig.start_helper()?;
            check_not_to_be_had(rig, not_served).context(what)?;
            rig.kill_helper()?;
        }
        undo().context(what)?;
        rig.start_helper()?;
    }
    // Directories that exchange their names exchange their volumes: each is of the kind of its record.
    rig.kill_helper()?;
    let [one, other] = ["vol-f", "vol-b"].map(|id| rig.pool().volume(id));
    exchange(&one, &other)?;
    let helper = rig.started_helper()?;
    denied(helper.request(&mount_filesystem("vol-f"))?, ErrorKind::WrongKind, "vol-f")?;
    denied(helper.request(&attach("vol-b"))?, ErrorKind::WrongKind, "vol-b")?;
    rig.kill_helper()?;
    exchange(&one, &other)?;
    // Two volumes of one kind on one image would be two filesystems that write there.
    rig.started_helper()?.ask(&create("vol-g", filesystem_spec(SIZE)))?;
    if !quotas {
        rig.kill_helper()?;
        let from = rig.pool().image("vol-f");
        let undo = replace(rig, "vol-g", |own| Ok(fs::hard_link(&from, own)?))?;
        rig.start_helper()?;
        for id in ["vol-f", "vol-g"] {
            denied(rig.helper()?.request(&mount_filesystem(id))?, ErrorKind::PoolBroken, "its image is also that of")?;
        }
        rig.kill_helper()?;
        undo()?;
        rig.start_helper()?;
    }
    rig.helper()?.ask(&delete("vol-g"))?;
    rig.kill_helper()?;
    // A restored image without its mark is not served; with it, it is.
    let restored = File::open(rig.pool().image("vol-f"))?;
    fremovexattr(&restored, MARK)?;
    rig.start_helper()?;
    denied(rig.helper()?.request(&mount_filesystem("vol-f"))?, ErrorKind::PoolBroken, "its image is not")?;
    rig.kill_helper()?;
    fsetxattr(&restored, MARK, b"1", XattrFlags::CREATE)?;
    drop(restored);
    let helper = rig.started_helper()?;
    helper.ask_all([mount_filesystem("vol-f"), bind("vol-f", "f")])?;
    ensure!(fs::read(rig.target("f/file"))? == b"content");
    helper.ask_all([unbind("vol-f", "f"), unmount_filesystem("vol-f")])?;
    check_image(rig, "vol-f")
}

fn what_is_exchanged_while_it_is_served_changes_no_kind(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    make(&helper, rig)?;
    let images = ["vol-f", "vol-b"].map(|id| rig.pool().image(id));
    let directories = ["vol-f", "vol-b"].map(|id| rig.pool().volume(id));
    // Between projects the kernel exchanges no images (EXDEV).
    let quotas = rig.run_options.enforces_sizes();
    let images = (!quotas).then_some(images);
    for [one, other] in images.clone().into_iter().chain([directories]) {
        exchange(&one, &other)?;
        for request in [mount_filesystem("vol-f"), attach("vol-b"), grow_filesystem("vol-f", 2 * SIZE)] {
            denied(helper.request(&request)?, ErrorKind::PoolBroken, "was replaced while it was served")?;
        }
        check_detached(rig)?;
        exchange(&one, &other)?;
    }
    // A record is read at the start only.
    let undo = copy_record(rig, "vol-f", "vol-b")?;
    denied(helper.request(&mount_filesystem("vol-b"))?, ErrorKind::WrongKind, "vol-b")?;
    undo()?;
    // While it is mounted or attached, its own device is what it is on.
    helper.ask_all([mount_filesystem("vol-f"), attach("vol-b")])?;
    images.iter().try_for_each(|[one, other]| exchange(one, other))?;
    helper.ask(&bind("vol-f", "f"))?;
    ensure!(fs::read(rig.target("f/file"))? == b"content");
    let devices = loops::backed_by(&rig.pool().device()?)?;
    ensure!(devices.len() == 2, "{devices:?}");
    images.iter().try_for_each(|[one, other]| exchange(one, other))?;
    helper.ask_all([unbind("vol-f", "f"), unmount_filesystem("vol-f"), detach("vol-b")])?;
    helper.ask_all([delete("vol-f"), delete("vol-b")])?;
    check_detached(rig)
}

/// Checks that a call to publish is refused, and that nothing is mounted or attached for it.
fn check_refused(rig: &Rig, request: NodePublishVolumeRequest) -> Result<()> {
    let what = format!("{request:?}");
    refused(rig.csi()?.node_publish_volume(request), Code::FailedPrecondition, "is not a").context(what)?;
    ensure!(mounts::below(&rig.publish_directory())?.is_empty());
    check_detached(rig)
}

/// The parameters of a class, or the attributes of a PersistentVolume.
type Class = &'static [(&'static str, &'static str)];

/// The objects of Kubernetes reach the node as the fields of calls.
fn objects_that_are_edited_change_no_kind(rig: &mut Rig) -> Result<()> {
    rig.add_pool_for_filesystems("default")?;
    let client = rig.started_csi()?;
    let size = i64::try_from(SIZE)?;
    let images: Class = &[("backing", "image"), ("sparse", "true")];
    let of_class = |name, capability, class: Class| CreateVolumeRequest {
        parameters: parameters(class),
        ..requests::create(name, size, capability)
    };
    client.create_volume(of_class("vol-f", mount(), images))?;
    client.create_volume(requests::create("vol-b", size, block()))?;
    client.create_volume(requests::create("vol-d", 16 * MIB, mount()))?;
    fs::copy(rig.pool().image("vol-f"), rig.pool().image("vol-b"))?;

    // A PersistentVolume, or a claim, with another volume mode, filesystem type, attributes or handle.
    let target = rig.target("t");
    let forged: Class = &[("backing", "image"), ("sparse", "true"), ("fsType", "xfs"), ("kind", "filesystem")];
    for capability in [mount(), mount_with_filesystem("xfs"), mount_with_filesystem("")] {
        for context in [&[], forged] {
            for readonly in [false, true] {
                let publish = NodePublishVolumeRequest {
                    volume_context: parameters(context),
                    publish_context: parameters(context),
                    readonly,
                    ..requests::publish("vol-b", &target, capability.clone())
                };
                check_refused(rig, publish)?;
            }
        }
    }
    for id in ["vol-f", "vol-d"] {
        check_refused(rig, requests::publish(id, &target, block()))?;
        check_refused(rig, requests::publish_read_only(id, &target, block()))?;
    }
    // Each while the other is in use as what it is.
    let (device, directory) = (rig.target("device"), rig.target("directory"));
    client.node_publish_volume(requests::publish("vol-b", &device, block()))?;
    client.node_publish_volume(requests::publish("vol-f", &directory, mount()))?;
    for (id, capability) in [("vol-b", mount()), ("vol-f", block())] {
        let answer = client.node_publish_volume(requests::publish(id, &target, capability));
        refused(answer, Code::FailedPrecondition, "is not a")?;
    }
    let same_size =
        [requests::node_expand("vol-b", &directory, 2 * size), requests::node_expand("vol-f", &device, 2 * size)];
    for request in same_size {
        ensure!(client.node_expand_volume(request.clone()).is_err(), "{request:?}");
    }
    ensure!(mounts::below(&rig.publish_directory())?.len() == 2);
    // What is unpublished as the other is not there.
    client.node_unpublish_volume(requests::unpublish("vol-f", &device)).err().context("another volume's target")?;
    client.node_unpublish_volume(requests::unpublish("vol-b", &directory)).err().context("another volume's target")?;

    // A class that has changed: what exists is not made anew, nor of another kind.
    for (name, capability, class) in [
        ("vol-b", mount(), images),
        ("vol-b", mount(), &[]),
        ("vol-f", block(), &[]),
        ("vol-f", block(), images),
        ("vol-f", mount(), &[]),
        ("vol-d", mount(), images),
    ] {
        let answer = client.create_volume(of_class(name, capability, class));
        refused(answer, Code::AlreadyExists, "").with_context(|| format!("{name} {class:?}"))?;
    }
    // A device is on an image whatever is behind directories.
    client.create_volume(of_class("vol-n", block(), images))?;
    by_hand(rig, &target)?;
    client.node_unpublish_volume(requests::unpublish("vol-f", &directory))?;
    client.node_unpublish_volume(requests::unpublish("vol-b", &device))?;
    check_detached(rig)?;
    check_image(rig, "vol-f")
}

/// `bulkheadctl` with the wrong kind.
fn by_hand(rig: &Rig, target: &Path) -> Result<()> {
    let at = target.to_str().context("a path that is no text")?;
    for arguments in [
        &["volume", "publish", "vol-b", at][..],
        &["volume", "publish", "vol-b", at, "--read-only"],
        &["volume", "publish", "vol-f", at, "--block"],
        &["volume", "publish", "vol-d", at, "--block"],
    ] {
        let printed = Printed::by(bulkheadctl(&rig.kubelet.csi_socket())?.args(arguments))?;
        printed.failed().with_context(|| format!("{arguments:?}"))?;
    }
    ensure!(mounts::below(&rig.publish_directory())?.len() == 2);
    Ok(())
}
