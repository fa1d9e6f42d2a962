//! Creating volumes through the Controller service.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::controller_client::ControllerClient;
use bulkhead_tests::csi::v1::volume_capability::access_mode::Mode;
use bulkhead_tests::csi::v1::*;
use bulkhead_tests::expect::refused;
use bulkhead_tests::rig::Rig;
use tonic::Code;

cases! {
    the_same_name_gives_the_same_volume,
    the_same_name_gives_the_same_volume_after_both_restart,
    concurrent_calls_make_one_volume,
    the_same_name_with_other_wishes_already_exists,
    the_answer_has_the_real_size_and_place,
    a_range_of_sizes_is_honoured,
    impossible_ranges_are_refused,
    any_unicode_name_becomes_a_safe_id,
    two_names_never_share_a_volume,
    missing_fields_are_refused,
    unknown_parameters_and_values_are_refused,
    parameters_choose_pool_mode_and_inodes: Bare,
    access_modes_are_those_of_a_local_volume,
    a_volume_is_a_directory_or_a_device,
    a_place_elsewhere_is_refused,
    a_source_of_content_that_is_not_there_is_not_found,
}

const SIZE: i64 = 16 * MIB;

fn the_same_name_gives_the_same_volume(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for (name, capability) in [("vol-a", mount()), ("vol-b", block())] {
        let first = csi.create_volume(create(name, SIZE, capability.clone()))?;
        for _ in 0..4 {
            let again = csi.create_volume(create(name, SIZE, capability.clone()))?;
            ensure!(first == again, "{first:?} became {again:?}");
        }
    }
    rig.pool().holds(&["vol-a", "vol-b"])
}

fn the_same_name_gives_the_same_volume_after_both_restart(rig: &mut Rig) -> Result<()> {
    for (name, capability) in [("vol-a", mount()), ("vol-b", block())] {
        let first = rig.csi()?.create_volume(create(name, SIZE, capability.clone()))?;
        rig.restart()?;
        let again = rig.csi()?.create_volume(create(name, SIZE, capability))?;
        ensure!(first == again, "{first:?} became {again:?}");
    }
    Ok(())
}

fn concurrent_calls_make_one_volume(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let statuses = csi.run(async {
        let mut calls = Vec::new();
        for _ in 0..8 {
            let mut client = ControllerClient::new(csi.channel());
            calls.push(tokio::spawn(async move { client.create_volume(create("vol-a", SIZE, mount())).await }));
        }
        let mut statuses = Vec::new();
        for call in calls {
            statuses.push(call.await?);
        }
        anyhow::Ok(statuses)
    })?;
    ensure!(statuses.iter().any(Result::is_ok), "none succeeded: {statuses:?}");
    for refusal in statuses.into_iter().filter(Result::is_err) {
        refused(refusal, Code::Aborted, "vol-a")?;
    }
    let again = csi.create_volume(create("vol-a", SIZE, mount()))?;
    ensure!(again.volume.context("no volume")?.volume_id == "vol-a");
    rig.pool().holds(&["vol-a"])
}

fn the_same_name_with_other_wishes_already_exists(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    csi.create_volume(create("vol-a", SIZE, mount()))?;
    let with = |change: fn(&mut CreateVolumeRequest)| {
        let mut request = create("vol-a", SIZE, mount());
        change(&mut request);
        request
    };
    for request in [
        with(|request| request.capacity_range = at_least(SIZE + MIB)),
        with(|request| request.capacity_range = between(0, SIZE - MIB)),
        with(|request| request.volume_capabilities = vec![block()]),
        with(|request| request.parameters = parameters(&[("dirMode", "0700")])),
        with(|request| request.parameters = parameters(&[("inodes", "5000")])),
    ] {
        refused(csi.create_volume(request), Code::AlreadyExists, "vol-a")?;
    }
    // A range that includes the volume's size is a matching request.
    let request = with(|request| request.capacity_range = between(SIZE - MIB, SIZE + MIB));
    let volume = csi.create_volume(request)?.volume.context("no volume")?;
    ensure!(volume.capacity_bytes == SIZE, "{volume:?}");
    Ok(())
}

fn the_answer_has_the_real_size_and_place(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let place = csi.node_get_info(NodeGetInfoRequest {})?.accessible_topology.context("no topology")?;
    let volume = csi.create_volume(create("vol-a", SIZE + 1, mount()))?.volume.context("no volume")?;
    ensure!(volume.capacity_bytes == SIZE + 4096, "{volume:?}");
    ensure!(volume.accessible_topology == [place.clone()], "{volume:?}");
    csi.delete_volume(delete("vol-a"))?;
    // Topology keys are compared without regard to case.
    let capitals: std::collections::BTreeMap<_, _> =
        place.segments.iter().map(|(key, value)| (key.to_uppercase(), value.clone())).collect();
    for requirement in [
        TopologyRequirement { requisite: vec![place.clone()], preferred: vec![] },
        TopologyRequirement { requisite: vec![Topology { segments: capitals }], preferred: vec![place.clone()] },
        TopologyRequirement { requisite: vec![], preferred: vec![place.clone()] },
    ] {
        let request =
            CreateVolumeRequest { accessibility_requirements: Some(requirement), ..create("vol-b", SIZE, mount()) };
        let volume = csi.create_volume(request)?.volume.context("no volume")?;
        ensure!(volume.accessible_topology == [place.clone()], "{volume:?}");
    }
    Ok(())
}

