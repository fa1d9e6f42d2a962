use bulkhead_protocol::{BlockSize, Bytes, DirectoryMode, Inodes, NameHash, SnapshotOf, VolumeKind};

use super::*;
use crate::sys::walk;

fn directory() -> VolumeSpec {
    let mode = DirectoryMode::try_from(0o1755).expect("a mode");
    let inodes = Inodes::try_from(1024).expect("a number of inodes");
    VolumeSpec {
        size: Bytes::try_from(1 << 30).expect("a size"),
        kind: VolumeKind::Directory { inodes, mode },
        name_hash: NameHash([7; 32]),
    }
}

fn image() -> VolumeSpec {
    let kind = VolumeKind::Image { sparse: true, block_size: BlockSize::B4096 };
    VolumeSpec { kind, ..directory() }
}

fn snapshot() -> VolumeSpec {
    VolumeSpec { kind: VolumeKind::Snapshot { of: SnapshotOf::Filesystem }, ..directory() }
}

fn records() -> impl Iterator<Item = Record> {
    let specs = [directory(), image(), snapshot()].into_iter();
    specs.flat_map(|spec| [true, false].map(|unused| Record { spec, unused }))
}

#[test]
fn entries_are_told_apart_by_their_names() {
    let id = |text: &str| text.parse::<VolumeId>().expect("a volume id");
    for (name, entry) in [
        ("pvc-1", Entry::Volume(id("pvc-1"))),
        (".making.pvc-1", Entry::Unfinished),
        (".making.", Entry::Unfinished),
        (".deleted.7.pvc-1", Entry::Deleted(7)),
        (".deleted.18446744073709551615.pvc-1", Entry::Deleted(u64::MAX)),
        (".deleted.x.pvc-1", Entry::Deleted(0)),
        (".deleted.", Entry::Deleted(0)),
        (".bulkhead", Entry::OfPool),
        (".bulkhead.ballast", Entry::Foreign),
        ("lost+found", Entry::OfPool),
        (".bulkhead.new", Entry::Foreign),
        (".hidden", Entry::Foreign),
        ("Upper", Entry::Foreign),
        ("x", Entry::Foreign),
        ("", Entry::Foreign),
    ] {
        assert_eq!(Entry::of(name), entry, "{name:?}");
    }
}

#[test]
fn the_names_on_disk_are_those_of_every_release() {
    let id: VolumeId = "pvc-1".parse().expect("a volume id");
    assert_eq!(creating_name(&id), ".making.pvc-1");
    assert_eq!(deleted_name(3, "pvc-1"), ".deleted.3.pvc-1");
    assert_eq!(deleted_name(4, ".making.pvc-1"), ".deleted.4.making.pvc-1");
    assert_eq!([".deleted.3.pvc-1", ".making.pvc-1", "deleted.3"].map(is_deleted), [true, false, false]);
    assert_eq!(Entry::of(&creating_name(&id)), Entry::Unfinished);
    assert_eq!(Entry::of(&deleted_name(4, ".making.pvc-1")), Entry::Deleted(4));
    let longest: VolumeId = format!("v{}", "0".repeat(129)).parse().expect("130 bytes");
    assert!(deleted_name(u64::MAX, &creating_name(&longest)).len() <= 255, "NAME_MAX");
}

#[test]
fn only_a_directory_of_roots_with_the_mode_of_deletion_is_deleted_in_place() {
    let root = walk::open_at_start("/", OFlags::PATH).and_then(file::status).expect("the root directory");
    let of = |file_type: FileType, uid, mode| {
        is_deleted_in_place(&Status { file_type, uid, mode: file_type.as_raw_mode() | mode, ..root })
    };
    assert!(of(FileType::Directory, 0, DELETED_MODE));
    for (file_type, uid, mode) in [
        (FileType::RegularFile, 0, DELETED_MODE),
        (FileType::Directory, 901, DELETED_MODE),
        (FileType::Directory, 0, 0o700),
        (FileType::Directory, 0, 0o1777),
        (FileType::Directory, 0, 0o5700),
    ] {
        assert!(!of(file_type, uid, mode), "{file_type:?} of {uid} with mode {mode:o}");
    }
}

#[test]
fn the_bytes_of_a_record_are_those_of_every_release() {
    let bytes = Record { spec: image(), unused: true }.encode().expect("it fits");
    let released = [&[2, 0, 0, 0, 0x40, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0][..], &[7; 32]].concat();
    assert_eq!(bytes, released);
    let bytes = Record { spec: directory(), unused: false }.encode().expect("it fits");
    let released =
        [&[1, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0xed, 3][..], &[7; 32]].concat();
    assert_eq!(bytes, released);
}

#[test]
fn a_record_is_read_as_it_was_written() {
    for record in records() {
        let bytes = record.encode().expect("it fits");
        assert!(bytes.len() <= 256, "the buffer for reading holds it");
        assert_eq!(Record::decode(&bytes), Some(record));
    }
}

#[test]
fn a_record_that_is_cut_off_or_longer_is_not_read() {
    for record in records() {
        let mut bytes = record.encode().expect("it fits");
        for length in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..length]), None, "{record:?} cut to {length} bytes");
        }
        bytes.push(0);
        assert_eq!(Record::decode(&bytes), None, "{record:?} and a byte");
    }
}

#[test]
fn no_flipped_bit_makes_a_used_volume_an_unused_one_or_passes_unseen() {
    for record in records() {
        let bytes = record.encode().expect("it fits");
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let read = Record::decode(&damaged);
            assert_ne!(read, Some(record), "bit {bit} has no meaning");
            assert!(read.is_none_or(|read| read.unused == record.unused), "bit {bit} turns {record:?} into {read:?}");
        }
    }
}

#[test]
fn only_the_two_layouts_are_known() {
    for (spec, known) in [(directory(), [(1, false), (2, true)]), (snapshot(), [(1, false), (4, true)])] {
        let bytes = Record { spec, unused: true }.encode().expect("it fits");
        for first in 0..=u8::MAX {
            let mut other = bytes.clone();
            other[0] = first;
            let unused = Record::decode(&other).map(|record| record.unused);
            assert_eq!(unused, known.into_iter().find(|(known, _)| *known == first).map(|(_, unused)| unused));
        }
    }
}

#[test]
fn a_kind_is_that_of_the_settings() {
    assert_eq!((Kind::from(directory().kind), Kind::from(image().kind)), (Kind::Directory, Kind::Block));
    let mode = DirectoryMode::try_from(0).expect("a mode");
    for (kind, has_filesystem) in [
        (directory().kind, false),
        (image().kind, false),
        (VolumeKind::Filesystem { sparse: true, mode }, true),
        (VolumeKind::Snapshot { of: SnapshotOf::Filesystem }, true),
        (VolumeKind::Snapshot { of: SnapshotOf::Image { block_size: BlockSize::B512 } }, false),
    ] {
        assert_eq!(Kind::has_filesystem(kind), has_filesystem, "{kind:?}");
    }
    assert_eq!(
        (Kind::Directory.to_string(), Kind::Block.to_string()),
        ("directory volume".into(), "block volume".into())
    );
}
