//! Watches the host for what a start found missing. The jail cannot be changed any more once it is made, so the helper
//! ends in an orderly way when it is there, and its service manager starts it anew.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bulkhead_protocol::Separation;

use super::{Deletions, log};
use crate::state::State;
use crate::sys::mountinfo::{Mount, MountIdentity, MountTable};

/// What a start found missing.
#[derive(Debug, Default)]
pub struct Missing {
    /// The directories of pools that are not served, and the mounts on the way to each.
    pub pools: Vec<(PathBuf, Vec<MountIdentity>)>,
    /// Connections to processes that wait for a filesystem to answer, or for another helper to end, and end then; and to
    /// the placer, without which the helper does not go on, nor without one of its mounters.
    pub waiting: Vec<OwnedFd>,
}

/// How often the host is looked at if nothing is mounted or unmounted there: not all that matters is an event.
const INTERVAL: Duration = Duration::from_secs(10);
/// The shortest time between two looks, and how many times as long as a look it is at least.
const PAUSE: (Duration, u32) = (Duration::from_millis(20), 10);

/// How long an operation may take before it is taken for one that never ends.
const HELD_UP: Duration = Duration::from_secs(5);

/// Looks at the host whenever its mounts change, until the helper should be started anew, and can be. Returns why.
pub fn watch(state: &State, table: &mut MountTable, missing: &mut Missing) -> String {
    let mut told = false;
    loop {
        let answers = table.wait(&missing.waiting, INTERVAL);
        let answers = answers.inspect_err(|error| log::warning!("cannot wait for mounts of the host error={error}"));
        let begun = Instant::now();
        let (mut shortest, times) = PAUSE;
        state.sockets.retire_lost();
        let answers = answers.unwrap_or(false).then(|| {
            "a filesystem answers that did not at the start, or another helper, the placer or a mounter has ended"
                .to_owned()
        });
        match answers.or_else(|| look(state, table, missing)) {
            Some(why) if !is_held_up(state) => return why,
            Some(why) if !told => {
                log::warning!("the helper should start anew, but cannot end while a filesystem hangs: {why}");
                (told, shortest) = (true, HELD_UP);
            }
            Some(_) => shortest = HELD_UP,
            None => {}
        }
        std::thread::sleep(begun.elapsed().saturating_mul(times).max(shortest));
    }
}

/// Returns whether a thread waits for a filesystem that may never answer. A process ends after all of its threads, even
/// if it is killed: until then it would serve nothing, and keep its successor from all pools.
pub fn is_held_up(state: &State) -> bool {
    let served = state.pools.iter().filter_map(|pool| pool.state.as_ref().ok());
    let busy = served.filter_map(|served| served.filesystem.busy_since());
    let mut since = busy.chain(state.deletions.values().filter_map(Deletions::releasing_since));
    since.any(|since| since.elapsed() >= HELD_UP)
}

fn look(state: &State, table: &mut MountTable, missing: &mut Missing) -> Option<String> {
    let mut found = None;
    // What is still there of what was known. The id of a mount that is gone may soon be another's.
    let mut left: Vec<Vec<MountIdentity>> = vec![Vec::new(); missing.pools.len()];
    let mut carriers: Vec<_> =
        state.publish_directories.iter().map(|directory| Carrier::of(&directory.real_path)).collect();
    let places = state.pools.iter().filter_map(|pool| Some(&pool.state.as_ref().ok()?.place));
    let mut places: Vec<_> = places.map(|place| (place, Carrier::of(&place.outside))).collect();
    let read = state.host.look(table, |mount| {
        carriers.iter_mut().chain(places.iter_mut().map(|(_, carrier)| carrier)).for_each(|carrier| carrier.see(mount));
        for ((path, known), left) in missing.pools.iter().zip(&mut left) {
            let this = mount.identity();
            if known.contains(&this) {
                left.push(this);
            } else if path.starts_with(&mount.point) {
                found = Some(format!("what is mounted at {}, where a pool was missing, has changed", log::shown(path)));
            }
        }
    });
    if let Err(error) = read.and_then(|()| state.host.keep_up(&state.pools_at())) {
        log::warning!("cannot look at the host's mounts error={error}");
    } else {
        missing.pools.iter_mut().zip(left).for_each(|((_, known), left)| *known = left);
        places.iter().for_each(|(place, carrier)| place.is_unmounted.store(carrier.device != place.device, Relaxed));
    }
    let mended = || {
        let (apart, cause) = state.host.apart()?;
        let mut carriers = state.publish_directories.iter().zip(&carriers);
        let (_, carrier) = carriers.find(|(directory, _)| directory.name == apart)?;
        let is_there = match cause {
            Separation::Unmounted | Separation::NotShared => carrier.is_shared,
            // Below a mount that covers the way to it, there may be no such directory.
            Separation::Covered => carrier.is_shared && carrier.is_covering,
            // What has its name now may be another directory.
            Separation::Moved => false,
        };
        is_there.then(|| format!("publish directory {apart} can be joined to the host's again"))
    };
    found.or_else(mended)
}

/// The mount that carries a directory of the host, as far as a table was read.
struct Carrier<'a> {
    path: &'a Path,
    mount: u64,
    /// Of its filesystem.
    device: (u32, u32),
    point: PathBuf,
    is_shared: bool,
    /// Whether it covers another mount of the directory itself.
    is_covering: bool,
}

impl<'a> Carrier<'a> {
    fn of(path: &'a Path) -> Self {
        Self { path, mount: 0, device: (0, 0), point: PathBuf::new(), is_shared: false, is_covering: false }
    }

    fn see(&mut self, mount: &Mount) {
        let is_nearer = mount.point.as_os_str().len() > self.point.as_os_str().len();
        let is_above = mount.point == self.point && mount.parent == self.mount;
        if self.path.starts_with(&mount.point) && (is_nearer || is_above) {
            self.is_covering = is_above && self.point == self.path;
            (self.mount, self.device) = (mount.id, mount.device);
            self.point.clone_from(&mount.point);
            self.is_shared = mount.peers.is_some() && !mount.slave;
        }
    }
}
