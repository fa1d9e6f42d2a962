//! Names and paths that requests carry, and the entries that a pool may have.

use std::path::{Component, Path};

use bulkhead_privhelper::layout::{self, Entry};
use bulkhead_privhelper::{Kind, Shape, may_be_looked_at};
use bulkhead_protocol::{DriverName, PoolName, PublishName, RelativePath, TargetPath, VolumeId};

/// Text is a name or a path exactly if it is of the documented form, and then leads nowhere else.
pub fn run(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    is_name(text);
    is_path(text);
    is_entry(text);
}

fn is_name(text: &str) {
    let of = |characters: &str| {
        let plain = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
        text.chars().all(|character| plain(character) || characters.contains(character))
            && text.starts_with(plain)
            && text.ends_with(plain)
    };
    let is_id = of("-.") && (2..=130).contains(&text.len()) && text.starts_with(|first: char| first.is_ascii_lowercase());
    assert_eq!(text.parse::<VolumeId>().is_ok(), is_id);
    assert_eq!(text.parse::<PoolName>().is_ok(), of("-") && text.len() <= 63);
    assert_eq!(text.parse::<PublishName>().is_ok(), of("-") && text.len() <= 63);
    assert_eq!(text.parse::<DriverName>().is_ok(), of("-.") && text.len() <= 63);
}

fn is_path(text: &str) {
    let components: Vec<_> = Path::new(text).components().collect();
    let plain = components.iter().all(|part| matches!(part, Component::Normal(name) if name.len() <= 255));
    // A component that the standard library leaves out would be missing here.
    let parts: Vec<_> = components.iter().filter_map(|part| part.as_os_str().to_str()).collect();
    let is_path = plain && parts.join("/") == text && (1..=3584).contains(&text.len()) && !text.contains('\0');
    let parsed = text.parse::<RelativePath>();
    assert_eq!(parsed.is_ok(), is_path);
    let Ok(path) = parsed else { return };
    assert_eq!(path.components().collect::<Vec<_>>(), parts);
    let shapes = [Shape::Any, Shape::KubeletPods, Shape::KubeletDevices];
    let allowed = |kind| shapes.map(|shape| shape.allows(&path, kind));
    let looked_at = |kind| shapes.map(|shape| may_be_looked_at(shape, &path, kind));
    let any = parts[0] != ".bulkhead-trial";
    let pods = matches!(parts[..], [_, "volumes", "kubernetes.io~csi", _, "mount"]);
    let devices = matches!(parts[..], ["volumeDevices", "publish", _, _]);
    let map = matches!(parts[..], ["volumeDevices", _, "dev", _]);
    assert_eq!(allowed(Kind::Directory), [any, pods, false]);
    assert_eq!(allowed(Kind::Block), [any, false, devices]);
    assert_eq!(looked_at(Kind::Directory), [any, pods, false]);
    assert_eq!(looked_at(Kind::Block), [any, false, devices || map]);
    let target = TargetPath { directory: "work".parse().expect("a name"), path };
    assert!(!target.to_string().contains(char::is_control));
}

fn is_entry(name: &str) {
    match Entry::of(name) {
        Entry::Volume(id) => {
            assert_eq!(id.as_str(), name);
            let making = layout::creating_name(&id);
            assert_eq!(Entry::of(&making), Entry::Unfinished);
            for name in [name, &making] {
                let deleted = layout::deleted_name(7, name);
                assert_eq!((Entry::of(&deleted), layout::is_deleted(&deleted)), (Entry::Deleted(7), true));
                assert!(deleted.len() <= 255);
            }
        }
        Entry::Deleted(_) => assert!(layout::is_deleted(name)),
        Entry::Unfinished | Entry::OfPool | Entry::Foreign => assert!(!layout::is_deleted(name)),
    }
}
