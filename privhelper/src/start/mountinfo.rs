//! The lines of a mount table (`/proc/self/mountinfo`, proc(5)).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use bulkhead_protocol::MountFlags;

/// The mounts, by their ids, which are the same as those from statx(2).
pub type Table = BTreeMap<u64, Mount>;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount that it is on.
    pub parent: u64,
    /// Device of its filesystem, major and minor.
    pub device: (u32, u32),
    /// Which part of the filesystem it shows.
    pub root: PathBuf,
    /// Where it is.
    pub point: PathBuf,
    /// Its own options, such as `ro` or `nosuid`.
    pub options: Vec<String>,
    /// Its peer group, if it has one: each member shows what is mounted on another.
    pub peers: Option<u32>,
    /// Whether it is a slave: it sees what is mounted on its master, but not the other way round.
    pub slave: bool,
    /// Whether it is left out when the tree around it is cloned.
    pub unbindable: bool,
    /// Type of its filesystem.
    pub filesystem: String,
}

/// Reads a table. Each byte is read as one character: paths need not be UTF-8.
///
/// # Errors
/// A sentence when a line is not understood.
pub fn parse(table: &[u8]) -> Result<Table, String> {
    let text: String = table.iter().copied().map(char::from).collect();
    let read = |line| mount(line).ok_or_else(|| format!("cannot understand the line {line:?} of /proc/self/mountinfo"));
    text.lines().map(read).collect()
}

/// Reads `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG ...] - TYPE SOURCE OPTIONS`.
fn mount(line: &str) -> Option<(u64, Mount)> {
    let (own, of_filesystem) = line.split_once(" - ")?;
    let mut fields = own.split(' ');
    let (id, parent) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let (major, minor) = fields.next()?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
    let options = fields.next()?.split(',').map(str::to_owned).collect();
    let (mut peers, mut slave, mut unbindable) = (None, false, false);
    for tag in fields {
        match tag.split_once(':') {
            Some(("shared", group)) => peers = Some(group.parse().ok()?),
            Some(("master", _)) => slave = true,
            _ => unbindable |= tag == "unbindable",
        }
    }
    let filesystem = of_filesystem.split(' ').next()?.to_owned();
    Some((id, Mount { parent, device, root, point, options, peers, slave, unbindable, filesystem }))
}

/// A path whose white space and backslashes are written as a backslash and three octal digits.
fn unescaped(field: &str) -> PathBuf {
    let mut parts = field.split('\\');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_at_checked(3).map(|(digits, rest)| (u8::from_str_radix(digits, 8), rest)) {
            Some((Ok(byte), rest)) => text.extend([char::from(byte)].into_iter().chain(rest.chars())),
            _ => text.extend(['\\'].into_iter().chain(part.chars())),
        }
    }
    OsString::from_vec(text.chars().filter_map(|character| u8::try_from(character).ok()).collect()).into()
}

impl Mount {
    /// Where a path at or below its mount point lies in its filesystem.
    pub fn inner(&self, path: &Path) -> Option<PathBuf> {
        Some(self.root.join(path.strip_prefix(&self.point).ok()?))
    }

