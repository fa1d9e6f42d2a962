//! The mounts of the host, as its mount table lists them (`/proc/self/mountinfo`, proc(5)).
//!
//! A descriptor of the table goes on listing the namespace in which it was opened, wherever its process is: this is how
//! the host can be asked from inside the jail. Nothing but text can be had from it.

pub mod changes;

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use bulkhead_protocol::{MountFlags, SecurityContext};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

use self::changes::{Change, MountChanges};
use super::walk;
use super::{Called, Errno, Error, Result};

/// An open table. Reading it goes from its beginning to its end, so one thread reads at a time.
#[derive(Debug)]
pub struct MountTable {
    file: OwnedFd,
    /// Where the last reading ended.
    end: u64,
    changes: Option<MountChanges>,
}

/// One mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// Its id, as from statx(2). It may be that of another mount once this one is gone.
    pub id: u64,
    /// The mount that it is on.
    pub parent: u64,
    /// Device of its filesystem, major and minor.
    pub device: (u32, u32),
    /// Which part of the filesystem it shows.
    pub root: PathBuf,
    /// Where it is.
    pub point: PathBuf,
    /// Its own options, such as `ro` or `nosuid`, separated by commas.
    pub options: String,
    /// Its peer group, if it has one: each member shows what is mounted on another.
    pub peers: Option<u32>,
    /// Whether it is a slave: it sees what is mounted on its master, but not the other way round.
    pub slave: bool,
    /// Whether it is left out when the tree around it is cloned.
    pub unbindable: bool,
    /// Type of its filesystem.
    pub filesystem: String,
    /// What its filesystem was mounted from.
    pub source: PathBuf,
    /// The options of its filesystem.
    pub super_options: String,
}

/// See [`Mount::identity`].
pub type MountIdentity = (u64, PathBuf, [String; 2]);

/// How much is read at a time. The kernel writes the lines as they are read, so who stops early has waited for little.
const PART: usize = 4096;
/// How much of a line is kept while it is read: four times as much as the longest path that can be opened, and more.
const LONGEST: usize = 64 << 10;

impl MountTable {
    /// Opens the table of this namespace. At start only: the jail has no `/proc`.
    pub fn open() -> Result<Self> {
        walk::open_at_start("/proc/self/mountinfo", OFlags::RDONLY).map(Self::of_file)
    }

    /// The table that an open file lists.
    pub fn of_file(file: OwnedFd) -> Self {
        Self { file, end: 0, changes: None }
    }

    /// The same, which is told of changes as well, if the kernel tells. At start only.
    #[must_use]
    pub fn with_changes(self) -> Self {
        // KERNEL(6.15): until then, it does not.
        Self { changes: MountChanges::open().ok(), ..self }
    }

    /// A table with this text.
    #[cfg(test)]
    pub fn of(text: &str) -> Self {
        let file = rustix::fs::memfd_create("table", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::io::write(&file, text.trim_end().as_bytes()).expect("it takes the text");
        if !text.is_empty() {
            rustix::io::write(&file, b"\n").expect("it takes the end of the line");
        }
        Self::of_file(file)
    }

    /// The file.
    #[cfg(test)]
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// The same with what the kernel would tell of changes.
    #[cfg(test)]
    pub fn told_by(self, changes: MountChanges) -> Self {
        Self { changes: Some(changes), ..self }
    }

    /// Whether the kernel tells of changes.
    pub fn has_changes(&self) -> bool {
        self.changes.is_some()
    }

    /// What has happened to mounts since the last time; `None` if the kernel does not tell.
    pub fn changes(&self) -> Option<Result<Vec<Change>>> {
        self.changes.as_ref().map(MountChanges::read)
    }

    /// Calls `visit` for each mount until it breaks. A mount that is there all the while is visited.
    ///
    /// # Errors
    /// `BADMSG` when a line is not understood: it might be the one that matters.
    pub fn each(&mut self, visit: impl FnMut(&Mount) -> ControlFlow<()>) -> Result<()> {
        self.end = 0;
        self.rest(visit)
    }

    /// The same for the mounts behind those that were visited, the last of which was the last of all. From Linux 6.8 on the
    /// table is in the order of the mounts' unique ids, so these are newer ones; before, there are none.
    pub fn rest(&mut self, mut visit: impl FnMut(&Mount) -> ControlFlow<()>) -> Result<()> {
        let (mut unread, mut part, mut mount) = (Vec::new(), [0; PART], Mount::default());
        loop {
            let length = rustix::io::pread(&self.file, &mut part, self.end).by("pread")?;
            self.end = self.end.saturating_add(length as u64);
            // Only what is new can end a line: a path that somebody has made very long takes many reads.
            let end = part.iter().take(length).rposition(|byte| *byte == b'\n');
            let before = unread.len();
            unread.extend_from_slice(part.get(..length).unwrap_or_default());
            let Some(end) = end else {
                if length == 0 {
                    return if unread.is_empty() { Ok(()) } else { Err(Error::of(Errno::BADMSG)) };
                }
                shorten(&mut unread)?;
                continue;
            };
            let rest = unread.split_off(before.saturating_add(end).saturating_add(1));
            for line in unread.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                mount.read(line).ok_or(Error::of(Errno::BADMSG))?;
                if visit(&mount).is_break() {
                    return Ok(());
                }
            }
            unread = rest;
        }
    }

