//! `bulkhead-setup requota`: the volumes of a pool that was copied, or had no quotas, are limited again, whatever is in
//! them.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{Condition, ErrorKind};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::{mounts, quotas};
use bulkhead_tests::pool::{Pool, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::program;
use rustix::fs::{FallocateFlags, fallocate};

cases! {
    a_copied_pool_is_limited_again: Bare + Quota,
    volumes_made_without_quotas_are_limited: Bare + Quota,
    a_hostile_tree_is_walked_and_left: Bare + Quota,
    a_run_that_was_killed_is_finished_by_the_next: Bare + Quota,
    a_pool_in_use_is_left_alone_unless_told: Bare + Quota,
    a_run_beside_a_tenant_that_keeps_moving_ends: Bare + Quota,
    projects_of_another_pool_on_the_filesystem_are_not_used: Bare + Quota,
}

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;

/// Runs `requota` for the pool called default; returns whether every volume is limited, and what it says.
fn requota(rig: &Rig, more: &[&str]) -> Result<(bool, String)> {
    let mut command = Command::new(program("bulkhead-setup")?);
    let output = command.args(["requota", "--pool"]).arg(&rig.pool().directory).args(more).output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Ok((output.status.success(), said))
}

fn requota_ok(rig: &Rig, parts: &[&str]) -> Result<String> {
    let (good, said) = requota(rig, &[])?;
    ensure!(good, "{said}");
    for part in parts {
        ensure!(said.contains(part), "{part:?} is not in: {said}");
    }
    Ok(said)
}

/// Runs it once more: nothing is left to do.
fn is_idle(rig: &Rig) -> Result<()> {
    let said = requota_ok(rig, &[])?;
    ensure!(!said.contains("change"), "the next run is not idle: {said}");
    ensure!(requota(rig, &["--dry-run"])?.0, "there is something to do: {said}");
    Ok(())
}

fn allocate(path: &Path, bytes: u64) -> Result<(), rustix::io::Errno> {
    let file =
        File::create(path).map_err(|error| rustix::io::Errno::from_io_error(&error).expect("an error number"))?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes)
}

/// Starts the helper, and checks that volumes of the pool are not served, and that the condition says so.
fn check_not_served(rig: &mut Rig, volumes: u32) -> Result<()> {
    let helper = rig.started_helper()?;
    let found = helper.pool_status("default")?.conditions;
    ensure!(found.as_slice().contains(&Condition::NotServed { volumes }), "{found:?}");
    denied(helper.request(&bind("vol-a", "a"))?, ErrorKind::PoolBroken, "requota")?;
    // Nothing limits it.
    let beyond = rig.pool().volume("vol-a").join("data/beyond");
    allocate(&beyond, 2 * SIZE).context("something limits it")?;
    fs::remove_file(beyond)?;
    let (good, said) = requota(rig, &[])?;
    ensure!(
        !good && said.contains("is in use") && said.contains("systemctl stop bulkhead-privhelper.socket"),
        "{said}"
    );
    rig.stop_helper()
}

/// Starts the helper, and checks that vol-a, which is nearly empty, is limited to its size.
fn check_limited(rig: &mut Rig) -> Result<()> {
    check_bound(rig)?;
    let within = rig.pool().volume("vol-a").join("data/within");
    allocate(&within, SIZE / 2).context("within its size")?;
    fs::remove_file(within).context("remove what was allowed")
}

/// Starts the helper, and checks that vol-a cannot hold more than its size, and that nothing is wrong with the pool.
fn check_bound(rig: &mut Rig) -> Result<()> {
    let helper = rig.started_helper()?;
    let found = helper.pool_status("default")?.conditions;
    ensure!(found.as_slice().is_empty(), "{found:?}");
    helper.ask(&bind("vol-a", "a"))?;
    let target = rig.target("a");
    let beyond = allocate(&target.join("beyond"), 2 * SIZE);
    let refused = [rustix::io::Errno::DQUOT, rustix::io::Errno::NOSPC];
    ensure!(beyond.is_err_and(|errno| refused.contains(&errno)), "{beyond:?}");
    fs::remove_file(target.join("beyond"))?;
    helper.ask(&unbind("vol-a", "a")).map(drop)
}

/// Returns how many entries there are in a volume, its own directory included.
fn entries(directory: &Path) -> Result<u64> {
    let mut number = 1;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        number += if entry.file_type()?.is_dir() { entries(&entry.path())? } else { 1 };
    }
    Ok(number)
}

