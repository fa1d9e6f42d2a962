//! What holds for every input, tried on many.

use bulkhead_protocol::*;
use proptest::prelude::*;

fn pattern() -> regex::Regex {
    regex::Regex::new(r"\A[a-z][a-z0-9-.]{0,128}[a-z0-9]\z").expect("the documented pattern")
}

/// Texts that are nearly ids: of the right alphabet or of one with the neighbours of its ranges.
fn nearly_ids() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z][a-z0-9.-]{0,128}[a-z0-9]",
        "[a-z0-9.-]{0,140}",
        "[`-{/-:,-/]{0,8}",
        "[a-zA-Z0-9._ -]{1,6}",
        "\\PC{0,140}",
        any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn the_matcher_and_the_pattern_agree(text in nearly_ids()) {
        prop_assert_eq!(text.parse::<VolumeId>().is_ok(), pattern().is_match(&text), "{:?}", text);
    }

    #[test]
    fn a_volume_id_in_a_packet_is_judged_like_any_other(text in nearly_ids()) {
        // The same bytes as `Request::LoopDetach`, with any text for an id.
        let mut packet = 6_u32.to_le_bytes().to_vec();
        packet.extend((text.len() as u64).to_le_bytes());
        packet.extend(text.as_bytes());
        let decoded = decode::<Request>(&packet);
        prop_assert_eq!(decoded.is_ok(), pattern().is_match(&text));
    }

    #[test]
    fn a_relative_path_never_leaves_its_directory(text in "(\\.|/|a|\u{0}|é){0,12}") {
        if let Ok(path) = text.parse::<RelativePath>() {
            let plain = std::path::Path::new(path.as_str()).components().all(|part| matches!(part, std::path::Component::Normal(_)));
            prop_assert!(plain && !text.contains('\0') && !text.contains("//"), "{:?}", text);
        }
    }

    #[test]
    fn sizes_round_up_to_the_next_step(bytes in any::<u64>()) {
        match Bytes::round_up(bytes) {
            Some(size) => prop_assert!(size.get() >= bytes && size.get() - bytes < SIZE_STEP && size.get() % SIZE_STEP == 0),
            None => prop_assert!(bytes == 0 || bytes > Bytes::MAX.get()),
        }
    }
}

#[test]
fn the_longest_values_fit_one_packet_and_longer_ones_are_no_values() {
    let volume: VolumeId = format!("v{}", "0".repeat(129)).parse().expect("130 bytes");
    assert!("v".repeat(131).parse::<VolumeId>().is_err() && "v".parse::<VolumeId>().is_err());
    let path: RelativePath = ["x".repeat(255).as_str(); 14].join("/").parse().expect("3583 bytes");
    assert!("x/".repeat(MAX_TARGET / 2).trim_end_matches('/').parse::<RelativePath>().is_ok());
    assert!("x".repeat(256).parse::<RelativePath>().is_err());
    assert!(["x".repeat(255).as_str(); 15].join("/").parse::<RelativePath>().is_err());
    let directory: PublishName = "p".repeat(63).parse().expect("63 bytes");
    let target = TargetPath { directory, path };
    let flags = MountFlags::default();
    let request = Request::BindMount { volume, target, flags, exclusive: false };
    let packet = encode(&request).expect("it fits");
    assert!(packet.len() <= MAX_PACKET);
    assert_eq!(decode(&packet), Ok(request));
}

#[test]
fn a_full_page_fits_one_packet() {
    let listed = Listed {
        volume: format!("v{}", "0".repeat(129)).parse().expect("130 bytes"),
        pool: "p".repeat(63).parse().expect("63 bytes"),
        size: Bytes::MAX,
        block: true,
        targets: u32::MAX,
    };
    let page: Response = Ok(Reply::Volumes(UpTo::try_from(vec![listed; MAX_LISTED]).expect("a full page")));
    assert!(encode(&page).is_ok());
}

#[test]
fn neighbours_of_the_allowed_values_are_refused() {
    for bytes in [0, 1, 4095, 4097, u64::MAX, Bytes::MAX.get() + 1, Bytes::MAX.get() + SIZE_STEP] {
        assert!(Bytes::try_from(bytes).is_err(), "{bytes}");
    }
    assert!(Bytes::try_from(4096).is_ok() && Bytes::try_from(Bytes::MAX.get()).is_ok());
    assert!(Inodes::try_from(0).is_err() && Inodes::try_from(1 << 32).is_err() && Inodes::try_from(1).is_ok());
    assert!(DirectoryMode::try_from(0o2755).is_err() && DirectoryMode::try_from(0o4755).is_err());
    assert!(DirectoryMode::try_from(0o1777).is_ok() && DirectoryMode::try_from(0).is_ok());
    for name in ["", "-a", "a-", "A", "a_b", &"a".repeat(64)] {
        assert!(name.parse::<PoolName>().is_err(), "{name:?}");
    }
    assert!("a.b".parse::<DriverName>().is_ok() && "a.b".parse::<PoolName>().is_err());
    for path in ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b"] {
        assert!(path.parse::<RelativePath>().is_err(), "{path:?}");
    }
}

#[test]
fn texts_are_cut_at_a_character() {
    let text = Text::new("é".repeat(300));
    assert_eq!(text.as_str().len(), Text::MAX_LENGTH);
    assert!(Text::try_from("x".repeat(513)).is_err());
}
