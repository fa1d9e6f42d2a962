//! Kind is the wall: what a tenant can write as a device is never mounted, and what is mounted is never a device.

use anyhow::{Result, ensure};
use bulkhead_protocol::{ErrorKind, Inodes, MountFlags, Request};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;

use super::{SIZE, check_detached, check_image, start};

cases! {
    no_kind_of_volume_is_taken_for_another: Bare + Kernel,
    an_older_client_sees_none_and_makes_none: Bare,
}

fn no_kind_of_volume_is_taken_for_another(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    helper.ask(&create("vol-b", image_spec(SIZE)))?;
    helper.ask(&create("vol-c", directory_spec(1 << 20)))?;
    // A perfect filesystem, written by a tenant.
    std::fs::copy(rig.pool().image("vol-a"), rig.pool().image("vol-b"))?;
    for attached in [false, true] {
        if attached {
            helper.ask_all([attach("vol-b"), mount_filesystem("vol-a")])?;
        }
        for id in ["vol-b", "vol-c"] {
            for request in [mount_filesystem(id), unmount_filesystem(id), grow_filesystem(id, 2 * SIZE)] {
                denied(helper.request(&request)?, ErrorKind::WrongKind, id)?;
            }
        }
        denied(helper.request(&bind("vol-b", "b"))?, ErrorKind::WrongKind, "vol-b")?;
        let inodes = Inodes::try_from(5_u64)?;
        let id = || volume("vol-a");
        for request in [
            attach("vol-a"),
            detach("vol-a"),
            make_device("vol-a", "d"),
            remove_device("vol-a", "d"),
            Request::LoopResize { volume: id() },
            Request::GrowImage { volume: id(), size: bytes(2 * SIZE) },
            Request::SetQuota { volume: id(), size: bytes(2 * SIZE), inodes },
            Request::SetInodes { volume: id(), inodes },
            Request::LoopAttach { volume: id(), read_only: true },
        ] {
            denied(helper.request(&request)?, ErrorKind::WrongKind, "vol-a")?;
        }
        // A target of the kubelet's for devices is none for a directory.
        let target = target("kubelet-csi", "volumeDevices/publish/pv/u");
        let bind = Request::BindMount { volume: id(), target, flags: MountFlags::default(), exclusive: false };
        denied(helper.request(&bind)?, ErrorKind::Refused, "vol")?;
    }
    // The kind of what exists stays.
    for (id, spec) in [("vol-a", image_spec(SIZE)), ("vol-b", filesystem_spec(SIZE)), ("vol-c", filesystem_spec(SIZE))]
    {
        denied(helper.request(&create(id, spec))?, ErrorKind::AlreadyExists, id)?;
    }
    helper.ask_all([detach("vol-b"), unmount_filesystem("vol-a")])?;
    check_detached(rig)?;
    check_image(rig, "vol-a")
}

fn an_older_client_sees_none_and_makes_none(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    let older = HelperClient::connect(&rig.helper_socket())?;
    ensure!(older.hello(3)?.version == 3);
    for request in
        [create("vol-b", filesystem_spec(SIZE)), mount_filesystem("vol-a"), grow_filesystem("vol-a", 2 * SIZE)]
    {
        denied(older.request(&request)?, ErrorKind::Invalid, "needs protocol version 4")?;
    }
    let usage = Request::Usage { volume: volume("vol-a"), target: None };
    denied(older.request(&usage)?, ErrorKind::Unsupported, "needs protocol version 4")?;
    older.ask(&delete("vol-a")).map(drop)
}
