//! How much of an image is shared with others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use bulkhead_protocol::{ErrorKind, Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::pace::patience;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::wait::until;

use super::{allocated, fill, take};

cases! {
    an_image_says_what_it_shares: Xfs,
    what_is_deleted_meanwhile_is_not_found,
}

const SIZE: u64 = 16 << 20;
const MIB: u64 = 1 << 20;

/// Returns what an image occupies, what of it is shared, and in how many requests that was told.
pub fn sharing(helper: &HelperClient, id: &str) -> Result<(u64, u64, usize)> {
    let (mut sum, mut from, mut requests) = (0, 0, 0);
    loop {
        let reply = helper.ask(&Request::Sharing { volume: volume(id), from })?;
        let Reply::Sharing { allocated, shared, next } = reply else { bail!("{reply:?}") };
        (sum, requests) = (sum + shared, requests + 1);
        let Some(next) = next else { return Ok((allocated, sum, requests)) };
        ensure!(next > from, "{next} after {from}");
        from = next;
    }
}

fn an_image_says_what_it_shares(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([create("vol-a", image_spec(SIZE)), create("vol-d", directory_spec(SIZE))])?;
    helper.ask_all([attach("vol-a"), make_device("vol-a", "vol-a")])?;
    fill(&rig.target("vol-a"), 1, 0, SIZE / 2)?;
    let check = |id: &str, shared: u64| -> Result<()> {
        let (told, found, _) = sharing(&helper, id)?;
        ensure!(told == allocated(&rig.pool().image(id))?, "{id} occupies {told}");
        ensure!(found == shared, "{id} shares {found}, and not {shared}");
        Ok(())
    };
    check("vol-a", 0)?;
    take(&helper, "vol-a", "snap-1")?;
    // What has never been written is nobody's but the volume's.
    check("vol-a", SIZE / 2)?;
    check("snap-1", SIZE / 2)?;
    // One block in the middle, and the first half of what there is.
    fill(&rig.target("vol-a"), 2, 7 * MIB, 4096)?;
    fill(&rig.target("vol-a"), 2, 0, 4 * MIB)?;
    check("vol-a", 4 * MIB - 4096)?;
    check("snap-1", 4 * MIB - 4096)?;
    let rest = Request::Sharing { volume: volume("vol-a"), from: 7 * MIB + 4096 };
    let reply = helper.ask(&rest)?;
    ensure!(matches!(reply, Reply::Sharing { shared, next: None, .. } if shared == MIB - 4096), "{reply:?}");
    denied(helper.request(&Request::Sharing { volume: volume("vol-d"), from: 0 })?, ErrorKind::Unsupported, "vol-d")?;
    helper.ask_all([remove_device("vol-a", "vol-a"), detach("vol-a"), delete("vol-a"), delete("vol-d")])?;
    // It has its blocks for itself once the volume's are gone.
    until(patience(Duration::from_secs(20)), || check("snap-1", 0))?;
    Ok(())
}

fn what_is_deleted_meanwhile_is_not_found(rig: &mut Rig) -> Result<()> {
    let (helper, looking) = (rig.helper()?, rig.helper()?);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let look = || -> Result<usize> {
            let mut found = 0;
            while !is_over.load(Ordering::Relaxed) {
                match looking.request(&Request::Sharing { volume: volume("vol-a"), from: 0 })? {
                    Ok(_) => found += 1,
                    // It may just be being deleted.
                    Err(error) => ensure!(
                        matches!(error.kind, ErrorKind::NotFound | ErrorKind::Busy),
                        "{:?}: {error}",
                        error.kind
                    ),
                }
            }
            Ok(found)
        };
        let thread = scope.spawn(look);
        let lives = (0..200).try_for_each(|_| {
            helper.ask_patiently(&create("vol-a", image_spec(1 << 20)))?;
            helper.ask(&delete("vol-a")).map(drop)
        });
        is_over.store(true, Ordering::Relaxed);
        let found = thread.join().expect("a thread")?;
        ensure!(found > 0, "it was never there");
        lives
    })
}
