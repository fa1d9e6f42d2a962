//! What is to be done: which device becomes which pool, and why each other one is left alone.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use bulkhead_privhelper::log::shown;
use bulkhead_privhelper::start::judge;
use bulkhead_privhelper::{SysError, file, walk};
use bulkhead_protocol::PoolName;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::content::Filesystem;
use super::devices::{self, Device};
use super::fstab::{Fstab, Note};
use super::options::Options;
use super::usage::Usage;
use super::why::Why;
use super::{content, judge as judged};

pub const SYSFS: &str = "/sys";
const LINKS: &str = "/dev/disk";

/// How far a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its disk is empty.
    Empty,
    /// Its disk was being formatted when a run was interrupted.
    HalfFormatted,
    /// It has its filesystem, and lacks a line in fstab, the mount or the marker.
    Formatted,
    /// There is nothing to do.
    Ready,
}

/// A pool, and its disk.
#[derive(Clone, Debug)]
pub struct Pool {
    /// What is noted of it, or is to be.
    pub note: Note,
    /// Its disk.
    pub device: Device,
    /// How far it is.
    pub stage: Stage,
}

/// What becomes of each device.
#[derive(Debug, Default)]
pub struct Plan {
    /// All devices, each with the reason why it is not taken, or with its place among the pools.
    pub devices: Vec<(Device, Result<usize, Why>)>,
    /// The pools that there are, or will be.
    pub pools: Vec<Pool>,
    /// What is wrong.
    pub faults: Vec<String>,
    /// Whether nothing may be done for what is wrong.
    pub is_refused: bool,
}

/// Looks at everything, and changes nothing.
///
/// # Errors
/// A sentence on what cannot be looked at.
pub fn make(options: &Options, fstab: &Fstab) -> Result<Plan, String> {
    let (notes, points) = fstab.read()?;
    let usage = Usage::now().map_err(|error| format!("cannot look at what is mounted: {error}"))?;
    let all = devices::all(Path::new(SYSFS), Path::new(LINKS));
    let known: Vec<_> = all.iter().map(|device| bears(device, options, &notes)).collect();
    let mut plan = Plan::default();
    let (mut waiting, missing) = plan.find_all(options, &notes, &usage, all.iter().zip(&known))?;
    let mut names = options.names.all().filter(|name| is_free(name, options, &notes, &points, &usage));
    for (device, known) in all.iter().zip(&known) {
        let place = plan.pools.iter().position(|pool| pool.device == *device);
        let outcome = match (place, known) {
            (Some(place), _) => Ok(place),
            (None, Some(_)) => Err(Why::Signatures("xfs".to_owned())),
            (None, None) => match judged::at_a_glance(device, &options.rule, &usage, &all) {
                Some(why) => Err(why),
                None => judged::closely(device)
                    .and_then(|()| plan.name(options, &mut waiting, &missing, &mut names))
                    .map(|note| plan.add(note, device, Stage::Empty)),
            },
        };
        plan.devices.push((device.clone(), outcome));
    }
    plan.faults.extend(missing.iter().map(|note| {
        format!(
            "pool {}: its disk is missing: no filesystem here has UUID={}; was it replaced? see --replace",
            note.name, note.uuid
        )
    }));
    plan.faults
        .extend(waiting.iter().map(|note| format!("pool {}: no empty disk matches, so it is not made", note.name)));
    Ok(plan)
}

impl Plan {
    fn refuse(&mut self, fault: String) {
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
        self.is_refused = true;
    }

    /// Adds a pool, and returns its place.
    fn add(&mut self, note: Note, device: &Device, stage: Stage) -> usize {
        self.pools.push(Pool { note, device: device.clone(), stage });
        self.pools.len().saturating_sub(1)
    }

