//! The rest of the Controller service: deletion, listing, validation, capacity, and calls that are not offered.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::volume_capability::access_mode::Mode;
use bulkhead_tests::csi::v1::*;
use bulkhead_tests::expect::refused;
use bulkhead_tests::ids::own;
use bulkhead_tests::rig::Rig;
use tonic::Code;

cases! {
    deleting_what_is_not_there_is_done,
    deleting_without_an_id_is_refused,
    deleting_a_published_volume_is_refused,
    deleting_a_published_volume_is_refused_after_a_restart,
    another_filesystem_than_the_pools_is_refused,
    validating_says_what_is_supported,
    validating_an_unknown_volume_is_not_found,
    validating_without_fields_is_refused,
    lists_come_in_pages,
    lists_refuse_bad_tokens_and_negative_numbers,
    capacity_falls_with_each_promise: Quota,
    capacity_elsewhere_is_none,
    what_is_not_offered_is_unimplemented,
    secrets_are_in_no_log,
}

const SIZE: i64 = 16 * MIB;

fn deleting_what_is_not_there_is_done(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for id in [own("vol-a"), "reallyfakevolumeid", "../default", "", "Größe", ".bulkhead", "lost+found"]
        .into_iter()
        .filter(|id| !id.is_empty())
    {
        csi.delete_volume(delete(id))?;
    }
    csi.create_volume(create(own("vol-a"), SIZE, block()))?;
    for _ in 0..5 {
        csi.delete_volume(delete(own("vol-a")))?;
    }
    Ok(())
}

fn deleting_without_an_id_is_refused(rig: &mut Rig) -> Result<()> {
    refused(rig.csi()?.delete_volume(delete("")), Code::InvalidArgument, "volume_id")
}

fn deleting_a_published_volume_is_refused(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for (id, capability) in [(own("vol-a"), mount()), (own("vol-b"), block())] {
        let target = rig.target(id);
        csi.create_volume(create(id, SIZE, capability.clone()))?;
        csi.node_publish_volume(publish(id, &target, capability))?;
        refused(csi.delete_volume(delete(id)), Code::FailedPrecondition, id)?;
    }
    Ok(())
}

fn deleting_a_published_volume_is_refused_after_a_restart(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for (id, capability) in [(own("vol-a"), mount()), (own("vol-b"), block())] {
        csi.create_volume(create(id, SIZE, capability.clone()))?;
        csi.node_publish_volume(publish(id, &rig.target(id), capability))?;
    }
    rig.restart()?;
    let csi = rig.csi()?;
    for id in [own("vol-a"), own("vol-b")] {
        refused(csi.delete_volume(delete(id)), Code::FailedPrecondition, id)?;
    }
    Ok(())
}

fn another_filesystem_than_the_pools_is_refused(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let (its, other) = (rig.run_options.pool_fs, rig.run_options.pool_fs.other());
    let capability = || mount_with_filesystem(other.name());
    let told = format!("pool default has {}", its.name());
    refused(csi.create_volume(create(own("vol-a"), SIZE, capability())), Code::InvalidArgument, &told)?;
    let question = GetCapacityRequest { volume_capabilities: vec![capability()], ..GetCapacityRequest::default() };
    let room = csi.get_capacity(question)?.available_capacity;
    ensure!(room == 0, "{room} bytes for volumes that could not be made");
    let both = vec![mount_with_filesystem(its.name()), capability()];
    let request = CreateVolumeRequest { volume_capabilities: both, ..create(own("vol-a"), SIZE, mount()) };
    refused(csi.create_volume(request), Code::InvalidArgument, "two filesystem types")?;
    csi.create_volume(create(own("vol-a"), SIZE, mount_with_filesystem(its.name())))?;
    let named = [("csi.storage.k8s.io/fstype".to_owned(), other.name().to_owned())].into();
    let question = ValidateVolumeCapabilitiesRequest { parameters: named, ..validate(own("vol-a"), vec![mount()]) };
    let answer = csi.validate_volume_capabilities(question)?;
    ensure!(answer.confirmed.is_none() && answer.message.contains(its.name()), "{answer:?}");
    Ok(())
}

