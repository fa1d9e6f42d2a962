//! `requota`: puts each volume of a pool into a project of its own, after the pool was copied by a program that does not
//! copy project ids, or was in use with `quota=none`.
//!
//! A volume's own directory comes last: without a project there a start does not serve the volume, so one that was left
//! half-done is never taken for one that is limited.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bulkhead_privhelper::layout::{self, Entry, MARKER, Record};
use bulkhead_privhelper::log::shown;
use bulkhead_privhelper::quota::{self, Enforcement, Look, ProjectId, ProjectQuota};
use bulkhead_privhelper::start::config::{absolute, project_ids};
use bulkhead_privhelper::start::{host, marker};
use bulkhead_privhelper::{file, limits};
use bulkhead_protocol::{VolumeId, VolumeKind};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::open_to_write;
use crate::tree::{Found, Walk};

/// A tree that changes under the walk is walked again so many times.
const ATTEMPTS: usize = 10;
const STOP: &str = "stop the helper first: systemctl stop bulkhead-privhelper.socket bulkhead-privhelper.service; \
                    in a container, see \"Stop and start the helper\" in docs/operate.md";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    pool: PathBuf,
    /// The first and the last project id for volumes.
    ids: (u32, u32),
    writes: bool,
}

/// A pool that no helper serves, and none can as long as this lives.
struct Pool {
    directory: OwnedFd,
    _locks: [OwnedFd; 2],
    ids: (u32, u32),
    writes: bool,
    /// Which volume has a project.
    owners: BTreeMap<u32, VolumeId>,
}

/// Goes through the volumes, with a line for each. Returns whether each is limited: at the end, or already if nothing is
/// to be changed.
pub fn requota(arguments: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = parse(arguments).map_err(|complaint| format!("requota: {complaint}"))?;
    let mut pool = Pool::open(&options)?;
    let path = shown(&options.pool).to_string();
    let volumes = pool.volumes().map_err(|errno| format!("cannot list {path}: {errno}"))?;
    let mut wrong = 0_usize;
    for (id, own) in &volumes {
        let (said, is_right) = pool.limit(id, *own).unwrap_or_else(|complaint| (complaint, false));
        println!("{} {id}: {said}", if is_right { "ok     " } else { "FAILED " });
        wrong = wrong.saturating_add(usize::from(!is_right));
    }
    println!("{} in {path}, {wrong} of them not limited", counted(volumes.len(), "volume"));
    Ok(wrong == 0)
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let (mut pool, mut ids, mut writes) = (None, (100_000, 999_999), true);
    while let Some(argument) = arguments.next() {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (argument, None),
        };
        let mut value = || value.clone().or_else(|| arguments.next()).unwrap_or_default();
        match flag.as_str() {
            "--dry-run" => writes = false,
            "--pool" if pool.is_some() => return Err("--pool is given twice; one pool at a time".to_owned()),
            "--pool" => pool = Some(absolute(&value()).map_err(|complaint| format!("--pool: {complaint}"))?),
            "--project-ids" => {
                ids = project_ids(&value()).map_err(|complaint| format!("--project-ids: {complaint}"))?;
            }
            _ => return Err(format!("unknown argument {flag:?}; see --help")),
        }
    }
    let pool = pool.ok_or("--pool DIR is missing; see --help")?;
    Ok(Options { pool, ids, writes })
}

impl Pool {
    fn open(options: &Options) -> Result<Self, String> {
        let path = shown(&options.pool).to_string();
        let directory = open_to_write(&options.pool).map_err(|errno| format!("cannot open {path}: {errno}"))?;
        let text = marker::read(&directory).map_err(|errno| match errno {
            Errno::NOENT => format!("{path} is not a pool: it has no {MARKER}; is its disk mounted?"),
            errno => format!("cannot read {path}/{MARKER}: {errno}"),
        })?;
        if text.split(|byte| *byte == b'\n').next() != Some(marker::HEADER.as_bytes()) {
            return Err(format!("{path}/{MARKER} is not the marker of a pool, or is that of another release"));
        }
        check_quotas(&directory, &path)?;
        let locks = lock(&directory, &options.pool)?;
        Ok(Self { directory, _locks: locks, ids: options.ids, writes: options.writes, owners: BTreeMap::new() })
    }

    /// The volumes, each with the project that it has for itself, if it has one.
    fn volumes(&mut self) -> Result<Vec<(VolumeId, Option<ProjectId>)>, Errno> {
        let mut ids = Vec::new();
        file::each_entry(&self.directory, |name| {
            if let Entry::Volume(id) = Entry::of(&name.to_string_lossy()) {
                ids.push(id);
            }
            Ok(())
        })?;
        ids.sort();
        let mut volumes = Vec::new();
        for id in ids {
            let outer = match layout::open_volume(&self.directory, id.as_str()) {
                Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => continue,
                outer => outer?,
            };
            // The next start empties it.
            if layout::is_deleted_in_place(&file::status(&outer)?) {
                continue;
            }
            let own = layout::project_of(&outer)?.filter(|own| !self.owners.contains_key(&own.0));
            if let Some(own) = own {
                self.owners.insert(own.0, id.clone());
            }
            volumes.push((id, own));
        }
        Ok(volumes)
    }