fn a_range_of_sizes_is_honoured(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for (range, wanted) in [
        (between(SIZE, SIZE), SIZE),
        (between(SIZE + 1, SIZE + 4096), SIZE + 4096),
        (between(0, SIZE + 1), SIZE),
        (at_least(MIB), MIB),
    ] {
        let request = CreateVolumeRequest { capacity_range: range, ..create("vol-a", SIZE, mount()) };
        let volume = csi.create_volume(request)?.volume.context("no volume")?;
        ensure!(volume.capacity_bytes == wanted, "{range:?} gave {volume:?}");
        csi.delete_volume(delete("vol-a"))?;
    }
    Ok(())
}

fn impossible_ranges_are_refused(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for (range, code, part) in [
        (between(0, 0), Code::InvalidArgument, "capacity_range"),
        (between(-1, 0), Code::InvalidArgument, "negative"),
        (between(SIZE, -1), Code::InvalidArgument, "negative"),
        (between(i64::MIN, i64::MIN), Code::InvalidArgument, "negative"),
        (between(2 * SIZE, SIZE), Code::InvalidArgument, "more than limit_bytes"),
        (between(SIZE + 1, SIZE + 1), Code::OutOfRange, "4 KiB"),
        (between(0, 1000), Code::OutOfRange, "1 MiB"),
        (at_least(1), Code::OutOfRange, "request at least 1 MiB"),
        (between(MIB - 1, SIZE), Code::OutOfRange, "request at least 1 MiB"),
        (at_least(i64::MAX), Code::OutOfRange, "larger than any volume can be"),
    ] {
        for capability in [mount(), block()] {
            let request = CreateVolumeRequest { capacity_range: range, ..create("vol-a", SIZE, capability) };
            refused(csi.create_volume(request), code, part).with_context(|| format!("{range:?}"))?;
        }
    }
    Ok(())
}

fn any_unicode_name_becomes_a_safe_id(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let long = "x".repeat(129);
    let longest = "x".repeat(128);
    let names = [
        "../../etc/passwd", ".", "..", "/", ".bulkhead", "-x", "Größe", "卷", "🚢 hull", "a b", "A", &long, &longest,
        "pvc-0d6f",
    ];
    for name in names {
        let id = rig.create(&csi, name, MIB, mount())?;
        let safe = id.len() <= 128 && id.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'));
        ensure!(safe && id.starts_with(|first: char| first.is_ascii_lowercase()), "{name:?} became {id:?}");
        ensure!(rig.pool().entries()? == [id.clone()], "{name:?}: {:?}", rig.pool().entries()?);
        csi.delete_volume(delete(&id))?;
        rig.eventually(5, || rig.pool().holds(&[]))?;
    }
    ensure!(rig.create(&csi, "pvc-0d6f", MIB, mount())? == "pvc-0d6f", "a name that is an id becomes another");
    Ok(())
}

fn two_names_never_share_a_volume(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let hashed = rig.create(&csi, "Größe", MIB, mount())?;
    // The id that was assigned to one name is used as another name.
    refused(csi.create_volume(create(&hashed, MIB, mount())), Code::AlreadyExists, &hashed)
}

fn missing_fields_are_refused(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let without_type = VolumeCapability { access_type: None, ..mount() };
    let without_mode = VolumeCapability { access_mode: None, ..mount() };
    for (request, part) in [
        (create("", SIZE, mount()), "name"),
        (CreateVolumeRequest { volume_capabilities: vec![], ..create("vol-a", SIZE, mount()) }, "volume_capabilities"),
        (create("vol-a", SIZE, VolumeCapability::default()), "access_type"),
        (create("vol-a", SIZE, without_type), "access_type"),
        (create("vol-a", SIZE, without_mode), "access_mode"),
        (create("vol-a", SIZE, mount_in(Mode::Unknown)), "access_mode"),
    ] {
        refused(csi.create_volume(request), Code::InvalidArgument, part)?;
    }
    Ok(())
}