    /// Whether it has an option.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|own| own == option)
    }

    /// Those of its options that a request can name.
    pub fn flags(&self) -> MountFlags {
        MountFlags {
            read_only: self.has("ro"),
            no_exec: self.has("noexec"),
            no_atime: self.has("noatime"),
            no_diratime: self.has("nodiratime"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "36 35 98:0 /mnt1 /mnt/a\\040b rw,noatime shared:1 master:2 - ext3 /dev/root rw,errors=continue";

    #[test]
    fn a_line_with_optional_fields_and_escapes_is_read() {
        let (id, mount) = mount(LINE).expect("a mount");
        assert_eq!((id, mount.parent, mount.device), (36, 35, (98, 0)));
        assert_eq!((mount.root, mount.point), (PathBuf::from("/mnt1"), PathBuf::from("/mnt/a b")));
        assert_eq!(
            (mount.options.as_slice(), mount.filesystem.as_str()),
            (["rw", "noatime"].map(str::to_owned).as_slice(), "ext3")
        );
        assert_eq!((mount.peers, mount.slave, mount.unbindable), (Some(1), true, false));
    }

    #[test]
    fn optional_fields_may_be_missing_in_any_number_and_unknown_ones_are_ignored() {
        for (tags, peers, slave, unbindable) in [
            ("", None, false, false),
            (" shared:7", Some(7), false, false),
            (" master:7", None, true, false),
            (" master:7 propagate_from:2", None, true, false),
            (" unbindable", None, false, true),
            (" new_tag:1 shared:7", Some(7), false, false),
            (" notshared:7", None, false, false),
        ] {
            let line = format!("22 1 0:21 / /dev/shm rw,nosuid{tags} - tmpfs tmpfs rw");
            let (id, mount) = mount(&line).expect(tags);
            assert_eq!((mount.peers, mount.slave, mount.unbindable), (peers, slave, unbindable), "{tags}");
            assert_eq!((id, mount.filesystem.as_str()), (22, "tmpfs"), "{tags}");
        }
    }

    #[test]
    fn a_path_of_a_mount_lies_below_its_root_in_its_filesystem() {
        let (_, mount) = mount("36 35 98:0 /srv/pool /mnt rw - xfs a rw").expect("a mount");
        assert_eq!(mount.inner(Path::new("/mnt/a/b")), Some(PathBuf::from("/srv/pool/a/b")));
        assert_eq!(mount.inner(Path::new("/mnt")), Some(PathBuf::from("/srv/pool/")));
        assert_eq!(mount.inner(Path::new("/mnt2/a")), None);
    }

    #[test]
    fn octal_escapes_are_decoded_and_what_only_looks_like_one_is_kept() {
        for (field, path) in [
            ("/a\\040b", "/a b"),
            ("/a\\011b\\012", "/a\tb\n"),
            ("\\134", "\\"),
            ("/a\\134040", "/a\\040"),
            ("/\\303\\244", "/ä"),
            ("/a\\04", "/a\\04"),
            ("/a\\", "/a\\"),
            ("/a\\\\040", "/a\\ "),
            ("/a\\089", "/a\\089"),
            ("/a\\777", "/a\\777"),
        ] {
            assert_eq!(unescaped(field), PathBuf::from(path), "{field}");
        }
        assert_eq!(unescaped("/\\377").as_os_str().as_encoded_bytes(), b"/\xff");
    }

    #[test]
    fn paths_keep_their_bytes_whatever_they_are() {
        for path in ["/ä".as_bytes(), b"/\xff\xfe", b"/a\\\xe4\xe4"] {
            let line = [b"36 35 98:0 / ", path, b" rw - ext3 a rw\n"].concat();
            let points: Vec<_> = parse(&line).expect("a mount").into_values().map(|mount| mount.point).collect();
            assert_eq!(points.iter().map(|point| point.as_os_str().as_encoded_bytes()).collect::<Vec<_>>(), [path]);
        }
    }

    #[test]
    fn a_table_with_a_line_that_is_not_understood_is_refused() {
        let type_begins = LINE.find("ext3").expect("a type");
        for length in 1..type_begins {
            let table = format!("{LINE}\n{}\n", &LINE[..length]);
            let complaint = parse(table.as_bytes()).unwrap_err();
            assert!(complaint.contains("cannot understand the line"), "{length}: {complaint}");
        }
        assert_eq!(parse(format!("{LINE}\n{}\n", LINE.replace("36", "37")).as_bytes()).expect("a table").len(), 2);
        assert_eq!(parse(b""), Ok(Table::new()));
    }

    #[test]
    fn numbers_that_are_not_numbers_make_no_mount() {
        for line in [
            "x 35 98:0 / /mnt rw - ext3 a rw",
            "-1 35 98:0 / /mnt rw - ext3 a rw",
            "36 35 98 / /mnt rw - ext3 a rw",
            "36 35 98:x / /mnt rw - ext3 a rw",
            "36 35 :0 / /mnt rw - ext3 a rw",
            "36 x 98:0 / /mnt rw - ext3 a rw",
            "36 35 98:0 / /mnt rw shared:x - ext3 a rw",
        ] {
            assert_eq!(mount(line), None, "{line}");
        }
    }

    #[test]
    fn the_flags_that_a_request_can_name_come_from_the_mounts_own_options() {
        let flags = |options: &str| {
            let line = format!("22 1 0:21 / /mnt {options} - xfs /dev/x ro,noexec,noatime,nodiratime");
            mount(&line).expect("a mount").1.flags()
        };
        assert_eq!(flags("rw,relatime"), MountFlags::default());
        assert_eq!(flags("ro"), MountFlags { read_only: true, ..MountFlags::default() });
        assert_eq!(flags("rw,noexec"), MountFlags { no_exec: true, ..MountFlags::default() });
        assert_eq!(flags("rw,noatime"), MountFlags { no_atime: true, ..MountFlags::default() });
        assert_eq!(flags("rw,nodiratime"), MountFlags { no_diratime: true, ..MountFlags::default() });
        assert_eq!(flags("rwx,rosy"), MountFlags::default());
    }
}
