//! What a pod has written to its block device, and not synced, is there when the volume is published again.

use std::fs::{self, File};
use std::io::{Read, Write};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;

cases! {
    what_was_written_to_a_device_survives_its_detachment: Filesystem,
}

const SIZE: u64 = 16 << 20;

fn what_was_written_to_a_device_survives_its_detachment(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", image_spec(SIZE)))?;
    let mut lost = Vec::new();
    for round in 1..=5_u8 {
        helper.ask_all([attach("vol-a"), make_device("vol-a", "a")])?;
        let mut device = File::options().write(true).open(rig.target("a")).context("the device")?;
        device.write_all(&vec![round; 8 << 20])?;
        drop(device);
        helper.ask_all([remove_device("vol-a", "a"), detach("vol-a")])?;
        let image = fs::read(rig.pool().image("vol-a"))?;
        let kept = image.iter().filter(|byte| **byte == round).count();
        helper.ask_all([attach("vol-a"), make_device("vol-a", "a")])?;
        let mut again = vec![0; 8 << 20];
        File::open(rig.target("a"))?.read_exact(&mut again)?;
        let read = again.iter().filter(|byte| **byte == round).count();
        helper.ask_all([remove_device("vol-a", "a"), detach("vol-a")])?;
        if kept != 8 << 20 || read != 8 << 20 {
            lost.push(format!("round {round}: of {} bytes, the image has {kept}, and the next device {read}", 8 << 20));
        }
    }
    ensure!(lost.is_empty(), "{lost:?}");
    Ok(())
}
