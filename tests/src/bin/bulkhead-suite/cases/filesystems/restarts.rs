//! A helper that is started anew finds everything by targets, loop devices and images: nothing is written down.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{ErrorKind, Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::loops;
use bulkhead_tests::rig::Rig;

use super::{SIZE, check_detached, check_image, end, make_pool, start};

cases! {
    a_restart_finds_what_is_published: Bare + Filesystem,
    a_restart_finds_what_is_only_mounted: Bare,
    one_that_does_not_answer_holds_up_no_start: Bare + Slow,
}

fn a_restart_finds_what_is_published(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    helper.ask_all([create("vol-a", filesystem_spec(SIZE)), mount_filesystem("vol-a"), bind("vol-a", "a")])?;
    fs::write(rig.target("a/file"), "content")?;
    drop(helper);
    for round in 0..3_u64 {
        let helper = rig.restarted_helper()?;
        ensure!(fs::read(rig.target("a/file"))? == b"content");
        let found = helper.usage("vol-a", Some(target("work", "a")))?;
        ensure!(found.used_bytes.is_some() && found.targets == 1 && found.condition.is_none(), "{found:?}");
        let size = SIZE + (round + 1) * (16 << 20);
        ensure!(helper.ask(&grow_filesystem("vol-a", size))? == Reply::Size(bytes(size)));
        let after = helper.usage("vol-a", None)?;
        ensure!(after.available_bytes > found.available_bytes, "{after:?}");
        // The same again, and one more target.
        helper.ask_all([mount_filesystem("vol-a"), bind("vol-a", "a"), bind("vol-a", "b")])?;
        ensure!(fs::read(rig.target("b/file"))? == b"content");
        helper.ask(&unbind("vol-a", "b"))?;
        let devices = loops::backed_by(&rig.pool().device()?)?;
        ensure!(devices.len() == 1, "{devices:?}");
    }
    let helper = rig.restarted_helper()?;
    helper.ask_all([unbind("vol-a", "a"), unmount_filesystem("vol-a")])?;
    check_detached(rig)?;
    check_image(rig, "vol-a")
}

fn a_restart_finds_what_is_only_mounted(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    rig.helper()?.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    for request in [unmount_filesystem("vol-a"), mount_filesystem("vol-a")] {
        let helper = rig.helper()?;
        helper.ask(&mount_filesystem("vol-a"))?;
        drop(helper);
        rig.restarted_helper()?.ask(&request).with_context(|| request.name())?;
    }
    let helper = rig.helper()?;
    helper.ask(&unmount_filesystem("vol-a"))?;
    check_detached(rig)?;
    check_image(rig, "vol-a")?;
    helper.ask(&mount_filesystem("vol-a"))?;
    drop(helper);
    rig.restarted_helper()?.ask(&delete("vol-a"))?;
    check_detached(rig)
}

/// The kernel mounts a filesystem again only when it has been written out, for as long as that takes.
fn one_that_does_not_answer_holds_up_no_start(rig: &mut Rig) -> Result<()> {
    make_pool(rig, 3)?;
    rig.add_pool("other")?;
    let helper = rig.started_helper()?;
    for id in ["slow-a", "slow-b"] {
        helper.ask_all([create(id, filesystem_spec(SIZE)), mount_filesystem(id), bind(id, id)])?;
    }
    fs::write(rig.target("slow-a/file"), "content")?;
    drop(helper);
    rig.kill_helper()?;
    let delay = rig.patience(Duration::from_secs(10)).as_micros();
    // A mounter becomes another user before it takes requests, and nobody else does.
    let inject = format!("inject=setresuid:delay_enter={delay}:when=1");
    let wrapper = ["strace", "-f", "-D", "-o", "/dev/null", "-e", "trace=setresuid", "-e", &inject];
    rig.helper_wrapper = wrapper.map(ToOwned::to_owned).to_vec();
    let begun = Instant::now();
    let helper = rig.started_helper()?;
    let (other, spec) = (volume("slow-o"), directory_spec(1 << 20));
    helper.ask_all([Request::Create { volume: other, pool: "other".parse()?, spec }, delete("slow-o")])?;
    ensure!(begun.elapsed().as_micros() < delay, "the start has waited for it");
    // Whoever wants it is told of that after a while, unless it is there by then.
    if let Err(error) = helper.request(&mount_filesystem("slow-a"))? {
        ensure!(error.kind == ErrorKind::Busy, "{error:?}");
    }
    let refusal = helper.request(&delete("slow-b"))?.err().context("a volume that is published is deleted")?;
    // Meanwhile it may be tried again to take it over.
    ensure!([ErrorKind::InUse, ErrorKind::Busy].contains(&refusal.kind), "{refusal:?}");
    for id in ["slow-a", "slow-b"] {
        helper.ask_patiently(&mount_filesystem(id))?;
        helper.ask(&bind(id, id))?;
    }
    ensure!(fs::read(rig.target("slow-a/file"))? == b"content");
    rig.kill_helper()?;
    rig.helper_wrapper.clear();
    rig.start_helper()?;
    end(rig, &rig.helper()?, &["slow-a", "slow-b"])
}
