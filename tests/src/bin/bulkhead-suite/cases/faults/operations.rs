//! Every operation of the helper, with what precedes it and what undoes it.

use std::fs;
use std::sync::LazyLock;

use anyhow::Result;
use bulkhead_protocol::{Request, Socket, TargetPath};
use bulkhead_tests::helper::{
    bind, bytes, create, create_from, create_group, create_snapshot, delete, delete_snapshot, directory_spec, discard,
    filesystem_spec, grow_filesystem, image_spec, mount_filesystem, target, unbind, unmount_filesystem, volume,
};
use bulkhead_tests::ids::own;
use bulkhead_tests::rig::Rig;

/// The volume with a filesystem.
pub static FILESYSTEM: LazyLock<&str> = LazyLock::new(|| own("vol-f"));
/// The directory volume and the block volume.
pub static DIRECTORY: LazyLock<&str> = LazyLock::new(|| own("vol-a"));
pub static DEVICE: LazyLock<&str> = LazyLock::new(|| own("vol-b"));
/// A snapshot, and a volume that begins as a copy.
pub static SNAPSHOT: LazyLock<&str> = LazyLock::new(|| own("snap-a"));
pub static COPY: LazyLock<&str> = LazyLock::new(|| own("vol-c"));
const SIZE: u64 = 1 << 20;

/// Who makes the system calls of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The thread that accepts connections.
    Accepting,
    /// The thread that serves the connection.
    Serving,
    /// The thread that releases the resources of deleted volumes.
    Releasing,
    /// The process that empties deleted volumes.
    Emptier,
    /// The process that mounts filesystems in images.
    Mounter,
    /// The process that mounts, makes nodes and sets limits.
    Placer,
}

/// A request and its context.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its name in error messages.
    pub name: &'static str,
    /// Whose calls fail.
    pub actor: Actor,
    /// The requests that precede it.
    pub before: Vec<Request>,
    /// The request.
    pub request: Request,
    /// The requests that follow it, so that nothing is left.
    pub undo: Vec<Request>,
}

impl Operation {
    /// Returns whether the calls in question come after the answer.
    pub fn is_in_background(&self) -> bool {
        matches!(self.actor, Actor::Releasing | Actor::Emptier)
    }

    /// The request again, after what may have to be repeated before it: a helper that was killed keeps no filesystem mounted
    /// that is not published.
    pub fn again(&self) -> Vec<Request> {
        let is_bind = matches!(&self.request, Request::BindMount { volume, .. } if volume.as_str() == *FILESYSTEM);
        let mount = is_bind.then(|| mount_filesystem(&FILESYSTEM));
        mount.into_iter().chain([self.request.clone()]).collect()
    }

    /// Puts files into the directory volume if there is something to empty.
    pub fn fill(&self, rig: &Rig) -> Result<()> {
        if self.actor == Actor::Emptier {
            let data = rig.pool().volume(&DIRECTORY).join("data");
            fs::create_dir_all(data.join("deep/deeper"))?;
            fs::write(data.join("deep/file"), "content")?;
            std::os::unix::fs::symlink("nowhere", data.join("link"))?;
        }
        Ok(())
    }
}

/// The target of the directory volume, which has the kubelet's record, and that of the block volume, below another
/// publish directory.
fn targets() -> [TargetPath; 2] {
    [target("kubelet-pods", "pod-1/volumes/kubernetes.io~csi/pv-a/mount"), target("work", "device")]
}

/// Makes what a kubelet makes before it calls.
pub fn prepare(rig: &Rig) -> Result<()> {
    rig.kubelet.prepare(&DIRECTORY, "pv-a", "pod-1").map(drop)
}

/// The life of the directory volume, in requests.
pub fn directory_life() -> [Request; 5] {
    let [target, _] = targets();
    let inodes = 8192.try_into().expect("a number of inodes");
    let (id, flags) = (|| volume(&DIRECTORY), bulkhead_protocol::MountFlags::default());
    [
        create(&DIRECTORY, directory_spec(SIZE)),
        Request::BindMount { volume: id(), target: target.clone(), flags, exclusive: true },
        Request::SetQuota { volume: id(), size: bytes(2 * SIZE), inodes },
        Request::Unmount { volume: id(), target },
        delete(&DIRECTORY),
    ]
}

/// The life of the block volume, in requests.
pub fn device_life() -> [Request; 8] {
    let [_, target] = targets();
    let id = || volume(&DEVICE);
    [
        create(&DEVICE, image_spec(SIZE)),
        Request::LoopAttach { volume: id(), read_only: false },
        Request::MakeDevice { volume: id(), target: target.clone(), exclusive: true },
        Request::GrowImage { volume: id(), size: bytes(2 * SIZE) },
        Request::LoopResize { volume: id() },
        Request::RemoveDevice { volume: id(), target },
        Request::LoopDetach { volume: id() },
        delete(&DEVICE),
    ]
}

