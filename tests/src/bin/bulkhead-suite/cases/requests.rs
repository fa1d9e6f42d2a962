//! The helper's own requests.

use anyhow::{Result, ensure};
use bulkhead_protocol::{ErrorKind, Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::{bind, bytes, create, delete, directory_spec, image_spec, unbind, volume};
use bulkhead_tests::observe::mounts;
use bulkhead_tests::stand::Stand;

cases! {
    directory_volume_lives_and_dies: Bare,
}

const SIZE: u64 = 16 << 20;

fn directory_volume_lives_and_dies(stand: &mut Stand) -> Result<()> {
    stand.add_pool("default")?;
    stand.start_helper()?;
    let helper = stand.helper()?;
    ensure!(helper.ask(&create("vol-a", directory_spec(SIZE)))? == Reply::Size(bytes(SIZE)));
    helper.ask(&bind("vol-a", "a"))?;
    let found = mounts::at(&stand.target("a"))?;
    ensure!(found.len() == 1 && found[0].has("nosuid") && found[0].has("nodev"), "{found:?}");
    denied(helper.request(&delete("vol-a"))?, ErrorKind::InUse, "vol-a")?;
    helper.ask(&unbind("vol-a", "a"))?;
    helper.ask(&delete("vol-a"))?;
    helper.ask(&create("vol-b", image_spec(SIZE)))?;
    helper.ask(&Request::LoopAttach { volume: volume("vol-b"), read_only: false })?;
    helper.ask(&Request::LoopDetach { volume: volume("vol-b") })?;
    helper.ask(&delete("vol-b"))?;
    Ok(())
}
