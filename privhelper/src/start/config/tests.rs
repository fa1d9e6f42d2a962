//! Every flag, values that are wrong, and their neighbours that are not.

use bulkhead_protocol::QuotaMode;

use super::*;
use crate::bookkeeping::Reserve;
use crate::start::privileges::Unprivileged;

const GOOD: [&str; 6] = ["--pool", "default=/srv/pool", "--allow-uid", "901", "--publish-dir", "work=/srv/published"];

fn read(arguments: &[&str]) -> Result<Command, String> {
    parse(arguments.iter().map(|&argument| argument.to_owned()))
}

/// Reads a command line, and refuses what is doubtful.
fn judged(arguments: &[&str]) -> Result<Config, String> {
    match read(arguments)? {
        Command::Serve(config) => config.refuse_doubtful(&Unprivileged::in_a_test()).map(|()| config),
        Command::Print(text) => panic!("prints {text}"),
    }
}

/// A good command line with something more.
fn with(more: &[&str]) -> Result<Config, String> {
    judged(&[&GOOD, more].concat())
}

fn good(more: &[&str]) -> Config {
    with(more).unwrap_or_else(|complaint| panic!("{more:?}: {complaint}"))
}

/// The command line with something more must be refused with one line that contains `part`.
fn refused(more: &[&str], part: &str) {
    let complaint = with(more).expect_err(part);
    assert!(complaint.contains(part) && !complaint.contains('\n'), "{more:?}: {complaint:?} does not say {part:?}");
}

#[test]
fn what_is_not_given_has_its_default() {
    let config = good(&[]);
    assert_eq!((config.allowed_uid, config.driver.as_str()), (901, "bulkhead.csi.local"));
    assert_eq!(
        (config.socket, config.kubelet, config.csi_socket, config.registration_socket),
        (None, None, None, None)
    );
    assert_eq!((config.project_ids, config.on_violation), ((100_000, 999_999), OnViolation::Kill));
    assert_eq!(config.limits, Limits { volumes: 20_000, targets: 40_000 });
    let [pool] = config.pools.as_slice() else { panic!("one pool") };
    assert_eq!((pool.name.as_str(), pool.directory.to_str()), ("default", Some("/srv/pool")));
    assert_eq!((pool.quota, pool.overcommit_permille, pool.reserve), (QuotaMode::Enforced, 1000, Reserve::NONE));
    let [publish] = config.publish.as_slice() else { panic!("one publish directory") };
    assert_eq!((publish.name.as_str(), publish.path.to_str()), ("work", Some("/srv/published")));
    assert_eq!(publish.shape, Shape::Any);
}

#[test]
fn every_flag_is_read_with_a_space_or_an_equals_sign() {
    let config = good(&[
        "--socket=/run/helper.sock",
        "--csi-socket",
        "/run/csi.sock",
        "--registration-socket=/run/r@reg.sock",
        "--driver-name=other.example",
        "--project-ids",
        "5-9",
        "--max-volumes=7",
        "--max-targets=8",
        "--seccomp=log",
        "--pool=fast=/srv/fast,quota=none,overcommit=1.5,reserve=4096,filesystems=5,extents=7",
        "--mounter-uid=902",
    ]);
    let path = |path: &str| Some(PathBuf::from(path));
    assert_eq!((config.socket, config.csi_socket), (path("/run/helper.sock"), path("/run/csi.sock")));
    assert_eq!((config.registration_socket, config.driver.as_str()), (path("/run/r@reg.sock"), "other.example"));
    assert_eq!((config.project_ids, config.on_violation), ((5, 9), OnViolation::Log));
    assert_eq!(config.limits, Limits { volumes: 7, targets: 8 });
    let fast = &config.pools[1];
    assert_eq!((fast.name.as_str(), fast.directory.to_str()), ("fast", Some("/srv/fast")));
    assert_eq!((fast.quota, fast.overcommit_permille, fast.reserve), (QuotaMode::None, 1500, Reserve::Bytes(4096)));
    assert_eq!((fast.filesystems, fast.extents, config.mounter_uid), (5, 7, 902));
}