    /// Puts a volume into its project, or into a new one. Returns what was done, and whether the volume is limited by now.
    fn limit(&mut self, id: &VolumeId, own: Option<ProjectId>) -> Result<(String, bool), String> {
        let cannot = |what: &'static str| move |errno: Errno| format!("cannot {what}: {errno}");
        let outer = layout::open_volume(&self.directory, id.as_str()).map_err(cannot("open its directory"))?;
        let record = Record::read(&outer).map_err(|errno| match errno {
            Errno::NODATA => {
                "it has no record, so its size is not known: copy it again with extended attributes".to_owned()
            }
            Errno::BADMSG => "its record is damaged, or from a later release".to_owned(),
            errno => format!("cannot read its record: {errno}"),
        })?;
        let project = own.map_or_else(|| self.free_project(), Ok)?;
        self.owners.insert(project.0, id.clone());
        let wanted = match record.spec.kind {
            VolumeKind::Directory { inodes, .. } => limits(record.spec.size, inodes),
            VolumeKind::Image { .. } => (0, 0),
        };
        let before = quota::get(&self.directory, Look::Waiting, project).map_err(cannot("read its quota"))?;
        let charged = self.charge(id, &outer, project, before);
        // Whatever became of the files, limits that were lifted for that are set again.
        let mut after = quota::get(&self.directory, Look::Waiting, project).map_err(cannot("read its quota"))?;
        if self.writes && !after.is_limited_to(wanted) {
            quota::set(&self.directory, project, wanted.0, wanted.1).map_err(cannot("set its quota"))?;
            after = quota::get(&self.directory, Look::Waiting, project).map_err(cannot("read its quota"))?;
        }
        let mut found = charged.map_err(cannot("go through its files"))?;
        if !before.is_limited_to(wanted) {
            found.moved = found.moved.saturating_add(1);
        }
        if self.writes && found.moved > 0 {
            file::sync(&outer).map_err(cannot("sync its directory"))?;
        }
        let (said, is_right) = describe(&found, project, self.writes, wanted.0, after);
        Ok((said, is_right && (!self.writes || after.is_limited_to(wanted))))
    }

    /// Puts everything in a volume into a project, the volume's own directory last.
    fn charge(&self, id: &VolumeId, outer: &OwnedFd, project: ProjectId, now: ProjectQuota) -> Result<Found, Errno> {
        let is_of_another = |project: u32| self.owners.get(&project).is_some_and(|owner| owner != id);
        let (title, found, told) = (id.as_str(), Found::default(), Instant::now());
        let mut walk =
            Walk { title, project: project.0, is_of_another: &is_of_another, writes: self.writes, found, told };
        // A limit would refuse what is beyond it, and it is set again in the end: by this, or by the next start.
        if self.writes && !now.is_limited_to((0, 0)) && !self.is_charged(&mut walk, outer)? {
            quota::set(&self.directory, project, 0, 0)?;
        }
        self.repeat(&mut walk, outer)?;
        walk.charge_open(outer, true)?;
        Ok(walk.found)
    }

    /// Whether there is nothing to do, so that limits need not be lifted.
    fn is_charged(&self, walk: &mut Walk<'_>, outer: &OwnedFd) -> Result<bool, Errno> {
        walk.writes = false;
        let looked = self.repeat(walk, outer);
        walk.writes = self.writes;
        let found = std::mem::take(&mut walk.found);
        looked.map(|()| found.moved == 0)
    }

    fn repeat(&self, walk: &mut Walk<'_>, outer: &OwnedFd) -> Result<(), Errno> {
        let mut moved = 0_u64;
        for _ in 0..ATTEMPTS {
            match walk.below(outer) {
                Err(Errno::AGAIN) => {}
                done => {
                    walk.found.moved = walk.found.moved.saturating_add(moved);
                    return done;
                }
            }
            moved = moved.saturating_add(std::mem::take(&mut walk.found).moved);
        }
        Err(Errno::AGAIN)
    }

    /// A project of the range that no volume has, and to which nothing is charged.
    fn free_project(&self) -> Result<ProjectId, String> {
        let (first, last) = self.ids;
        for id in (first..=last).filter(|id| !self.owners.contains_key(id)) {
            let found = quota::get(&self.directory, Look::Waiting, ProjectId(id));
            if found.map_err(|errno| format!("cannot look at project {id}: {errno}"))?.is_unused() {
                return Ok(ProjectId(id));
            }
        }
        Err(format!("no project id from {first} to {last} is free; give a wider --project-ids, to the helper as well"))
    }
}