/// The life of the volume with a filesystem, in requests.
pub fn filesystem_life() -> [Request; 7] {
    let (path, size) = ("filesystem", crate::cases::filesystems::SIZE);
    [
        create(&FILESYSTEM, filesystem_spec(size)),
        mount_filesystem(&FILESYSTEM),
        bind(&FILESYSTEM, path),
        grow_filesystem(&FILESYSTEM, size + (16 << 20)),
        unbind(&FILESYSTEM, path),
        unmount_filesystem(&FILESYSTEM),
        delete(&FILESYSTEM),
    ]
}

/// The operations on volumes with filesystems.
pub fn on_filesystems() -> Vec<Operation> {
    let [create, mount, bind, grow, unbind, unmount, delete] = filesystem_life();
    let operation = undone_by(vec![unbind.clone(), unmount.clone(), delete.clone()]);
    let usage = Request::Usage { volume: volume(&FILESYSTEM), target: Some(target("work", "filesystem")) };
    let by_mounter = |operation| Operation { actor: Actor::Mounter, ..operation };
    let operations = vec![
        by_mounter(operation("have a filesystem mounted for the first time", &[&create], &mount)),
        by_mounter(operation("have a filesystem mounted again", &[&create, &mount, &unmount], &mount)),
        operation("create a filesystem", &[], &create),
        operation("mount a filesystem for the first time", &[&create], &mount),
        operation("mount a filesystem again", &[&create, &mount, &unmount], &mount),
        operation("bind a filesystem", &[&create, &mount], &bind),
        operation("grow a filesystem", &[&create, &mount, &bind], &grow),
        operation("usage of a filesystem", &[&create, &mount, &bind], &usage),
        operation("unbind a filesystem", &[&create, &mount, &bind], &unbind),
        operation("unmount a filesystem", &[&create, &mount], &unmount),
        operation("delete a mounted filesystem", &[&create, &mount], &delete),
    ];
    with_placer(operations)
}

/// The operations on snapshots and copies: of a block volume, and of a volume with a filesystem.
pub fn on_copies() -> Vec<Operation> {
    let [create_filesystem, mount, .., unmount, delete_filesystem] = filesystem_life();
    let (take, drop) = (create_snapshot(&DEVICE, &SNAPSHOT), delete_snapshot(&SNAPSHOT));
    let (restore, end) = (create_from(&COPY, image_spec(2 * SIZE), &SNAPSHOT), delete(&COPY));
    let [create, attach, .., detach, delete] = device_life();
    let copy = create_from(&COPY, image_spec(SIZE), &DEVICE);
    let delta = Request::Delta { snapshot: volume(&SNAPSHOT), base: None, from: 0 };
    let list = Request::ListSnapshots { after: None, of: None, limit: 7 };
    let operation = undone_by(vec![end.clone(), drop.clone(), detach, delete]);
    let of_filesystem = undone_by(vec![end, drop.clone(), unmount, delete_filesystem]);
    let take_of_filesystem = create_snapshot(&FILESYSTEM, &SNAPSHOT);
    let create_empty = bulkhead_tests::helper::create(&COPY, image_spec(SIZE));
    let take_both = create_group(&[*FILESYSTEM, *COPY], "group");
    let drop_both = [*FILESYSTEM, *COPY].map(|id| delete_snapshot(&format!("{id}-group")));
    let [.., unmount_source, delete_source] = filesystem_life();
    let end_of_both = [bulkhead_tests::helper::delete(&COPY), unmount_source, delete_source];
    let of_both = undone_by(drop_both.into_iter().chain(end_of_both).collect());
    let restore_filesystem = create_from(&COPY, filesystem_spec(crate::cases::filesystems::SIZE), &SNAPSHOT);
    vec![
        operation("take a snapshot", &[&create, &attach], &take),
        operation("restore a snapshot", &[&create, &take], &restore),
        operation("copy a volume", &[&create, &attach], &copy),
        operation("read a delta", &[&create, &take], &delta),
        operation("read what is shared", &[&create, &take], &Request::Sharing { volume: volume(&DEVICE), from: 0 }),
        operation("list snapshots", &[&create, &take], &list),
        operation("delete a snapshot", &[&create, &take], &drop),
        of_filesystem("take a snapshot of a filesystem", &[&create_filesystem, &mount], &take_of_filesystem),
        of_filesystem("restore a filesystem", &[&create_filesystem, &take_of_filesystem], &restore_filesystem),
        of_both(
            "take snapshots of a filesystem and a device",
            &[&create_filesystem, &mount, &create_empty],
            &take_both,
        ),
    ]
}