#[test]
fn filesystems_in_images_take_a_user_of_their_own() {
    assert_eq!((good(&[]).pools[0].filesystems, good(&[]).pools[0].extents), (0, 200_000));
    let pool = "--pool=fast=/srv/fast,filesystems";
    assert_eq!(good(&[pool, "--mounter-uid=902"]).pools[1].filesystems, 300);
    refused(&[pool], "--mounter-uid is missing");
    // Root, nobody, no user, and the frontend's.
    for uid in ["0", "65534", "4294967295", "901"] {
        refused(&[pool, "--mounter-uid", uid], "give it a user of its own");
    }
    good(&["--mounter-uid=902"]);
    for wrong in ["extents", "extents=0", "extents=1000001", "filesystems=0", "filesystems=x", "filesystems=1000001"] {
        refused(&[&format!("--pool=fast=/srv/fast,{wrong}")], "expected a number");
    }
    for wrong in ["filesystem", "quota", "overcommit", "reserve"] {
        assert!(with(&[&format!("--pool=fast=/srv/fast,{wrong}")]).is_err(), "{wrong}");
    }
}

#[test]
fn the_kubelets_directory_gives_two_publish_directories_and_two_sockets() {
    let config = good(&["--kubelet-dir", "/var/lib/kubelet/"]);
    let publish: Vec<_> = config.publish.iter().map(|publish| (publish.name.as_str(), publish.path.to_str())).collect();
    assert_eq!(
        publish,
        [
            ("kubelet-pods", Some("/var/lib/kubelet/pods")),
            ("kubelet-csi", Some("/var/lib/kubelet/plugins/kubernetes.io/csi")),
            ("work", Some("/srv/published")),
        ]
    );
    assert_eq!(config.publish[0].shape, Shape::KubeletPods);
    assert_eq!(config.publish[1].shape, Shape::KubeletDevices);
    assert_eq!(config.csi_socket, Some("/var/lib/kubelet/plugins/bulkhead.csi.local/csi.sock".into()));
    assert_eq!(
        config.registration_socket,
        Some("/var/lib/kubelet/plugins_registry/bulkhead.csi.local@reg.sock".into())
    );
    let other = good(&["--csi-socket=/run/csi.sock", "--kubelet-dir=/k", "--driver-name=x.y"]);
    assert_eq!(other.csi_socket, Some("/run/csi.sock".into()));
    assert_eq!(other.registration_socket, Some("/k/plugins_registry/x.y@reg.sock".into()));
}

#[test]
fn what_lies_below_the_kubelets_directory_is_known() {
    let config = good(&["--kubelet-dir", "/var/lib/kubelet"]);
    let below = |path: &str| config.below_kubelet(Path::new(path)).map(|(_, rest)| rest.to_str().map(str::to_owned));
    assert_eq!(below("/var/lib/kubelet/plugins/x"), Some(Some("plugins/x".to_owned())));
    for path in ["/var/lib/kubelet", "/var/lib", "/var/lib/kubelet2/pods", "/srv"] {
        assert_eq!(below(path), None, "{path}");
    }
    assert_eq!(good(&[]).below_kubelet(Path::new("/var/lib/kubelet/pods")), None);
}

#[test]
fn help_and_version_are_printed_whatever_else_is_given() {
    for arguments in [&["--help"][..], &["-h"], &["--socket", "/x", "--help"]] {
        assert!(matches!(read(arguments), Ok(Command::Print(text)) if text.contains("usage: bulkhead-privhelper")));
    }
    assert!(matches!(read(&["--version"]), Ok(Command::Print(text)) if text.starts_with("bulkhead-privhelper ")));
}

#[test]
fn help_names_every_flag() {
    let mut config = Config::of_defaults().expect("defaults");
    let words = HELP.split([' ', '=', '\n', '[', ']', '(', ')', ',']).filter(|word| word.starts_with("--"));
    for flag in words.filter(|flag| !matches!(*flag, "--help" | "--version")) {
        assert!(config.set(flag, "").is_err_and(|complaint| !complaint.contains("unknown flag")), "{flag}");
    }
    for flag in ["--pool", "--socket", "--allow-uid", "--kubelet-dir", "--publish-dir", "--driver-name", "--csi-socket"]
        .into_iter()
        .chain(["--registration-socket", "--project-ids", "--max-volumes", "--max-targets", "--seccomp", "--config"])
    {
        assert!(HELP.contains(&format!("  {flag}")), "{flag}");
    }
}

