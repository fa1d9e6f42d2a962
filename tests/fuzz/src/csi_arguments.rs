//! What a call of CSI may say about a volume: names, parameters, attributes, mount flags, sizes. Each line of the input is
//! `KEY=VALUE`.

use bulkhead_model::volumes::{
    Attributes, MINIMUM_BYTES, Mode, MountOptions, Parameters, Place, SizeRange, before_those_of, check_filesystem,
    check_group_parameters, check_snapshot_parameters, group_of, identify, identify_group, identify_snapshot,
    snapshot_in,
};
use bulkhead_protocol::{Bytes, DriverName, SIZE_STEP, VolumeId, VolumeKind};

/// What is accepted can be made, and is what was asked for.
pub fn run(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    let pairs: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let value = |wanted: &str| pairs.iter().rfind(|(key, _)| *key == wanted).map(|(_, value)| *value);
    name(value("name").unwrap_or(&text));
    group(value("name").unwrap_or(&text));
    let number = |key| value(key).and_then(|value| value.parse().ok()).unwrap_or_default();
    size(number("required_bytes"), number("limit_bytes"));
    let of_class = pairs.iter().copied().filter(|(key, _)| !["name", "required_bytes", "limit_bytes"].contains(key));
    parameters(of_class);
    let _ = check_snapshot_parameters(pairs.iter().map(|(key, _)| *key));
    let _ = check_group_parameters(pairs.iter().map(|(key, _)| *key));
    if let Ok(options) = MountOptions::parse(text.split(',')) {
        assert_eq!(options.flags.read_only, text.split(',').any(|flag| flag == "ro"));
    }
}

fn name(name: &str) {
    let Ok((id, hash)) = identify(name) else { return assert!(name.is_empty()) };
    assert_eq!(identify(name), Ok((id.clone(), hash)));
    match name.parse::<VolumeId>() {
        Ok(own) if name.len() <= 128 => assert_eq!(own, id),
        _ => assert!(id.as_str() != name && id.as_str().starts_with("v-")),
    }
    let driver: DriverName = "bulkhead.csi.local".parse().expect("a name");
    let place = Place::new(&driver, name);
    assert!((1..=63).contains(&place.value().len()) && place.satisfies(&place.segments()));
}

/// A snapshot of a group tells its group, and no other does.
fn group(name: &str) {
    let Ok((group, hash)) = identify_group(name) else { return assert!(name.is_empty()) };
    assert_eq!(identify_group(name), Ok((group.clone(), hash)));
    let volume: VolumeId = "pvc-1".parse().expect("an id");
    let snapshot = snapshot_in(&group, &volume).expect("an id");
    assert!(snapshot.as_str().len() <= 128 && before_those_of(&group).is_ok_and(|before| before < snapshot));
    assert_eq!(group_of(&snapshot), Some(group));
    assert!(identify_snapshot(name).is_ok_and(|(single, _)| group_of(&single).is_none()));
}

fn size(required: i64, limit: i64) {
    let Ok(range) = SizeRange::new(required, limit) else { return };
    if let Ok(size) = range.choose(MINIMUM_BYTES) {
        assert!(range.admits(size) && size.get() >= MINIMUM_BYTES && size.get().is_multiple_of(SIZE_STEP));
        assert_eq!(range.grow(size), Ok(size));
    }
    let current = Bytes::try_from(1 << 30).expect("a size");
    if let Ok(size) = range.grow(current) {
        assert!(size >= current && size.get() >= u64::try_from(required).unwrap_or_default());
    }
    if let Ok(size) = range.choose_copy(current) {
        assert!(size >= current && range.admits(size));
    }
}

fn parameters<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)> + Clone) {
    let of_attributes = |key: &str| ["inodes", "allocation"].contains(&key);
    let attributes = Attributes::parse(pairs.clone().filter(|(key, _)| of_attributes(key)));
    let parameters = Parameters::parse(pairs.filter(|(key, _)| *key != "allocation"));
    let (Ok(parameters), Ok(attributes)) = (parameters, attributes) else { return };
    let size = Bytes::try_from(1 << 30).expect("a size");
    for mode in [Mode::Directory, Mode::Block] {
        let kind = parameters.kind(mode, size);
        assert_eq!(Mode::of(&kind), mode);
        assert!(!matches!(kind, VolumeKind::Snapshot { .. }));
        if let Ok(with) = parameters.clone().with_attributes(&attributes, mode) {
            assert!(attributes.are_those_of(&with.kind(mode, size)), "{attributes:?} {with:?}");
        }
    }
    for filesystem in ["", "xfs", "ext4"] {
        assert!(check_filesystem(filesystem).is_ok());
        if let Ok(with) = parameters.clone().with_filesystem(filesystem) {
            assert!(with.allows_filesystem(filesystem));
        }
    }
}