fn validating_says_what_is_supported(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    csi.create_volume(create(own("vol-a"), SIZE, mount()))?;
    let good = vec![mount(), mount_in(Mode::SingleNodeWriter), mount_in(Mode::MultiNodeReaderOnly)];
    let answer = csi.validate_volume_capabilities(validate(own("vol-a"), good.clone()))?;
    let confirmed = answer.confirmed.with_context(|| format!("not confirmed: {}", answer.message))?;
    ensure!(confirmed.volume_capabilities == good, "{confirmed:?}");
    let other = rig.run_options.pool_fs.other().name();
    for bad in
        [block(), mount_in(Mode::MultiNodeMultiWriter), mount_with_filesystem("btrfs"), mount_with_filesystem(other)]
    {
        let answer = csi.validate_volume_capabilities(validate(own("vol-a"), vec![mount(), bad.clone()]))?;
        ensure!(answer.confirmed.is_none() && !answer.message.is_empty(), "{bad:?}: {answer:?}");
    }
    Ok(())
}

fn validating_an_unknown_volume_is_not_found(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for id in [own("vol-z"), "No Id"] {
        refused(csi.validate_volume_capabilities(validate(id, vec![mount()])), Code::NotFound, "volume")?;
    }
    Ok(())
}

fn validating_without_fields_is_refused(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    csi.create_volume(create(own("vol-a"), SIZE, mount()))?;
    for (request, part) in [
        (validate("", vec![mount()]), "volume_id"),
        (validate(own("vol-a"), vec![]), "volume_capabilities"),
        (validate(own("vol-a"), vec![VolumeCapability::default()]), "access_type"),
    ] {
        refused(csi.validate_volume_capabilities(request), Code::InvalidArgument, part)?;
    }
    Ok(())
}

fn lists_come_in_pages(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    ensure!(csi.list_volumes(ListVolumesRequest::default())?.entries.is_empty());
    let ids: Vec<String> = (0..23).map(|number| format!("vol-{number:02}")).collect();
    for id in &ids {
        csi.create_volume(create(id, MIB, mount()))?;
    }
    for max_entries in [0, 1, 7, 22, 23, 24, 1000] {
        let pages = csi.list_pages(max_entries)?;
        // Zero leaves it to the plugin; ours puts this many on one page.
        let full = if max_entries == 0 { ids.len() } else { usize::try_from(max_entries)? };
        let wanted: Vec<Vec<String>> = ids.chunks(full).map(<[String]>::to_vec).collect();
        ensure!(pages == wanted, "pages of {max_entries}: {pages:?}");
    }
    let page = csi.list_volumes(ListVolumesRequest { max_entries: 7, starting_token: String::new() })?;
    ensure!(!page.next_token.is_empty() && page.next_token.len() <= 128, "{:?}", page.next_token);
    for entry in page.entries {
        let volume = entry.volume.context("entry without a volume")?;
        ensure!(volume.capacity_bytes == MIB && volume.accessible_topology.len() == 1, "{volume:?}");
    }
    Ok(())
}

fn lists_refuse_bad_tokens_and_negative_numbers(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for token in ["invalid-token", "17", "../x", "ÄB"] {
        let request = ListVolumesRequest { max_entries: 0, starting_token: token.to_owned() };
        refused(csi.list_volumes(request), Code::Aborted, "starting_token")?;
    }
    let request = ListVolumesRequest { max_entries: -1, starting_token: String::new() };
    refused(csi.list_volumes(request), Code::InvalidArgument, "max_entries")
}

