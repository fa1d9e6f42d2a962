//! `bulkhead-setup prepare`: empty disks become pools, wherever the power fails, and nothing else is ever written to.

mod disks;
pub mod recipes;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::commands::Printed;
use bulkhead_tests::documented;
use bulkhead_tests::helper::{create, delete, directory_spec};
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pool::{Pool, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace;
use rustix::fs::{Mode, OFlags};
use serde_json::Value;

use disks::{Disks, SIZE, reason};

cases! {
    an_empty_disk_becomes_a_pool_that_is_served: Bare + Quota + Xfs,
    a_disk_in_which_anything_is_found_is_left_alone: Bare + Quota + Xfs,
    a_disk_that_is_in_use_is_left_alone: Bare + Quota + Xfs,
    a_run_that_is_killed_anywhere_is_finished_by_the_next: Bare + Quota + Xfs + Slow,
    a_format_that_was_interrupted_is_begun_again_and_no_other: Bare + Quota + Xfs,
    // Nothing is mounted in it, so that it needs no quotas.
    what_gets_a_signature_meanwhile_is_not_formatted: Bare,
    a_disk_that_is_swapped_meanwhile_is_left_alone: Bare + Quota + Xfs,
    a_disk_is_replaced_only_when_asked: Bare + Quota + Xfs,
    each_disk_is_a_pool_of_its_own: Bare + Quota + Xfs,
    the_page_does_what_it_says: Bare + Quota + Xfs,
}

fn an_empty_disk_becomes_a_pool_that_is_served(rig: &mut Rig) -> Result<()> {
    let mut disks = Disks::of(rig)?;
    let device = disks.add("disk")?;
    fs::write(disks.fstab(), "# ours\n/dev/none /none xfs noauto 0 0\n")?;
    let said = disks.prepare(&[&device], &["--name=default"])?.succeeded()?;
    ensure!(said.contains("pool default: to be formatted") && said.contains("--yes does it"), "{said}");
    ensure!(disks.ends("disk")?.iter().all(|byte| *byte == 0), "a dry run writes");
    ensure!(!fs::read_to_string(disks.fstab())?.contains("UUID") && !disks.pool("default").exists());
    let said = disks.prepare(&[&device], &["--name=default", "--yes"])?.succeeded()?;
    ensure!(said.contains("pool default on /dev/loop") && said.contains("\npools:\n- name: default\n"), "{said}");
    disks.is_pool(&device, "default")?;
    ensure!(fs::read_to_string(disks.fstab())?.starts_with("# ours\n/dev/none /none"), "a line was lost");
    let printed: Value =
        serde_json::from_str(&disks.prepare(&[&device], &["--name=default", "--yes", "--json"])?.succeeded()?)?;
    ensure!(printed["changed"] == false && printed["pools"][0]["found"] == "ready", "{printed}");

    // As after a reboot at which it was not mounted.
    disks.unmount()?;
    disks.prepare(&[&device], &["--name=default", "--yes"])?.succeeded()?;
    disks.is_pool(&device, "default")?;

    rig.pools = vec![Pool::existing(&disks.pool("default"), "default")];
    let helper = rig.started_helper()?;
    helper.ask(&create("vol-a", directory_spec(16 << 20)))?;
    ensure!(helper.pool_status("default")?.conditions.as_slice().is_empty());
    helper.ask(&delete("vol-a"))?;
    rig.stop_helper()?;
    rig.pools.clear();
    Ok(())
}

fn a_disk_in_which_anything_is_found_is_left_alone(rig: &mut Rig) -> Result<()> {
    let mut disks = Disks::of(rig)?;
    let byte = |offset| vec![(offset, vec![1])];
    let mut sorts = vec![
        ("lvm", disks::lvm(), "LVM2_member"),
        ("raid", disks::raid(), "linux_raid_member"),
        ("mbr", disks::mbr(0x83), "dos"),
        ("gpt", disks::gpt(), "gpt"),
        ("swap", disks::swap(), "swap"),
        ("luks", disks::luks(), "crypto_LUKS"),
        ("beyond-a-table", byte(2 << 20), "holds data that no program here knows, from byte 2097152"),
        ("last-byte", byte(SIZE - 1), "holds data that no program here knows"),
        ("ext4", Vec::new(), "ext4"),
        ("xfs", Vec::new(), "xfs"),
    ];
    let mut devices = Vec::new();
    for (name, bytes, _) in &sorts {
        devices.push(disks.add_with(name, SIZE, bytes)?);
        if matches!(*name, "ext4" | "xfs") {
            disks::format(name, devices.last().context("a device")?)?;
        }
    }
    sorts.push(("small", Vec::new(), "is smaller than 300 MiB"));
    devices.push(disks.add_with("small", 299 << 20, &[])?);
    sorts.push(("nothing", Vec::new(), "has a size of 0"));
    devices.push(disks.add_with("nothing", 0, &[])?);
    let before: Vec<_> = sorts.iter().map(|(name, ..)| disks.ends(name)).collect::<Result<_>>()?;
    let paths: Vec<_> = devices.iter().map(PathBuf::as_path).collect();
    for more in [&["--json"][..], &["--json", "--yes"]] {
        let printed = disks.prepare(&paths, more)?;
        ensure!(!printed.success, "{}", printed.text);
        let listed: Value = serde_json::from_str(&printed.text).with_context(|| printed.errors)?;
        for ((name, _, part), device) in sorts.iter().zip(&devices) {
            let said = reason(&listed, device)?;
            ensure!(said.contains(part), "{name}: {said}");
        }
        ensure!(listed["pools"] == serde_json::json!([]) && listed["changed"] == false, "{listed}");
    }
    for ((name, ..), before) in sorts.iter().zip(before) {
        ensure!(disks.ends(name)? == before, "{name} was written to");
    }
    ensure!(!disks.fstab().exists());
    let said = disks.prepare(&[&devices[0]], &["--size", "1Ti.."])?.failed()?;
    ensure!(said.contains("does not match --size") && said.contains("no disk is taken"), "{said}");
    Ok(())
}

fn a_disk_that_is_in_use_is_left_alone(rig: &mut Rig) -> Result<()> {
    let mut disks = Disks::of(rig)?;
    let mut sorts = Vec::new();

    let mounted = disks.add("mounted")?;
    disks::format("ext4", &mounted)?;
    let point = disks.image("point");
    fs::create_dir(&point)?;
    run(Command::new("mount").args(["-t", "ext4"]).args([&mounted, &point]))?;
    sorts.push((mounted, format!("is mounted on {}", point.display())));

    let held = disks.add("held")?;
    let name = format!("bulkhead-prepare-{}", std::process::id());
    let dmsetup = |arguments: &[&str]| run(Command::new("dmsetup").arg("--noudevsync").args(arguments));
    dmsetup(&["create", &name, "--table", &format!("0 {} linear {} 0", SIZE / 512, held.display())])?;
    sorts.push((held, "other devices are on it (dm-".to_owned()));

    let below = disks.add("below")?;
    let above = loops::attach(&below)?;
    sorts.push((below, format!("other devices are on it ({})", above.file_name().context("a name")?.display())));

    let bound = disks.add("bound")?;
    let node = disks.image("node");
    File::create(&node)?;
    run(Command::new("mount").arg("--bind").args([&bound, &node]))?;
    sorts.push((bound, format!("its node is mounted on {}", node.display())));

    let open = disks.add("open")?;
    let alone = rustix::fs::open(&open, OFlags::RDONLY | OFlags::EXCL, Mode::empty())?;
    sorts.push((open, "another program has opened it".to_owned()));

    let read_only = disks.add("read-only")?;
    run(Command::new("blockdev").arg("--setro").arg(&read_only))?;
    sorts.push((read_only, "is read-only".to_owned()));

    let paths: Vec<_> = sorts.iter().map(|(device, _)| device.as_path()).collect();
    let printed = disks.prepare(&paths, &["--json", "--yes"]);
    drop(alone);
    let taken = dmsetup(&["remove", &name]).and(loops::detach(&above)).and(mounts::unmount_all(&node));
    let printed = printed?;
    taken?;
    let listed: Value = serde_json::from_str(&printed.text).with_context(|| printed.errors)?;
    for (device, part) in &sorts {
        let said = reason(&listed, device)?;
        ensure!(said.contains(part), "{part}: {said}");
    }
    for name in ["held", "below", "bound", "open", "read-only"] {
        ensure!(disks.ends(name)?.iter().all(|byte| *byte == 0), "{name} was written to");
    }
    Ok(())
}

/// The calls of `prepare` after each of which the power may fail: what changes something, and programs that are run.
const CALLS: &str = "clone,vfork,fchmod,fsync,mkdirat,pwrite64,renameat,renameat2,unlinkat,write";

fn a_run_that_is_killed_anywhere_is_finished_by_the_next(rig: &mut Rig) -> Result<()> {
    let mut disks = Disks::of(rig)?;
    let log = rig.work().join("strace");
    // Without the programs that it runs: one that goes on alone is like a disk that keeps what it was given.
    let traced = |disks: &Disks, device: &Path, inject: Option<&strace::Call>| -> Result<Printed> {
        let command = disks.command(&[device], &["--yes"])?;
        let mut tracer = Command::new("strace");
        tracer.arg("-o").arg(&log).args(["-e", &format!("trace={CALLS}")]);
        if let Some(strace::Call { name, number }) = inject {
            tracer.args(["-e", &format!("inject={name}:signal=KILL:when={number}")]);
        }
        Printed::by(tracer.arg(command.get_program()).args(command.get_args()))
    };
    let device = disks.add("whole")?;
    traced(&disks, &device, None)?.succeeded()?;
    disks.is_pool(&device, "disk-1")?;
    let calls = strace::calls(&fs::read_to_string(&log)?);
    ensure!(calls.len() > 15 && calls.iter().any(|call| call.name == "renameat"), "{calls:?}");
    disks.remove(&device)?;
    // Each takes seconds. All of them are tried in a long run, and over some others.
    let (first, step) = if rig.run_options.long { (0, 1) } else { (std::process::id() as usize % 10, 10) };
    for call in calls.iter().skip(first).step_by(step) {
        fs::remove_file(disks.fstab()).or_else(|error| if disks.fstab().exists() { Err(error) } else { Ok(()) })?;
        fs::remove_dir(disks.pool("disk-1"))
            .or_else(|error| if disks.pool("disk-1").exists() { Err(error) } else { Ok(()) })?;
        let name = format!("{}-{}", call.name, call.number);
        let device = disks.add(&name)?;
        let killed = traced(&disks, &device, Some(call))?;
        let log = fs::read_to_string(&log)?;
        ensure!(!killed.success && log.contains("killed by SIGKILL"), "{name}: {log}");
        disks.prepare(&[&device], &["--yes"])?.succeeded().with_context(|| format!("after {name}"))?;
        disks.is_pool(&device, "disk-1").with_context(|| format!("after {name}"))?;
        disks.remove(&device)?;
        fs::remove_file(disks.image(&name))?;
    }
    Ok(())
}

/// A path to a program that takes the place of another one of the system, which it can call by `"$REAL"`.
fn stand_in(rig: &Rig, name: &str, script: &str) -> Result<String> {
    let own = std::env::var("PATH").unwrap_or_default();
    let real = own
        .split(':')
        .chain(["/usr/sbin", "/sbin", "/usr/bin"])
        .map(|found| Path::new(found).join(name))
        .find(|path| path.exists());
    let real = real.with_context(|| format!("{name} is not installed"))?;
    stand_in_for(rig, name, &format!("REAL={}\n{script}", real.display()))
}

/// A path to a script in the place of a program that need not be installed.
fn stand_in_for(rig: &Rig, name: &str, script: &str) -> Result<String> {
    let directory = rig.work().join("stand-in");
    fs::create_dir_all(&directory)?;
    let path = directory.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
    Ok(format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default()))
}

