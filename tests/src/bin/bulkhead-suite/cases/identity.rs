//! The plugin's identity, its readiness, and its privileges.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::v1::plugin_capability::{Type, service, volume_expansion};
use bulkhead_tests::csi::v1::*;
use bulkhead_tests::observe::processes;
use bulkhead_tests::rig::Rig;

cases! {
    plugin_info_names_the_driver_and_its_release,
    the_driver_is_called_as_the_helper_is_configured: Bare,
    plugin_has_a_controller_places_and_online_expansion,
    node_service_tells_what_it_can_do,
    controller_service_tells_what_it_can_do,
    node_info_is_the_same_after_restarts,
    probe_says_not_ready_without_the_helper_and_does_not_block,
    all_services_are_on_one_socket_with_nothing_beside_it,
    the_frontend_has_no_privilege,
    the_helper_has_no_capability_its_placer_two_and_its_emptier_three,
    the_kubelets_keys_are_out_of_the_helpers_sight,
}

fn plugin_info_names_the_driver_and_its_release(rig: &mut Rig) -> Result<()> {
    let info = rig.csi()?.get_plugin_info(GetPluginInfoRequest {})?;
    ensure!(info.name == "bulkhead.csi.local", "name {:?}", info.name);
    ensure!(!info.vendor_version.is_empty() && info.vendor_version.len() <= 128, "{:?}", info.vendor_version);
    Ok(())
}

