//! Objects of the API, as they are read and judged: whoever may create them chooses what is in them. The input is a list
//! of objects of any kinds, or one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use bulkhead_model::objects::class::Class;
use bulkhead_model::objects::content::{Content, Source};
use bulkhead_model::objects::fields::Fields;
use bulkhead_model::objects::group_class::VolumeGroupSnapshotClass;
use bulkhead_model::objects::group_content::VolumeGroupSnapshotContent;
use bulkhead_model::objects::snapshot_class::VolumeSnapshotClass;
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_model::objects::volume_snapshot::VolumeSnapshot;
use bulkhead_model::objects::{attributes_class, claim, owner, persistent_volume, storage_class};
use bulkhead_model::volumes::{Mode, Place, Provisioned};
use bulkhead_model::{owner as record, policies};
use bulkhead_protocol::{Bytes, DriverName};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttributesClass};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api_answers::reduced;

static DRIVER: LazyLock<DriverName> = LazyLock::new(|| "bulkhead.csi.local".parse().expect("a name"));
static HERE: LazyLock<Place> = LazyLock::new(|| Place::new(&DRIVER, "here"));

/// Judgements agree with each other, and are the same of what is kept of an object as of the whole.
pub fn run(input: &[u8]) {
    let Ok(mut input) = serde_json::from_slice::<Value>(input) else { return };
    let objects = match input.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => vec![input],
    };
    of(&objects, "PersistentVolume").for_each(|object| persistent_volume(&object));
    of(&objects, "VolumeSnapshotContent").for_each(|object: VolumeSnapshotContent| {
        content(&object);
        let _ = object.mode();
    });
    of(&objects, "VolumeGroupSnapshotContent").for_each(|object: VolumeGroupSnapshotContent| content(&object));
    of::<VolumeSnapshot>(&objects, "VolumeSnapshot").for_each(drop);
    of::<VolumeSnapshotClass>(&objects, "VolumeSnapshotClass").for_each(|class| drop(class.flaw()));
    of::<VolumeGroupSnapshotClass>(&objects, "VolumeGroupSnapshotClass").for_each(|class| drop(class.flaw()));
    of(&objects, "VolumeAttributesClass").for_each(|class: VolumeAttributesClass| {
        let attributes = attributes_class::attributes(&class, &DRIVER);
        assert!(attributes.is_err() || class.driver_name == DRIVER.as_str());
    });
    of(&objects, "StorageClass").for_each(|class| storage_class(&class));
    let classes: Vec<StorageClass> = of(&objects, "StorageClass").collect();
    for claim in of(&objects, "PersistentVolumeClaim") {
        let none = [StorageClass::default()];
        let classes = if classes.is_empty() { &none } else { classes.as_slice() };
        classes.iter().for_each(|class| described(&claim, class));
    }
    admission(&objects);
    for (kind, fields) in [("PersistentVolumeClaim", Fields::Claim), ("PersistentVolume", Fields::PersistentVolume), ("VolumeSnapshotContent", Fields::Content), ("VolumeGroupSnapshotContent", Fields::Content)] {
        objects.iter().filter(|object| object["kind"] == kind).for_each(|object| kept(object, kind, fields));
    }
}

/// The objects of a kind that the API server could have sent.
fn of<K: DeserializeOwned>(objects: &[Value], kind: &str) -> impl Iterator<Item = K> {
    objects.iter().filter(move |object| object["kind"] == kind).filter_map(|object| K::deserialize(object).ok())
}

fn persistent_volume(object: &PersistentVolume) {
    let named = persistent_volume::named_volume(object, &DRIVER, &HERE);
    if let Some(own) = persistent_volume::own_volume(object, &DRIVER, &HERE) {
        assert_eq!(named, Some(own.as_str()), "what is ours may be ours");
        assert!(persistent_volume::nodes(object, &HERE).all(|node| node == HERE.value()));
    }
    assert!(named.is_none() || persistent_volume::is_of_driver(object, &DRIVER));
    if let Some(reference) = persistent_volume::claim_reference(object) {
        assert_eq!(reference.extra.uid.as_deref(), persistent_volume::claim_uid(object));
    }
    if let Some(owner) = owner::record(object, Some("cluster")) {
        let keys = record::read(owner.as_str()).expect("it was written just now");
        let claim = object.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()).expect("it has an owner");
        let name = format!("{}/{}", claim.namespace.as_deref().expect("one"), claim.name.as_deref().expect("one"));
        assert!(keys.get(record::CLAIM).is_none_or(|claim| *claim == name));
    }
}

fn content<K: Content>(content: &K) {
    let (handle, said) = (content.handle(), content.said());
    if let Some(Source::Existing(named)) = content.source() {
        assert_eq!(handle.as_deref(), Some(named));
    }
    assert!(content.node(&HERE).is_none_or(|node| !node.is_empty()));
    assert!(!content.is_ready() || said.is_ready == Some(true) && said.handle == handle.as_deref());
    assert!(!(content.is_of_group() && content.deletes_snapshot()), "it goes with its group");
    let _ = (content.error(), content.is_released(), content.is_being_created(), content.takes_along());
}

fn storage_class(class: &StorageClass) {
    let is_flawed = storage_class::parameters(class).is_err() || storage_class::check_mount_options(class).is_err();
    assert_eq!(storage_class::flaw(class).is_some(), is_flawed);
    assert!(!storage_class::allows(class, &HERE) || storage_class::may_be_at(class, &HERE));
}