/// Runs `prepare` until mkfs.xfs is about to write for the so-manieth time, and then the power fails.
fn cut_within_mkfs(rig: &Rig, disks: &Disks, device: &Path, write: usize) -> Result<()> {
    let inject = format!("inject=pwrite64:signal=KILL:when={write}");
    let script = format!("strace -o /dev/null -e trace=pwrite64 -e {inject} \"$REAL\" \"$@\"\nkill -KILL $PPID");
    let path = stand_in(rig, "mkfs.xfs", &script)?;
    let killed = Printed::by(disks.command(&[device], &["--yes"])?.env("PATH", path))?;
    ensure!(!killed.success && !killed.text.contains("FAILED"), "it was not killed: {}", killed.text);
    let fstab = fs::read_to_string(disks.fstab())?;
    ensure!(fstab.contains("begun") && mounts::at(&disks.pool("disk-1"))?.is_empty(), "{fstab}");
    Ok(())
}

fn a_format_that_was_interrupted_is_begun_again_and_no_other(rig: &mut Rig) -> Result<()> {
    let mut disks = Disks::of(rig)?;
    // mkfs.xfs clears both ends first, writes a superblock, and completes that with its last write, the 65th.
    for write in [1, 2, 3, 4, 20, 64, 65, 66] {
        let name = format!("disk-{write}");
        let device = disks.add(&name)?;
        cut_within_mkfs(rig, &disks, &device, write)?;
        let before = disks.ends(&name)?;
        if write == 20 {
            // Another one's, as far as this machine can know.
            fs::rename(disks.fstab(), disks.image("noted"))?;
            let said = disks.prepare(&[&device], &["--yes"])?.failed()?;
            ensure!(said.contains("has a signature (xfs)") && disks.ends(&name)? == before, "{said}");
            fs::rename(disks.image("noted"), disks.fstab())?;
        }
        let said = disks.prepare(&[&device], &[])?.succeeded()?;
        let part = match write {
            ..=3 => "pool disk-1: to be formatted\n",
            4..=65 => "pool disk-1: to be formatted again, as that was interrupted",
            _ => "pool disk-1: to be mounted and marked",
        };
        ensure!(said.contains(part), "write {write}: {said}");
        ensure!(disks.ends(&name)? == before, "a dry run writes");
        disks.prepare(&[&device], &["--yes"])?.succeeded().with_context(|| format!("write {write}"))?;
        disks.is_pool(&device, "disk-1").with_context(|| format!("write {write}"))?;
        disks.remove(&device)?;
        fs::remove_file(disks.fstab())?;
        fs::remove_dir(disks.pool("disk-1"))?;
    }

    // The same once it was finished is a damage, and no reason to format.
    let device = disks.add("finished")?;
    disks.prepare(&[&device], &["--yes"])?.succeeded()?;
    disks.unmount()?;
    File::options().write(true).open(&device)?.write_all_at(&[1], 126)?;
    let before = disks.ends("finished")?;
    let said = disks.prepare(&[&device], &["--yes"])?.failed()?;
    ensure!(said.contains("is damaged: see xfs_repair(8)") && disks.ends("finished")? == before, "{said}");
    Ok(())
}

