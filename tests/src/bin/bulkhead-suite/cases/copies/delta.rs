//! What differs between two snapshots is told exactly.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use bulkhead_protocol::Range;
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::random::Random;
use bulkhead_tests::rig::Rig;

use super::{fill, ranges, take};

cases! {
    every_block_that_differs_is_told_and_no_other: Xfs,
}

const SIZE: u64 = 16 << 20;
const BLOCK: u64 = 4096;

/// Returns whether a range covers a block.
fn is_told(ranges: &[Range], block: u64) -> bool {
    ranges.iter().any(|range| (range.offset..range.offset + range.length).contains(&(block * BLOCK)))
}

fn blocks(path: &Path) -> Result<Vec<Vec<u8>>> {
    Ok(fs::read(path)?.chunks(BLOCK as usize).map(<[u8]>::to_vec).collect())
}

fn every_block_that_differs_is_told_and_no_other(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([
        create(own("vol-a"), image_spec(SIZE)),
        attach(own("vol-a")),
        make_device(own("vol-a"), own("vol-a")),
    ])?;
    let (device, mut random) = (rig.target(own("vol-a")), Random::new(7));
    let count = usize::try_from(SIZE / BLOCK)?;
    let mut rewritten = Vec::new();
    for round in 1..=3_u8 {
        for _ in 0..500 {
            let block = random.below(count) as u64;
            fill(&device, round, block * BLOCK, BLOCK)?;
            rewritten.push((round, block));
        }
        take(&helper, own("vol-a"), &format!("snap-{round}"))?;
    }
    let images = [1, 2, 3].map(|round| blocks(&rig.pool().image(&format!("snap-{round}"))));
    let [one, two, three] = images;
    let (one, two, three) = (one?, two?, three?);
    for (base, old, id, new) in
        [("snap-1", &one, "snap-2", &two), ("snap-2", &two, "snap-3", &three), ("snap-1", &one, "snap-3", &three)]
    {
        let told = ranges(&helper, id, Some(base))?;
        for (block, (old, new)) in (0..).zip(old.iter().zip(new)) {
            ensure!(is_told(&told, block) == (old != new), "block {block} from {base} to {id}");
        }
    }
    let told = ranges(&helper, "snap-1", None)?;
    for (block, content) in (0..).zip(&one) {
        ensure!(is_told(&told, block) == content.iter().any(|byte| *byte != 0), "block {block} of snap-1");
    }
    ensure!(ranges(&helper, "snap-2", Some("snap-2"))?.is_empty());
    Ok(())
}
