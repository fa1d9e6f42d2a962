//! What comes after an error: not only the same request again, but every other one. None that is granted leaves a volume that
//! cannot be used, and whatever is asked for in the end is granted.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{ErrorKind, Request, Response};
use bulkhead_tests::helper::{
    bind, bytes, create, create_from, create_snapshot, delete, delete_snapshot, directory_spec, discard,
    grow_filesystem, image_spec, unbind, volume,
};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::{Fault, Tracer};

use super::operation::{begin, name, renew, request};
use super::operations::{
    COPY, DEVICE, DIRECTORY, FILESYSTEM, Operation, SNAPSHOT, device_life, filesystem_life, on_copies, on_devices,
    on_directories, on_filesystems,
};
use super::points::{self, Extent, Point, Tally, can_fail, lasting};
use super::session::{Figures, Session, granted, undo};

/// The errors that single calls fail with: what a broken disk says, and what a kernel without memory does.
const ERRORS: [&str; 2] = ["EIO", "ENOMEM"];
/// What a dying disk says, of everything from a call on.
const DYING: &str = "EIO";
const SIZE: u64 = 1 << 20;

/// What can be asked for besides an operation of a list, and what makes use of its volume.
pub struct Subject {
    operations: Vec<Operation>,
    others: Vec<Request>,
    /// Makes the volume, or finds it made.
    create: Request,
    /// Publishes it.
    publish: Vec<Request>,
    target: &'static str,
    undo: Vec<Request>,
}

/// The operations on a directory volume. Its target has no record of the kubelet here, which is no matter.
pub fn directory() -> Subject {
    let inodes = 8192.try_into().expect("a number of inodes");
    let (made, publish) = (create(&DIRECTORY, directory_spec(SIZE)), bind(&DIRECTORY, "other"));
    let grow = Request::SetQuota { volume: volume(&DIRECTORY), size: bytes(2 * SIZE), inodes };
    let unbind_other = unbind(&DIRECTORY, "other");
    let operations: Vec<Operation> = on_directories().into_iter().filter(changes).collect();
    let unbind = operations.iter().flat_map(|operation| &operation.undo).next().cloned();
    let end = [unbind_other.clone(), delete(&DIRECTORY)];
    Subject {
        others: vec![made.clone(), publish.clone(), discard(&DIRECTORY), delete(&DIRECTORY), grow, unbind_other],
        undo: unbind.into_iter().chain(end).collect(),
        create: made,
        publish: vec![publish],
        target: "other",
        operations,
    }
}

/// The operations on a block volume.
pub fn device() -> Subject {
    let [made, attach, make, grow, resize, remove, detach, delete] = device_life();
    let read_only = Request::LoopAttach { volume: volume(&DEVICE), read_only: true };
    let end = vec![remove.clone(), detach.clone(), delete.clone()];
    Subject {
        operations: on_devices().into_iter().filter(changes).collect(),
        others: vec![
            made.clone(),
            attach.clone(),
            discard(&DEVICE),
            make.clone(),
            delete,
            grow,
            resize,
            detach,
            remove,
            read_only,
        ],
        create: made,
        publish: vec![attach, make],
        target: "device",
        undo: end,
    }
}

/// The operations on a volume with a filesystem.
pub fn filesystem() -> Subject {
    let [made, mount, bind, grow, unbind, unmount, delete] = filesystem_life();
    let further = grow_filesystem(&FILESYSTEM, crate::cases::filesystems::SIZE + (64 << 20));
    let end = vec![unbind.clone(), unmount.clone(), delete.clone()];
    Subject {
        operations: on_filesystems().into_iter().filter(changes).collect(),
        others: vec![
            made.clone(),
            mount.clone(),
            discard(&FILESYSTEM),
            bind.clone(),
            delete,
            grow,
            unmount,
            unbind,
            further,
        ],
        create: made,
        publish: vec![mount, bind],
        target: "filesystem",
        undo: end,
    }
}

/// The operations on snapshots and copies of a block volume.
pub fn copy() -> Subject {
    let [made, attach, .., detach, delete_source] = device_life();
    let publish = [
        Request::LoopAttach { volume: volume(&COPY), read_only: false },
        bulkhead_tests::helper::make_device(&COPY, "copy"),
    ];
    let (take, drop) = (create_snapshot(&DEVICE, &SNAPSHOT), delete_snapshot(&SNAPSHOT));
    let end =
        [bulkhead_tests::helper::remove_device(&COPY, "copy"), bulkhead_tests::helper::detach(&COPY), delete(&COPY)];
    let is_of_device = |operation: &Operation| !operation.name.contains("filesystem") && changes(operation);
    Subject {
        operations: on_copies().into_iter().filter(is_of_device).collect(),
        others: vec![
            take,
            made,
            create_from(&COPY, image_spec(SIZE), &DEVICE),
            discard(&COPY),
            drop.clone(),
            attach,
            discard(&DEVICE),
            delete(&COPY),
            create(&COPY, image_spec(SIZE)),
            detach.clone(),
        ],
        create: create(&COPY, image_spec(SIZE)),
        publish: publish.into(),
        target: "copy",
        undo: end.into_iter().chain([drop, detach, delete_source]).collect(),
    }
}

