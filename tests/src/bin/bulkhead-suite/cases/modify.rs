//! Changing attributes of a volume while it is in use: how many inodes it may use, and whether all of it is allocated.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::VolumeKind;
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::*;
use bulkhead_tests::expect::refused;
use bulkhead_tests::rig::Rig;
use tonic::Code;

cases! {
    a_volume_is_created_with_attributes,
    attributes_are_changed_and_stay_changed,
    what_cannot_be_changed_is_refused,
    the_limit_on_inodes_follows_at_once: Quota,
    inodes_that_the_pool_cannot_promise_are_refused: Quota + Xfs + OwnPool,
    a_sparse_volume_is_allocated,
    a_sparse_volume_is_not_allocated_without_room: OwnPool,
}

const SIZE: i64 = 16 * MIB;

fn modify(volume: &str, pairs: &[(&str, &str)]) -> ControllerModifyVolumeRequest {
    ControllerModifyVolumeRequest {
        volume_id: volume.to_owned(),
        mutable_parameters: parameters(pairs),
        ..ControllerModifyVolumeRequest::default()
    }
}

fn create_with(volume: &str, inodes: &str) -> CreateVolumeRequest {
    CreateVolumeRequest { mutable_parameters: parameters(&[("inodes", inodes)]), ..create(volume, SIZE, mount()) }
}

/// Returns how many inodes the volume may use, by its record.
fn inodes(rig: &Rig) -> Result<u64> {
    let usage = rig.helper()?.usage("vol-a", None)?;
    let VolumeKind::Directory { inodes, .. } = usage.spec.kind else { bail!("{:?}", usage.spec.kind) };
    Ok(inodes.get())
}

/// Runs `test` on a mounted volume that may use 100 inodes.
fn a_volume_is_created_with_attributes(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    csi.create_volume(create_with("vol-a", "100"))?;
    csi.create_volume(create_with("vol-a", "100"))?;
    refused(csi.create_volume(create_with("vol-a", "200")), Code::AlreadyExists, "vol-a")?;
    // They come before those of the class.
    let both = CreateVolumeRequest { parameters: parameters(&[("inodes", "7")]), ..create_with("vol-a", "100") };
    csi.create_volume(both)?;
    let confirmed = |inodes: &str| -> Result<bool> {
        let answer = csi.validate_volume_capabilities(ValidateVolumeCapabilitiesRequest {
            volume_id: "vol-a".to_owned(),
            volume_capabilities: vec![mount()],
            mutable_parameters: parameters(&[("inodes", inodes)]),
            ..ValidateVolumeCapabilitiesRequest::default()
        })?;
        Ok(answer.confirmed.is_some())
    };
    ensure!(confirmed("100")? && !confirmed("200")?);
    for (inodes, word) in [("0", "inodes"), ("-5", "inodes"), ("", "inodes")] {
        refused(csi.create_volume(create_with("vol-b", inodes)), Code::InvalidArgument, word)?;
    }
    let device = CreateVolumeRequest { volume_capabilities: vec![block()], ..create_with("vol-b", "100") };
    refused(csi.create_volume(device), Code::InvalidArgument, "a block volume has no inodes")
}

fn attributes_are_changed_and_stay_changed(rig: &mut Rig) -> Result<()> {
    rig.published(create_with("vol-a", "100"))?;
    for wanted in [5000, 5000, 50, 700] {
        let request = modify("vol-a", &[("inodes", &wanted.to_string())]);
        rig.csi()?.controller_modify_volume(request)?;
        ensure!(inodes(rig)? == wanted, "{}, not {wanted}", inodes(rig)?);
    }
    rig.csi()?.controller_modify_volume(modify("vol-a", &[]))?;
    // What somebody has asked for does not follow the size.
    rig.csi()?.controller_expand_volume(controller_expand("vol-a", 2 * SIZE))?;
    ensure!(inodes(rig)? == 700);
    rig.restart()?;
    ensure!(inodes(rig)? == 700);
    Ok(())
}

fn what_cannot_be_changed_is_refused(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    csi.create_volume(create("vol-a", SIZE, mount()))?;
    csi.create_volume(create("vol-b", SIZE, block()))?;
    let some = &[("inodes", "100")];
    for (request, code, word) in [
        (modify("", some), Code::InvalidArgument, "volume_id"),
        (modify("vol-z", some), Code::NotFound, "vol-z"),
        (modify("../vol-a", some), Code::NotFound, ""),
        (modify("vol-a", &[("iops", "5")]), Code::InvalidArgument, "supported: inodes, allocation"),
        (modify("vol-a", &[("inodes", "0")]), Code::InvalidArgument, "inodes"),
        (modify("vol-a", &[("inodes", "4294967296")]), Code::InvalidArgument, "inodes"),
        (modify("vol-b", some), Code::InvalidArgument, "a block volume has no inodes"),
        (modify("vol-a", &[("allocation", "thick")]), Code::InvalidArgument, "a directory is not allocated"),
        (modify("vol-b", &[("allocation", "sparse")]), Code::InvalidArgument, "stays allocated"),
    ] {
        refused(csi.controller_modify_volume(request), code, word)?;
    }
    csi.controller_modify_volume(modify("vol-b", &[]))?;
    Ok(())
}

/// Makes files from one number to another, which is not made.
fn make(target: &Path, numbers: std::ops::Range<u32>) -> Result<()> {
    let end = numbers.end;
    for number in numbers {
        File::create(target.join(number.to_string())).with_context(|| format!("file {number}"))?;
    }
    ensure!(File::create(target.join("beyond")).is_err(), "more than {end} files could be made");
    Ok(())
}