    /// Waits until a mount appears or goes, one of the descriptors in `also` is hung up, or the time is over. Returns
    /// whether the second has happened.
    pub fn wait(&self, also: &[OwnedFd], limit: Duration) -> Result<bool> {
        let mut polled = vec![PollFd::new(&self.file, PollFlags::PRI)];
        polled.extend(also.iter().map(|descriptor| PollFd::new(descriptor, PollFlags::RDHUP)));
        let limit = Timespec::try_from(limit).map_err(|_| Error::of(Errno::INVAL))?;
        rustix::event::poll(&mut polled, Some(&limit)).by("poll")?;
        Ok(polled.iter().skip(1).any(|descriptor| !descriptor.revents().is_empty()))
    }
}

impl Mount {
    /// Becomes the mount of `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG ...] - TYPE SOURCE OPTIONS`. Tables are long,
    /// so what the last line took is used again.
    fn read(&mut self, line: &[u8]) -> Option<()> {
        let separator = line.windows(3).position(|three| three == b" - ")?;
        let (own, of_filesystem) = line.split_at_checked(separator)?;
        let mut fields = own.split(|byte| *byte == b' ');
        (self.id, self.parent) = (number(fields.next()?)?, number(fields.next()?)?);
        let mut device = fields.next()?.splitn(2, |byte| *byte == b':');
        self.device = (number(device.next()?)?, number(device.next()?)?);
        fill_path(&mut self.root, fields.next()?);
        fill_path(&mut self.point, fields.next()?);
        fill(&mut self.options, fields.next()?);
        (self.peers, self.slave, self.unbindable) = (None, false, false);
        for tag in fields {
            match tag.strip_prefix(b"shared:") {
                Some(group) => self.peers = Some(number(group)?),
                None => self.slave |= tag.starts_with(b"master:"),
            }
            self.unbindable |= tag == b"unbindable";
        }
        let mut fields = of_filesystem.split(|byte| *byte == b' ').skip(2);
        fill(&mut self.filesystem, fields.next()?);
        fill_path(&mut self.source, fields.next()?);
        fill(&mut self.super_options, fields.next().unwrap_or_default());
        Some(())
    }

    /// Returns what tells it from another mount at the same place, except for one just like it.
    pub fn identity(&self) -> MountIdentity {
        (self.id, self.point.clone(), [self.options.clone(), self.super_options.clone()])
    }

    /// Returns where a path at or below its mount point lies in its filesystem.
    pub fn inner(&self, path: &Path) -> Option<PathBuf> {
        Some(self.root.join(path.strip_prefix(&self.point).ok()?))
    }

