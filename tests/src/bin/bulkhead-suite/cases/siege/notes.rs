//! The numbers of loop devices go on where they were, whatever is missing at the next start.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use anyhow::{Result, ensure};
use bulkhead_tests::attacker::{first_bytes, node_like};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::Tracer;

cases! {
    numbers_that_were_used_for_a_pool_that_is_missing_are_not_used_again: Bare,
    a_device_whose_number_cannot_be_noted_is_not_handed_out: Bare,
}

const SIZE: u64 = 64 << 10;

fn number_at(path: &Path) -> Result<u32> {
    Ok(rustix::fs::minor(fs::metadata(path)?.rdev()))
}

/// Attaches a volume of another tenant again and again, and returns what a node shows when the number comes round.
fn come_round(rig: &Rig, helper: &HelperClient, pool: usize, id: &str, node: &Path, limit: u32) -> Result<bool> {
    let image = rig.pools[pool].image(id);
    File::options().write(true).open(image)?.write_all_at(b"secret!", 0)?;
    let wanted = number_at(node)?;
    for _ in 0..limit {
        helper.ask_patiently(&attach(id))?;
        helper.ask(&make_device(id, "next"))?;
        let is_seen =
            number_at(&rig.target("next"))? == wanted && first_bytes::<7>(node).is_ok_and(|found| &found == b"secret!");
        helper.ask_all([remove_device(id, "next"), detach(id)])?;
        if is_seen {
            return Ok(true);
        }
    }
    Ok(false)
}

fn numbers_that_were_used_for_a_pool_that_is_missing_are_not_used_again(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "other"])?;
    let helper = rig.started_helper()?;
    helper.ask_all([create_in("default", "vol-a", image_spec(SIZE)), create_in("other", "vol-o", image_spec(SIZE))])?;
    for _ in 0..40 {
        helper.ask_patiently(&attach("vol-a"))?;
        helper.ask(&detach("vol-a"))?;
    }
    helper.ask_patiently(&attach("vol-a"))?;
    helper.ask(&make_device("vol-a", "a"))?;
    // A container keeps its own node; nobody has it open.
    let node = node_like(&rig.target("a"), &rig.work().join("own-node"))?;
    helper.ask_all([remove_device("vol-a", "a"), detach("vol-a")])?;
    rig.kill_helper()?;
    // The first pool's disk is missing at the next start.
    let gone = rig.pools.remove(0);
    let marker = gone.directory.join(".bulkhead");
    let aside = gone.directory.join("marker-aside");
    fs::rename(&marker, &aside)?;
    rig.pools.insert(0, gone);
    let helper = rig.started_helper()?;
    let seen = come_round(rig, &helper, 1, "vol-o", &node, 150);
    rig.kill_helper()?;
    fs::rename(&aside, &marker)?;
    rig.start_helper()?;
    ensure!(!seen?, "the node of a volume of the first pool shows a volume of the second");
    Ok(())
}

fn a_device_whose_number_cannot_be_noted_is_not_handed_out(rig: &mut Rig) -> Result<()> {
    // strace makes a call fail by replacing it with one that the filter does not allow.
    rig.helper_flags.push("--seccomp=log".to_owned());
    let helper = rig.started_helper()?;
    for id in ["vol-a", "vol-b"] {
        helper.ask(&create(id, image_spec(SIZE)))?;
        helper.ask_patiently(&attach(id))?;
        helper.ask(&detach(id))?;
    }
    let server = rig.helper_pid()?;
    let tracer = Tracer::fail(server, "fsetxattr", "EIO", "1+")?;
    let mut node = None;
    for round in 0..40 {
        let _ = helper.request(&attach("vol-a"))?;
        let at = format!("a{round}");
        if helper.request(&make_device("vol-a", &at))?.is_ok() {
            let own = rig.work().join("own-node");
            let _ = fs::remove_file(&own);
            node = Some(node_like(&rig.target(&at), &own)?);
            helper.ask(&remove_device("vol-a", &at))?;
        }
        helper.ask(&detach("vol-a"))?;
    }
    tracer.end()?;
    let helper = rig.restarted_helper()?;
    let seen = match &node {
        Some(node) => come_round(rig, &helper, 0, "vol-b", node, 150),
        None => Ok(false),
    };
    ensure!(!seen?, "a node shows the next tenant's volume");
    Ok(())
}
