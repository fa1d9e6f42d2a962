//! Other programs ask the kernel for a loop device that is not bound, and may get one that the helper keeps ready, where no
//! lower one is left. None of a volume's is among them, and the helper goes on with others.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::attacker::first_bytes;
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::loops;
use bulkhead_tests::pool::{output, run};
use bulkhead_tests::rig::Rig;

cases! {
    what_is_kept_ready_is_taken_and_no_volume_notices,
}

const SIZE: u64 = 64 << 10;

/// Asks the kernel for a device that is not bound, `LOOP_CTL_GET_FREE`, as often as this, and returns the numbers.
fn given_out(times: usize) -> Result<BTreeSet<u32>> {
    let script = "open(my $control, '+<', '/dev/loop-control') or die $!; \
        for (1 .. $ARGV[0]) { my $number = ioctl($control, 0x4c82, 0) or die $!; print $number + 0, qq(\n) }";
    let printed = output(Command::new("perl").args(["-e", script, &times.to_string()]))?;
    printed.lines().map(|line| Ok(line.parse()?)).collect()
}

/// Publishes a block volume that has its name as content, and checks that it shows it.
fn publish(rig: &Rig, helper: &HelperClient, id: &str) -> Result<()> {
    helper.ask(&create(id, image_spec(SIZE)))?;
    File::options().write(true).open(rig.pool().image(id))?.write_all_at(id.as_bytes(), 0)?;
    helper.ask_all([attach(id), make_device(id, id)])?;
    check_shows(rig, id)
}

fn check_shows(rig: &Rig, id: &str) -> Result<()> {
    let found = first_bytes::<5>(&rig.target(id))?;
    ensure!(found == id.as_bytes(), "{id} shows {found:?}");
    Ok(())
}

fn what_is_kept_ready_is_taken_and_no_volume_notices(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    publish(rig, &helper, "vol-a")?;
    let own = loops::backed_by(&rig.pool().device()?)?;
    let first = own.iter().filter_map(loops::Loop::number).min().context("vol-a has a device")?;
    let bound = || -> Result<BTreeSet<u32>> { Ok(loops::all()?.iter().filter_map(loops::Loop::number).collect()) };
    // What is bound is never given out: neither a volume's device, nor its hold.
    let of_volume: BTreeSet<u32> = loops::made_since(first)?.intersection(&bound()?).copied().collect();
    let given = given_out(50)?;
    ensure!(given.is_disjoint(&of_volume), "{given:?} of {of_volume:?}");
    // A program gets what is ready, and keeps it. It binds a file of its own.
    let file = rig.work().join("another-programs");
    fs::write(&file, vec![b'x'; SIZE as usize])?;
    helper.ask(&create("vol-spare", image_spec(SIZE)))?;
    let mut taken: Vec<PathBuf> = Vec::new();
    rig.eventually(10, || {
        // A helper of another test that starts removes what is bound to nothing. Others are made when it is needed.
        helper.ask_all([attach("vol-spare"), detach("vol-spare")])?;
        let ready: BTreeSet<u32> = loops::made_since(first)?.difference(&bound()?).copied().collect();
        let paths = ready.iter().map(|number| PathBuf::from(format!("/dev/loop{number}")));
        taken.extend(paths.filter(|path| run(Command::new("losetup").arg(path).arg(&file)).is_ok()));
        ensure!(taken.len() >= 4, "{taken:?} could be taken, and at last {ready:?} were ready");
        Ok(())
    })?;
    helper.ask(&delete("vol-spare"))?;
    for id in ["vol-b", "vol-c"] {
        publish(rig, &helper, id).with_context(|| format!("beside {taken:?}"))?;
    }
    // A start leaves them alone, and finds its own.
    rig.restart_helper()?;
    let helper = rig.helper()?;
    publish(rig, &helper, "vol-d")?;
    for id in ["vol-a", "vol-b", "vol-c", "vol-d"] {
        check_shows(rig, id)?;
        helper.ask_all([remove_device(id, id), detach(id), delete(id)])?;
    }
    for path in taken {
        ensure!(first_bytes::<64>(&path)?.iter().all(|byte| *byte == b'x'), "{} is the program's", path.display());
        loops::remove(&[path])?;
    }
    ensure!(fs::read(&file)?.iter().all(|byte| *byte == b'x'), "the program's file has changed");
    Ok(())
}
