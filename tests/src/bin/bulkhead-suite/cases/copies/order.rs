//! A snapshot is one point in time, as if the power had been cut at that moment.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Result, anyhow, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;

use super::take;

cases! {
    what_was_synced_is_in_it_and_in_its_order: Xfs,
    what_was_synced_is_in_it_200_times: Xfs + Long,
}

const SIZE: u64 = 16 << 20;
const BLOCK: usize = 4096;

/// A block on its own page, as O_DIRECT wants it.
#[repr(align(4096))]
struct Block([u8; BLOCK]);

/// Writes two counters in turn, the one at the beginning of the device first, the other at its end.
struct Counters {
    first: AtomicU64,
    last: AtomicU64,
    is_over: AtomicBool,
}

impl Counters {
    /// Writes until it is over.
    fn write(&self, device: &Path, is_direct: bool) -> Result<()> {
        let flags = if is_direct { rustix::fs::OFlags::DIRECT.bits() } else { 0 };
        let file = File::options().write(true).custom_flags(i32::try_from(flags)?).open(device)?;
        let mut block = Box::new(Block([0; BLOCK]));
        for number in 1_u64.. {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            block.0[..8].copy_from_slice(&number.to_le_bytes());
            for (offset, counter) in [(0, &self.first), (SIZE - BLOCK as u64, &self.last)] {
                file.write_all_at(&block.0, offset)?;
                file.sync_data()?;
                counter.store(number, Ordering::SeqCst);
            }
        }
        Ok(())
    }
}

fn counters(rig: &mut Rig, snapshots: usize) -> Result<()> {
    let helper = rig.helper()?;
    for is_direct in [false, true] {
        helper.ask_all([create("vol-a", image_spec(SIZE)), attach("vol-a"), make_device("vol-a", "vol-a")])?;
        let counters = Counters { first: 0.into(), last: 0.into(), is_over: false.into() };
        let device = rig.target("vol-a");
        std::thread::scope(|scope| -> Result<()> {
            let writer = scope.spawn(|| counters.write(&device, is_direct));
            let taken = (0..snapshots).try_for_each(|_| check_one(rig, &helper, &counters));
            counters.is_over.store(true, Ordering::Relaxed);
            writer.join().map_err(|_| anyhow!("the writer panicked"))??;
            taken
        })?;
        helper.ask_all([remove_device("vol-a", "vol-a"), detach("vol-a"), delete("vol-a")])?;
    }
    Ok(())
}

fn check_one(rig: &Rig, helper: &HelperClient, counters: &Counters) -> Result<()> {
    let acknowledged = [&counters.first, &counters.last].map(|counter| counter.load(Ordering::SeqCst));
    take(helper, "vol-a", "snap-1")?;
    let snapshot = File::open(rig.pool().image("snap-1"))?;
    let read = |offset: u64| -> Result<u64> {
        let mut number = [0; 8];
        snapshot.read_exact_at(&mut number, offset)?;
        Ok(u64::from_le_bytes(number))
    };
    let (first, last) = (read(0)?, read(SIZE - BLOCK as u64)?);
    ensure!(first == last || first == last + 1, "out of order: {first} and {last}");
    ensure!(first >= acknowledged[0] && last >= acknowledged[1], "{first} and {last} after {acknowledged:?}");
    helper.ask(&delete_snapshot("snap-1")).map(drop)
}

fn what_was_synced_is_in_it_and_in_its_order(rig: &mut Rig) -> Result<()> {
    counters(rig, 15)
}

fn what_was_synced_is_in_it_200_times(rig: &mut Rig) -> Result<()> {
    counters(rig, 200)
}