/// The same operations, each twice: calls of the thread that serves, and calls of the placer's, if it makes any.
fn with_placer(operations: Vec<Operation>) -> Vec<Operation> {
    let both = |operation: Operation| {
        let by_placer = operation.actor == Actor::Serving;
        let other = by_placer.then(|| Operation { actor: Actor::Placer, ..operation.clone() });
        [operation].into_iter().chain(other)
    };
    operations.into_iter().flat_map(both).collect()
}

/// Returns a function that makes operations of the serving thread, all of which are undone in the same way.
fn undone_by(undo: Vec<Request>) -> impl Fn(&'static str, &[&Request], &Request) -> Operation {
    move |name, before, request| Operation {
        name,
        actor: Actor::Serving,
        before: before.iter().copied().cloned().collect(),
        request: request.clone(),
        undo: undo.clone(),
    }
}

/// The operations on directory volumes, and those that concern no volume.
pub fn on_directories() -> Vec<Operation> {
    let [create, bind, grow, unbind, delete] = directory_life();
    let [target, _] = targets();
    let operation = undone_by(vec![unbind.clone(), delete.clone()]);
    let usage = Request::Usage { volume: volume(&DIRECTORY), target: Some(target) };
    let unused = discard(&DIRECTORY);
    let owner = Request::Owner { volume: volume(&DIRECTORY) };
    let note = "bulkhead-owner=1\nclaim=shop/data\n".parse().expect("a record");
    let fewer = Request::SetInodes { volume: volume(&DIRECTORY), inodes: 100.try_into().expect("a number of inodes") };
    let set_owner = Request::SetOwner { volume: volume(&DIRECTORY), owner: note };
    let status = Request::PoolStatus { pool: "default".parse().expect("a name") };
    let list = Request::List { after: None, limit: 16 };
    let operations = vec![
        Operation { actor: Actor::Accepting, ..operation("connect", &[], &list) },
        operation("create a directory", &[], &create),
        operation("bind", &[&create], &bind),
        operation("set the quota", &[&create, &bind], &grow),
        operation("set the number of inodes", &[&create, &bind], &fewer),
        operation("usage of a directory", &[&create, &bind], &usage),
        operation("unmount", &[&create, &bind], &unbind),
        operation("delete a directory", &[&create, &bind, &unbind], &delete),
        operation("delete an unused directory", &[&create], &unused),
        operation("note an owner", &[&create], &set_owner),
        operation("read an owner", &[&create, &set_owner], &owner),
        operation("status of a pool", &[&create], &status),
        operation("list", &[&create], &list),
        operation("listen", &[], &Request::Listen { socket: Socket::Csi }),
        operation("listen for the registration", &[], &Request::Listen { socket: Socket::Registration }),
    ];
    with_placer(operations)
}

/// Returns what happens in the background after a directory volume is deleted.
pub fn in_background() -> Vec<Operation> {
    let [create, .., delete] = directory_life();
    let operation = |name, actor| Operation {
        name,
        actor,
        before: vec![create.clone()],
        request: delete.clone(),
        undo: vec![delete.clone()],
    };
    vec![operation("empty a directory", Actor::Emptier), operation("release a directory", Actor::Releasing)]
}

/// The operations on block volumes.
pub fn on_devices() -> Vec<Operation> {
    let [create, attach, make, grow, resize, remove, detach, delete] = device_life();
    let [_, target] = targets();
    let operation = undone_by(vec![remove.clone(), detach.clone(), delete.clone()]);
    let usage = Request::Usage { volume: volume(&DEVICE), target: Some(target) };
    let unused = discard(&DEVICE);
    let read_only = Request::LoopAttach { volume: volume(&DEVICE), read_only: true };
    let sparse = bulkhead_tests::helper::create(&DEVICE, bulkhead_tests::helper::sparse_spec(SIZE));
    let allocate = Request::Allocate { volume: volume(&DEVICE) };
    let operations = vec![
        operation("create an image", &[], &create),
        operation("attach", &[&create], &attach),
        operation("attach read-only", &[&create], &read_only),
        operation("make a device", &[&create, &attach], &make),
        operation("grow an image", &[&create, &attach, &make], &grow),
        operation("allocate an image", &[&sparse, &attach, &make], &allocate),
        operation("resize a device", &[&create, &attach, &make, &grow], &resize),
        operation("usage of a device", &[&create, &attach, &make], &usage),
        operation("remove a device", &[&create, &attach, &make], &remove),
        operation("detach", &[&create, &attach], &detach),
        operation("delete an image", &[&create], &delete),
        operation("delete an unused image", &[&create], &unused),
        operation("delete an attached image", &[&create, &attach], &delete),
    ];
    with_placer(operations)
}