#[test]
fn the_manual_page_explains_every_flag_of_the_help() {
    let page = include_str!("../../../../deploy/man/bulkhead-privhelper.8").replace("\\-", "-");
    let words = HELP.split([' ', '=', '\n', '[', ']', '(', ')', ',']).filter(|word| word.starts_with("--"));
    for flag in words {
        assert!(
            page.contains(&format!(".TP\n\\fB{flag}\\fR")) || page.contains(&format!(", \\fB{flag}\\fR")),
            "{flag}"
        );
    }
    for section in ["\"EXIT STATUS\"", "ENVIRONMENT", "FILES", "EXAMPLES"] {
        assert!(page.contains(&format!("\n.SH {section}\n")), "{section}");
    }
}

#[test]
fn commands_of_the_other_program_are_refused_with_its_name() {
    refused(&["--check"], "--check is a command of bulkhead-setup");
    refused(&["--init-pool", "/srv"], "--init-pool is a command of bulkhead-setup");
}

#[test]
fn what_is_missing_unknown_or_repeated_is_refused() {
    for missing in 0..3 {
        let mut flags = GOOD.to_vec();
        let flag = flags.drain(missing * 2..missing * 2 + 2).next().expect("a flag");
        assert!(judged(&flags).expect_err(flag).contains(flag));
    }
    refused(&["--no-such-flag", "1"], "--no-such-flag: unknown flag");
    refused(&["stray"], "stray: unknown flag");
    refused(&["--pools", "x=/a"], "--pools: unknown flag");
    for (flag, value) in [
        ("--socket", "/a"),
        ("--kubelet-dir", "/a"),
        ("--driver-name", "a.b"),
        ("--csi-socket", "/a"),
        ("--registration-socket", "/a"),
        ("--project-ids", "1-2"),
        ("--max-volumes", "1"),
        ("--max-targets", "1"),
        ("--seccomp", "kill"),
    ] {
        good(&[flag, value]);
        refused(&[flag, value, flag, value], "is given twice");
        refused(&[flag], flag);
        refused(&[flag, ""], flag);
    }
    refused(&["--allow-uid", "902"], "--allow-uid is given twice");
}

#[test]
fn users_that_cannot_be_the_frontends_alone_are_refused() {
    let uid = |uid: &str| judged(&["--pool", "x=/a", "--publish-dir", "y=/b", "--allow-uid", uid]).map(drop);
    for good in ["1", "901", "65533", "65535", "4294967294"] {
        uid(good).expect(good);
    }
    for (wrong, part) in [
        ("0", "neither root"),
        ("65534", "neither root nor the shared user nobody"),
        ("4294967295", "of its own"),
        ("4294967296", "numeric user id"),
        ("frontend", "numeric user id"),
        ("-1", "numeric user id"),
        ("", "numeric user id"),
    ] {
        assert!(uid(wrong).expect_err(wrong).contains(part), "{wrong}");
    }
}

#[test]
fn paths_are_absolute_plain_and_not_the_root() {
    for path in ["/a", "/a/b", "/a//b/", "/a/./b", "/..a", "/a..", "/ä b"] {
        good(&["--socket", path]);
    }
    assert_eq!(good(&["--socket", "/a//b/"]).socket, Some("/a/b".into()));
    for path in ["a", "./a", "../a", "/", "//", "/a/..", "/a/../b", "/.."] {
        refused(&["--socket", path], "absolute path");
        refused(&["--pool", &format!("x={path}")], "absolute path");
        refused(&["--publish-dir", &format!("x={path}")], "absolute path");
    }
}