/// What became of a volume, and whether it is limited.
fn describe(found: &Found, project: ProjectId, writes: bool, limit: u64, after: ProjectQuota) -> (String, bool) {
    let mut said = match (found.moved, writes) {
        (0, _) => format!("is in project {}", project.0),
        (moved, true) => format!("put into project {}: {}", project.0, counted(moved, "change")),
        (moved, false) => {
            format!("not in a project of its own: {} for project {}", counted(moved, "change"), project.0)
        }
    };
    for (number, what) in [
        (found.uncharged, "links, pipes or nodes that only Linux 6.17 and later can charge"),
        (found.shared, "files with several names that are charged to another volume: copy each to a file of its own"),
        (found.covered, "directories that something is mounted on: unmount it and repeat"),
        (found.failed, "entries that cannot be changed (immutable? see lsattr, chattr -i)"),
    ] {
        if number > 0 {
            said.push_str(&format!("; {number} {what}"));
        }
    }
    if let Some(first) = &found.first {
        said.push_str(&format!(", the first is {first}"));
    }
    if limit > 0 && after.used_bytes > limit {
        said.push_str(&format!("; it uses {} bytes of {limit}: expand it, or delete files", after.used_bytes));
    }
    (said, (found.shared, found.covered, found.failed) == (0, 0, 0) && (writes || found.moved == 0))
}

fn counted(number: impl TryInto<u64>, what: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn check_quotas(directory: &OwnedFd, path: &str) -> Result<(), String> {
    match quota::state(directory).map_err(|errno| format!("cannot query the quotas of {path}: {errno}"))?.0 {
        Enforcement::Enforced => {}
        Enforcement::Off | Enforcement::Accounted => {
            return Err(format!(
                "{path} has no project quotas that are enforced: unmount it, and mount it with -o prjquota; ext4 also needs tune2fs -O project,quota -Q prjquota on the unmounted device"
            ));
        }
    }
    match file::attributes(directory).map(|found| found.fsx_projid) {
        Ok(0) => Ok(()),
        Ok(project) => Err(format!("{path} itself is in project {project}; run: chattr -P -p 0 {path}")),
        Err(errno) => Err(format!("cannot read the project id of {path}: {errno}")),
    }
}

/// Keeps helpers from a pool, and from its filesystem: project ids belong to that.
fn lock(directory: &OwnedFd, path: &Path) -> Result<[OwnedFd; 2], String> {
    let path = shown(path);
    let cannot = |errno: Errno| match errno {
        Errno::AGAIN => format!("{path} is in use; {STOP}"),
        Errno::ADDRINUSE => format!("a pool on the filesystem of {path} is in use; {STOP}"),
        errno => format!("cannot lock {path}: {errno}"),
    };
    let marker = file::open(directory, MARKER, OFlags::RDONLY).map_err(cannot)?;
    file::lock(&marker).map_err(cannot)?;
    let device = file::status(directory).map_err(cannot)?.id.device;
    Ok([marker, host::claim(device).map_err(cannot)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Options, String> {
        parse(arguments.iter().map(|&argument| argument.to_owned()))
    }

    #[test]
    fn the_range_is_that_of_the_helper_unless_one_is_given() {
        let Options { pool, ids, writes } = parsed(&["--pool", "/srv/pool"]).expect("options");
        assert_eq!((pool, ids, writes), ("/srv/pool".into(), (100_000, 999_999), true));
        assert!(include_str!("../../start/help.txt").contains("(default 100000-999999,"));
        let given = parsed(&["--dry-run", "--pool=/srv/pool", "--project-ids", "5-7"]).expect("options");
        assert_eq!((given.ids, given.writes), ((5, 7), false));
    }

    #[test]
    fn what_is_wrong_with_an_argument_is_said() {
        for (arguments, part) in [
            (&[][..], "--pool DIR is missing"),
            (&["--pool", "pool"], "absolute path"),
            (&["--pool", "/a", "--pool", "/b"], "one pool at a time"),
            (&["--pool", "/a", "--project-ids", "0-1"], "FIRST-LAST"),
            (&["/a"], "unknown argument \"/a\""),
        ] {
            let complaint = parsed(arguments).expect_err(part);
            assert!(complaint.contains(part), "{arguments:?}: {complaint}");
        }
    }

    #[test]
    fn a_line_says_what_is_left() {
        let after = ProjectQuota { used_bytes: 9, ..ProjectQuota::default() };
        let found = Found { moved: 1, uncharged: 2, ..Found::default() };
        let (said, is_right) = describe(&found, ProjectId(7), true, 8, after);
        assert!(is_right && said.starts_with("put into project 7: 1 change; 2 links"), "{said}");
        assert!(said.ends_with("it uses 9 bytes of 8: expand it, or delete files"), "{said}");
        assert!(!describe(&found, ProjectId(7), false, 0, after).1, "nothing was changed");
        let found = Found { failed: 1, first: Some("\"a\": EPERM".to_owned()), ..Found::default() };
        let (said, is_right) = describe(&found, ProjectId(7), true, 0, after);
        assert!(!is_right && said.contains("is in project 7; 1 entries that cannot"), "{said}");
    }
}
