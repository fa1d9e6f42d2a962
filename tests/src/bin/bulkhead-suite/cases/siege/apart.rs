//! A publish directory that comes apart from the host's while it is served: nothing is published where the host does not
//! see it, nothing is said to be unpublished that the host still has, and no data is lost.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_protocol::{Condition, ErrorKind, MountFlags, Request, Separation};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::{attach, create, delete, detach, directory_spec, discard, image_spec, target, volume};
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pace::Allowance;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::wait;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};

cases! {
    a_publish_directory_becomes_private: Bare,
    a_publish_directory_becomes_private_and_the_helper_is_killed: Bare,
    the_mount_of_a_publish_directory_is_exchanged: Bare,
    what_cannot_be_inspected_in_a_directory_that_is_apart_is_said_to_be_so: Bare + Xfs,
}

const SIZE: u64 = 1 << 20;

/// A publish directory called other, on a shared mount of its own in a private one.
pub struct Other {
    /// The private mount.
    pub outer: PathBuf,
    /// The directory.
    pub inner: PathBuf,
}

fn bind(id: &str, path: &str) -> Request {
    let flags = MountFlags::default();
    Request::BindMount { volume: volume(id), target: target("other", path), flags, exclusive: false }
}

/// The request to unpublish a directory volume there.
pub fn unbind(id: &str, path: &str) -> Request {
    Request::Unmount { volume: volume(id), target: target("other", path) }
}

/// The request to unpublish the block volume there.
pub fn remove_device() -> Request {
    Request::RemoveDevice { volume: volume("vol-b"), target: target("other", "b") }
}

impl Other {
    /// Makes it, starts the helper, and publishes a directory volume and a block volume there. vol-c is never published.
    pub fn make(rig: &mut Rig) -> Result<Self> {
        let outer = rig.work().join("outer");
        let other = Self { inner: outer.join("other"), outer };
        fs::create_dir_all(&other.inner)?;
        mount_bind(&other.outer, &other.outer)?;
        mount_change(&other.outer, MountPropagationFlags::PRIVATE)?;
        other.mount()?;
        rig.helper_flags = vec!["--publish-dir".to_owned(), format!("other={}", other.inner.display())];
        let helper = rig.started_helper()?;
        for (id, spec) in
            [("vol-a", directory_spec(SIZE)), ("vol-b", image_spec(SIZE)), ("vol-c", directory_spec(SIZE))]
        {
            helper.ask(&create(id, spec))?;
        }
        helper.ask(&bind("vol-a", "a"))?;
        helper.ask(&attach("vol-b"))?;
        helper.ask(&Request::MakeDevice { volume: volume("vol-b"), target: target("other", "b"), exclusive: false })?;
        fs::write(other.inner.join("a/file"), "content")?;
        Ok(other)
    }

    fn mount(&self) -> Result<()> {
        mount_bind(&self.inner, &self.inner)?;
        Ok(mount_change(&self.inner, MountPropagationFlags::SHARED)?)
    }

    /// Checks that nothing is published, unpublished or deleted, and that each refusal says `remedy`.
    pub fn check_refused(&self, rig: &Rig, remedy: &str) -> Result<()> {
        let helper = rig.helper()?;
        for request in [bind("vol-c", "c"), bind("vol-a", "c")] {
            denied(helper.request(&request)?, ErrorKind::InUse, remedy)?;
        }
        ensure!(mounts::at(&self.inner.join("c"))?.is_empty(), "it was published all the same");
        denied(helper.request(&delete("vol-c"))?, ErrorKind::InUse, "other")?;
        for id in ["vol-a", "vol-b"] {
            denied(helper.request(&delete(id))?, ErrorKind::InUse, "other")?;
            denied(helper.request(&discard(id))?, ErrorKind::Refused, "")?;
        }
        check_kept(rig)
    }

    /// Checks that a volume that the host has mounted is not said to be unpublished.
    fn check_not_unpublished(&self, rig: &Rig) -> Result<()> {
        let helper = rig.helper()?;
        for request in [unbind("vol-a", "a"), remove_device(), detach("vol-b")] {
            denied(helper.request(&request)?, ErrorKind::InUse, "other")?;
        }
        for name in ["a", "b"] {
            ensure!(mounts::at(&self.inner.join(name))?.len() == 1, "{name} is not mounted any more");
        }
        Ok(())
    }

    /// Unpublishes and deletes everything, as if nothing had happened.
    pub fn end(self, rig: &mut Rig) -> Result<()> {
        let helper = rig.helper()?;
        check_kept(rig)?;
        helper.ask(&bind("vol-c", "c"))?;
        ensure!(mounts::at(&self.inner.join("c"))?.len() == 1, "the host does not see what was published");
        helper.ask_all([unbind("vol-c", "c"), unbind("vol-a", "a"), remove_device()])?;
        ensure!(mounts::below(&self.inner)?.is_empty(), "{:?}", mounts::below(&self.inner)?);
        helper.ask_all(["vol-a", "vol-b", "vol-c"].map(delete))?;
        rig.stop()?;
        rig.helper_flags.clear();
        mounts::unmount_all(&self.outer)?;
        fs::remove_dir_all(&self.outer)?;
        rig.start_helper()
    }
}

