//! Limits of open files that are too low: a start says so, and what fits in them never fails later.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;

cases! {
    a_limit_of_open_files_that_is_too_low_is_refused: Bare,
    a_limit_of_open_files_that_just_suffices_always_suffices: Bare,
}

const SIZE: u64 = 64 << 10;
/// What service managers allow.
const ALLOWED: u64 = 16384;

fn limit(rig: &mut Rig, soft: u64, hard: u64) {
    rig.helper_wrapper = vec!["prlimit".to_owned(), format!("--nofile={soft}:{hard}")];
}

/// Returns how many descriptors a helper says that it needs.
fn needed(rig: &mut Rig) -> Result<u64> {
    limit(rig, 256, 256);
    let said = rig.refusal()?;
    ensure!(said.contains("LimitNOFILE"), "{said}");
    let number = said.split("at least ").nth(1).and_then(|rest| rest.split(' ').next()).context("a number")?;
    Ok(number.parse()?)
}

fn a_limit_of_open_files_that_is_too_low_is_refused(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    let needed = needed(rig)?;
    for too_low in [64, 512, needed - 1] {
        limit(rig, too_low, too_low);
        let said = rig.refusal()?;
        ensure!(said.contains("LimitNOFILE") && said.contains(&needed.to_string()), "{too_low}: {said}");
    }
    // A second pool needs more.
    rig.add_pool("fast")?;
    limit(rig, needed, needed);
    ensure!(rig.refusal()?.contains("LimitNOFILE"));
    // A soft limit is raised.
    limit(rig, 16, ALLOWED);
    rig.start()?;
    rig.helper()?.ask(&create("vol-a", directory_spec(SIZE))).map(drop)
}

fn a_limit_of_open_files_that_just_suffices_always_suffices(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    let needed = needed(rig)?;
    limit(rig, 256, needed);
    let helper = rig.started_helper()?;
    let ids: Vec<String> = (0..60).map(|number| format!("vol-{number}")).collect();
    for (number, id) in ids.iter().enumerate() {
        if number % 2 == 0 {
            helper.ask_all([create(id, directory_spec(SIZE)), bind(id, id)])?;
        } else {
            helper.ask_all([create(id, image_spec(SIZE)), attach(id), make_device(id, id)])?;
        }
    }
    // As many connections as are served at once, each of them busy.
    let others = (0..16).map(|_| rig.helper()).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let busy: Vec<_> = others
            .iter()
            .enumerate()
            .map(|(number, client)| {
                let own = format!("own-{number}");
                scope.spawn(move || -> Result<()> {
                    for _ in 0..5 {
                        client.ask_all([create(&own, directory_spec(SIZE)), bind(&own, &own)])?;
                        client.usage(&own, Some(target("work", &own)))?;
                        client.ask_all([unbind(&own, &own), delete(&own)])?;
                    }
                    Ok(())
                })
            })
            .collect();
        busy.into_iter().try_for_each(|busy| busy.join().map_err(|_| anyhow::anyhow!("a client panicked"))?)
    })?;
    drop((others, helper));
    (0..2).try_for_each(|_| rig.restart_helper()).context("a start with everything published")
}