fn the_limit_on_inodes_follows_at_once(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &rig.published(create_with("vol-a", "100"))?;
    let set = |number: &str| csi.controller_modify_volume(modify("vol-a", &[("inodes", number)]));
    // What a pod sees, as df -i does. The directory of the volume itself counts as one that is not its own.
    let seen = || -> Result<u64> { Ok(rustix::fs::statvfs(target)?.f_files) };
    // The top directory is one of them.
    make(target, 0..99)?;
    ensure!(seen()? == 101, "{} inodes are seen", seen()?);
    let usage = csi.node_get_volume_stats(stats("vol-a", target))?.usage;
    let told = usage.iter().find(|usage| usage.unit() == volume_usage::Unit::Inodes).context("no inodes")?;
    ensure!((told.total, told.used, told.available) == (100, 100, 0), "{told:?}");
    set("150")?;
    ensure!(seen()? == 151, "{} inodes are seen", seen()?);
    make(target, 99..149)?;
    refused(set("149"), Code::InvalidArgument, "150")?;
    ensure!(seen()? == 151, "{} inodes are seen", seen()?);
    for number in 49..149 {
        fs::remove_file(target.join(number.to_string()))?;
    }
    // XFS frees inodes a little later.
    rig.eventually(20, || Ok(set("50").map(drop)?))?;
    make(target, 0..49)?;
    rig.restart_helper()?;
    make(target, 0..49)
}

fn inodes_that_the_pool_cannot_promise_are_refused(rig: &mut Rig) -> Result<()> {
    rig.published(create_with("vol-a", "100"))?;
    let before = rig.helper()?.pool_status("default")?.promised;
    let request = modify("vol-a", &[("inodes", "4000000000")]);
    refused(rig.csi()?.controller_modify_volume(request), Code::ResourceExhausted, "too much")?;
    ensure!(inodes(rig)? == 100 && rig.helper()?.pool_status("default")?.promised == before);
    rig.csi()?.controller_modify_volume(modify("vol-a", &[("inodes", "1100")]))?;
    ensure!(rig.helper()?.pool_status("default")?.promised == before + 1000 * 512);
    rig.csi()?.controller_modify_volume(modify("vol-a", &[("inodes", "100")]))?;
    ensure!(rig.helper()?.pool_status("default")?.promised == before, "what is not needed is not given back");
    Ok(())
}

/// Returns how many bytes of a volume's image are allocated.
fn allocated(rig: &Rig, volume: &str) -> Result<u64> {
    Ok(rig.pool().image(volume).metadata()?.blocks() * 512)
}

/// Makes a sparse block volume, and publishes it.
fn sparse(rig: &Rig, bytes: i64) -> Result<()> {
    let csi = rig.csi()?;
    let parameters = parameters(&[("sparse", "true")]);
    csi.create_volume(CreateVolumeRequest { parameters, ..create("vol-a", bytes, block()) })?;
    csi.node_publish_volume(publish("vol-a", &rig.target("a"), block()))?;
    ensure!(allocated(rig, "vol-a")? < 1 << 20);
    Ok(())
}

fn a_sparse_volume_is_allocated(rig: &mut Rig) -> Result<()> {
    const MARK: &[u8; 4096] = &[0x5a; 4096];
    sparse(rig, SIZE)?;
    let device = File::options().read(true).write(true).open(rig.target("a"))?;
    device.write_all_at(MARK, 8 << 20)?;
    device.sync_all()?;
    let thick = || -> Result<()> {
        rig.csi()?.controller_modify_volume(modify("vol-a", &[("allocation", "thick")]))?;
        Ok(())
    };
    thick()?;
    ensure!(allocated(rig, "vol-a")? >= SIZE.try_into()?);
    let mut found = [0; 4096];
    device.read_exact_at(&mut found, 8 << 20)?;
    ensure!(&found == MARK, "what was written is gone");
    device.read_exact_at(&mut found, 4 << 20)?;
    ensure!(found == [0; 4096], "what was not written is not zero");
    drop(device);
    thick()?;
    rig.restart_helper()?;
    // What is added is allocated as well.
    rig.csi()?.controller_expand_volume(controller_expand("vol-a", 2 * SIZE))?;
    ensure!(allocated(rig, "vol-a")? >= (2 * SIZE).try_into()?);
    Ok(())
}

fn a_sparse_volume_is_not_allocated_without_room(rig: &mut Rig) -> Result<()> {
    let free = || -> Result<u64> { Ok(rig.helper()?.pool_status("default")?.largest_volume) };
    let size = free()? / 2 / MIB as u64 * MIB as u64;
    sparse(rig, size.try_into()?)?;
    let taken = rig.pool().directory.join(".taken");
    let file = File::create(&taken)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size + size / 2)?;
    file.sync_all()?;
    let thick = || rig.csi().map(|csi| csi.controller_modify_volume(modify("vol-a", &[("allocation", "thick")])));
    refused(thick()?, Code::ResourceExhausted, "")?;
    ensure!(allocated(rig, "vol-a")? < 1 << 20, "{} bytes were taken all the same", allocated(rig, "vol-a")?);
    fs::remove_file(&taken)?;
    drop(file);
    rig.eventually(20, || Ok(thick()?.map(drop)?))?;
    ensure!(allocated(rig, "vol-a")? >= size);
    Ok(())
}
