//! What the types give back, and at which length a packet ends.

use bulkhead_protocol::*;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as DecodeError, U8Deserializer};

#[test]
fn a_packet_may_have_exactly_the_greatest_length() {
    let header = encode(&vec![0_u8; 0]).expect("an empty list").len();
    let greatest = vec![7_u8; MAX_PACKET - header];
    let packet = encode(&greatest).expect("a packet of the greatest length");
    assert_eq!(packet.len(), MAX_PACKET);
    assert_eq!(decode(&packet), Ok(greatest.clone()));
    for more in [1, 2, MAX_PACKET] {
        let long = [&greatest[..], &vec![7; more]].concat();
        assert_eq!(encode(&long), Err(CodecError::TooLong), "{more} more");
        let packet = [&packet[..], &vec![7; more]].concat();
        assert_eq!(decode::<Vec<u8>>(&packet), Err(CodecError::TooLong), "{more} more");
    }
}

#[test]
fn a_bounded_list_gives_back_its_values() {
    let list = UpTo::<u8, 3>::try_from(vec![1, 2, 3]).expect("as many as it may have");
    assert_eq!(list.as_slice(), [1, 2, 3]);
    assert_eq!(list.into_vec(), [1, 2, 3]);
    assert!(UpTo::<u8, 3>::try_from(vec![1, 2, 3, 4]).is_err());
    assert_eq!(UpTo::<u8, 3>::default().into_vec(), []);
    let number: U8Deserializer<DecodeError> = 7_u8.into_deserializer();
    let error = UpTo::<u8, 3>::deserialize(number).expect_err("no list");
    assert_eq!(error.to_string(), "invalid type: integer `7`, expected at most 3 values");
}

#[test]
fn a_relative_path_is_its_components() {
    for (path, parent, name) in [("a", "", "a"), ("a/b", "a", "b"), ("pods/x/mount", "pods/x", "mount")] {
        let path: RelativePath = path.parse().expect("a relative path");
        assert_eq!(path.split_last(), (parent, name));
        assert_eq!(path.components().collect::<Vec<_>>().join("/"), path.as_str());
        assert_eq!(path.components().last(), Some(name));
    }
}

#[test]
fn sizes_are_as_many_bytes_as_they_say() {
    assert_eq!(Bytes::MAX.get(), (1 << 63) - SIZE_STEP);
    assert_eq!([BlockSize::B512, BlockSize::B4096].map(BlockSize::get), [512, 4096]);
}

#[test]
fn messages_say_what_they_are_about() {
    let target = TargetPath { directory: "work".parse().expect("a name"), path: "a/b".parse().expect("a path") };
    assert_eq!(target.to_string(), "work:a/b");
    assert_eq!(Error::new(ErrorKind::Busy, "try again").to_string(), "try again");
    let invalid = "".parse::<VolumeId>().expect_err("no volume id");
    assert!(invalid.to_string().starts_with("a volume id is 2 to 130 characters"), "{invalid}");
    for (error, part) in [
        (CodecError::TooLong, "longer than 4096 bytes"),
        (CodecError::Malformed, "malformed"),
        (CodecError::TrailingBytes, "left over"),
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
}
