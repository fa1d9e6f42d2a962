//! Whether the host is fit to be served: its kernel, and the ways to the publish directories.

use std::path::Path;

use bulkhead_protocol::PublishName;
use rustix::fs::OFlags;

use crate::log::shown;
use crate::start::config::Config;
use crate::start::directory::Directory;
use crate::start::mounts::{Mounts, Position};
use crate::start::privileges::Unprivileged;
use crate::start::refusal::{Refusal, Why};
use crate::state::{Step, Way};
use crate::sys::{file, walk};

/// Judges what can be judged before anything of the host is opened.
///
/// # Errors
/// One sentence on what is wrong and how to fix it.
pub fn judge(unprivileged: &Unprivileged, config: &Config) -> Result<(), Refusal> {
    config.refuse_doubtful(unprivileged).map_err(|complaint| Why::Configuration.because(complaint))?;
    check_kernel(&rustix::system::uname().release().to_string_lossy())
}

/// Judges the host once its loop module is loaded, and its publish directories are open: these are at those positions.
///
/// # Errors
/// As [`judge`].
pub fn judge_opened(
    unprivileged: &Unprivileged,
    config: &Config,
    (publish, places): (&[Directory], &[Position]),
    mounts: &Mounts,
) -> Result<(), Refusal> {
    let max_part = walk::open_at_start(MAX_PART, OFlags::RDONLY).and_then(|file| file::read_up_to(file, 16));
    if max_part.is_ok_and(|value| !value.starts_with(b"0")) {
        return Err(Why::Kernel.because("the loop module has max_part set, so numbers of devices are not those of their nodes; boot without loop.max_part"));
    }
    for ((wanted, directory), position) in config.publish.iter().zip(publish).zip(places) {
        way(unprivileged, &wanted.name, &directory.real_path, position, mounts)?;
    }
    Ok(())
}

/// The parameter of the loop module that would make numbers of devices differ from those of their nodes.
const MAX_PART: &str = "/sys/module/loop/parameters/max_part";

/// The way to a publish directory.
///
/// # Errors
/// A sentence when mounts in it would not reach the host, or the jail might not show what is mounted there.
pub fn way(
    _: &Unprivileged,
    name: &PublishName,
    path: &Path,
    position: &Position,
    mounts: &Mounts,
) -> Result<Way, Refusal> {
    let gone = || Why::Moved.because(format!("{} is on no mount of this namespace", shown(path)));
    let own = mounts.get(&position.mount).ok_or_else(gone)?;
    let (directory, point) = (shown(path), shown(&own.point));
    let peers = own.peers.ok_or_else(|| {
        Why::NotPropagated.because(format!(
            "{directory}: its mount {point} is not shared, so what is published would be visible nowhere else; run: mount --make-rshared {point}"
        ))
    })?;
    if own.slave {
        return Err(Why::NotPropagated.because(format!(
            "{directory}: its mount {point} is a slave, so the host would not see what is published; run the helper in the host's mount namespace, or with Bidirectional propagation"
        )));
    }
    // KERNEL(6.17): before, a clone silently lacks them.
    if let Some(below) = mounts.values().find(|mount| mount.unbindable && mount.point.starts_with(path)) {
        let below = shown(&below.point);
        return Err(Why::Unbindable.because(format!(
            "{below}, below {directory}, is unbindable, so it would be missing here; run: mount --make-private {below}"
        )));
    }
    let (mut steps, mut mount, mut leads_to) = (Vec::new(), own, path);
    loop {
        steps.push(Step { mount: mount.id, leads_to: leads_to.to_owned() });
        leads_to = &mount.point;
        match mounts.get(&mount.parent).filter(|parent| parent.id != mount.id) {
            Some(parent) => mount = parent,
            None => break,
        }
    }
    Ok(Way { name: name.clone(), peers, steps })
}

/// 5.14 is the first kernel with quotactl_fd(2); everything else that is needed is older.
///
/// # Errors
/// A sentence when a kernel of that release is too old.
pub fn check_kernel(release: &str) -> Result<(), Refusal> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let too_old = || Why::Kernel.because(format!("kernel {release} is too old: 5.14 or later is needed"));
    (version >= (5, 14)).then_some(()).ok_or_else(too_old)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::start::mounts::tests::mount;
    use crate::sys::mountinfo::Mount;

    #[test]
    fn kernels_from_5_14_on_are_accepted() {
        for release in ["5.14", "5.14.0-362.el9", "5.100.1", "6.1.0-32-amd64", "10.0"] {
            check_kernel(release).expect(release);
        }
        for release in ["5.13.19", "5.1", "4.19.0", "3.99", "", "next"] {
            assert!(check_kernel(release).is_err_and(|refusal| refusal.why == Why::Kernel), "{release:?}");
        }
    }

    /// Its way is looked for by a process that needs no capability.
    fn way_of(position: &Position, mounts: &Mounts) -> Result<Way, Refusal> {
        let name: PublishName = "work".parse().expect("a name");
        way(&Unprivileged::in_a_test(), &name, Path::new("/var/data"), position, mounts)
    }

    #[test]
    fn a_way_has_every_mount_on_it_and_what_makes_it_unfit_is_said() {
        let shared =
            |id: u64, parent: u64, point: &str| (id, Mount { id, parent, peers: Some(7), ..mount("/", point) });
        let mut mounts = Mounts::from([shared(1, 1, "/"), shared(2, 1, "/var"), shared(3, 2, "/var/data/a/b")]);
        let position = Position { mount: 2, device: (8, 1), inner: "/data".into() };
        let way = |mounts: &Mounts| way_of(&position, mounts);
        let steps: Vec<_> =
            way(&mounts).expect("a way").steps.into_iter().map(|step| (step.mount, step.leads_to)).collect();
        assert_eq!(steps, [(2, PathBuf::from("/var/data")), (1, PathBuf::from("/var"))]);
        let complaint = |mounts: &mut Mounts, id: u64, change: fn(&mut Mount)| {
            change(mounts.get_mut(&id).expect("a mount"));
            way(mounts).expect_err("it is unfit").why
        };
        assert_eq!(complaint(&mut mounts, 3, |mount| mount.unbindable = true), Why::Unbindable);
        assert_eq!(complaint(&mut mounts, 2, |mount| mount.slave = true), Why::NotPropagated);
        assert_eq!(complaint(&mut mounts, 2, |mount| mount.peers = None), Why::NotPropagated);
    }
}