#[test]
fn a_pool_has_a_valid_name_and_known_options() {
    for (value, part) in [
        ("/srv/x", "expected NAME=DIR"),
        ("X=/srv/x", "not a valid name"),
        ("=/srv/x", "not a valid name"),
        ("x=", "absolute path"),
        ("x=,quota=none", "absolute path"),
        ("x=/srv/x,", "quota=none"),
        ("x=/srv/x,quota", "quota=none"),
        ("x=/srv/x,quota=some", "quota=none"),
        ("x=/srv/x,quota=none,other=1", "quota=none"),
        ("x=/srv/x,reserve=", "number of bytes"),
        ("x=/srv/x,reserve=much", "number of bytes"),
        ("x=/srv/x,reserve=-1", "number of bytes"),
        ("x=/srv/x,reserve=Gi", "number of bytes"),
        ("x=/srv/x,reserve=1 Gi", "number of bytes"),
        ("x=/srv/x,reserve=1.5Gi", "number of bytes"),
        ("x=/srv/x,reserve=1GiB", "such as 1073741824 or 1Gi"),
        ("x=/srv/x,reserve=16384Pi", "number of bytes"),
        ("x=/srv/x,reserve=18446744073709551616", "number of bytes"),
        ("x=/srv/x,reserve=%", "up to 99%"),
        ("x=/srv/x,reserve=100%", "up to 99%"),
        ("x=/srv/x,reserve=-1%", "up to 99%"),
        ("x=/srv/x,reserve=1.5%", "up to 99%"),
        ("x=/srv/x,reserve=1Gi%", "up to 99%"),
        ("x=/srv/x,overcommit=", "from 0.001 to 1000"),
        ("x=/srv/x,overcommit=0", "from 0.001 to 1000"),
        ("x=/srv/x,overcommit=0.0", "from 0.001 to 1000"),
        ("x=/srv/x,overcommit=0.0001", "from 0.001 to 1000"),
        ("x=/srv/x,overcommit=1.2345", "from 0.001 to 1000"),
        ("x=/srv/x,overcommit=1000.001", "from 0.001 to 1000"),
        ("x=/srv/x,overcommit=1001", "from 0.001 to 1000"),
        ("x=/srv/x,overcommit=1.", "from 0.001 to 1000"),
        ("x=/srv/x,overcommit=.5", "from 0.001 to 1000"),
        ("x=/srv/x,overcommit=-1", "from 0.001 to 1000"),
        ("x=/srv/x,overcommit=+1", "from 0.001 to 1000"),
        ("x=/srv/x,overcommit=1e2", "from 0.001 to 1000"),
        ("x=/srv/x,overcommit=1.2.3", "from 0.001 to 1000"),
        ("x=/srv/x,overcommit=99999999999999999999", "from 0.001 to 1000"),
    ] {
        refused(&["--pool", value], part);
    }
    for (ratio, permille) in
        [("0.001", 1), ("1", 1000), ("1.5", 1500), ("2.25", 2250), ("1.999", 1999), ("1000", 1_000_000)]
    {
        let config = good(&["--pool", &format!("x=/srv/x,overcommit={ratio}")]);
        assert_eq!(config.pools[1].overcommit_permille, permille, "{ratio}");
    }
    for (reserve, bytes) in [
        ("18446744073709551615", u64::MAX),
        ("0", 0),
        ("1Ki", 1 << 10),
        ("2Mi", 2 << 20),
        ("1Gi", 1 << 30),
        ("3Ti", 3 << 40),
        ("16383Pi", 16_383 << 50),
    ] {
        let config = good(&["--pool", &format!("x=/srv/x,reserve={reserve}")]);
        assert_eq!(config.pools[1].reserve, Reserve::Bytes(bytes), "{reserve}");
    }
    for (reserve, percent) in [("0%", 0), ("10%", 10), ("99%", 99)] {
        let config = good(&["--pool", &format!("x=/srv/x,reserve={reserve}")]);
        assert_eq!(config.pools[1].reserve, Reserve::Percent(percent), "{reserve}");
    }
}

#[test]
fn project_ids_are_a_range_below_the_kubelets() {
    for (value, range) in [("1-1", (1, 1)), ("1-1048575", (1, 1_048_575)), ("7-9", (7, 9))] {
        assert_eq!(good(&["--project-ids", value]).project_ids, range);
    }
    for value in ["0-9", "5-4", "1-1048576", "1-1048577", "1-", "-1", "1", "a-b", "1-2-3", "1-4294967296"] {
        refused(&["--project-ids", value], "expected FIRST-LAST");
    }
}

