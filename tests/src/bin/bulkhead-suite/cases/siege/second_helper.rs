//! A second helper with pools of its own is started by mistake with the socket path of the first.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use anyhow::{Result, ensure};
use bulkhead_tests::another_helper::AnotherHelper;
use bulkhead_tests::cases;
use bulkhead_tests::commands::refusal;
use bulkhead_tests::helper::{HelperClient, bind, create, create_in, delete, directory_spec, unbind};
use bulkhead_tests::pool::Pool;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::program;

cases! {
    a_second_helper_with_other_pools_takes_no_name_from_the_first: Bare,
    two_helpers_with_pools_of_their_own_serve_beside_each_other: Bare,
}

fn a_second_helper_with_other_pools_takes_no_name_from_the_first(rig: &mut Rig) -> Result<()> {
    rig.start()?;
    let inode = |rig: &Rig| -> Result<u64> { Ok(fs::symlink_metadata(rig.helper_socket())?.ino()) };
    let (before, connected) = (inode(rig)?, rig.helper()?);
    connected.ask(&create("vol-a", directory_spec(1 << 20)))?;
    let directory = rig.work().join("pools/other");
    let pool = Pool::make_unmarked(&rig.run_options, rig.templates(), &directory, "other")?;
    let mut command = Command::new(program("bulkhead-privhelper")?);
    command.args(["--pool", &pool.flag(), "--allow-uid", "901", "--socket"]).arg(rig.helper_socket());
    command.arg("--publish-dir").arg(format!("work={}", rig.publish_directory().display()));
    let said = refusal(&mut command)?;
    ensure!(said.contains("another helper listens on") && said.lines().count() == 1, "{said}");
    ensure!(inode(rig)? == before, "the socket is another");
    // The first one answers, on old and new connections.
    for client in [&connected, &HelperClient::welcomed(&rig.helper_socket())?] {
        client.ask_all([bind("vol-a", "a"), unbind("vol-a", "a")])?;
    }
    ensure!(fs::read_dir(&directory)?.all(|entry| entry.is_ok_and(|entry| entry.file_name() != ".bulkhead")));
    bulkhead_tests::observe::mounts::unmount_all(&directory)?;
    connected.ask(&delete("vol-a")).map(drop)
}

fn two_helpers_with_pools_of_their_own_serve_beside_each_other(rig: &mut Rig) -> Result<()> {
    rig.start()?;
    let other = AnotherHelper::start(rig)?;
    let in_other = create_in("other", "vol-o", directory_spec(1 << 20));
    other.client()?.ask(&in_other)?;
    rig.helper()?.ask(&create("vol-a", directory_spec(1 << 20)))?;
    rig.restart_helper()?;
    for (client, id) in [(rig.helper()?, "vol-a"), (other.client()?, "vol-o")] {
        client.ask_all([bind(id, id), unbind(id, id), delete(id)])?;
    }
    other.stop()
}
