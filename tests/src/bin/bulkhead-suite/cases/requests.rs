//! The helper's own requests, as a client in any language would send them.

use std::os::unix::net::UnixListener;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{ErrorKind, Inodes, MAX_LISTED, MountFlags, Reply, Request, Socket};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::rig::Rig;
use rustix::fs::statvfs;

cases! {
    a_directory_volume_lives_and_dies,
    a_block_volume_lives_and_dies,
    create_compares_all_settings,
    requests_of_the_other_kind_are_refused,
    requests_for_unknown_volumes_are_not_found_and_undoing_is_done,
    an_unknown_pool_or_directory_is_refused,
    exclusive_means_one_target,
    a_device_needs_an_attached_loop,
    a_published_device_is_not_detached,
    lists_are_paged_in_order,
    usage_of_a_volume_without_a_target,
    listening_sockets_are_passed_and_kept,
    growing_never_shrinks: Filesystem,
    a_pool_tells_its_room_and_condition: Filesystem,
    a_pool_tells_how_many_inodes_are_left: Filesystem,
}

const SIZE: u64 = 16 << 20;

fn a_directory_volume_lives_and_dies(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    ensure!(helper.ask(&create(own("vol-a"), directory_spec(SIZE)))? == Reply::Size(bytes(SIZE)));
    ensure!(helper.ask(&bind(own("vol-a"), "a"))? == Reply::Done);
    ensure!(helper.ask(&bind(own("vol-a"), "a"))? == Reply::Done);
    let found = mounts::at(&rig.target("a"))?;
    ensure!(found.len() == 1 && found[0].has("nosuid") && found[0].has("nodev"), "{found:?}");
    denied(helper.request(&delete(own("vol-a")))?, ErrorKind::InUse, own("vol-a"))?;
    for _ in 0..2 {
        ensure!(helper.ask(&unbind(own("vol-a"), "a"))? == Reply::Done);
    }
    for _ in 0..2 {
        ensure!(helper.ask(&delete(own("vol-a")))? == Reply::Done);
    }
    Ok(())
}

fn a_block_volume_lives_and_dies(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    ensure!(helper.ask(&create(own("vol-a"), image_spec(SIZE)))? == Reply::Size(bytes(SIZE)));
    for _ in 0..2 {
        helper.ask_all([attach(own("vol-a")), make_device(own("vol-a"), "a")])?;
    }
    ensure!(mounts::at(&rig.target("a"))?.len() == 1);
    ensure!(loops::backed_by(&rig.pool().device()?)?.len() == 1);
    for _ in 0..2 {
        helper.ask_all([remove_device(own("vol-a"), "a"), detach(own("vol-a"))])?;
    }
    // A device that is attached but not published is removed with its volume.
    helper.ask_all([attach(own("vol-a")), delete(own("vol-a"))])
}

fn create_compares_all_settings(rig: &mut Rig) -> Result<()> {
    use bulkhead_protocol::{NameHash, VolumeSpec};
    let helper = rig.helper()?;
    let spec = directory_spec(SIZE);
    helper.ask(&create(own("vol-a"), spec))?;
    ensure!(helper.ask(&create(own("vol-a"), spec))? == Reply::Size(bytes(SIZE)));
    let named = VolumeSpec { name_hash: NameHash([8; 32]), ..spec };
    for other in [named, directory_spec_with(SIZE, 4097), image_spec(SIZE)] {
        denied(helper.request(&create(own("vol-a"), other))?, ErrorKind::AlreadyExists, own("vol-a"))?;
    }
    Ok(())
}

fn requests_of_the_other_kind_are_refused(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([create(own("vol-a"), directory_spec(SIZE)), create(own("vol-b"), image_spec(SIZE))])?;
    let grow = |id| Request::GrowImage { volume: volume(id), size: bytes(2 * SIZE) };
    let inodes = Inodes::try_from(4096)?;
    let set = |id| Request::SetQuota { volume: volume(id), size: bytes(2 * SIZE), inodes };
    for (request, id) in [
        (attach(own("vol-a")), own("vol-a")),
        (make_device(own("vol-a"), "a"), own("vol-a")),
        (remove_device(own("vol-a"), "a"), own("vol-a")),
        (Request::LoopResize { volume: volume(own("vol-a")) }, own("vol-a")),
        (grow(own("vol-a")), own("vol-a")),
        (set(own("vol-b")), own("vol-b")),
        (Request::SetInodes { volume: volume(own("vol-b")), inodes }, own("vol-b")),
        (Request::Allocate { volume: volume(own("vol-a")) }, own("vol-a")),
        (bind(own("vol-b"), "b"), own("vol-b")),
        (unbind(own("vol-b"), "b"), own("vol-b")),
    ] {
        denied(helper.request(&request)?, ErrorKind::WrongKind, id).with_context(|| format!("{request:?}"))?;
    }
    Ok(())
}

