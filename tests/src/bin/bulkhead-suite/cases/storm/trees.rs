//! Trees that nobody would want to empty, with tenants at work in them: they go, and nothing else does.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pace::patience;
use bulkhead_tests::random::Random;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::wait;
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

cases! {
    random_trees_with_tenants_at_work_in_them: OwnPool + Long,
    links_and_fifos_in_immutable_directories_go_at_once: Filesystem,
}

const SIZE: u64 = 64 << 20;

fn name(random: &mut Random) -> Vec<u8> {
    let names: [&[u8]; 18] = [
        b"a", b"b\nc", b".deleted.1.vol-0", b".deleted.", b".making.vol-0", b"\xff\xfe", b"...", b"..a", b" ", b"data",
        b"image", b".bulkhead", b"1", b"2", b"18446744073709551615", b"-rf", b"$(reboot)", b"\x01\x7f",
    ];
    match random.below(3) {
        0 => names[random.below(names.len())].to_vec(),
        1 => random.below(100).to_string().into_bytes(),
        _ => vec![b'x'; 1 + random.below(255)],
    }
}

fn grow(top: &Path, random: &mut Random, number: usize) -> Vec<PathBuf> {
    let mut directories = vec![top.to_owned()];
    let mut files = Vec::new();
    for _ in 0..number {
        let parent = directories[random.below(directories.len())].clone();
        let path = parent.join(OsStr::from_bytes(&name(random)));
        match random.below(10) {
            0..=3 => {
                if fs::create_dir(&path).is_ok() {
                    directories.push(path);
                }
            }
            4 => {
                if File::create(&path).is_ok() {
                    files.push(path);
                }
            }
            5 => {
                let _ = std::os::unix::fs::symlink(if random.below(2) == 0 { "/" } else { "../.." }, &path);
            }
            6 => {
                let kinds = [FileType::Fifo, FileType::Socket, FileType::CharacterDevice, FileType::BlockDevice];
                let _ = mknodat(CWD, &path, kinds[random.below(4)], Mode::RWXU, rustix::fs::makedev(1, 5));
            }
            7 => {
                if let Some(file) = files.get(random.below(files.len().max(1))) {
                    let _ = fs::hard_link(file, &path);
                }
            }
            8 => {
                // Deep below.
                let mut deep = path;
                for _ in 0..random.below(120) {
                    if fs::create_dir(&deep).is_err() {
                        break;
                    }
                    directories.push(deep.clone());
                    deep = deep.join("d");
                }
            }
            _ => {
                let victim = directories[random.below(directories.len())].clone();
                let flag = ["+i", "+a", "+ia", "+d"][random.below(4)];
                if victim != top {
                    let _ = Command::new("chattr").arg(flag).arg(&victim).output();
                    let mode = random.below(0o10000) as u32;
                    let _ = rustix::fs::chmod(&victim, Mode::from_raw_mode(mode));
                }
            }
        }
    }
    directories
}

fn disturb(directories: &[PathBuf], random: &mut Random, done: &AtomicBool) {
    // By descriptors, as a container does whose mount is its own.
    let open: Vec<File> = directories.iter().rev().take(200).filter_map(|path| File::open(path).ok()).collect();
    while !done.load(Relaxed) && !open.is_empty() {
        let (one, two) = (&open[random.below(open.len())], &open[random.below(open.len())]);
        let (from, to) = (name(random), name(random));
        let (from, to) = (OsStr::from_bytes(&from), OsStr::from_bytes(&to));
        match random.below(4) {
            0 => drop(renameat_with(one, from, two, to, RenameFlags::EXCHANGE)),
            1 => drop(renameat_with(one, from, two, to, RenameFlags::empty())),
            2 => drop(rustix::fs::mkdirat(one, from, Mode::RWXU)),
            _ => drop(mknodat(one, from, FileType::RegularFile, Mode::RWXU, 0)),
        }
    }
}

fn links_and_fifos_in_immutable_directories_go_at_once(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", directory_spec(SIZE)))?;
    let mut directory = rig.pool().volume("vol-a").join("data");
    for level in 0..3 {
        directory = directory.join(level.to_string());
        fs::create_dir(&directory)?;
        std::os::unix::fs::symlink("/", directory.join("link"))?;
        mknodat(CWD, directory.join("fifo"), FileType::Fifo, Mode::RWXU, 0)?;
    }
    for flag in ["+i", "+a", "+i"] {
        ensure!(Command::new("chattr").arg(flag).arg(&directory).status()?.success());
        directory.pop();
    }
    helper.ask(&delete("vol-a"))?;
    rig.eventually(5, || rig.pool().holds(&[]))
}

fn random_trees_with_tenants_at_work_in_them(rig: &mut Rig) -> Result<()> {
    let seed = std::env::var("BULKHEAD_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(11);
    let mut random = Random::new(seed);
    let helper = rig.helper()?;
    helper.ask(&create("neighbour", directory_spec(SIZE)))?;
    let precious = rig.pool().volume("neighbour").join("data/precious");
    fs::create_dir(&precious)?;
    fs::write(precious.join("file"), "content")?;
    let outside = rig.work().join("outside");
    fs::create_dir(&outside)?;
    fs::write(outside.join("file"), "content")?;
    let rounds = std::env::var("STORM_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(25);
    for round in 0..rounds {
        let id = format!("vol-{round}");
        helper.ask(&create(&id, directory_spec(SIZE)))?;
        let data = rig.pool().volume(&id).join("data");
        let directories = grow(&data, &mut random, 300);
        // Somebody has mounted something inside.
        let inside = data.join("mounted");
        for (number, what) in [&outside, &precious].into_iter().enumerate() {
            let point = inside.join(number.to_string());
            if fs::create_dir_all(&point).is_ok() {
                rustix::mount::mount_bind(what, &point)?;
            }
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| -> Result<()> {
            let racing = round % 2 == 0;
            if racing {
                let (mut random, done, directories) = (Random::new(random.below(1 << 30) as u64), &done, &directories);
                scope.spawn(move || disturb(directories, &mut random, done));
            }
            std::thread::sleep(Duration::from_millis(20));
            let outcome = helper.ask(&delete(&id));
            std::thread::sleep(Duration::from_millis(300));
            done.store(true, Relaxed);
            outcome.map(drop)
        })?;
        // An encrypted or immutable directory may need the next try, after ten seconds.
        wait::until(patience(Duration::from_secs(45)), || {
            let left = rig.pool().entries()?;
            ensure!(left == ["neighbour"], "round {round}, seed {seed}: {left:?}");
            Ok(())
        })?;
        ensure!(fs::read(precious.join("file"))? == b"content" && fs::read(outside.join("file"))? == b"content");
        for mount in mounts::below(&rig.pool().directory)? {
            rustix::mount::unmount(&mount.point, rustix::mount::UnmountFlags::DETACH)?;
        }
    }
    Ok(())
}
