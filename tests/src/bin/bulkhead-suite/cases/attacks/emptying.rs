//! Attacks by tenants on the process that empties their deleted volumes.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::helper::{bind, create, delete, directory_spec, unbind};
use bulkhead_tests::pool::{Pool, run};
use bulkhead_tests::rig::Rig;

cases! {
    an_encrypted_tree_whose_key_is_gone_goes: Bare + Host,
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