fn unknown_parameters_and_values_are_refused(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for (pair, part) in [
        (("fsType", "xfs"), "fsType"),
        (("path", "/etc"), "path"),
        (("pool", "../default"), "pool"),
        (("pool", "other"), "other"),
        (("dirMode", "4755"), "dirMode"),
        (("dirMode", "rwx"), "dirMode"),
        (("inodes", "0"), "inodes"),
        (("inodes", "-1"), "inodes"),
        (("sparse", "perhaps"), "sparse"),
        (("blockSize", "1"), "blockSize"),
        (("csi.storage.k8s.io/fstype", "btrfs"), "btrfs"),
    ] {
        let request = CreateVolumeRequest { parameters: parameters(&[pair]), ..create("vol-a", SIZE, mount()) };
        refused(csi.create_volume(request), Code::InvalidArgument, part).with_context(|| format!("{pair:?}"))?;
    }
    let request = CreateVolumeRequest { parameters: parameters(&[("what", "1")]), ..create("vol-a", SIZE, mount()) };
    refused(csi.create_volume(request), Code::InvalidArgument, "dirMode")
}

fn parameters_choose_pool_mode_and_inodes(rig: &mut Rig) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    for name in ["default", "fast"] {
        rig.add_pool(name)?;
    }
    let csi = rig.started_csi()?;
    let pairs = parameters(&[("pool", "fast"), ("dirMode", "1777"), ("inodes", "2000")]);
    csi.create_volume(CreateVolumeRequest { parameters: pairs, ..create("vol-a", SIZE, mount()) })?;
    csi.create_volume(create("vol-b", SIZE, mount()))?;
    ensure!(rig.pools[0].entries()? == ["vol-b"] && rig.pools[1].entries()? == ["vol-a"]);
    let (a, b) = (rig.target("a"), rig.target("b"));
    csi.node_publish_volume(publish("vol-a", &a, mount()))?;
    csi.node_publish_volume(publish("vol-b", &b, mount()))?;
    ensure!(a.metadata()?.mode() & 0o7777 == 0o1777, "{:o}", a.metadata()?.mode());
    ensure!(b.metadata()?.mode() & 0o7777 == 0o755, "{:o}", b.metadata()?.mode());
    let usage = csi.node_get_volume_stats(stats("vol-a", &a))?.usage;
    let inodes = usage.iter().find(|usage| usage.unit() == volume_usage::Unit::Inodes).context("no inodes")?;
    ensure!(inodes.total == 2000, "{inodes:?}");
    Ok(())
}

fn access_modes_are_those_of_a_local_volume(rig: &mut Rig) -> Result<()> {
    use Mode::*;
    let csi = rig.csi()?;
    for mode in
        [SingleNodeWriter, SingleNodeReaderOnly, MultiNodeReaderOnly, SingleNodeSingleWriter, SingleNodeMultiWriter]
    {
        csi.create_volume(create("vol-a", SIZE, mount_in(mode)))?;
        csi.create_volume(create("vol-b", SIZE, block_in(mode)))?;
    }
    for mode in [MultiNodeSingleWriter, MultiNodeMultiWriter] {
        for (name, capability) in [("vol-a", mount_in(mode)), ("vol-c", block_in(mode))] {
            refused(csi.create_volume(create(name, SIZE, capability)), Code::InvalidArgument, mode.as_str_name())?;
        }
    }
    Ok(())
}

fn a_volume_is_a_directory_or_a_device(rig: &mut Rig) -> Result<()> {
    let request = CreateVolumeRequest { volume_capabilities: vec![mount(), block()], ..create("vol-a", SIZE, mount()) };
    refused(rig.csi()?.create_volume(request), Code::InvalidArgument, "either")
}

fn a_place_elsewhere_is_refused(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let mut place = csi.node_get_info(NodeGetInfoRequest {})?.accessible_topology.context("no topology")?;
    place.segments.values_mut().for_each(|value| *value = "elsewhere".to_owned());
    let requirement = TopologyRequirement { requisite: vec![place.clone()], preferred: vec![place] };
    let request =
        CreateVolumeRequest { accessibility_requirements: Some(requirement), ..create("vol-a", SIZE, mount()) };
    refused(csi.create_volume(request), Code::ResourceExhausted, "node")
}

fn a_source_of_content_that_is_not_there_is_not_found(rig: &mut Rig) -> Result<()> {
    use volume_content_source::{SnapshotSource, Type, VolumeSource};
    let csi = rig.csi()?;
    let snapshot = Type::Snapshot(SnapshotSource { snapshot_id: "snap-1".to_owned() });
    let volume = Type::Volume(VolumeSource { volume_id: "vol-z".to_owned() });
    let (absent, incomplete) = (Code::NotFound, Code::InvalidArgument);
    for (source, code, part) in
        [(Some(snapshot), absent, "snap-1"), (Some(volume), absent, "vol-z"), (None, incomplete, "source")]
    {
        let source = Some(VolumeContentSource { r#type: source });
        let request = CreateVolumeRequest { volume_content_source: source, ..create("vol-a", SIZE, mount()) };
        refused(csi.create_volume(request), code, part)?;
    }
    Ok(())
}