impl Subject {
    /// Only those of its operations with such numbers: together they would take longer than a case may.
    pub fn only(self, range: std::ops::Range<usize>) -> Self {
        let operations = self.operations.get(range).unwrap_or_default().to_vec();
        Self { operations, ..self }
    }
}

/// Returns whether an operation changes anything about a volume.
fn changes(operation: &Operation) -> bool {
    use Request::{BindMount, Create, CreateFrom, CreateSnapshot, Delete, DeleteSnapshot, DeleteUnused, Unmount};
    let is_served = operation.actor == super::operations::Actor::Serving;
    let changes = matches!(
        operation.request,
        Create { .. }
            | BindMount { .. }
            | Unmount { .. }
            | Delete { .. }
            | DeleteUnused { .. }
            | CreateSnapshot { .. }
            | CreateFrom { .. }
            | DeleteSnapshot { .. }
            | Request::SetQuota { .. }
            | Request::SetInodes { .. }
            | Request::LoopAttach { .. }
            | Request::LoopDetach { .. }
            | Request::MakeDevice { .. }
            | Request::RemoveDevice { .. }
            | Request::GrowImage { .. }
            | Request::LoopResize { .. }
            | Request::Allocate { .. }
            | Request::MountFilesystem { .. }
            | Request::MountLabelled { .. }
            | Request::UnmountFilesystem { .. }
            | Request::GrowFilesystem { .. }
    );
    is_served && changes
}

/// How calls fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// One does.
    Once(&'static str),
    /// All do that write to the disk, from one on, until the other request is answered too.
    FromThen,
}

/// Makes calls of the operations fail; then asks for something else, makes use of the volume, and undoes everything. In a
/// sample, those come first that have been wrong.
pub fn others(rig: &mut Rig, subject: &Subject, extent: Extent) -> Result<()> {
    rig.helper_flags.push("--seccomp=log".to_owned());
    begin(rig)?;
    let points = points::of(rig, &subject.operations)?;
    let figures = Figures::now(rig)?;
    let ways = points.iter().filter(|point| can_fail(&point.call) && !is_of_the_protocol(point)).flat_map(|point| {
        let dying = lasting(point).is_some().then_some(How::FromThen);
        ERRORS.map(How::Once).into_iter().chain(dying).map(move |how| (point, how))
    });
    let turns = ways.flat_map(|(point, how)| subject.others.iter().map(move |other| (point, how, other)));
    let (named, rest): (Vec<_>, Vec<_>) = turns.partition(|(point, how, other)| is_known(point, *how, other));
    let mut tally = Tally::default();
    for (point, how, other) in named.into_iter().chain(extent.of(rig, rest)) {
        let title = match how {
            How::Once(error) => format!("{}, then {other:?}", name(point, Fault::Error(error))),
            How::FromThen => format!("{} and all that follows, then {other:?}", name(point, Fault::Error(DYING))),
        };
        let outcome = turn(rig, subject, (point, how, other), &figures);
        if !tally.add(&title, &outcome) {
            break;
        }
        if outcome.is_err() {
            renew(rig, point.operation)?;
            end(rig, subject)?;
            points::emptied(rig)?;
        }
    }
    tally.judge()
}

/// Returns whether something has been wrong there once: a deletion that fails after it has removed a directory, and a volume
/// that counts as used although its mount has failed.
fn is_known(point: &Point<'_>, how: How, other: &Request) -> bool {
    let is_discard = |request: &Request| matches!(request, Request::DeleteUnused { .. });
    let is_mount = ["move_mount", "mount_setattr"].contains(&point.call.name.as_str());
    match how {
        How::FromThen => is_discard(&point.operation.request) && point.call.name == "renameat2",
        How::Once(_) => is_mount && is_discard(other),
    }
}

/// What fails there leaves no answer, or ends the helper.
fn is_of_the_protocol(point: &Point<'_>) -> bool {
    ["recvfrom", "recvmsg", "sendmsg", "setsockopt", "capget", "capset"].contains(&point.call.name.as_str())
}