    /// Returns whether it has an option.
    pub fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|own| own == option)
    }

    /// The label of all files of its filesystem, if that was mounted with one that a request can name.
    pub fn label(&self) -> Option<SecurityContext> {
        let (_, rest) = self.super_options.split_once(",context=")?;
        // In quotation marks if it has commas.
        let (rest, end) = rest.strip_prefix('"').map_or((rest, ','), |quoted| (quoted, '"'));
        rest.split(end).next()?.parse().ok()
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

/// Leaves out the middle of a path: a tenant can move the directory that a mount shows to where its path has megabytes.
/// The beginning says whose it is.
fn shorten(line: &mut Vec<u8>) -> Result<()> {
    if line.len() > LONGEST {
        let mut left_out = line.drain(LONGEST / 4..LONGEST / 4 * 3);
        return if left_out.any(|byte| byte == b' ') { Err(Error::of(Errno::BADMSG)) } else { Ok(()) };
    }
    Ok(())
}

fn number<T: FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// What is not UTF-8 in options and types is none of ours.
fn fill(text: &mut String, field: &[u8]) {
    text.clear();
    text.push_str(&String::from_utf8_lossy(field));
}

/// Undoes the kernel's escapes: white space and backslashes in a path are a backslash and three octal digits.
fn fill_path(path: &mut PathBuf, field: &[u8]) {
    let path = path.as_mut_os_string();
    path.clear();
    for (number, part) in field.split(|byte| *byte == b'\\').enumerate() {
        let escape = part.split_at_checked(3).filter(|(digits, _)| number > 0 && !digits.starts_with(b"+"));
        let octal = |digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match escape.and_then(|(digits, rest)| Some((octal(digits)?, rest))) {
            Some((byte, rest)) => path.extend([&[byte], rest].map(OsStr::from_bytes)),
            None => path.extend([if number > 0 { b"\\".as_slice() } else { b"" }, part].map(OsStr::from_bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(line: &str) -> Option<Mount> {
        let mut mount = Mount::default();
        mount.read(line.as_bytes()).map(|()| mount)
    }

    fn unescaped(field: &[u8]) -> PathBuf {
        let mut path = PathBuf::from("/from/the/line/before");
        fill_path(&mut path, field);
        path
    }

    #[test]
    fn a_line_has_nothing_of_the_one_before() {
        let mut mount = mount(LINE).expect("a mount");
        let shorter = "1 2 3:4 / / rw unbindable - tmpfs a";
        mount.read(shorter.as_bytes()).expect("a mount");
        assert_eq!(Some(mount), self::mount(shorter));
        assert_eq!(self::mount("1 2 3:4:5 / / rw - tmpfs a"), None, "no device has three numbers");
    }

    const LINE: &str = "36 35 98:0 /mnt1 /mnt/a\\040b rw,noatime shared:1 master:2 - ext3 /dev/root rw,errors=continue";

    #[test]
    fn a_line_with_optional_fields_and_escapes_is_read() {
        let mount = mount(LINE).expect("a mount");
        assert_eq!((mount.id, mount.parent, mount.device), (36, 35, (98, 0)));
        assert_eq!((mount.root, mount.point), (PathBuf::from("/mnt1"), PathBuf::from("/mnt/a b")));
        assert_eq!(
            (mount.options.as_str(), mount.filesystem.as_str(), mount.source.to_str()),
            ("rw,noatime", "ext3", Some("/dev/root"))
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
            (" master:7 unbindable master:8 unbindable", None, true, true),
        ] {
            let line = format!("22 1 0:21 / /dev/shm rw,nosuid{tags} - tmpfs tmpfs rw");
            let mount = mount(&line).expect(tags);
            assert_eq!((mount.peers, mount.slave, mount.unbindable), (peers, slave, unbindable), "{tags}");
            assert_eq!((mount.id, mount.filesystem.as_str()), (22, "tmpfs"), "{tags}");
        }
    }

    #[test]
    fn a_path_of_a_mount_lies_below_its_root_in_its_filesystem() {
        let mount = mount("36 35 98:0 /srv/pool /mnt rw - xfs a rw").expect("a mount");
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
            ("/a\\+40", "/a\\+40"),
            ("101", "101"),
        ] {
            assert_eq!(unescaped(field.as_bytes()), PathBuf::from(path), "{field}");
        }
        assert_eq!(unescaped(b"/\\377").as_os_str().as_encoded_bytes(), b"/\xff");
    }

    #[test]
    fn paths_keep_their_bytes_whatever_they_are() {
        for path in ["/ä".as_bytes(), b"/\xff\xfe", b"/a\\\xe4\xe4"] {
            let line = [b"36 35 98:0 / ", path, b" rw - ext3 a rw"].concat();
            let mut mount = Mount::default();
            mount.read(&line).expect("a mount");
            assert_eq!(mount.point.as_os_str().as_encoded_bytes(), path);
        }
    }

    fn points(text: &str) -> Result<Vec<String>> {
        let mut points = Vec::new();
        MountTable::of(text).each(|mount| {
            points.push(mount.point.to_string_lossy().into_owned());
            ControlFlow::Continue(())
        })?;
        Ok(points)
    }

    #[test]
    fn a_table_with_a_line_that_is_not_understood_is_refused() {
        let type_begins = LINE.find("ext3").expect("a type");
        for length in 1..type_begins {
            assert_eq!(points(&format!("{LINE}\n{}\n", &LINE[..length])), Err(Error::of(Errno::BADMSG)), "{length}");
        }
        assert_eq!(points(LINE), Ok(vec!["/mnt/a b".to_owned()]));
        assert_eq!(points(""), Ok(Vec::new()));
    }

    #[test]
    fn lines_of_any_length_are_read_wherever_the_parts_end() {
        let line = |length: usize| format!("36 35 98:0 / /{} rw - ext3 a rw\n", "x".repeat(length));
        for length in [1, PART - 40, PART - 1, PART, PART + 1, 3 * PART] {
            let text = format!("{}{}{}", line(3), line(length), line(5));
            let lengths: Vec<_> = points(&text).expect("a table").iter().map(|point| point.len() - 1).collect();
            assert_eq!(lengths, [3, length, 5]);
        }
    }

    #[test]
    fn the_middle_of_an_endless_path_is_left_out_and_nothing_else_is() {
        let line = format!("36 35 98:0 /mine/{} /mnt rw - ext3 a rw", "x".repeat(4 << 20));
        let mut mounts = Vec::new();
        let mut table = MountTable::of(&format!("{line}\n{LINE}"));
        let read = table.each(|mount| {
            mounts.push(mount.clone());
            ControlFlow::Continue(())
        });
        assert_eq!(read, Ok(()));
        let (first, last) = (&mounts[0], &mounts[1]);
        assert!(first.root.starts_with("/mine") && first.root.as_os_str().len() < 128 << 10);
        assert_eq!((first.point.to_str(), first.super_options.as_str()), (Some("/mnt"), "rw"));
        assert_eq!(last.point.to_str(), Some("/mnt/a b"));
        // What lies beyond the beginning is in the middle: not one field may be lost with it.
        let spaces = format!("36 35 98:0 / /{} {}", "x".repeat(LONGEST / 3), "x".repeat(LONGEST));
        assert_eq!(points(&spaces), Err(Error::of(Errno::BADMSG)));
        let mut longest = vec![b'x'; LONGEST];
        shorten(&mut longest).expect("it is short enough");
        assert_eq!(longest.len(), LONGEST);
        longest.extend([b'y']);
        shorten(&mut longest).expect("it is one path");
        assert_eq!((longest.len(), longest.last()), (LONGEST / 2 + 1, Some(&b'y')));
    }

    #[test]
    fn who_has_seen_enough_reads_no_further() {
        let mut seen = 0;
        let read = MountTable::of(&format!("{LINE}\n{LINE}\nnot a mount")).each(|_| {
            seen += 1;
            if seen == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((read, seen), (Ok(()), 2));
    }

    #[test]
    fn who_waits_is_told_of_descriptors_that_are_hung_up() {
        let (ours, theirs) = crate::sys::packet::pair().expect("sockets");
        let wait = || MountTable::of("").wait(std::slice::from_ref(&ours), Duration::from_millis(1));
        assert_eq!(wait(), Ok(false));
        drop(theirs);
        assert_eq!(wait(), Ok(true));
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
            mount(&line).expect("a mount").flags()
        };
        assert_eq!(flags("rw,relatime"), MountFlags::default());
        assert_eq!(flags("ro"), MountFlags { read_only: true, ..MountFlags::default() });
        assert_eq!(flags("rw,noexec"), MountFlags { no_exec: true, ..MountFlags::default() });
        assert_eq!(flags("rw,noatime"), MountFlags { no_atime: true, ..MountFlags::default() });
        assert_eq!(flags("rw,nodiratime"), MountFlags { no_diratime: true, ..MountFlags::default() });
        assert_eq!(flags("rwx,rosy"), MountFlags::default());
    }

    #[test]
    fn the_label_of_all_files_is_among_the_options_of_the_filesystem_in_quotation_marks_if_it_has_commas() {
        let label = |options: &str| {
            let mount = mount(&format!("22 1 7:524289 /data /mnt rw,context=x - xfs /loop524289 {options}"));
            mount.expect("a mount").label().map(|label| label.as_str().to_owned())
        };
        let of = |level: &str| format!("system_u:object_r:container_file_t:{level}");
        for level in ["s0", "s0:c1", "s0:c0.c1023", "s0-s0:c3"] {
            assert_eq!(label(&format!("rw,context={},attr2,noquota", of(level))), Some(of(level)));
            assert_eq!(label(&format!("rw,context={}", of(level))), Some(of(level)));
        }
        assert_eq!(label(&format!(r#"rw,context="{}",attr2"#, of("s0:c1,c2"))), Some(of("s0:c1,c2")));
        for other in [
            "rw,seclabel,attr2",
            "rw",
            "",
            "rw,context=",
            "rw,context",
            "rw,context=system_u:object_r:etc_t:s0,attr2",
            "rw,rootcontext=system_u:object_r:container_file_t:s0",
            "rw,context=\"",
        ] {
            assert_eq!(label(other), None, "{other}");
        }
    }

    #[test]
    fn a_mount_is_told_from_another_at_its_place_by_its_id_and_its_options() {
        let identity = |line: &str| mount(line).expect("a mount").identity();
        let line = "36 35 98:0 / /mnt rw - ext3 a rw";
        assert_eq!(identity(line), (36, "/mnt".into(), ["rw".to_owned(), "rw".to_owned()]));
        for other in [
            "37 35 98:0 / /mnt rw - ext3 a rw", "36 35 98:0 / /mnt2 rw - ext3 a rw",
            "36 35 98:0 / /mnt ro - ext3 a rw", "36 35 98:0 / /mnt rw - ext3 a ro",
        ] {
            assert_ne!(identity(line), identity(other), "{other}");
        }
    }
}
