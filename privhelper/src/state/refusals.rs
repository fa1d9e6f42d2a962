//! Sentences for what the placer refuses: it answers with values only.

use std::collections::BTreeMap;
use std::fmt::Display;

use bulkhead_protocol::{Error, ErrorKind, PoolName, PublishName, Separation, TargetPath, Text, VolumeId};

use super::{Kind, broken, busy, exists, invalid, refused, unsupported, ways};
use crate::place::wire::{OnFilesystem, Refusal, Request};

/// The error for a request that is refused. `directories` are the publish directories, as seen on the host.
pub fn explain(refusal: Refusal, request: &Request, directories: &BTreeMap<PublishName, Text>) -> Error {
    let About { volume, target, kind, pool, directory } = About::of(request);
    let way = |depth| {
        target.zip(directory.and_then(|name| directories.get(name))).map(|(target, from)| way(from, target, depth))
    };
    let (volume, pool, directory, path) = (text(volume), text(pool), text(directory), text(target));
    let record = |why: &str| {
        refused(format!("cannot publish volume {volume} at {path}: the kubelet's file vol_data.json {why}"))
    };
    let incompatible = |is: &str| Error::new(ErrorKind::Incompatible, format!("target {path} {is}"));
    match refusal {
        Refusal::NoPublishDirectory => refused(format!("publish directory {directory} does not exist")),
        Refusal::NoPool => refused(format!("pool {pool} is not served")),
        Refusal::NoFilesystems => unsupported(format!("pool {pool} is not configured for filesystems in images")),
        Refusal::Shape => wrong_shape(path, text(kind)),
        Refusal::RecordMissing => record("is missing"),
        Refusal::RecordTooLong => record("is longer than any that the kubelet writes"),
        Refusal::RecordOfOthers => record("is not a file that belongs to root"),
        Refusal::RecordMalformed => record("is not a JSON object of strings"),
        Refusal::RecordOfAnotherDriver => record("names another driver"),
        Refusal::RecordOfAnotherVolume => record("names another volume"),
        Refusal::NoParent => Error::new(ErrorKind::NotFound, format!("the directory of target {path} does not exist")),
        Refusal::Crosses => {
            refused(format!("the path to target {path} contains a symbolic link or crosses into another mount"))
        }
        Refusal::OpenToOthers(depth) => {
            let directory = text(way(depth));
            refused(format!(
                "{directory}, on the way to target {path}, can be changed by users other than root; run: chown root {directory}; chmod go-w {directory}"
            ))
        }
        Refusal::Mounted => exists(format!("something else is mounted at target {path}; unmount it first")),
        Refusal::IsDirectory => incompatible("is a directory, but must be a file; remove it"),
        Refusal::IsFile => incompatible("is a file, but must be a directory; remove it"),
        Refusal::HasContent => incompatible("is a file with content; remove it"),
        Refusal::NotEmpty => incompatible("is a directory that is not empty; empty it"),
        Refusal::IsOther => incompatible("is neither a directory nor a file; remove it"),
        Refusal::InUse => busy(format!("target {path} is busy: a process or a mount inside the volume uses it")),
        Refusal::OfNobody => refused(format!("what is mounted at target {path} is of no pool; unmount it by hand")),
        Refusal::NotMounted => invalid(format!("the filesystem of volume {volume} is not mounted; mount it first")),
        Refusal::Replaced => replaced(&volume),
        Refusal::Apart => ways::refusal(directory, Separation::Moved),
    }
}

/// The error for a target that is not of the shape for its publish directory.
pub fn wrong_shape(target: impl Display, kind: impl Display) -> Error {
    refused(format!("target {target} is not a path at which a {kind} may be published"))
}

/// The error for a volume of which something else is found under its name.
pub fn replaced(volume: impl Display) -> Error {
    let what = "was replaced while it was served; put back what was there, or restart bulkhead-privhelper";
    broken(format!("the directory of volume {volume} {what}"))
}

/// What a request is about, as far as it says so.
#[derive(Default)]
struct About<'a> {
    volume: Option<&'a VolumeId>,
    target: Option<&'a TargetPath>,
    kind: Option<Kind>,
    pool: Option<&'a PoolName>,
    directory: Option<&'a PublishName>,
}

impl<'a> About<'a> {
    fn of(request: &'a Request) -> Self {
        let nothing = Self::default;
        let at =
            |target: &'a TargetPath| Self { target: Some(target), directory: Some(&target.directory), ..nothing() };
        match request {
            Request::Bind(volume, content, target, _) => {
                Self { volume: Some(volume), kind: Some(content.kind), pool: Some(&content.pool), ..at(target) }
            }
            Request::Unbind(target, kind, ..) => Self { kind: Some(*kind), ..at(target) },
            Request::Look(target, to_publish) => Self {
                volume: to_publish.as_ref().map(|(volume, _)| volume),
                kind: to_publish.as_ref().map(|(_, kind)| *kind),
                ..at(target)
            },
            Request::IsMoved(directory) => Self { directory: Some(directory), ..nothing() },
            Request::Filesystem(pool, _, OnFilesystem::Mount(volume, _)) => {
                Self { volume: Some(volume), pool: Some(pool), ..nothing() }
            }
            Request::Quotas(pool, ..)
            | Request::NextQuota(pool, ..)
            | Request::SetQuota(pool, ..)
            | Request::Filesystem(pool, ..)
            | Request::Attribute(pool, ..)
            | Request::SetAttribute(pool, ..) => Self { pool: Some(pool), ..nothing() },
            Request::IsGone(_) | Request::Open(..) | Request::Command(..) => nothing(),
        }
    }
}

fn text(value: Option<impl Display>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// The directory on the way to a target that is so many below its publish directory, which the host sees here.
fn way(from: &Text, target: &TargetPath, depth: u16) -> String {
    target.path.components().take(depth.into()).fold(from.to_string(), |way, name| format!("{way}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::testing::{id, target};
    use crate::sys::quota::{Look, ProjectId};

    fn explained(refusal: Refusal, request: &Request) -> Error {
        let directories = [("work".parse().expect("a name"), Text::new("/srv/targets"))].into();
        explain(refusal, request, &directories)
    }

    #[test]
    fn a_directory_on_the_way_is_named_as_the_host_sees_it() {
        let request = Request::Look(target("a/b/target"), None);
        for (depth, directory) in [(0, "/srv/targets"), (1, "/srv/targets/a"), (2, "/srv/targets/a/b")] {
            let message = format!(
                "{directory}, on the way to target work:a/b/target, can be changed by users other than root; run: chown root {directory}; chmod go-w {directory}"
            );
            assert_eq!(explained(Refusal::OpenToOthers(depth), &request), refused(message));
        }
    }

    #[test]
    fn a_sentence_names_what_was_asked_for() {
        let request = Request::Look(target("a"), Some((id("vol-a"), Kind::Block)));
        for (refusal, message) in [
            (Refusal::Shape, "target work:a is not a path at which a block volume may be published"),
            (
                Refusal::RecordMissing,
                "cannot publish volume vol-a at work:a: the kubelet's file vol_data.json is missing",
            ),
            (Refusal::NoPublishDirectory, "publish directory work does not exist"),
        ] {
            assert_eq!(explained(refusal, &request), refused(message));
        }
        let request = Request::NextQuota("fast".parse().expect("a name"), Look::AtOnce, ProjectId(1));
        assert_eq!(explained(Refusal::NoPool, &request), refused("pool fast is not served"));
    }
}