/// The project ids of files, as lsattr(1) reports them.
fn project_of(path: &Path) -> Result<u32> {
    let output = Command::new("lsattr").arg("-pd").arg(path).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().next().and_then(|first| first.parse().ok()).with_context(|| format!("{path:?}: {text:?}"))
}

fn a_copied_pool_is_limited_again(rig: &mut Rig) -> Result<()> {
    rig.start_helper()?;
    for (id, spec) in [("vol-a", directory_spec(SIZE)), ("vol-b", image_spec(MIB)), ("vol-c", directory_spec(SIZE))] {
        rig.helper()?.ask(&create(id, spec))?;
    }
    let promised = rig.helper()?.pool_status("default")?.promised;
    let data = rig.pool().volume("vol-a").join("data");
    fs::create_dir_all(data.join("some/where"))?;
    allocate(&data.join("some/where/file"), 3 * MIB)?;
    rig.stop_helper()?;
    // As docs/operate.md copies a pool.
    let original = rig.pools.remove(0);
    let copy = original.directory.with_file_name("copy");
    rig.pools.push(Pool::make_unmarked(&rig.run_options, rig.templates(), &copy, "default")?);
    run(Command::new("cp").arg("-a").arg(original.directory.join(".")).arg(&copy))?;
    mounts::unmount_all(&original.directory)?;
    check_not_served(rig, 3)?;
    let now = rig.started_helper()?.pool_status("default")?.promised;
    ensure!(now == promised, "{now} bytes are promised, and were {promised} while the volumes were served");
    rig.stop_helper()?;
    let (good, said) = requota(rig, &["--dry-run"])?;
    ensure!(!good && said.contains("not in a project of its own") && said.contains("3 of them not limited"), "{said}");
    ensure!(project_of(&copy.join("vol-a"))? == 0 && project_of(&copy.join("vol-a/data"))? == 0, "it has changed");
    requota_ok(rig, &["vol-a: put into project 100000", "vol-b: put into", "3 volumes in ", "0 of them not limited"])?;
    is_idle(rig)?;
    ensure!(project_of(&copy.join("vol-a/data/some/where/file"))? == 100_000);
    check_limited(rig)
}

fn volumes_made_without_quotas_are_limited(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    rig.pools[0].options = ",quota=none".to_owned();
    rig.started_helper()?.ask(&create("vol-a", directory_spec(SIZE)))?;
    let data = rig.pool().volume("vol-a").join("data");
    allocate(&data.join("file"), 2 * SIZE)?;
    rig.stop_helper()?;
    rig.pools[0].options = String::new();
    check_not_served(rig, 1)?;
    requota_ok(rig, &["vol-a: put into project 100000", "expand it, or delete files"])?;
    is_idle(rig)?;
    fs::remove_file(data.join("file"))?;
    check_limited(rig)
}

/// Makes vol-a and vol-b without quotas, and stops the helper. Returns the data of the two.
fn unlimited(rig: &mut Rig) -> Result<[PathBuf; 2]> {
    rig.add_pool("default")?;
    rig.pools[0].options = ",quota=none".to_owned();
    rig.started_helper()?.ask_all(["vol-a", "vol-b"].map(|id| create(id, directory_spec(SIZE))))?;
    rig.stop_helper()?;
    rig.pools[0].options = String::new();
    Ok(["vol-a", "vol-b"].map(|id| rig.pool().volume(id).join("data")))
}