fn requests_for_unknown_volumes_are_not_found_and_undoing_is_done(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    let inodes = Inodes::try_from(4096)?;
    for request in [
        bind(own("vol-z"), "a"),
        attach(own("vol-z")),
        make_device(own("vol-z"), "a"),
        Request::LoopResize { volume: volume(own("vol-z")) },
        Request::GrowImage { volume: volume(own("vol-z")), size: bytes(SIZE) },
        Request::SetQuota { volume: volume(own("vol-z")), size: bytes(SIZE), inodes },
        Request::SetInodes { volume: volume(own("vol-z")), inodes },
        Request::Allocate { volume: volume(own("vol-z")) },
        Request::Usage { volume: volume(own("vol-z")), target: None },
    ] {
        denied(helper.request(&request)?, ErrorKind::NotFound, own("vol-z")).with_context(|| format!("{request:?}"))?;
    }
    for request in
        [unbind(own("vol-z"), "a"), remove_device(own("vol-z"), "a"), detach(own("vol-z")), delete(own("vol-z"))]
    {
        ensure!(helper.ask(&request)? == Reply::Done, "{request:?}");
    }
    Ok(())
}

fn an_unknown_pool_or_directory_is_refused(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    denied(helper.request(&create_in("other", own("vol-a"), directory_spec(SIZE)))?, ErrorKind::Invalid, "other")?;
    denied(helper.request(&Request::PoolStatus { pool: "other".parse()? })?, ErrorKind::Invalid, "other")?;
    helper.ask(&create(own("vol-a"), directory_spec(SIZE)))?;
    let flags = MountFlags::default();
    let request =
        Request::BindMount { volume: volume(own("vol-a")), target: target("elsewhere", "a"), flags, exclusive: false };
    denied(helper.request(&request)?, ErrorKind::Refused, "elsewhere")
}

fn exclusive_means_one_target(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask(&create(own("vol-a"), directory_spec(SIZE)))?;
    helper.ask_all([bind_exclusively(own("vol-a"), "a"), bind_exclusively(own("vol-a"), "a")])?;
    denied(helper.request(&bind_exclusively(own("vol-a"), "b"))?, ErrorKind::InUse, own("vol-a"))?;
    ensure!(!rig.target("b").exists());
    // It is not remembered: a publish that does not ask to be exclusive is not exclusive.
    helper.ask(&bind(own("vol-a"), "b")).map(drop)
}

fn a_device_needs_an_attached_loop(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask(&create(own("vol-a"), image_spec(SIZE)))?;
    denied(helper.request(&make_device(own("vol-a"), "a"))?, ErrorKind::Invalid, "attach it first")?;
    ensure!(!rig.target("a").exists());
    ensure!(helper.ask(&Request::LoopResize { volume: volume(own("vol-a")) })? == Reply::Size(bytes(SIZE)));
    Ok(())
}

fn a_published_device_is_not_detached(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([create(own("vol-a"), image_spec(SIZE)), attach(own("vol-a")), make_device(own("vol-a"), "a")])?;
    denied(helper.request(&detach(own("vol-a")))?, ErrorKind::InUse, own("vol-a"))?;
    denied(helper.request(&delete(own("vol-a")))?, ErrorKind::InUse, own("vol-a"))?;
    let read_only = Request::LoopAttach { volume: volume(own("vol-a")), read_only: true };
    denied(helper.request(&read_only)?, ErrorKind::InUse, "read-write")
}

fn lists_are_paged_in_order(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    let ids: Vec<String> = (0..MAX_LISTED + 3).map(|number| format!("vol-{number:02}")).collect();
    for id in ids.iter().rev() {
        helper.ask(&create(id, directory_spec(1 << 20)))?;
    }
    for limit in [1, 5, u16::MAX] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let Reply::Volumes(page) = helper.ask(&Request::List { after, limit })? else {
                anyhow::bail!("the reply to a list request is not a list");
            };
            let full = usize::from(limit).min(MAX_LISTED).min(ids.len() - found.len());
            ensure!(page.as_slice().len() == full, "a page of at most {limit} has {}", page.as_slice().len());
            let Some(last) = page.as_slice().last() else { break };
            after = Some(last.volume.clone());
            found.extend(page.into_vec().into_iter().map(|listed| listed.volume.to_string()));
        }
        ensure!(found == ids, "{found:?}");
    }
    Ok(())
}