#[test]
fn limits_are_numbers() {
    for (value, number) in [("1", 1), ("1000000", 1_000_000)] {
        assert_eq!(good(&["--max-volumes", value, "--max-targets", value]).limits.volumes, number);
    }
    for value in ["0", "1000001", "-1", "many", "1.5"] {
        refused(&["--max-volumes", value], "expected a number from 1 to 1000000");
        refused(&["--max-targets", value], "expected a number from 1 to 1000000");
    }
}

#[test]
fn other_values_are_refused_with_what_is_expected() {
    for value in ["off", "Kill", "killed", "lo"] {
        refused(&["--seccomp", value], "expected kill or log");
    }
    refused(&["--driver-name", "Not A Name"], "not a valid name");
    refused(&["--publish-dir", "/a"], "expected NAME=DIR");
    refused(&["--publish-dir", "A=/a"], "not a valid name");
    refused(&["--publish-dir", "kubelet-x=/a"], "are reserved");
    good(&["--publish-dir", "kubelet=/a"]);
}

#[test]
fn names_and_directories_are_used_once() {
    refused(&["--pool", "default=/srv/other"], "two pools have the same name");
    refused(&["--pool", "other=/srv/pool/"], "two pools have the same directory");
    refused(&["--publish-dir", "work=/srv/other"], "two publish directories have the same name");
}

#[test]
fn numbers_of_pools_and_publish_directories_have_limits() {
    let flags = |flag: &str, count: usize| -> Vec<String> {
        (0..count).flat_map(|index| [flag.to_owned(), format!("n{index}=/n/{index}")]).collect()
    };
    let check = |more: &[String], extra: &[&str]| {
        let more: Vec<&str> = more.iter().map(String::as_str).chain(extra.iter().copied()).collect();
        with(&more).map(drop)
    };
    check(&flags("--pool", 15), &[]).expect("16 pools");
    assert!(check(&flags("--pool", 16), &[]).unwrap_err().contains("at most 16 pools"));
    check(&flags("--publish-dir", 15), &[]).expect("16 publish directories");
    assert!(check(&flags("--publish-dir", 16), &[]).unwrap_err().contains("at most 16 publish directories"));
    check(&flags("--publish-dir", 13), &["--kubelet-dir", "/k"]).expect("16 publish directories");
    assert!(check(&flags("--publish-dir", 14), &["--kubelet-dir", "/k"]).unwrap_err().contains("counts as two"));
}

#[test]
fn sockets_paths_have_a_limit() {
    let path = |length: usize| format!("/{}", "s".repeat(length - 1));
    for flag in ["--csi-socket", "--registration-socket"] {
        good(&[flag, &path(106)]);
        refused(&[flag, &path(107)], "longer than 106 bytes");
    }
}

#[test]
fn a_configuration_file_holds_the_same_flags_one_a_line() {
    let directory = std::env::temp_dir().join(format!("bulkhead-config-{}", std::process::id()));
    #[expect(clippy::disallowed_methods, reason = "a file for the test")]
    let read = |text: &str| {
        std::fs::write(&directory, text).expect("a file");
        let path = directory.display().to_string();
        let result = with(&["--config", &path]);
        std::fs::remove_file(&directory).expect("the file");
        result
    };
    let config = read("# a comment\n\n  --socket /run/a b.sock  \n--seccomp=log\n--driver-name\tx.y\n").expect("flags");
    assert_eq!((config.socket, config.driver.as_str()), (Some("/run/a b.sock".into()), "x.y"));
    assert_eq!(config.on_violation, OnViolation::Log);
    for (text, part) in [
        ("--config /other", "cannot name another"),
        ("--config=/other", "cannot name another"),
        ("--socket", "absolute path"),
        ("--allow-uid 902", "given twice"),
        ("--socket /a\n--socket /a", "given twice"),
        ("stray words", "unknown flag"),
        ("=--socket /a", "unknown flag"),
    ] {
        let complaint = read(text).expect_err(part);
        assert!(complaint.contains(part) && complaint.contains("bulkhead-config-"), "{text:?}: {complaint}");
    }
    refused(&["--config", "/nonexistent/file"], "cannot read /nonexistent/file");
}