/// What is made for a claim is ours, and the claim's.
fn described(claim: &PersistentVolumeClaim, class: &StorageClass) {
    let volume = claim::volume_name(claim);
    let (Ok(volume), Ok(size)) = (volume.parse(), Bytes::try_from(1 << 30)) else { return };
    let provisioned = Provisioned { volume, size };
    let object = persistent_volume::describe(&DRIVER, &HERE, claim, class, &provisioned);
    assert_eq!(persistent_volume::own_volume(&object, &DRIVER, &HERE), Some(provisioned.volume));
    assert_eq!(persistent_volume::capacity_bytes(&object), Some(size.get()));
    assert_eq!(persistent_volume::claim_uid(&object), claim.metadata.uid.as_deref());
    assert!(persistent_volume::has_finalizer(&object) && !persistent_volume::is_being_deleted(&object));
    let spec = object.spec.expect("a volume");
    let csi = spec.csi.expect("a volume of a driver");
    assert_eq!(spec.volume_mode.as_deref() == Some("Block"), claim::mode(claim) == Mode::Block);
    assert!(spec.volume_mode.as_deref() != Some("Block") || csi.fs_type.is_none() && spec.mount_options.is_none());
}

/// Policies that confine an agent confine no other account.
fn admission(objects: &[Value]) {
    let found: BTreeMap<String, ValidatingAdmissionPolicy> = policies::by_name(of(objects, "ValidatingAdmissionPolicy"));
    let bindings: BTreeMap<String, ValidatingAdmissionPolicyBinding> =
        policies::by_name(of(objects, "ValidatingAdmissionPolicyBinding"));
    if found.is_empty() {
        return;
    }
    let account = "system:serviceaccount:bulkhead-system:bulkhead-agent";
    let judge = |bindings: &_| policies::judge(account, DRIVER.as_str(), &found, bindings);
    if judge(&bindings).is_ok() {
        for name in bindings.keys().filter(|name| found.contains_key(*name)).collect::<BTreeSet<_>>() {
            let mut fewer = bindings.clone();
            fewer.remove(name);
            let is_needed = bulkhead_model::objects::names::AGENT_POLICIES.contains(&name.as_str());
            assert_eq!(judge(&fewer).is_err(), is_needed, "without {name}");
        }
    }
}

/// What is read of an object is the same after it was reduced to the fields that are read.
fn kept(object: &Value, kind: &str, fields: Fields) {
    if has_more_than_is_kept(object) {
        return;
    }
    let text = object.to_string();
    let Ok(kept) = reduced(fields, text.as_bytes().chunks(64)) else { return };
    let kept: Value = serde_json::from_slice(&kept).expect("JSON");
    match kind {
        "PersistentVolumeClaim" => same(object, &kept, read_of_claim),
        "PersistentVolume" => same(object, &kept, read_of_volume),
        "VolumeSnapshotContent" => same(object, &kept, read_of_snapshot),
        _ => same(object, &kept, read_of_group),
    }
}

fn same<K: DeserializeOwned>(whole: &Value, kept: &Value, read: fn(&K) -> String) {
    let Ok(whole) = K::deserialize(whole) else { return };
    let kept = K::deserialize(kept).expect("less of an object that can be read");
    assert_eq!(read(&kept), read(&whole));
}

/// Returns whether there are long texts or lists, or keys that are written with escapes.
fn has_more_than_is_kept(value: &Value) -> bool {
    match value {
        Value::Object(members) => {
            members.iter().any(|(key, value)| key.contains(['\\', '"']) || key.len() > 1024 || has_more_than_is_kept(value))
        }
        Value::Array(values) => values.len() > 32 || values.iter().any(has_more_than_is_kept),
        Value::String(text) => text.len() > 150,
        _ => false,
    }
}

fn read_of_claim(object: &PersistentVolumeClaim) -> String {
    let spec = object.spec.as_ref();
    let status = object.status.as_ref();
    format!(
        "{:?}",
        (
            (claim::provisioner(object), claim::selected_node(object), claim::class(object), claim::is_bound(object)),
            (claim::attributes_class(object), claim::persistent_volume(object), claim::is_being_deleted(object)),
            (claim::requested_bytes(object), claim::mode(object), claim::volume_name(object)),
            spec.map(|spec| (&spec.access_modes, spec.selector.is_some(), &spec.data_source_ref)),
            status.map(|status| (&status.phase, &status.current_volume_attributes_class_name)),
        )
    )
}

fn read_of_volume(object: &PersistentVolume) -> String {
    format!(
        "{:?}",
        (
            (persistent_volume::own_volume(object, &DRIVER, &HERE), persistent_volume::claim_reference(object)),
            (persistent_volume::named_volume(object, &DRIVER, &HERE), persistent_volume::binding(object)),
            (persistent_volume::capacity_bytes(object), persistent_volume::phase(object)),
            (persistent_volume::has_finalizer(object), persistent_volume::is_deleted_when_released(object)),
            (persistent_volume::is_being_deleted(object), persistent_volume::uid(object)),
            persistent_volume::nodes(object, &HERE).collect::<Vec<_>>(),
            owner::record(object, None),
        )
    )
}

fn read_of_content<K: Content>(content: &K) -> String {
    format!(
        "{:?}",
        (
            (content.handle(), content.object_uid(), content.source(), content.said(), content.class()),
            (content.is_of_group(), content.deletes_snapshot(), content.is_being_deleted(), content.is_released()),
            (content.is_being_created(), content.has_finalizer(), content.node(&HERE), content.owner()),
        )
    )
}

fn read_of_snapshot(content: &VolumeSnapshotContent) -> String {
    format!("{:?} {}", content.mode(), read_of_content(content))
}

fn read_of_group(content: &VolumeGroupSnapshotContent) -> String {
    format!("{:?} {}", content.spec.source.group_snapshot_handles, read_of_content(content))
}