fn turn(
    rig: &mut Rig,
    subject: &Subject,
    (point, how, other): (&Point<'_>, How, &Request),
    figures: &Figures,
) -> Result<bool> {
    let (caused, first, second) = match how {
        How::Once(error) => {
            let (caused, answer) = request(rig, point, Fault::Error(error))?;
            let answer = answer.context("the connection was closed without an answer")?;
            (caused, answer, settled(rig, other)?)
        }
        How::FromThen => dying(rig, point, other)?,
    };
    rig.running_helper()?.check_alive()?;
    if how != How::FromThen {
        check_unused(point.operation, &first, other, &second)?;
    }
    let is_there = second.is_ok() && *other == subject.create;
    use_it(rig, subject, is_there).with_context(|| format!("after {first:?} and {second:?}"))?;
    end(rig, subject)?;
    undo(rig, point.operation)?;
    if how == How::FromThen {
        repeat(rig, point.operation)?;
    }
    figures.check(rig)?;
    Ok(caused)
}

/// What was begun and could not be put aside is cleared away by the same request.
fn repeat(rig: &Rig, operation: &Operation) -> Result<()> {
    use Request::{Create, CreateFrom, CreateSnapshot};
    if matches!(operation.request, Create { .. } | CreateFrom { .. } | CreateSnapshot { .. }) {
        for request in operation.before.iter().chain([&operation.request]) {
            granted(rig, request).with_context(|| format!("from the beginning, {request:?}"))?;
        }
        undo(rig, operation)?;
    }
    Ok(())
}

/// Sends the request of a point while nothing more can be written from its call on, and then the other request.
fn dying(rig: &mut Rig, point: &Point<'_>, other: &Request) -> Result<(bool, Response, Response)> {
    let session = Session::open(rig)?;
    point.operation.before.iter().try_for_each(|request| session.client.ask(request).map(drop))?;
    let log = rig.work().join("trace");
    let calls = lasting(point).context("a call that writes")?;
    let tracer = Tracer::inject_from(&session.threads(point.operation.actor)?, &log, &calls, DYING)?;
    let first = session.send(rig, point.operation).context("the connection was closed without an answer")?;
    let second = session.client.request(other).context("the connection was closed without an answer")?;
    Ok((bulkhead_tests::strace::was_injected(&tracer.end()?), first, second))
}

/// The answer to a request that is no longer `Busy`.
fn settled(rig: &Rig, request: &Request) -> Result<Response> {
    rig.eventually(2, || match rig.helper()?.request(request)? {
        Err(error) if error.kind == ErrorKind::Busy => bail!("busy: {error}"),
        answer => Ok(answer),
    })
}

/// A volume that nobody has seen is deleted as an unused one, whatever has failed. A filesystem that was mounted may differ from
/// what it began as.
fn check_unused(operation: &Operation, first: &Response, other: &Request, second: &Response) -> Result<()> {
    use Request::{BindMount, CreateFrom, CreateSnapshot, DeleteUnused, LoopAttach, MountFilesystem};
    let DeleteUnused { volume } = other else { return Ok(()) };
    let is_use = |request: &Request| match request {
        LoopAttach { volume: used, .. } | BindMount { volume: used, .. } | MountFilesystem { volume: used } => {
            used == volume
        }
        CreateFrom { volume: made, .. } => made == volume,
        CreateSnapshot { .. } => false,
        _ => false,
    };
    let tried = matches!(operation.request, MountFilesystem { .. }) || first.is_ok() && is_use(&operation.request);
    let is_copy = matches!(operation.request, CreateFrom { .. });
    if tried || is_copy || operation.before.iter().any(is_use) {
        return Ok(());
    }
    ensure!(second.is_ok(), "nobody has seen {volume}, but it is not deleted as unused: {second:?}");
    Ok(())
}

/// Creates the volume unless it is there, publishes it, and writes to it.
fn use_it(rig: &Rig, subject: &Subject, is_there: bool) -> Result<()> {
    if !is_there {
        match settled(rig, &subject.create)? {
            Ok(_) => {}
            // It is a copy, or was given other settings.
            Err(error) if error.kind == ErrorKind::AlreadyExists => {}
            Err(error) => bail!("create it: {error}"),
        }
    }
    // What is published somewhere in another way is in the way.
    for request in subject.undo.iter().filter(|request| is_unpublish(request)) {
        granted(rig, request).with_context(|| format!("{request:?}"))?;
    }
    for request in &subject.publish {
        granted(rig, request).with_context(|| format!("{request:?}"))?;
    }
    check_usable(&rig.target(subject.target)).context("use it")
}

fn is_unpublish(request: &Request) -> bool {
    matches!(request, Request::Unmount { .. } | Request::RemoveDevice { .. })
}

fn check_usable(target: &Path) -> Result<()> {
    let is_directory = target.is_dir();
    let path = if is_directory { target.join("file") } else { target.to_owned() };
    let mut file = File::options().write(true).read(true).create(is_directory).truncate(false).open(&path)?;
    file.write_all(b"content")?;
    file.sync_all()?;
    let mut found = [0; 7];
    File::open(&path)?.read_exact(&mut found)?;
    ensure!(&found == b"content", "{found:?}");
    if is_directory { Ok(fs::remove_file(&path)?) } else { Ok(()) }
}

fn end(rig: &Rig, subject: &Subject) -> Result<()> {
    for request in &subject.undo {
        match settled(rig, request)? {
            Err(error) if error.kind != ErrorKind::NotFound => bail!("ended with {request:?}: {error}"),
            _ => {}
        }
    }
    Ok(())
}