fn what_gets_a_signature_meanwhile_is_not_formatted(rig: &mut Rig) -> Result<()> {
    let mut disks = Disks::of(rig)?;
    let other = disks.image("other");
    let image = File::create_new(&other)?;
    for (offset, bytes) in disks::lvm() {
        image.write_all_at(&bytes, offset)?;
    }
    // What is written between the two looks at a disk, and just before it is formatted.
    let put = format!("dd if={} of=\"$last\" conv=notrunc,fsync 2>/dev/null", other.display());
    let last = "for last do :; done";
    let looked = rig.work().join("looked");
    let looked = looked.display();
    let before_second_look = format!("{last}\n[ ! -e {looked} ] || {put}\n: >{looked}\nexec \"$REAL\" \"$@\"");
    let before_mkfs = format!("{last}\n{put}\nexec \"$REAL\" \"$@\"");
    for (number, (program, script, part)) in [
        ("wipefs", before_second_look, "is left alone: it has a signature (LVM2_member)"),
        ("mkfs.xfs", before_mkfs, "mkfs.xfs failed"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("disk-{number}");
        let device = disks.add(&name)?;
        let path = stand_in(rig, program, &script)?;
        let said = Printed::by(disks.command(&[&device], &["--yes"])?.env("PATH", path))?.failed().context(program)?;
        fs::remove_file(rig.work().join("stand-in").join(program))?;
        ensure!(said.contains(part) && !said.contains("force"), "{program}: {said}");
        let left = disks.ends(&name)?;
        let is_other = disks::lvm().iter().all(|(offset, bytes)| {
            let offset = usize::try_from(*offset).expect("it is small");
            left[offset..offset + bytes.len()] == bytes[..]
        });
        ensure!(is_other && !left.windows(4).any(|four| four == b"XFSB"), "{program}: the disk was written to");
        let fstab = fs::read_to_string(disks.fstab())?;
        ensure!(fstab.is_empty(), "{program}: {fstab}");
        disks.remove(&device)?;
    }
    Ok(())
}

/// The other one is as empty, has the same size and the same name: only the kernel knows that it is another.
fn a_disk_that_is_swapped_meanwhile_is_left_alone(rig: &mut Rig) -> Result<()> {
    let mut disks = Disks::of(rig)?;
    let device = disks.add("disk")?;
    File::create_new(disks.image("other"))?.set_len(SIZE)?;
    let command = disks.command(&[&device], &["--yes"])?;
    let mut delayed = Command::new("strace");
    let delay = rig.patience(Duration::from_secs(3));
    delayed.args(["-e", "trace=renameat", "-e", &format!("inject=renameat:delay_enter={}:when=1", delay.as_micros())]);
    delayed.arg("-o").arg(rig.work().join("strace")).arg(command.get_program()).args(command.get_args());
    let child = delayed.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let unfinished = disks.image("fstab.bulkhead-setup");
    let begun = rig.eventually(60, || {
        ensure!(unfinished.exists(), "the first note is not about to be written");
        Ok(())
    });
    loops::detach(&device)?;
    run(Command::new("losetup").arg(&device).arg(disks.image("other")))?;
    let said = Printed::from(child.wait_with_output()?).failed()?;
    begun?;
    ensure!(said.contains("has changed since it was looked at: was the disk swapped?"), "{said}");
    ensure!(disks.ends("disk")?.iter().chain(&disks.ends("other")?).all(|byte| *byte == 0), "a disk was written to");
    ensure!(fs::read_to_string(disks.fstab())?.is_empty());
    disks.prepare(&[&device], &["--yes"])?.succeeded()?;
    disks.is_pool(&device, "disk-1")
}

fn a_disk_is_replaced_only_when_asked(rig: &mut Rig) -> Result<()> {
    let mut disks = Disks::of(rig)?;
    let first = disks.add("first")?;
    disks.prepare(&[&first], &["--yes"])?.succeeded()?;
    let said = disks.prepare(&[&first], &["--yes", "--replace", "disk-1"])?.failed()?;
    ensure!(said.contains("--replace disk-1: its disk is there"), "{said}");
    disks.is_pool(&first, "disk-1")?;
    let fstab = fs::read_to_string(disks.fstab())?;
    disks.remove(&first)?;

    let second = disks.add("second")?;
    let said = disks.prepare(&[&second], &["--yes"])?.failed()?;
    for part in ["pool disk-1: its disk is missing", "is not taken while the disk of pool disk-1 is missing"] {
        ensure!(said.contains(part), "{part}: {said}");
    }
    ensure!(disks.ends("second")?.iter().all(|byte| *byte == 0) && fs::read_to_string(disks.fstab())? == fstab);
    disks.prepare(&[&second], &["--yes", "--replace=disk-1"])?.succeeded()?;
    disks.is_pool(&second, "disk-1")?;
    let replaced = fs::read_to_string(disks.fstab())?;
    ensure!(replaced != fstab && replaced.lines().count() == fstab.lines().count(), "{replaced}");

    // The first one is back: it is no pool of this machine any more, and is not empty.
    let first = disks.attach("first")?;
    let said = disks.prepare(&[&first, &second], &["--yes"])?.succeeded()?;
    ensure!(said.contains("has a signature (xfs)") && said.contains("nothing is to be done"), "{said}");

    // A copy of a pool's disk: nobody can say which one is meant.
    disks.unmount()?;
    run(Command::new("cp").arg("--sparse=always").args([disks.image("second"), disks.image("copy")]))?;
    let copy = disks.attach("copy")?;
    let said = disks.prepare(&[&second, &copy], &["--yes"])?.failed()?;
    ensure!(said.contains("have the same filesystem") && mounts::at(&disks.pool("disk-1"))?.is_empty(), "{said}");
    Ok(())
}

fn each_disk_is_a_pool_of_its_own(rig: &mut Rig) -> Result<()> {
    let mut disks = Disks::of(rig)?;
    let (one, two) = (disks.add("one")?, disks.add("two")?);
    let said = disks.prepare(&[&one, &two], &["--yes", "--name", "fast"])?.failed()?;
    ensure!(said.contains("put {n} into --name") && said.contains("nothing was changed"), "{said}");
    ensure!(!disks.fstab().exists() && !disks.pool("fast").exists());
    // A directory with something in it is in the way of its name.
    fs::create_dir_all(disks.pool("fast-1").join("something"))?;
    disks.prepare(&[&one, &two], &["--yes", "--name", "fast-{n}"])?.succeeded()?;
    let points = [mounts::at(&disks.pool("fast-2"))?, mounts::at(&disks.pool("fast-3"))?];
    if points.iter().any(Vec::is_empty) || !disks.pool("fast-1").join("something").exists() {
        bail!("{points:?}");
    }
    let three = disks.add("three")?;
    let said = disks.prepare(&[&one, &two, &three], &["--yes", "--name", "fast-{n}"])?.succeeded()?;
    for name in ["fast-2", "fast-3", "fast-4"] {
        ensure!(said.contains(&format!("--pool {name}={}\n", disks.pool(name).display())), "{said}");
    }
    Ok(())
}

fn the_page_does_what_it_says(rig: &mut Rig) -> Result<()> {
    let mut disks = Disks::of(rig)?;
    let device = disks.add("disk")?;
    let program = disks.command(&[&device], &[])?;
    let words: Vec<_> =
        [program.get_program()].into_iter().chain(program.get_args()).map(|word| word.to_string_lossy()).collect();
    let blocks = documented::blocks(documented::DISKS, "sh");
    ensure!(blocks.len() == 2 && blocks[1].contains("--yes") && !blocks[0].contains("--yes"), "{blocks:?}");
    for block in blocks {
        // The rule of this machine in place of that of the page.
        let rule = "bulkhead-setup prepare --size 3T..5T --path '/dev/disk/by-id/nvme-*'";
        ensure!(block.contains(rule), "{block}");
        let command = block.replace(rule, &words.join(" "));
        let said = Printed::by(Command::new("sh").args(["-ec", &command]))?.succeeded()?;
        ensure!(said.starts_with("DEVICE ") && said.contains("pool disk-1: to be formatted"), "{said}");
    }
    disks.is_pool(&device, "disk-1")
}