/// Checks that all volumes are there, with their content.
pub fn check_kept(rig: &Rig) -> Result<()> {
    let pool = rig.pool();
    pool.holds(&["vol-a", "vol-b", "vol-c"])?;
    ensure!(fs::read(pool.volume("vol-a").join("data/file"))? == b"content", "the content is lost");
    Ok(())
}

/// Waits until the pool reports this, or that nothing is apart. The host's whole table is looked at a moment after it has
/// changed.
pub fn reports(rig: &Rig, wanted: Option<Separation>) -> Result<()> {
    rig.eventually(2, || reports_now(rig, wanted))
}

fn reports_now(rig: &Rig, wanted: Option<Separation>) -> Result<()> {
    let status = rig.helper()?.pool_status("default")?;
    let found = status.conditions.as_slice().iter().find_map(|condition| match condition {
        Condition::Apart { directory, cause } => Some((directory.as_str().to_owned(), *cause)),
        _ => None,
    });
    ensure!(found == wanted.map(|cause| ("other".to_owned(), cause)), "the pool reports {found:?}");
    Ok(())
}

/// Waits until the helper publishes again, or has ended in order, to be started anew, and does so then.
pub fn heals(rig: &mut Rig) -> Result<()> {
    let mut allowance = Allowance::at_this_pace(rig.patience(Duration::from_secs(20)));
    loop {
        if rig.running_helper()?.check_alive().is_err() {
            rig.await_end_of_helper(Duration::ZERO)?;
            return rig.start_helper();
        }
        let answer = rig.helper().and_then(|helper| {
            helper.ask(&bind("vol-c", "c"))?;
            helper.ask(&unbind("vol-c", "c"))
        });
        match answer {
            Ok(_) => return Ok(()),
            Err(complaint) if allowance.is_spent() => return Err(complaint.context("it does not heal")),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn a_publish_directory_becomes_private(rig: &mut Rig) -> Result<()> {
    let other = Other::make(rig)?;
    reports(rig, None)?;
    mount_change(&other.inner, MountPropagationFlags::PRIVATE)?;
    other.check_refused(rig, "make-shared")?;
    other.check_not_unpublished(rig)?;
    reports(rig, Some(Separation::NotShared))?;
    // A publish directory beside it is not affected.
    let helper = rig.helper()?;
    helper.ask_all([bulkhead_tests::helper::bind("vol-c", "c"), bulkhead_tests::helper::unbind("vol-c", "c")])?;
    mount_change(&other.inner, MountPropagationFlags::SHARED)?;
    heals(rig)?;
    reports(rig, None)?;
    other.end(rig)
}

/// A start refuses to serve in such a directory, and loses nothing.
fn a_publish_directory_becomes_private_and_the_helper_is_killed(rig: &mut Rig) -> Result<()> {
    let other = Other::make(rig)?;
    mount_change(&other.inner, MountPropagationFlags::PRIVATE)?;
    rig.kill_helper()?;
    let said = rig.refusal()?;
    ensure!(said.contains("not shared"), "{said}");
    for name in ["a", "b"] {
        ensure!(mounts::at(&other.inner.join(name))?.len() == 1, "{name} is not mounted any more");
    }
    mount_change(&other.inner, MountPropagationFlags::SHARED)?;
    rig.start_helper()?;
    other.end(rig)
}

fn the_mount_of_a_publish_directory_is_exchanged(rig: &mut Rig) -> Result<()> {
    let other = Other::make(rig)?;
    // A pod still uses the volume.
    let open = fs::File::open(other.inner.join("a/file"))?;
    unmount(&other.inner, UnmountFlags::DETACH)?;
    other.check_refused(rig, "mount it again")?;
    reports(rig, Some(Separation::Unmounted))?;
    other.mount()?;
    heals(rig)?;
    drop(open);
    reports(rig, None)?;
    other.end(rig)
}

/// Of what is mounted there, neither the filesystem says whose it is nor the host's table, in which it is missing.
fn what_cannot_be_inspected_in_a_directory_that_is_apart_is_said_to_be_so(rig: &mut Rig) -> Result<()> {
    let other = Other::make(rig)?;
    let devices = loops::backed_by(&rig.pool().device()?)?;
    unmount(&other.inner, UnmountFlags::DETACH)?;
    run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&rig.pool().directory))?;
    denied(rig.helper()?.request(&unbind("vol-a", "a"))?, ErrorKind::InUse, "is apart from the host's")?;
    let directory = rig.pool().directory.clone();
    rig.abandon();
    devices.iter().try_for_each(loops::detach_by_hand)?;
    mounts::unmount_all(&other.outer)?;
    wait::until(rig.patience(Duration::from_secs(20)), || mounts::unmount_all(&directory))?;
    rig.pools.clear();
    Ok(())
}
