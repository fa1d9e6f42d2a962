//! What holds for every input, tried on many.

use std::sync::LazyLock;

use bulkhead_protocol::*;
use proptest::prelude::*;
use regex::Regex;

static PATTERN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\A[a-z][a-z0-9-.]{0,128}[a-z0-9]\z").expect("the documented pattern"));

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

/// A level, and the two ways to have more than one of what it consists of.
static CONTEXT: LazyLock<Regex> = LazyLock::new(|| {
    let categories = r"c[0-9]{1,4}(\.c[0-9]{1,4})?";
    let level = format!(r"s[0-9]{{1,4}}(:{categories}(,{categories})*)?");
    Regex::new(&format!(r"\Asystem_u:object_r:container_file_t:{level}(-{level})?\z")).expect("the documented pattern")
});

/// Texts that are nearly contexts.
fn nearly_contexts() -> impl Strategy<Value = String> {
    let level =
        prop_oneof!["s[0-9]{1,4}", "s[0-9](:c[0-9]{1,4}([,.]c[0-9]{1,4}){0,80})?", "[-sc0-9:,. ]{0,12}", "\\PC{0,8}"];
    let front = prop_oneof![
        8 => Just("system_u:object_r:container_file_t:".to_owned()),
        1 => "(system_u|root):(object_r|system_r):(container_file_t|container_ro_file_t|etc_t)?:?",
    ];
    (front, level.clone(), prop_oneof![Just(String::new()), level.prop_map(|level| format!("-{level}"))])
        .prop_map(|(front, one, other)| front + &one + &other)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn the_matcher_and_the_pattern_agree(text in nearly_ids()) {
        prop_assert_eq!(text.parse::<VolumeId>().is_ok(), PATTERN.is_match(&text), "{:?}", text);
    }

    #[test]
    fn a_volume_id_in_a_packet_is_judged_like_any_other(text in nearly_ids()) {
        // The same bytes as `Request::LoopDetach`, with any text for an id.
        let mut packet = 6_u32.to_le_bytes().to_vec();
        packet.extend((text.len() as u64).to_le_bytes());
        packet.extend(text.as_bytes());
        let decoded = decode::<Request>(&packet);
        prop_assert_eq!(decoded.is_ok(), PATTERN.is_match(&text));
    }

    #[test]
    fn a_context_in_a_packet_is_that_of_containers_files_at_a_level(text in nearly_contexts()) {
        let is_one = text.len() <= 255 && CONTEXT.is_match(&text);
        prop_assert_eq!(text.parse::<SecurityContext>().is_ok(), is_one, "{:?}", text);
        let volume: VolumeId = "pvc-1".parse().expect("a volume id");
        let packet = encode(&(32_u32, volume, &text)).expect("it fits");
        prop_assert_eq!(decode::<Request>(&packet).is_ok(), is_one, "{:?}", text);
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
fn no_context_is_that_of_other_files_or_a_second_option() {
    let of = |level: &str| format!("system_u:object_r:container_file_t:{level}").parse::<SecurityContext>();
    for level in ["s0", "s15", "s0:c0", "s0:c1,c4.c7", "s0:c0.c1023", "s0-s0:c1", "s0:c1-s0:c1,c2"] {
        assert!(of(level).is_ok(), "{level}");
    }
    let long = vec!["c1000"; 36].join(",");
    assert!(of(&format!("s0:{long}")).is_ok() && of(&format!("s0:{long},c1")).is_err(), "at most 255 bytes");
    for level in [
        "", "s", "c1", "S0", "0", "s0:", "s0:c", "s0:c1,", "s0:,c1", "s0:c1.", "s0:c1.c2.c3", "s0:c12345", "s0:c1:c2",
        "s0-", "-s0", "s0-s0-s0", " s0", "s0\n", "s0,nouuid", "s0\"", "s0\\", "s0\0", "s\u{661}",
    ] {
        assert!(of(level).is_err(), "{level:?}");
    }
    for other in [
        "",
        "s0",
        "system_u:object_r:container_file_t",
        "system_u:object_r:container_ro_file_t:s0",
        "system_u:object_r:etc_t:s0",
        "system_u:system_r:container_file_t:s0",
        "user_u:object_r:container_file_t:s0",
        " system_u:object_r:container_file_t:s0",
        "system_u:object_r:container_file_tt:s0",
    ] {
        assert!(other.parse::<SecurityContext>().is_err(), "{other:?}");
    }
}

#[test]
fn texts_are_cut_at_a_character() {
    let text = Text::new("é".repeat(300));
    assert_eq!(text.as_str().len(), Text::MAX_LENGTH);
    assert!(Text::try_from("x".repeat(513)).is_err());
}