fn a_hostile_tree_is_walked_and_left(rig: &mut Rig) -> Result<()> {
    let [a, b] = unlimited(rig)?;
    let outside = rig.pool().directory.join("Outside");
    fs::create_dir(&outside)?;
    for file in ["file", "linked"] {
        fs::write(outside.join(file), "outside")?;
    }
    symlink(&outside, a.join("link"))?;
    symlink("/dev/zero", a.join("to a device"))?;
    run(Command::new("mkfifo").arg(a.join("pipe")))?;
    run(Command::new("mknod").arg(a.join("node")).args(["c", "1", "5"]))?;
    fs::hard_link(outside.join("linked"), a.join("linked"))?;
    fs::write(a.join("both"), "in two volumes")?;
    fs::hard_link(a.join("both"), b.join("both"))?;
    fs::write(a.join("fixed"), "immutable")?;
    run(Command::new("chattr").arg("+i").arg(a.join("fixed")))?;
    fs::create_dir_all(a.join("covered/below"))?;
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(a.join("covered/below")))?;
    fs::write(a.join("covered/below/file"), "of another filesystem")?;
    // Deeper than a path may be long, and more than there are descriptors.
    let deep = "d".repeat(200);
    let mut directory = File::open(&a)?;
    for _ in 0..1500 {
        rustix::fs::mkdirat(&directory, &deep, rustix::fs::Mode::RWXU)?;
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        directory = rustix::fs::openat(&directory, &deep, flags, rustix::fs::Mode::empty())?.into();
    }
    drop(directory);
    // A whole run must come to an end in spite of the pipe.
    let (good, said) = requota(rig, &[])?;
    ensure!(said.contains("directories that something is mounted on") && !good, "{said}");
    ensure!(said.contains("it is not served until all that counts is in its project"), "{said}");
    let outer = rig.pool().volume("vol-a");
    ensure!(project_of(&outer)? == 0, "what was left out has no limit, and the volume would be served");
    run(Command::new("umount").arg(a.join("covered/below")))?;
    let (_, immutable) = requota(rig, &[])?;
    run(Command::new("chattr").arg("-i").arg(a.join("fixed")))?;
    let (good, said) = requota(rig, &[])?;
    // XFS lets root change it all the same.
    ensure!(immutable.contains("ok      vol-a: ") || immutable.contains("\"fixed\": "), "{immutable}");
    ensure!(
        !good
            && said.contains("FAILED  vol-b: put into project")
            && said.contains(
                "files with several names that are charged to another volume (copy each to a file of its own): 1;"
            ),
        "{said}"
    );
    ensure!(said.contains("ok      vol-a: ") && project_of(&rig.pool().volume("vol-b"))? == 0, "{said}");
    fs::remove_file(b.join("both"))?;
    requota_ok(rig, &["vol-a: is in project", "vol-b: put into project"])?;
    is_idle(rig)?;
    ensure!(project_of(&outside.join("file"))? == 0, "a link was followed");
    let project = project_of(&outer)?;
    for path in [a.join("fixed"), a.join("covered/below"), a.join("both"), outside.join("linked")] {
        ensure!(project_of(&path)? == project, "{path:?}");
    }
    // What the kernel counts is what there is, but for what the line names.
    let line = said.lines().find(|line| line.contains("vol-a: ")).context("no line about vol-a")?;
    let number = line.split("can charge: ").nth(1).map(|rest| rest.split(|after: char| !after.is_ascii_digit()).next());
    let uncharged: u64 = number.flatten().map_or(Ok(0), str::parse)?;
    ensure!([0, 4].contains(&uncharged), "{said}");
    let charged = quotas::inodes(&rig.pool().directory)?;
    let charged = charged.iter().find(|quota| quota.project == project).context("nothing is charged")?.used;
    let without_depth = 1 + 1 + 4 + 1 + 1 + 1 + 2;
    ensure!(charged == without_depth + 1500 - uncharged, "{charged} inodes are charged, {uncharged} are not: {said}");
    fs::remove_dir_all(&outside)?;
    check_bound(rig)
}

fn a_run_that_was_killed_is_finished_by_the_next(rig: &mut Rig) -> Result<()> {
    let [a, _] = unlimited(rig)?;
    for directory in 0..20 {
        let directory = a.join(format!("{directory}"));
        fs::create_dir(&directory)?;
        for file in 0..40 {
            File::create(directory.join(format!("{file}")))?;
        }
    }
    let mut was_killed = false;
    for round in 0..200 {
        let mut command = Command::new(program("bulkhead-setup")?);
        command.args(["requota", "--pool"]).arg(&rig.pool().directory).stdout(Stdio::null());
        let mut child = command.spawn()?;
        thread::sleep(Duration::from_millis(2 * round));
        child.kill()?;
        let killed = !child.wait()?.success();
        let is_half = project_of(&a)? != 0 && project_of(&rig.pool().volume("vol-a"))? == 0;
        was_killed |= killed && is_half;
        if is_half {
            check_not_served(rig, 2)?;
            break;
        }
    }
    if !was_killed {
        bail!("no run was killed half-way");
    }
    requota_ok(rig, &["vol-a: put into project"])?;
    is_idle(rig)?;
    let project = project_of(&a)?;
    let charged = quotas::inodes(&rig.pool().directory)?;
    let own = charged.iter().find(|quota| quota.project == project).context("nothing is charged")?;
    ensure!(own.used == entries(&rig.pool().volume("vol-a"))?, "{charged:?}");
    check_limited(rig)
}

