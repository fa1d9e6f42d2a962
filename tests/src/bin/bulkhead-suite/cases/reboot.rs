//! A real reboot, and a power cut, while volumes are published: on the machine's own disks, which outlive both. Pools
//! on both filesystems are tested at once, whatever `--pool-fs` says.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::ErrorKind;
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::*;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::discard;
use bulkhead_tests::observe::{loops, mounts, quotas};
use bulkhead_tests::pool::{Pool, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::Phase::{AfterReboot, BeforeReboot};
use bulkhead_tests::run_options::program;

cases! {
    volumes_are_left_published: Reboot(BeforeReboot),
    volumes_are_found_unpublished_and_whole: Reboot(AfterReboot),
}

const SIZE: i64 = 64 * MIB;

/// Where the machine has its pools, one on each filesystem.
const POOLS: [(&str, &str); 2] = [("default", "/pools/xfs"), ("other", "/pools/ext4")];

/// Volumes of both kinds in both pools, all of them published when the machine goes down.
fn volumes() -> Vec<(String, &'static str, VolumeCapability)> {
    let mut volumes = Vec::new();
    for (pool, _) in POOLS {
        volumes.push((format!("dir-{pool}"), pool, mount()));
        volumes.push((format!("dev-{pool}"), pool, block()));
    }
    volumes
}

fn target(rig: &Rig, id: &str) -> PathBuf {
    rig.target(id)
}

fn pattern(id: &str) -> Vec<u8> {
    id.bytes().cycle().take(1 << 20).collect()
}

fn start(rig: &mut Rig) -> Result<()> {
    rig.pools = POOLS.map(|(name, directory)| Pool::existing(Path::new(directory), name)).into();
    for (_, directory) in POOLS {
        if !Path::new(directory).join(".bulkhead").exists() {
            run(Command::new(program("bulkhead-setup")?).args(["init-pool", directory]))?;
        }
    }
    rig.start()
}

fn volumes_are_left_published(rig: &mut Rig) -> Result<()> {
    start(rig)?;
    let csi = rig.csi()?;
    for (id, pool, capability) in volumes() {
        let parameters = parameters(&[("pool", pool)]);
        csi.create_volume(CreateVolumeRequest { parameters, ..create(&id, SIZE, capability.clone()) })?;
        let at = target(rig, &id);
        csi.node_publish_volume(publish(&id, &at, capability.clone()))?;
        let file = if capability == mount() {
            File::create(at.join("file"))?
        } else {
            File::options().write(true).open(&at)?
        };
        file.write_all_at(&pattern(&id), 4096)?;
        file.sync_all()?;
        csi.node_expand_volume(node_expand(&id, &at, 2 * SIZE))?;
    }
    csi.create_volume(CreateVolumeRequest {
        parameters: parameters(&[("pool", "other")]),
        ..create("spare", SIZE, mount())
    })?;
    // A volume that is being deleted when the machine goes down.
    let parameters = parameters(&[("pool", "default")]);
    csi.create_volume(CreateVolumeRequest { parameters, ..create("going", SIZE, mount()) })?;
    let data = Path::new("/pools/xfs/going/data");
    for number in 0..200 {
        fs::write(data.join(number.to_string()), "x")?;
    }
    csi.delete_volume(delete("going"))?;
    rig.leave_as_it_is();
    Ok(())
}

fn volumes_are_found_unpublished_and_whole(rig: &mut Rig) -> Result<()> {
    // No mount and no loop device survives a reboot.
    for (_, directory) in POOLS {
        let device = Pool::existing(Path::new(directory), "any").device()?;
        ensure!(loops::backed_by(&device)?.is_empty());
        let elsewhere = |mount: &mounts::Mount| mount.device == device && mount.point != Path::new(directory);
        ensure!(!mounts::all()?.iter().any(elsewhere), "a volume is still mounted");
    }
    start(rig)?;
    // Neither a reboot nor a power cut makes a volume look as if it had never been used.
    for (id, ..) in volumes() {
        denied(rig.helper()?.request(&discard(&id))?, ErrorKind::Refused, "may hold data")?;
    }
    rig.helper()?.ask(&discard("spare"))?;
    let csi = rig.csi()?;
    let listed = csi.list_volumes(ListVolumesRequest::default())?.entries.len();
    ensure!(listed == volumes().len(), "{listed} volumes");
    for (id, pool, capability) in volumes() {
        let at = target(rig, &id);
        csi.node_unpublish_volume(unpublish(&id, &at))?;
        csi.node_publish_volume(publish(&id, &at, capability.clone()))?;
        let path = if capability == mount() { at.join("file") } else { at.clone() };
        let mut found = vec![0; 1 << 20];
        File::open(&path)?.read_exact_at(&mut found, 4096)?;
        ensure!(found == pattern(&id), "{id} has lost data that was written and synced");
        let total = csi.node_get_volume_stats(stats(&id, &at))?.usage[0].total;
        ensure!(total == 2 * SIZE, "{id} has {total} bytes");
        if capability == mount() {
            let directory = POOLS.iter().find(|(name, _)| *name == pool).context("pool")?.1;
            let limits = quotas::blocks(Path::new(directory))?;
            ensure!(limits.iter().any(|quota| quota.limit == 128 << 10), "{limits:?}");
        }
    }
    for (id, ..) in volumes() {
        csi.node_unpublish_volume(unpublish(&id, &target(rig, &id)))?;
        csi.delete_volume(delete(&id))?;
    }
    Ok(())
}
