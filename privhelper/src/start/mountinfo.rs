//! The host's mount table (`/proc/self/mountinfo`, proc(5)). Only before the jail, which has no `/proc`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use bulkhead_protocol::MountFlags;
use rustix::fs::OFlags;

use crate::sys::file;

/// The longest table that is read, some million mounts.
const MAX_TABLE: usize = 256 << 20;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its id, the same as from statx(2).
    pub id: u64,
    /// Device of its filesystem, major and minor.
    pub device: (u32, u32),
    /// Which part of the filesystem it shows.
    pub root: PathBuf,
    /// Where it is.
    pub point: PathBuf,
    /// Its own options, as `ro` or `nosuid`.
    pub options: Vec<String>,
    /// Whether its peers see what is mounted on it.
    pub shared: bool,
    /// Whether it sees what is mounted on a master, which does not see what is mounted on it.
    pub slave: bool,
    /// Type of its filesystem.
    pub filesystem: String,
}

/// Reads the table of this mount namespace.
///
/// # Errors
/// A sentence, when it cannot be read.
pub fn read() -> Result<Vec<Mount>, String> {
    let table = file::open_at_start("/proc/self/mountinfo", OFlags::RDONLY);
    let table = table.and_then(|table| file::read_up_to(table, MAX_TABLE));
    Ok(parse(&table.map_err(|errno| format!("cannot read /proc/self/mountinfo: {errno}"))?))
}

/// Lines that are not mounts are left out. Each byte is read as one character: paths need not be UTF-8.
fn parse(table: &[u8]) -> Vec<Mount> {
    let text: String = table.iter().copied().map(char::from).collect();
    text.lines().filter_map(mount).collect()
}

/// Reads `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG ...] - TYPE SOURCE OPTIONS`.
fn mount(line: &str) -> Option<Mount> {
    let (own, of_filesystem) = line.split_once(" - ")?;
    let mut fields = own.split(' ');
    let id = fields.next()?.parse().ok()?;
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
    let options = fields.next()?.split(',').map(str::to_owned).collect();
    let tags: Vec<_> = fields.collect();
    let has = |tag: &str| tags.iter().any(|own| own.starts_with(tag));
    let filesystem = of_filesystem.split(' ').next()?.to_owned();
    Some(Mount { id, device, root, point, options, shared: has("shared:"), slave: has("master:"), filesystem })
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
        let mount = mount(LINE).expect("a mount");
        assert_eq!((mount.id, mount.device), (36, (98, 0)));
        assert_eq!((mount.root, mount.point), (PathBuf::from("/mnt1"), PathBuf::from("/mnt/a b")));
        assert_eq!(
            (mount.options.as_slice(), mount.filesystem.as_str()),
            (["rw", "noatime"].map(str::to_owned).as_slice(), "ext3")
        );
        assert_eq!((mount.shared, mount.slave), (true, true));
    }

    #[test]
    fn optional_fields_may_be_missing_in_any_number_and_unknown_ones_are_ignored() {
        for (tags, shared, slave) in [
            ("", false, false),
            (" shared:7", true, false),
            (" master:7", false, true),
            (" master:7 propagate_from:2", false, true),
            (" unbindable", false, false),
            (" new_tag:1 shared:7", true, false),
            (" notshared:7", false, false),
        ] {
            let line = format!("22 1 0:21 / /dev/shm rw,nosuid{tags} - tmpfs tmpfs rw");
            let mount = mount(&line).expect(tags);
            assert_eq!((mount.shared, mount.slave), (shared, slave), "{tags}");
            assert_eq!((mount.id, mount.filesystem.as_str()), (22, "tmpfs"), "{tags}");
        }
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
            let points: Vec<_> = parse(&line).into_iter().map(|mount| mount.point).collect();
            assert_eq!(points.iter().map(|point| point.as_os_str().as_encoded_bytes()).collect::<Vec<_>>(), [path]);
        }
    }

    #[test]
    fn a_line_that_is_cut_off_anywhere_before_its_type_is_left_out() {
        let type_begins = LINE.find("ext3").expect("a type");
        for length in 0..type_begins {
            assert_eq!(parse(&LINE.as_bytes()[..length]), [], "{length}");
        }
        let table = format!("nonsense\n{LINE}\n\n{LINE}\n");
        assert_eq!(parse(table.as_bytes()).len(), 2);
    }

    #[test]
    fn numbers_that_are_not_numbers_make_no_mount() {
        for line in [
            "x 35 98:0 / /mnt rw - ext3 a rw", "-1 35 98:0 / /mnt rw - ext3 a rw", "36 35 98 / /mnt rw - ext3 a rw",
            "36 35 98:x / /mnt rw - ext3 a rw", "36 35 :0 / /mnt rw - ext3 a rw",
        ] {
            assert_eq!(mount(line), None, "{line}");
        }
    }

    #[test]
    fn the_flags_that_a_request_can_name_come_from_the_mounts_own_options() {
        let flags = |options: &str| {
            let line = format!("22 1 0:21 / /mnt {options} - xfs /dev/x ro,noexec,noatime,nodiratime");
            mount(&line).expect("a mount").flags()
        };
        assert_eq!(flags("rw,relatime"), MountFlags::default());
        assert_eq!(flags("ro"), MountFlags { read_only: true, ..MountFlags::default() });
        assert_eq!(flags("rw,noexec"), MountFlags { no_exec: true, ..MountFlags::default() });
        assert_eq!(flags("rw,noatime"), MountFlags { no_atime: true, ..MountFlags::default() });
        assert_eq!(flags("rw,nodiratime"), MountFlags { no_diratime: true, ..MountFlags::default() });
        assert_eq!(flags("rwx,rosy"), MountFlags::default());
    }
}
