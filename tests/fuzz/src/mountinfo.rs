//! The host's mount table: tenants choose the paths in it.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use bulkhead_privhelper::mountinfo::{Mount, MountTable};

/// Each line is read as its fields say, up to the first that makes no sense, and nothing is mistaken for the end.
pub fn run(table: &[u8]) {
    let (read, is_whole) = mounts(table);
    let (mut expected, mut is_understood) = (Vec::new(), table.is_empty() || table.ends_with(b"\n"));
    let end = table.iter().rposition(|byte| *byte == b'\n').unwrap_or_default();
    for line in table[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let Some(mount) = mount(line) else {
            is_understood = false;
            break;
        };
        expected.push(mount);
    }
    assert_eq!(read, expected);
    assert_eq!(is_whole, is_understood);
    for mount in read {
        let again = mounts(&line(&mount)).0.pop().expect("a mount");
        assert_eq!(again, mount);
        assert_eq!(mount.inner(&mount.point), Some(mount.root.join("")));
        assert_eq!(mount.flags().read_only, mount.options.split(',').any(|option| option == "ro"));
    }
}

/// Returns what is read, and whether it was read to the end.
fn mounts(table: &[u8]) -> (Vec<Mount>, bool) {
    let mut mounts = Vec::new();
    let read = MountTable::of_file(crate::file(table)).each(|mount| {
        mounts.push(mount.clone());
        ControlFlow::Continue(())
    });
    (mounts, read.is_ok())
}

/// Returns what proc(5) says of a line: `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG ...] - TYPE SOURCE OPTIONS`.
fn mount(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    // Fields are separated by one space each, and an end of the line after the separator may be cut off.
    let separator = (1..fields.len() - 1).find(|at| fields[*at] == b"-")?;
    let (own, of_filesystem) = (&fields[..separator], &fields[separator + 1..]);
    let (major, minor) = text(own.get(2)?)?.split_once(':')?;
    let tags = own.get(6..).unwrap_or_default();
    let mut peers = None;
    for tag in tags {
        if let Some(group) = tag.strip_prefix(b"shared:") {
            peers = Some(text(group)?.parse().ok()?);
        }
    }
    let lossy = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    Some(Mount {
        id: text(own.first()?)?.parse().ok()?,
        parent: text(own.get(1)?)?.parse().ok()?,
        device: (major.parse().ok()?, minor.parse().ok()?),
        root: path(own.get(3)?),
        point: path(own.get(4)?),
        options: lossy(own.get(5)?),
        peers,
        slave: tags.iter().any(|tag| tag.starts_with(b"master:")),
        unbindable: tags.contains(&b"unbindable".as_slice()),
        filesystem: lossy(of_filesystem.first()?),
        source: path(of_filesystem.get(1)?),
        super_options: lossy(of_filesystem.get(2).unwrap_or(&b"".as_slice())),
    })
}

fn text(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field).ok()
}

/// A path, in which each backslash with three octal digits is a byte.
fn path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let octal = |digit: &u8| digit.is_ascii_digit() && *digit < b'8';
        match after {
            [a @ b'0'..=b'3', b, c, after @ ..] if *first == b'\\' && octal(b) && octal(c) => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => bytes.push(*first),
        }
    }
    OsString::from_vec(bytes).into()
}

/// The line of a mount, every byte of its paths escaped.
fn line(mount: &Mount) -> Vec<u8> {
    let escaped = |path: &Path| path.as_os_str().as_bytes().iter().map(|byte| format!("\\{byte:03o}")).collect::<String>();
    let (major, minor) = mount.device;
    let peers = mount.peers.map(|group| format!(" shared:{group}")).unwrap_or_default();
    let slave = if mount.slave { " master:1" } else { "" };
    let unbindable = if mount.unbindable { " unbindable" } else { "" };
    let (root, point, source) = (escaped(&mount.root), escaped(&mount.point), escaped(&mount.source));
    let Mount { id, parent, options, filesystem, super_options, .. } = mount;
    format!(
        "{id} {parent} {major}:{minor} {root} {point} {options}{peers}{slave}{unbindable} - {filesystem} {source} {super_options}\n"
    )
    .into_bytes()
}