fn usage_of_a_volume_without_a_target(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([create(own("vol-a"), directory_spec(SIZE)), bind(own("vol-a"), "a")])?;
    let usage = helper.usage(own("vol-a"), None)?;
    ensure!(usage.targets == 1 && usage.spec == directory_spec(SIZE) && usage.pool.as_str() == "default", "{usage:?}");
    let here = Request::Usage { volume: volume(own("vol-a")), target: Some(target("work", "a")) };
    helper.ask(&here)?;
    let elsewhere = Request::Usage { volume: volume(own("vol-a")), target: Some(target("work", "b")) };
    denied(helper.request(&elsewhere)?, ErrorKind::NotFound, "work:b")?;
    helper.ask(&unbind(own("vol-a"), "a"))?;
    denied(helper.request(&here)?, ErrorKind::NotFound, "work:a")
}

fn listening_sockets_are_passed_and_kept(rig: &mut Rig) -> Result<()> {
    let sockets = [(Socket::Csi, rig.kubelet.csi_socket()), (Socket::Registration, rig.registration_socket()?)];
    rig.kill_frontend()?;
    let helper = rig.helper()?;
    for (socket, path) in sockets {
        // While no process is serving it, a client waits in the queue and is not rejected.
        let waiting = std::os::unix::net::UnixStream::connect(&path)?;
        let listener = UnixListener::from(listen(&helper, socket)?);
        listener.accept()?;
        drop(waiting);
        // Asking for it again returns the same socket.
        let again = UnixListener::from(listen(&helper, socket)?);
        drop(listener);
        let client = std::os::unix::net::UnixStream::connect(&path)?;
        again.accept()?;
        drop(client);
    }
    rig.start_frontend()
}

fn growing_never_shrinks(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([create(own("vol-a"), directory_spec(SIZE)), create(own("vol-b"), image_spec(SIZE))])?;
    let inodes = Inodes::try_from(1)?;
    for (wanted, given) in [(SIZE / 2, SIZE), (2 * SIZE, 2 * SIZE), (SIZE, 2 * SIZE)] {
        let set = Request::SetQuota { volume: volume(own("vol-a")), size: bytes(wanted), inodes };
        ensure!(helper.ask(&set)? == Reply::Size(bytes(given)));
        let grow = Request::GrowImage { volume: volume(own("vol-b")), size: bytes(wanted) };
        ensure!(helper.ask(&grow)? == Reply::Size(bytes(given)));
    }
    let image = std::fs::metadata(rig.pool().image(own("vol-b")))?;
    ensure!(image.len() == 2 * SIZE, "{} bytes", image.len());
    Ok(())
}

fn a_pool_tells_its_room_and_condition(rig: &mut Rig) -> Result<()> {
    use bulkhead_protocol::{Condition, QuotaMode};
    let helper = rig.helper()?;
    let status = helper.pool_status("default")?;
    ensure!(status.total > status.available && status.available >= status.largest_volume, "{status:?}");
    ensure!(status.promised == 0 && status.volumes == 0 && status.emptying == 0, "{status:?}");
    let enforced = rig.run_options.enforces_sizes();
    ensure!((status.quota == QuotaMode::Enforced) == enforced, "{status:?}");
    let told = status.conditions.as_slice().contains(&Condition::NotEnforced);
    ensure!(told != enforced, "{status:?}");
    Ok(())
}

/// As the filesystem says it: those that it has, and on XFS those that it could make from what is free.
fn a_pool_tells_how_many_inodes_are_left(rig: &mut Rig) -> Result<()> {
    const FILES: u64 = 500;
    let helper = rig.helper()?;
    let counted = || {
        let told = helper.ask(&Request::PoolCounts { pool: "default".parse()? })?;
        let Reply::Counts { inodes, free_inodes, .. } = told else { bail!("{told:?}") };
        let found = statvfs(&rig.pool().directory)?;
        let found = (found.f_files, found.f_ffree);
        ensure!((inodes, free_inodes) == found, "{told:?} instead of {found:?}");
        Ok(free_inodes)
    };
    helper.ask_all([create(own("vol-a"), directory_spec(SIZE)), bind(own("vol-a"), "a")])?;
    let before = counted()?;
    for number in 0..FILES {
        std::fs::File::create(rig.target("a").join(number.to_string()))?;
    }
    let after = counted()?;
    ensure!(after > 0 && after + FILES <= before, "{after} are free, {before} were");
    Ok(())
}
