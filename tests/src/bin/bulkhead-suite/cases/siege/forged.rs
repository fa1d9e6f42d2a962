//! A tenant has kept the node of a number that was once its own, with the help of a frontend that was taken over. Whoever
//! opens it makes the device anew, and may bind it to any file, so also on top of another device, as a hold is.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use bulkhead_tests::attacker::{first_bytes, node_like, spent_node};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;

cases! {
    a_tenants_own_number_never_becomes_the_hold_of_another_volume,
}

const SIZE: u64 = 1 << 20;

/// Binds a device to a file as a process without any capability: LOOP_SET_FD.
fn bind_to(node: &Path, file: &Path) -> Result<()> {
    let script = "open(my $d, '<', $ARGV[0]) or exit 97; open(my $f, '<', $ARGV[1]) or exit 98;
        ioctl($d, 0x4c00, fileno($f)) or exit 96;";
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"]);
    let status = command.args(["perl", "-e", script]).arg(node).arg(file).status()?;
    ensure!(status.success(), "binding {} ends with {status}", node.display());
    Ok(())
}

fn a_tenants_own_number_never_becomes_the_hold_of_another_volume(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    // Numbers below and above that of the device's own hold.
    let below = spent_node(rig, "vol-below", image_spec(SIZE))?;
    helper.ask_all([create("vol-a", image_spec(SIZE)), attach("vol-a"), make_device("vol-a", "a")])?;
    let node = node_like(&rig.target("a"), &rig.work().join("own-node"))?;
    let above = spent_node(rig, "vol-above", image_spec(SIZE))?;
    for forged in [&below, &above] {
        // Another test's helper that starts may be about to remove the device that was made anew.
        rig.eventually(20, || bind_to(forged, &node))?;
    }
    let helper = rig.restarted_helper()?;
    helper.ask_all([remove_device("vol-a", "a"), detach("vol-a")])?;
    let mut seen = Vec::new();
    let ids: Vec<String> = (0..8).map(|number| format!("victim-{number}")).collect();
    for id in &ids {
        helper.ask(&create(id, image_spec(SIZE)))?;
        let image = File::options().write(true).open(rig.pool().image(id))?;
        image.write_all_at(b"secret", 0)?;
        image.sync_all()?;
        helper.ask(&attach(id))?;
        for forged in [&below, &above] {
            if first_bytes::<6>(forged).is_ok_and(|found| &found == b"secret") {
                seen.push(format!("{} after {id}", forged.display()));
            }
        }
    }
    // Before anything is checked: what an attack has stacked on devices is in the way of what cleans up after a failure.
    for id in &ids {
        helper.ask_all([detach(id), delete(id)])?;
    }
    ensure!(seen.is_empty(), "the tenant's own nodes show another volume: {seen:?}");
    Ok(())
}