fn capacity_falls_with_each_promise(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let before = csi.get_capacity(GetCapacityRequest::default())?;
    ensure!(before.available_capacity > 0, "{before:?}");
    ensure!(before.maximum_volume_size.is_some_and(|size| size > 0 && size <= before.available_capacity), "{before:?}");
    for capability in [mount(), block()] {
        csi.create_volume(create(own("vol-a"), 64 * MIB, capability))?;
        let during = csi.get_capacity(GetCapacityRequest::default())?;
        // The filesystem's own usage varies a little; and capacity is that for directories, each with its inodes, of
        // which a block volume has none.
        let fallen = before.available_capacity - during.available_capacity;
        ensure!((61 * MIB..66 * MIB).contains(&fallen), "fell by {fallen}");
        csi.delete_volume(delete(own("vol-a")))?;
        rig.eventually(10, || {
            let after = csi.get_capacity(GetCapacityRequest::default())?;
            let missing = before.available_capacity - after.available_capacity;
            ensure!(missing.abs() < 2 * MIB, "{missing} are missing");
            Ok(())
        })?;
    }
    let unknown = GetCapacityRequest { parameters: parameters(&[("what", "1")]), ..GetCapacityRequest::default() };
    refused(csi.get_capacity(unknown), Code::InvalidArgument, "what")
}

fn capacity_elsewhere_is_none(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let here = csi.node_get_info(NodeGetInfoRequest {})?.accessible_topology.context("no topology")?;
    let mut elsewhere = here.clone();
    elsewhere.segments.values_mut().for_each(|value| *value = "elsewhere".to_owned());
    let at = |place| GetCapacityRequest { accessible_topology: Some(place), ..GetCapacityRequest::default() };
    ensure!(csi.get_capacity(at(here))?.available_capacity > 0);
    ensure!(csi.get_capacity(at(elsewhere))?.available_capacity == 0);
    let capabilities = vec![mount_in(Mode::MultiNodeMultiWriter)];
    let impossible = GetCapacityRequest { volume_capabilities: capabilities, ..GetCapacityRequest::default() };
    ensure!(csi.get_capacity(impossible)?.available_capacity == 0);
    Ok(())
}

fn what_is_not_offered_is_unimplemented(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let code = Code::Unimplemented;
    refused(csi.controller_publish_volume(ControllerPublishVolumeRequest::default()), code, "")?;
    refused(csi.controller_unpublish_volume(ControllerUnpublishVolumeRequest::default()), code, "")?;
    refused(csi.node_stage_volume(NodeStageVolumeRequest::default()), code, "")?;
    refused(csi.node_unstage_volume(NodeUnstageVolumeRequest::default()), code, "")
}

fn secrets_are_in_no_log(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let secrets = parameters(&[("password", "hunter2-secret")]);
    let target = rig.target("a");
    csi.create_volume(CreateVolumeRequest { secrets: secrets.clone(), ..create(own("vol-a"), SIZE, mount()) })?;
    csi.node_publish_volume(NodePublishVolumeRequest {
        secrets: secrets.clone(),
        ..publish(own("vol-a"), &target, mount())
    })?;
    csi.node_expand_volume(NodeExpandVolumeRequest {
        secrets: secrets.clone(),
        ..node_expand(own("vol-a"), &target, SIZE)
    })?;
    csi.controller_expand_volume(ControllerExpandVolumeRequest {
        secrets: secrets.clone(),
        ..controller_expand(own("vol-a"), SIZE)
    })?;
    csi.validate_volume_capabilities(ValidateVolumeCapabilitiesRequest {
        secrets: secrets.clone(),
        ..validate(own("vol-a"), vec![mount()])
    })?;
    csi.node_unpublish_volume(unpublish(own("vol-a"), &target))?;
    // Mount flags may be confidential too.
    let flags = mount_with_flags(&["password=hunter2-secret"]);
    refused(csi.node_publish_volume(publish(own("vol-a"), &target, flags)), Code::InvalidArgument, "noexec")?;
    csi.delete_volume(DeleteVolumeRequest { secrets, ..delete(own("vol-a")) })?;
    let silent = |log: &str, last: &str| {
        ensure!(!log.contains("hunter2"), "{log}");
        ensure!(log.contains(last) && log.contains(own("vol-a")), "the last call is not logged yet: {log}");
        Ok(())
    };
    rig.running_helper()?.check_log(|log| silent(log, "delete"))?;
    rig.running_frontend()?.check_log(|log| silent(log, "DeleteVolume"))
}
