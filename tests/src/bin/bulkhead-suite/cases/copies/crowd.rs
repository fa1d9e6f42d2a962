//! Tenants whose volumes take the kernel long to copy, all of them at once and without end: everybody else finds a place.

use std::time::Duration;

use anyhow::{Result, bail};
use bulkhead_protocol::ErrorKind;
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::neighbour::{beside_clients, is_not_delayed};
use bulkhead_tests::rig::Rig;

use super::promises::rewrite_in_pieces;
use super::{end, gone, publish, start};

cases! {
    copies_that_take_long_delay_no_neighbour: Bare + Xfs + Alone("it measures times"),
}

const MIB: u64 = 1 << 20;
const SIZE: u64 = 12 * MIB;
const TENANTS: usize = 16;

/// Takes and deletes a snapshot of a volume.
fn copy(helper: &HelperClient, id: &str) -> Result<()> {
    let snapshot = format!("snap-{id}");
    match helper.request(&create_snapshot(id, &snapshot))? {
        Ok(_) => helper.ask_patiently(&delete_snapshot(&snapshot)).map(drop),
        // Like a sidecar that is in a hurry.
        Err(error) if error.kind == ErrorKind::Busy => {
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        }
        Err(error) => bail!("{error}"),
    }
}

fn copies_that_take_long_delay_no_neighbour(rig: &mut Rig) -> Result<()> {
    let helper = start(rig)?;
    let ids: Vec<String> = (0..TENANTS).map(|number| format!("vol-{number:02}")).collect();
    for id in &ids {
        helper.ask(&create(id, sparse_spec(SIZE)))?;
        publish(&helper, id)?;
        rewrite_in_pieces(rig, id, SIZE, 1)?;
    }
    is_not_delayed(rig, |measure| beside_clients(rig, TENANTS, |number, client| copy(client, &ids[number]), measure))?;
    for id in &ids {
        end(&helper, id)?;
    }
    gone(rig)?;
    rig.pool().holds(&[])
}
