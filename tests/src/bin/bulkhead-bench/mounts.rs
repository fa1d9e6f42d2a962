//! Calls that ask the host what is mounted, beside very many mounts that are none of ours.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use bulkhead_tests::bench::report::Unit;
use bulkhead_tests::bench::statistics::Summary;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::rig::Rig;
use rustix::fs::CWD;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};

use crate::calls::LIFE;
use crate::driver::{Connection, Driver, Kind};
use crate::options::Amount;
use crate::run::Run;

const SECTION: &str = "mounts";

/// Measures all calls of a volume's life beside no mounts and beside that many, in one run: beside none before there are any,
/// and again when they are gone, since a machine's pace changes in between.
pub fn measure(run: &mut Run, rig: &Rig, driver: &Driver, amount: &Amount) -> Result<()> {
    if amount.mounts == 0 || !run.has_time_for(&format!("mounts: {} of the host's own", amount.mounts)) {
        return Ok(());
    }
    let live = || Kind::ALL.map(|kind| live(driver, kind, amount.calls));
    let before = live();
    let others = Others::make(rig.work().join("others"), amount.mounts)?;
    let beside = live();
    others.remove()?;
    for (((kind, before), beside), after) in Kind::ALL.into_iter().zip(before).zip(beside).zip(live()) {
        let (before, beside, after) = (before?, beside?, after?);
        for (index, (_, name, _)) in LIFE.into_iter().enumerate().filter(|(_, (_, name, _))| !name.is_empty()) {
            let subject = format!("{name} {}", kind.name());
            let none = Summary::of_times(&[before[index].clone(), after[index].clone()].concat());
            run.add(SECTION, &subject, "beside none", Unit::Microseconds, none, None);
            let none = run.report.find(SECTION, &subject, "beside none").map(|own| own.as_baseline("none"));
            let (condition, many) = (format!("beside {}", amount.mounts), Summary::of_times(&beside[index]));
            run.add(SECTION, &subject, &condition, Unit::Microseconds, many, none);
        }
    }
    Ok(())
}

/// The times of each call of so many volumes' lives.
fn live(driver: &Driver, kind: Kind, number: usize) -> Result<Vec<Vec<Duration>>> {
    let volumes = driver.volumes("measured", kind, number, true);
    LIFE.iter().map(|(call, ..)| Ok(driver.phase(Connection::Kept, 1, &volumes, *call)?.times)).collect()
}

/// Mounts in a directory that the helper does not publish in.
struct Others {
    directory: PathBuf,
}

impl Others {
    fn make(directory: PathBuf, number: usize) -> Result<Self> {
        fs::create_dir(&directory)?;
        rustix::mount::mount("bench", &directory, "tmpfs", MountFlags::empty(), None)?;
        let made = Self { directory };
        let source = made.directory.join("source");
        fs::create_dir(&source)?;
        for number in 0..number {
            let point = made.directory.join(number.to_string());
            fs::create_dir(&point)?;
            let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let mount = rustix::mount::open_tree(CWD, &source, clone)?;
            rustix::mount::move_mount(&mount, "", CWD, &point, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        }
        let found = mounts::below(&made.directory)?.len();
        anyhow::ensure!(found == number, "{found} of {number} mounts are there");
        Ok(made)
    }

    fn remove(self) -> Result<()> {
        // With all that is mounted below it.
        rustix::mount::unmount(&self.directory, UnmountFlags::DETACH)?;
        Ok(fs::remove_dir(&self.directory)?)
    }
}
