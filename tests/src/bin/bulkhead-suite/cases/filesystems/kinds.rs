//! Kind is the wall: what a tenant can write as a device is never mounted, and what is mounted is never a device.

use anyhow::{Result, ensure};
use bulkhead_protocol::{ErrorKind, Inodes, MountFlags, Request};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::rig::Rig;

use super::{SIZE, check_detached, check_image, start};

cases! {
    no_kind_of_volume_is_taken_for_another: Bare,
    an_older_client_sees_none_and_makes_none: Bare,
}

fn no_kind_of_volume_is_taken_for_another(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    helper.ask(&create(own("vol-a"), filesystem_spec(SIZE)))?;
    helper.ask(&create(own("vol-b"), image_spec(SIZE)))?;
    helper.ask(&create(own("vol-c"), directory_spec(1 << 20)))?;
    // A perfect filesystem, written by a tenant.
    std::fs::copy(rig.pool().image(own("vol-a")), rig.pool().image(own("vol-b")))?;
    for attached in [false, true] {
        if attached {
            helper.ask_all([attach(own("vol-b")), mount_filesystem(own("vol-a"))])?;
        }
        for id in [own("vol-b"), own("vol-c")] {
            for request in
                [mount_filesystem(id), mount_labelled(id, "s0"), unmount_filesystem(id), grow_filesystem(id, 2 * SIZE)]
            {
                denied(helper.request(&request)?, ErrorKind::WrongKind, id)?;
            }
        }
        denied(helper.request(&bind(own("vol-b"), "b"))?, ErrorKind::WrongKind, own("vol-b"))?;
        let inodes = Inodes::try_from(5_u64)?;
        let id = || volume(own("vol-a"));
        for request in [
            attach(own("vol-a")),
            detach(own("vol-a")),
            make_device(own("vol-a"), "d"),
            remove_device(own("vol-a"), "d"),
            Request::LoopResize { volume: id() },
            Request::GrowImage { volume: id(), size: bytes(2 * SIZE) },
            Request::SetQuota { volume: id(), size: bytes(2 * SIZE), inodes },
            Request::SetInodes { volume: id(), inodes },
            Request::LoopAttach { volume: id(), read_only: true },
        ] {
            denied(helper.request(&request)?, ErrorKind::WrongKind, own("vol-a"))?;
        }
        // A target of the kubelet's for devices is none for a directory.
        let target = target("kubelet-csi", "volumeDevices/publish/pv/u");
        let bind = Request::BindMount { volume: id(), target, flags: MountFlags::default(), exclusive: false };
        denied(helper.request(&bind)?, ErrorKind::Refused, "vol")?;
    }
    // The kind of what exists stays.
    for (id, spec) in
        [(own("vol-a"), image_spec(SIZE)), (own("vol-b"), filesystem_spec(SIZE)), (own("vol-c"), filesystem_spec(SIZE))]
    {
        denied(helper.request(&create(id, spec))?, ErrorKind::AlreadyExists, id)?;
    }
    helper.ask_all([detach(own("vol-b")), unmount_filesystem(own("vol-a"))])?;
    check_detached(rig)?;
    check_image(rig, own("vol-a"))
}

fn an_older_client_sees_none_and_makes_none(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    helper.ask(&create(own("vol-a"), filesystem_spec(SIZE)))?;
    let older = HelperClient::connect(&rig.helper_socket())?;
    ensure!(older.hello(3)?.version == 3);
    for request in [
        create(own("vol-b"), filesystem_spec(SIZE)),
        mount_filesystem(own("vol-a")),
        grow_filesystem(own("vol-a"), 2 * SIZE),
    ] {
        denied(older.request(&request)?, ErrorKind::Invalid, "needs protocol version 4")?;
    }
    let usage = Request::Usage { volume: volume(own("vol-a")), target: None };
    denied(older.request(&usage)?, ErrorKind::Unsupported, "needs protocol version 4")?;
    older.ask(&delete(own("vol-a"))).map(drop)
}
