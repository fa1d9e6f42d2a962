//! Labels for all files of a filesystem, where SELinux is off: what they cannot do there. The step `selinux` has the rest.

use anyhow::{Result, ensure};
use bulkhead_protocol::ErrorKind;
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::rig::Rig;

use super::{SIZE, check_detached, end, start};

cases! {
    a_label_that_the_kernel_does_not_know_is_refused_and_harms_nothing: Bare,
    what_is_published_gets_no_other_label: Bare,
    an_older_client_asks_for_no_label: Bare,
}

fn a_label_that_the_kernel_does_not_know_is_refused_and_harms_nothing(rig: &mut Rig) -> Result<()> {
    start(rig, 2)?;
    let helper = rig.helper()?;
    helper.ask(&create(own("vol-a"), filesystem_spec(SIZE)))?;
    for level in ["s0:c1,c2", "s0"] {
        denied(helper.request(&mount_labelled(own("vol-a"), level))?, ErrorKind::Unsupported, "SELinux is off")?;
        check_detached(rig)?;
        let usage = helper.usage(own("vol-a"), None)?;
        ensure!(usage.condition.is_none(), "it is not said to be damaged: {usage:?}");
        denied(helper.request(&bind(own("vol-a"), "a"))?, ErrorKind::Invalid, "mount it first")?;
    }
    helper.ask_all([mount_filesystem(own("vol-a")), bind(own("vol-a"), own("vol-a"))])?;
    end(rig, &helper, &[own("vol-a")])
}

fn what_is_published_gets_no_other_label(rig: &mut Rig) -> Result<()> {
    start(rig, 2)?;
    let helper = rig.helper()?;
    helper.ask(&create(own("vol-a"), filesystem_spec(SIZE)))?;
    helper.ask_all([mount_filesystem(own("vol-a")), bind(own("vol-a"), own("vol-a"))])?;
    let labelled = mount_labelled(own("vol-a"), "s0:c1,c2");
    denied(helper.request(&labelled)?, ErrorKind::InUse, "is published without an SELinux context")?;
    // So it is for a helper that has only found it.
    rig.kill_helper()?;
    rig.start_helper()?;
    let helper = rig.helper()?;
    denied(helper.request(&labelled)?, ErrorKind::InUse, "is published without an SELinux context")?;
    helper.ask(&mount_filesystem(own("vol-a")))?;
    // What is mounted and published nowhere is nobody's, and is let go.
    helper.ask(&unbind(own("vol-a"), own("vol-a")))?;
    denied(helper.request(&labelled)?, ErrorKind::Unsupported, "SELinux is off")?;
    check_detached(rig)?;
    helper.ask_all([mount_filesystem(own("vol-a")), bind(own("vol-a"), own("vol-a"))])?;
    end(rig, &helper, &[own("vol-a")])
}

fn an_older_client_asks_for_no_label(rig: &mut Rig) -> Result<()> {
    start(rig, 2)?;
    let older = HelperClient::connect(&rig.helper_socket())?;
    ensure!(older.hello(4)?.version == 4);
    denied(older.request(&mount_labelled(own("vol-a"), "s0"))?, ErrorKind::Invalid, "needs protocol version 5")
}