    /// Finds the disks of pools that are noted. Returns the pools that wait for an empty disk, and those that miss theirs.
    fn find_all<'a>(
        &mut self,
        options: &Options,
        notes: &[Note],
        usage: &Usage,
        devices: impl Iterator<Item = (&'a Device, &'a Option<Filesystem>)> + Clone,
    ) -> Result<(VecDeque<Note>, Vec<Note>), String> {
        let (mut waiting, mut missing) = (VecDeque::new(), Vec::new());
        for name in options.replaced.iter().filter(|name| !notes.iter().any(|note| note.name == **name)) {
            let fstab = shown(&options.fstab);
            self.refuse(format!("--replace {name}: {fstab} has no pool of that name that prepare has made"));
        }
        for note in notes {
            let known = devices.clone().filter_map(|(device, known)| Some((device, known.as_ref()?)));
            let own: Vec<_> = known.filter(|(_, known)| known.uuid == note.uuid).collect();
            let is_replaced = options.replaced.contains(&note.name);
            match own.as_slice() {
                [] if is_replaced => waiting.push_back(Note { uuid: new_uuid()?, is_made: false, ..note.clone() }),
                [] if note.is_made => missing.push(note.clone()),
                [] => waiting.push_back(note.clone()),
                [(device, _)] if is_replaced => {
                    self.refuse(format!("--replace {}: its disk is there: {}", note.name, shown(&device.path())));
                }
                [(device, known)] => self.find(note, device, known.unfinished, usage),
                several => {
                    let paths: Vec<_> = several.iter().map(|(device, _)| shown(&device.path()).to_string()).collect();
                    let (name, paths, uuid) = (&note.name, paths.join(" and "), &note.uuid);
                    self.refuse(format!(
                        "pool {name}: {paths} have the same filesystem (UUID={uuid}): take out the copies"
                    ));
                }
            }
        }
        Ok((waiting, missing))
    }

    /// Returns which pool the next empty disk becomes.
    fn name(
        &mut self,
        options: &Options,
        waiting: &mut VecDeque<Note>,
        missing: &[Note],
        names: &mut impl Iterator<Item = PoolName>,
    ) -> Result<Note, Why> {
        if let Some(note) = waiting.pop_front() {
            return Ok(note);
        }
        if let Some(lost) = missing.first() {
            return Err(Why::Missing(lost.name.to_string()));
        }
        let Some(name) = names.next() else {
            self.refuse(no_name(options));
            return Err(Why::NoName);
        };
        Ok(Note {
            uuid: new_uuid().map_err(Why::Failed)?,
            directory: options.directory_of(&name),
            name,
            is_made: false,
        })
    }

    /// A pool whose disk was found.
    fn find(&mut self, note: &Note, device: &Device, is_half: bool, usage: &Usage) {
        let points: Vec<_> = usage.points_of(device.number).collect();
        let elsewhere = points.first().filter(|_| !points.contains(&&note.directory));
        let path = shown(&device.path()).to_string();
        if let Some(point) = elsewhere {
            self.refuse(format!(
                "pool {}: {path} is mounted on {} instead of {}",
                note.name,
                shown(point),
                shown(&note.directory)
            ));
        }
        if note.is_made && is_half {
            self.refuse(format!("pool {}: the filesystem on {path} is damaged: see xfs_repair(8)", note.name));
        }
        let stage = match is_half {
            true => Stage::HalfFormatted,
            false if note.is_made && !points.is_empty() && has_marker(note) => Stage::Ready,
            false => Stage::Formatted,
        };
        self.add(note.clone(), device, stage);
    }
}

/// The filesystem that is noted, if it is on this device. Pods write what they like to loop devices.
fn bears(device: &Device, options: &Options, notes: &[Note]) -> Option<Filesystem> {
    let is_plain = device.size > 0 && device.above.is_empty() && device.partitions.is_empty();
    if notes.is_empty() || !is_plain || device.kind == "loop" && !options.rule.takes_type("loop") {
        return None;
    }
    let opened = walk::open_at_start(&device.path(), OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
    let found = content::filesystem(opened).ok()??;
    notes.iter().any(|note| note.uuid == found.uuid).then_some(found)
}

fn has_marker(note: &Note) -> bool {
    crate::open_to_write(&note.directory).and_then(|directory| judge::marker::read(&directory)).is_ok()
}

/// Whether nothing is in the way of a new pool with this name.
fn is_free(name: &PoolName, options: &Options, notes: &[Note], points: &[PathBuf], usage: &Usage) -> bool {
    let directory = options.directory_of(name);
    !notes.iter().any(|note| note.name == *name)
        && !points.contains(&directory)
        && !usage.points.contains(&directory)
        && is_absent_or_empty(&directory).is_ok_and(|free| free)
}

/// Whether a directory has nothing in it, or is not there.
///
/// # Errors
/// The kernel's error.
pub fn is_absent_or_empty(directory: &Path) -> Result<bool, SysError> {
    match crate::open_to_write(directory) {
        Err(error) if error.errno == Errno::NOENT => Ok(true),
        opened => walk::is_empty(&opened?, c""),
    }
}

fn no_name(options: &Options) -> String {
    if options.names.are_many() {
        "no name of the pattern --name is left: each is a pool, or has a directory with something in it".to_owned()
    } else {
        "more disks match than --name has names, or its pool or directory is there already: narrow the rule, or put {n} into --name".to_owned()
    }
}

/// A uuid that nobody else has.
fn new_uuid() -> Result<String, String> {
    let read = walk::open_at_start("/proc/sys/kernel/random/uuid", OFlags::RDONLY);
    let read = read.and_then(|source| file::read_up_to(source, 64));
    let read = read.map_err(|error| format!("the kernel gives no random uuid: {error}"))?;
    Ok(String::from_utf8_lossy(&read).trim().to_owned())
}
