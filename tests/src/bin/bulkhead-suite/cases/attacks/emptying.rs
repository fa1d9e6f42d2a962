//! Attacks by tenants on the process that empties their deleted volumes.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::helper::{bind, create, delete, directory_spec, unbind};
use bulkhead_tests::pool::{Pool, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::Tracer;

cases! {
    an_encrypted_tree_whose_key_is_gone_goes: Bare + Host,
    an_emptier_raises_a_capability_for_one_call_and_rests_without_any,
}

const SIZE: u64 = 64 << 20;

/// Deeper than the emptier descends: what is down there is first moved to the top.
const DEEP: usize = 40;

/// Names in such a directory can be removed, but nothing in it can be renamed (`ENOKEY`). The key belongs to the
/// tenant.
fn an_encrypted_tree_whose_key_is_gone_goes(rig: &mut Rig) -> Result<()> {
    let (image, directory) = (rig.work().join("encrypted.disk"), rig.work().join("encrypted"));
    File::create(&image)?.set_len(256 << 20)?;
    run(Command::new("mkfs.ext4").args(["-q", "-O", "encrypt"]).arg(&image))?;
    fs::create_dir(&directory)?;
    run(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).args([&image, &directory]))?;
    rig.pools.push(Pool::plain(&directory, "default")?);
    rig.start()?;
    let helper = rig.helper()?;
    helper.ask_all([create("vol-a", directory_spec(SIZE)), bind("vol-a", "a")])?;
    encrypt_and_forget(&rig.target("a"))?;
    helper.ask_all([unbind("vol-a", "a"), delete("vol-a")])?;
    rig.eventually(20, || rig.pool().holds(&[]))
}

/// Makes a deep tree below a directory encrypted with a key that nobody has afterwards (fscrypt, Linux 5.4).
fn encrypt_and_forget(top: &Path) -> Result<()> {
    const SCRIPT: &str = r#"
        my $path = "$ARGV[0]/secret";
        open(my $top, '<', $ARGV[0]) or die "open: $!";
        my $key = pack('L L x32 L x36', 2, 0, 64) . ('k' x 64);
        ioctl($top, 0xc0506617, $key) or die "FS_IOC_ADD_ENCRYPTION_KEY: $!";
        my $id = substr($key, 8, 16);
        mkdir($path) or die "mkdir: $!";
        open(my $secret, '<', $path) or die "open: $!";
        ioctl($secret, 0x800c6613, pack('C5 x3', 2, 1, 4, 3, 0) . $id) or die "FS_IOC_SET_ENCRYPTION_POLICY: $!";
        close($secret);
        for (1 .. $ARGV[1]) { $path .= '/d'; mkdir($path) or die "mkdir: $!"; }
        my $remove = pack('L L', 2, 0) . $id . "\0" x 40;
        ioctl($top, 0xc0406618, $remove) or die "FS_IOC_REMOVE_ENCRYPTION_KEY: $!";
        die "the key is still in use" if unpack('L', substr($remove, 40, 4));
    "#;
    run(Command::new("perl").args(["-e", SCRIPT]).arg(top).arg(DEEP.to_string()))?;
    ensure!(!top.join("secret/d").exists(), "the names can still be read");
    Ok(())
}

/// Who a pod runs as.
const TENANT: u32 = 1000;
/// So many that the emptier has to rest.
const FILES: usize = 500;

/// Everything belongs to a tenant, and is closed to others: nothing can be removed without a capability.
fn an_emptier_raises_a_capability_for_one_call_and_rests_without_any(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([create("vol-a", directory_spec(SIZE)), bind("vol-a", "a")])?;
    let tree = rig.target("a").join("tree");
    fs::create_dir(&tree)?;
    for number in 0..FILES {
        File::create(tree.join(number.to_string()))?;
    }
    fs::create_dir_all(tree.join("deep/".repeat(DEEP)))?;
    File::create(tree.join("fixed"))?;
    run(Command::new("chattr").arg("+i").arg(tree.join("fixed")))?;
    // Only root may remove what others own from such a directory, or its owner.
    fs::create_dir(tree.join("sticky"))?;
    File::create(tree.join("sticky/file"))?;
    run(Command::new("chown").arg("-R").arg(format!("{TENANT}:{TENANT}")).arg(tree.join("deep")))?;
    chown(tree.join("sticky"), Some(TENANT), Some(TENANT))?;
    chown(tree.join("sticky/file"), Some(TENANT + 1), None)?;
    chown(&tree, Some(TENANT), Some(TENANT))?;
    for (path, mode) in [("sticky", 0o1700), ("", 0o700)] {
        fs::set_permissions(tree.join(path), fs::Permissions::from_mode(mode))?;
    }
    let log = rig.work().join("calls");
    let tracer = Tracer::follow_processes(&[rig.emptier_pid()?], &log, &[])?;
    helper.ask_all([unbind("vol-a", "a"), delete("vol-a")])?;
    rig.eventually(60, || rig.pool().holds(&[]))?;
    let calls = tracer.end()?;
    let mut raised: Option<(&str, Vec<&str>)> = None;
    let (mut with_each, mut rests) = (Vec::new(), 0);
    for call in calls.lines().filter_map(|line| line.split_once(' ')).map(|(_, call)| call.trim_start()) {
        let name = call.split('(').next().unwrap_or_default();
        match (name, &mut raised) {
            ("capset", lowered @ Some(_)) => {
                ensure!(call.contains("effective=0,"), "a capability is raised twice: {call}");
                with_each.extend(lowered.take());
            }
            ("capset", None) => raised = Some((effective(call)?, Vec::new())),
            (_, Some((_, during))) => during.push(name),
            ("clock_nanosleep" | "nanosleep", None) => rests += 1,
            _ => {}
        }
    }
    ensure!(raised.is_none() && rests > 0, "{raised:?} is raised, and it has rested {rests} times");
    // A call is made by name, and no file can be opened, in two steps only: its flags are read, and set.
    let is_one = |during: &[&str]| during.len() == 1 || during.iter().all(|name| name.starts_with("file_"));
    let several: Vec<_> = with_each.iter().filter(|(_, during)| !is_one(during)).collect();
    ensure!(several.is_empty(), "capabilities are kept for more than a call: {several:?}");
    for (call, takes) in [
        ("openat2", "1<<CAP_DAC_OVERRIDE"),
        ("unlinkat", "1<<CAP_DAC_OVERRIDE|1<<CAP_FOWNER"),
        ("renameat2", "1<<CAP_DAC_OVERRIDE|1<<CAP_FOWNER"),
        ("ioctl", "1<<CAP_FOWNER|1<<CAP_LINUX_IMMUTABLE"),
    ] {
        let taken: Vec<_> = with_each.iter().filter(|(_, during)| during[0] == call).map(|(set, _)| *set).collect();
        ensure!(!taken.is_empty() && taken.iter().all(|set| *set == takes), "{call} is made with {taken:?}");
    }
    Ok(())
}

/// What strace says becomes effective.
fn effective(capset: &str) -> Result<&str> {
    let sets = capset.split_once("effective=").context(capset.to_owned())?.1;
    Ok(sets.split_once(',').context(capset.to_owned())?.0)
}