fn the_driver_is_called_as_the_helper_is_configured(rig: &mut Rig) -> Result<()> {
    let socket = rig.kubelet.csi_socket().display().to_string();
    rig.helper_flags = ["--driver-name", "other.example", "--csi-socket", &socket].map(str::to_owned).to_vec();
    // The socket's directory is named after the driver, so the helper does not create the one for this test.
    fs::create_dir_all(rig.kubelet.root().join("plugins/other.example"))?;
    let own = rig.kubelet.root().join("plugins/other.example/csi.sock");
    rig.helper_flags[3] = own.display().to_string();
    rig.start_helper()?;
    rig.launch_frontend()?;
    rig.eventually(20, || {
        let csi = bulkhead_tests::csi::CsiClient::connect(&own)?;
        let name = csi.get_plugin_info(GetPluginInfoRequest {})?.name;
        ensure!(name == "other.example", "name {name:?}");
        let segments = csi.node_get_info(NodeGetInfoRequest {})?.accessible_topology.context("no topology")?.segments;
        ensure!(segments.keys().all(|key| key.starts_with("other.example/")), "{segments:?}");
        Ok(())
    })?;
    rig.stop()?;
    // Its sockets have different names, so a helper with another name removes them.
    for path in [own, rig.kubelet.root().join("plugins_registry/other.example@reg.sock")] {
        if path.exists() {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn plugin_has_a_controller_places_and_online_expansion(rig: &mut Rig) -> Result<()> {
    let answer = rig.csi()?.get_plugin_capabilities(GetPluginCapabilitiesRequest {})?;
    let kinds: Vec<Type> = answer.capabilities.into_iter().filter_map(|capability| capability.r#type).collect();
    for wanted in [
        service::Type::ControllerService,
        service::Type::VolumeAccessibilityConstraints,
        service::Type::GroupControllerService,
        service::Type::SnapshotMetadataService,
    ] {
        let found = kinds.iter().any(|kind| matches!(kind, Type::Service(own) if own.r#type() == wanted));
        ensure!(found, "{wanted:?} is not in {kinds:?}");
    }
    let online = volume_expansion::Type::Online;
    let found = kinds.iter().any(|kind| matches!(kind, Type::VolumeExpansion(own) if own.r#type() == online));
    ensure!(found, "online expansion is not in {kinds:?}");
    Ok(())
}

fn node_service_tells_what_it_can_do(rig: &mut Rig) -> Result<()> {
    use node_service_capability::rpc::Type::*;
    let answer = rig.csi()?.node_get_capabilities(NodeGetCapabilitiesRequest {})?;
    let calls: Vec<_> = answer.capabilities.iter().filter_map(|own| own.r#type.as_ref()).collect();
    let has = |wanted| calls.iter().any(|node_service_capability::Type::Rpc(own)| own.r#type() == wanted);
    for wanted in
        [GetVolumeStats, ExpandVolume, VolumeCondition, SingleNodeMultiWriter, GetVolumeHealth, GetStorageHealth]
    {
        ensure!(has(wanted), "{wanted:?} is missing");
    }
    // A staging path would be required for every publish.
    ensure!(!has(StageUnstageVolume), "volumes are staged");
    Ok(())
}

fn controller_service_tells_what_it_can_do(rig: &mut Rig) -> Result<()> {
    use controller_service_capability::rpc::Type::*;
    let answer = rig.csi()?.controller_get_capabilities(ControllerGetCapabilitiesRequest {})?;
    let calls: Vec<_> = answer.capabilities.iter().filter_map(|own| own.r#type.as_ref()).collect();
    let has = |wanted| calls.iter().any(|controller_service_capability::Type::Rpc(own)| own.r#type() == wanted);
    for wanted in [
        CreateDeleteVolume, ListVolumes, GetCapacity, ExpandVolume, SingleNodeMultiWriter, GetVolumeHealth,
        ListVolumeHealth,
    ] {
        ensure!(has(wanted), "{wanted:?} is missing");
    }
    ensure!(!has(PublishUnpublishVolume), "a local volume is never attached to another node");
    Ok(())
}

fn node_info_is_the_same_after_restarts(rig: &mut Rig) -> Result<()> {
    let before = rig.csi()?.node_get_info(NodeGetInfoRequest {})?;
    ensure!(before.node_id == "node" && before.max_volumes_per_node >= 0, "{before:?}");
    let place = before.accessible_topology.as_ref().context("no topology")?;
    ensure!(place.segments.len() == 1 && place.segments.values().all(|value| value.len() <= 63), "{place:?}");
    rig.restart()?;
    let after = rig.csi()?.node_get_info(NodeGetInfoRequest {})?;
    ensure!(before == after, "{before:?} became {after:?}");
    Ok(())
}

fn probe_says_not_ready_without_the_helper_and_does_not_block(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    ensure!(csi.probe(ProbeRequest {})?.ready == Some(true));
    rig.kill_helper()?;
    for _ in 0..3 {
        let start = Instant::now();
        let ready = csi.probe(ProbeRequest {})?.ready;
        ensure!(ready == Some(false), "ready: {ready:?}");
        ensure!(start.elapsed() < rig.patience(Duration::from_secs(3)), "took {:?}", start.elapsed());
    }
    rig.start_helper()?;
    rig.eventually(10, || csi.check_ready())
}

fn all_services_are_on_one_socket_with_nothing_beside_it(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    csi.get_plugin_info(GetPluginInfoRequest {})?;
    csi.controller_get_capabilities(ControllerGetCapabilitiesRequest {})?;
    csi.node_get_capabilities(NodeGetCapabilitiesRequest {})?;
    let socket = rig.kubelet.csi_socket();
    let directory = socket.parent().context("socket without a directory")?;
    let names: Vec<_> =
        fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<_, _>>()?;
    ensure!(names == ["csi.sock"], "{names:?}");
    Ok(())
}

/// A value from a process's status file, as a number in this base.
fn status(pid: i32, key: &str) -> Result<u64> {
    let values = processes::status(pid, key)?;
    let value = values.split_whitespace().next().context(key.to_owned())?;
    Ok(u64::from_str_radix(value, if key.starts_with("Cap") { 16 } else { 10 })?)
}

fn the_frontend_has_no_privilege(rig: &mut Rig) -> Result<()> {
    let pid = i32::try_from(rig.running_frontend()?.pid())?;
    ensure!(status(pid, "Uid")? == 901);
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        ensure!(status(pid, set)? == 0, "{set} {:x}", status(pid, set)?);
    }
    Ok(())
}

fn the_helper_has_no_capability_its_placer_two_and_its_emptier_three(rig: &mut Rig) -> Result<()> {
    // linux/capability.h
    const DAC_OVERRIDE: u64 = 1 << 1;
    const FOWNER: u64 = 1 << 3;
    const LINUX_IMMUTABLE: u64 = 1 << 9;
    const SYS_ADMIN: u64 = 1 << 21;
    const MKNOD: u64 = 1 << 27;
    let keeper = rig.helper_pid()?;
    let children = processes::descendants(keeper)?;
    ensure!(children.len() == 2, "{children:?}");
    let (emptier, placer) = (rig.emptier_pid()?, processes::placer(keeper)?);
    // They are still dropping their privileges when the helper may already be serving.
    rig.eventually(5, || [emptier, placer].into_iter().try_for_each(processes::check_filtered))?;
    let of_the_emptier = DAC_OVERRIDE | FOWNER | LINUX_IMMUTABLE;
    for (pid, permitted) in [(keeper, 0), (placer, SYS_ADMIN | MKNOD), (emptier, of_the_emptier)] {
        ensure!(status(pid, "CapPrm")? == permitted, "CapPrm {:x}, not {permitted:x}", status(pid, "CapPrm")?);
        for set in ["CapInh", "CapEff", "CapBnd", "CapAmb"] {
            ensure!(status(pid, set)? == 0, "{set} {:x}", status(pid, set)?);
        }
        ensure!(status(pid, "NoNewPrivs")? == 1 && status(pid, "Seccomp")? == 2);
    }
    Ok(())
}

fn the_kubelets_keys_are_out_of_the_helpers_sight(rig: &mut Rig) -> Result<()> {
    let (keeper, pid) = (rig.helper_pid()?, processes::placer(rig.helper_pid()?)?);
    // The placer's own root, as seen through its entry in /proc.
    for (directory, wanted) in [
        ("", &["bulkhead-devices", "bulkhead-pools", "publish", "sockets"][..]),
        ("/bulkhead-devices", &[]),
        ("/bulkhead-pools", &["default"]),
        ("/publish", &["kubelet-csi", "kubelet-pods", "work"]),
        ("/sockets", &["csi", "registration"]),
    ] {
        let found = names(&format!("/proc/{pid}/root{directory}"))?;
        ensure!(found == wanted, "the helper finds {found:?} in {directory:?} of its root, not {wanted:?}");
    }
    let mounted = mount_points(pid)?;
    let wanted = [
        "/", "/bulkhead-devices", "/bulkhead-pools/default", "/publish/kubelet-csi", "/publish/kubelet-pods",
        "/publish/work", "/sockets/csi", "/sockets/registration",
    ];
    ensure!(mounted == wanted, "the helper has the mounts {mounted:?}, not {wanted:?}");
    let mounted = mount_points(keeper)?;
    let of_the_keeper = ["/", "/bulkhead-pools/default", "/sockets/csi", "/sockets/registration"];
    ensure!(mounted == of_the_keeper, "the keeper has the mounts {mounted:?}");
    let mounted = mount_points(rig.emptier_pid()?)?;
    ensure!(mounted == ["/", "/bulkhead-pools/default"], "the emptier has the mounts {mounted:?}");
    Ok(())
}

/// The mount points of a process within its own root, sorted.
fn mount_points(pid: i32) -> Result<Vec<String>> {
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo"))?;
    let points = table.lines().map(|line| line.split(' ').nth(4).map(str::to_owned).context("a line without a path"));
    let mut points: Vec<String> = points.collect::<Result<_>>()?;
    points.sort();
    Ok(points)
}

fn names(directory: &str) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    let mut names: Vec<String> =
        entries.into_iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}