/// A volume that is mounted or attached although the helper is gone: a pod goes on using it.
fn a_pool_in_use_is_left_alone_unless_told(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    rig.pools[0].options = ",quota=none".to_owned();
    let helper = rig.started_helper()?;
    helper.ask_all([create("vol-a", directory_spec(SIZE)), create("vol-b", image_spec(MIB))])?;
    let refused = |rig: &Rig, part: &str| -> Result<()> {
        let (good, said) = requota(rig, &[])?;
        ensure!(!good && said.contains(part) && said.contains("--while-in-use"), "{part:?}: {said}");
        ensure!(project_of(&rig.pool().volume("vol-a"))? == 0, "it has changed: {said}");
        // What changes nothing harms nobody.
        ensure!(requota(rig, &["--dry-run"])?.1.contains("not in a project of its own"));
        Ok(())
    };
    helper.ask(&bind("vol-a", "a"))?;
    rig.kill_helper()?;
    refused(rig, &format!("volume vol-a is mounted at {}", rig.target("a").display()))?;
    let helper = rig.started_helper()?;
    helper.ask_all([unbind("vol-a", "a"), attach("vol-b")])?;
    rig.kill_helper()?;
    refused(rig, "volume vol-b is attached to loop")?;
    let (good, said) = requota(rig, &["--while-in-use"])?;
    ensure!(good && said.contains("vol-a: put into project"), "{said}");
    rig.pools[0].options = String::new();
    rig.started_helper()?.ask(&detach("vol-b"))?;
    rig.stop_helper()?;
    is_idle(rig)?;
    check_limited(rig)
}

fn a_run_beside_a_tenant_that_keeps_moving_ends(rig: &mut Rig) -> Result<()> {
    let [a, _] = unlimited(rig)?;
    for number in 0..200 {
        fs::create_dir_all(a.join(format!("{number}/below")))?;
    }
    fs::create_dir(a.join("moving"))?;
    let ended = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            // Ahead of wherever the walk is, again and again.
            let mut at = a.join("moving");
            for number in (0..200).cycle().take_while(|_| !ended.load(Relaxed)) {
                let to = a.join(format!("{number}/below/moving"));
                if fs::rename(&at, &to).is_ok() {
                    at = to;
                }
                let _ = File::create(at.join("new")).and_then(|_| fs::remove_file(at.join("new")));
            }
        });
        let outcome = requota(rig, &["--while-in-use"]);
        ended.store(true, Relaxed);
        outcome
    });
    // Either is an end: it was fast enough, or it says why not.
    let (good, said) = outcome?;
    let gave_up = said.contains("FAILED  vol-a: it changes faster than it can be gone through");
    ensure!(good != gave_up && said.contains("ok      vol-b: "), "{said}");
    ensure!(good || project_of(&rig.pool().volume("vol-a"))? == 0, "it would be served: {said}");
    requota_ok(rig, &[])?;
    is_idle(rig)?;
    check_limited(rig)
}

/// As after a copy that took the project ids along: they are those of the original, which is on the same filesystem.
fn projects_of_another_pool_on_the_filesystem_are_not_used(rig: &mut Rig) -> Result<()> {
    let [a, b] = unlimited(rig)?;
    let pool = rig.pool().directory.clone();
    let other = pool.join("Other");
    fs::create_dir_all(other.join("vol-z"))?;
    fs::copy(pool.join(".bulkhead"), other.join(".bulkhead"))?;
    let outer = [a, b].map(|data| data.parent().map(Path::to_owned).unwrap_or_default());
    for directory in [&other.join("vol-z"), &outer[0]] {
        run(Command::new("chattr").args(["-p", "100000", "+P"]).arg(directory))?;
    }
    let named = other.to_string_lossy().into_owned();
    let (good, said) = requota(rig, &["--other-pool", &named])?;
    ensure!(good, "{said}");
    let found = [project_of(&outer[0])?, project_of(&outer[1])?];
    ensure!(found[0] != found[1] && !found.contains(&100_000), "{found:?}: {said}");
    let (good, said) = requota(rig, &["--other-pool", &rig.work().to_string_lossy()])?;
    ensure!(!good && said.contains("is no other pool on the filesystem"), "{said}");
    fs::remove_dir_all(&other)?;
    check_limited(rig)
}
