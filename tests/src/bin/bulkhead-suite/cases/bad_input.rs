//! Input that is wrong, hostile or missing: the refusal is clear, the helper survives, and nothing is left behind.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{ErrorKind, HIGHEST_VERSION, Hello, MAX_PACKET, Reply, Request, Welcome, decode, encode};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests as csi;
use bulkhead_tests::expect::{denied, refused};
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::processes;
use bulkhead_tests::rig::Rig;
use tonic::Code;

cases! {
    targets_outside_the_publish_directories_are_refused,
    a_link_anywhere_in_the_path_is_refused,
    a_link_at_the_target_is_refused_and_stays,
    a_file_where_a_directory_must_be_is_refused,
    a_directory_where_a_device_must_be_is_refused,
    a_missing_parent_is_not_found,
    a_parent_in_another_mount_is_refused,
    a_pool_and_a_publish_directory_inside_one_another_are_refused: Bare,
    garbage_closes_the_connection,
    malformed_requests_never_reach_an_operation,
    oversized_packets_close_the_connection,
    uninvited_descriptors_are_refused,
    other_users_are_turned_away,
    who_says_nothing_is_turned_away,
    one_connection_too_many_is_turned_away,
    a_reader_that_does_not_read_holds_up_nobody,
}

const SIZE: u64 = 16 << 20;

/// The helper is alive and serves.
fn check_lives(rig: &mut Rig) -> Result<()> {
    rig.running_helper()?.check_alive()?;
    rig.helper()?.pool_status("default").map(drop)
}

/// A directory volume `vol-a` and a block volume `vol-b` that is attached.
fn volumes(rig: &Rig) -> Result<HelperClient> {
    let helper = rig.helper()?;
    helper.ask_all([create("vol-a", directory_spec(SIZE)), create("vol-b", image_spec(SIZE)), attach("vol-b")])?;
    Ok(helper)
}

fn targets_outside_the_publish_directories_are_refused(rig: &mut Rig) -> Result<()> {
    volumes(rig)?;
    let client = rig.csi()?;
    let publish = rig.publish_directory();
    let kubelet = rig.kubelet.root().to_owned();
    let inside = rig.pool().volume("vol-a");
    for path in [
        "/".into(),
        "/etc/x".into(),
        "relative".into(),
        publish.clone(),
        publish.join(".."),
        publish.join("../escape"),
        publish.join("a/../../escape"),
        publish.with_file_name("publish-not"),
        kubelet.join("pki/x"),
        kubelet.join("plugins/x"),
        kubelet.join("plugins_registry/x"),
        inside.join("data"),
    ] {
        let answer = client.node_publish_volume(csi::publish("vol-a", &path, csi::mount()));
        refused(answer, Code::InvalidArgument, "path").with_context(|| path.display().to_string())?;
    }
    // Below the kubelet's directory only two kinds of path are targets.
    for path in [
        "pods/x", "pods/u/volumes/kubernetes.io~csi/pv", "pods/u/volumes/other/pv/mount", "plugins/kubernetes.io/csi/x",
    ] {
        let path = kubelet.join(path);
        let answer = client.node_publish_volume(csi::publish("vol-a", &path, csi::mount()));
        refused(answer, Code::PermissionDenied, "kubelet").with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn a_link_anywhere_in_the_path_is_refused(rig: &mut Rig) -> Result<()> {
    let helper = &volumes(rig)?;
    let outside = rig.work().join("outside");
    fs::create_dir_all(outside.join("deep"))?;
    fs::create_dir(rig.target("real"))?;
    symlink(&outside, rig.target("absolute"))?;
    symlink("real", rig.target("relative"))?;
    symlink(&outside, rig.target("real/inner"))?;
    symlink("..", rig.target("real/up"))?;
    symlink("/proc/self/root", rig.target("magic"))?;
    for path in ["absolute/t", "absolute/deep/t", "relative/t", "real/inner/t", "real/up/t", "magic/tmp/t"] {
        for request in [bind("vol-a", path), make_device("vol-b", path)] {
            denied(helper.request(&request)?, ErrorKind::Refused, "symbolic link")?;
        }
    }
    ensure!(fs::read_dir(&outside)?.count() == 1 && fs::read_dir(outside.join("deep"))?.count() == 0);
    for name in ["absolute", "relative", "magic"] {
        fs::remove_file(rig.target(name))?;
    }
    fs::remove_dir_all(rig.target("real"))?;
    Ok(())
}

fn a_link_at_the_target_is_refused_and_stays(rig: &mut Rig) -> Result<()> {
    let helper = &volumes(rig)?;
    let outside = rig.work().join("outside");
    fs::create_dir(&outside)?;
    symlink(&outside, rig.target("t"))?;
    for request in [bind("vol-a", "t"), make_device("vol-b", "t")] {
        denied(helper.request(&request)?, ErrorKind::Incompatible, "work:t")?;
    }
    ensure!(helper.ask(&unbind("vol-a", "t"))? == Reply::Done, "nothing of the volume is there");
    ensure!(fs::read_link(rig.target("t"))? == outside);
    fs::remove_file(rig.target("t"))?;
    Ok(())
}

fn a_file_where_a_directory_must_be_is_refused(rig: &mut Rig) -> Result<()> {
    let helper = &volumes(rig)?;
    for content in ["", "precious"] {
        fs::write(rig.target("t"), content)?;
        denied(helper.request(&bind("vol-a", "t"))?, ErrorKind::Incompatible, "file")?;
        denied(helper.request(&bind("vol-a", "t/below"))?, ErrorKind::NotFound, "work:t/below")?;
        let answer = rig.csi()?.node_publish_volume(csi::publish("vol-a", &rig.target("t"), csi::mount()));
        refused(answer, Code::FailedPrecondition, "file")?;
        ensure!(fs::read(rig.target("t"))? == content.as_bytes());
    }
    fs::remove_file(rig.target("t"))?;
    Ok(())
}

fn a_directory_where_a_device_must_be_is_refused(rig: &mut Rig) -> Result<()> {
    let helper = &volumes(rig)?;
    fs::create_dir(rig.target("t"))?;
    denied(helper.request(&make_device("vol-b", "t"))?, ErrorKind::Incompatible, "directory")?;
    fs::remove_dir(rig.target("t"))?;
    fs::write(rig.target("t"), "precious")?;
    denied(helper.request(&make_device("vol-b", "t"))?, ErrorKind::Incompatible, "content")?;
    fs::remove_file(rig.target("t"))?;
    Ok(())
}

fn a_missing_parent_is_not_found(rig: &mut Rig) -> Result<()> {
    let helper = &volumes(rig)?;
    for request in [bind("vol-a", "no/where"), make_device("vol-b", "no/where")] {
        denied(helper.request(&request)?, ErrorKind::NotFound, "no/where")?;
    }
    ensure!(!rig.target("no").exists());
    Ok(())
}

fn a_parent_in_another_mount_is_refused(rig: &mut Rig) -> Result<()> {
    use rustix::mount::{UnmountFlags, mount_bind, unmount};
    let helper = &volumes(rig)?;
    fs::create_dir(rig.target("other"))?;
    mount_bind(rig.logs(), rig.target("other"))?;
    denied(helper.request(&bind("vol-a", "other/t"))?, ErrorKind::Refused, "another mount")?;
    // A published volume is a mount as well: nothing may be published in a directory that a pod can write to.
    helper.ask(&bind("vol-a", "t"))?;
    fs::create_dir(rig.target("t/inner"))?;
    denied(helper.request(&bind("vol-a", "t/inner/x"))?, ErrorKind::Refused, "another mount")?;
    helper.ask(&unbind("vol-a", "t"))?;
    unmount(rig.target("other"), UnmountFlags::NOFOLLOW)?;
    fs::remove_dir(rig.target("other"))?;
    Ok(())
}

fn a_pool_and_a_publish_directory_inside_one_another_are_refused(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    let pool = rig.pools[0].directory.clone();
    let around = rig.work().join("pools");
    fs::create_dir(pool.join("inner"))?;
    for directory in [around, pool.join("inner"), pool.clone()] {
        rig.helper_flags = vec!["--publish-dir".to_owned(), format!("other={}", directory.display())];
        let said = rig.refusal()?;
        ensure!(said.contains("overlap"), "{said}");
    }
    fs::remove_dir(pool.join("inner"))?;
    Ok(())
}

fn garbage_closes_the_connection(rig: &mut Rig) -> Result<()> {
    let socket = rig.helper_socket();
    let hello = encode(&Hello::new(HIGHEST_VERSION))?;
    let longer = [hello.as_slice(), &[0]].concat();
    let mut magic = hello.clone();
    magic[0] ^= 1;
    for packet in [&b"x"[..], &[0; 64], &[0xff; 512], &hello[..hello.len() - 1], &longer] {
        let client = HelperClient::connect(&socket)?;
        client.send(packet)?;
        client.check_closed()?;
    }
    // A client of another protocol gets an error that says so, and is not served.
    let client = HelperClient::connect(&socket)?;
    client.send(&magic)?;
    let answer = client.receive()?.context("the connection is closed without a word")?;
    let answer: Result<Welcome, bulkhead_protocol::Error> = decode(&answer)?;
    ensure!(answer.as_ref().is_err_and(|error| error.message.as_str().contains("not a client")), "{answer:?}");
    client.check_closed()?;
    // The same happens after a hello.
    for packet in [&b"x"[..], &[0xff; 512], &[0; 3], &hello] {
        let client = HelperClient::welcomed(&socket)?;
        client.send(packet)?;
        client.check_closed()?;
    }
    check_lives(rig)
}

fn malformed_requests_never_reach_an_operation(rig: &mut Rig) -> Result<()> {
    let socket = rig.helper_socket();
    let good = encode(&bind("vol-a", "a"))?;
    let replaced = |from: &str, to: &str| {
        let text = String::from_utf8_lossy(&good).into_owned();
        assert_eq!(from.len(), to.len());
        let position = text.find(from).expect("the text is in the packet");
        let mut packet = good.clone();
        packet[position..position + to.len()].copy_from_slice(to.as_bytes());
        packet
    };
    let mut packets = vec![
        replaced("vol-a", "../.."),
        replaced("vol-a", ".mark"),
        replaced("vol-a", "Vol-a"),
        replaced("vol-a", "vol-\0"),
        replaced("work", "Work"),
        replaced("work", "../x"),
        // Four bytes after a request are the number of the client's call.
        [good.as_slice(), b"too"].concat(),
        [good.as_slice(), b"too much"].concat(),
    ];
    let dots = encode(&bind("vol-a", "aa"))?;
    let position = dots.windows(2).rposition(|pair| pair == b"aa").context("no target in the packet")?;
    packets.push([&dots[..position], b"..", &dots[position + 2..]].concat());
    packets.extend((0..good.len()).map(|length| good[..length].to_vec()).skip(1));
    // An unknown request, and one that claims to be longer than it is.
    packets.push(vec![0xff, 0, 0, 0]);
    packets.push([&good[..4], &[0xff; 8], &good[12..]].concat());
    for packet in packets {
        let client = HelperClient::welcomed(&socket)?;
        client.send(&packet)?;
        client.check_closed().with_context(|| format!("{packet:02x?}"))?;
    }
    // A correct request of the same kind does reach its operation. The log's lines are in the order of the operations.
    denied(rig.helper()?.request(&bind("vol-a", "a"))?, ErrorKind::NotFound, "vol-a")?;
    rig.running_helper()?.check_log(|log| match log.matches("bind-mount").count() {
        0 => bail!("the log does not show a request that has reached its operation"),
        1 => Ok(()),
        _ => bail!("a malformed request has reached an operation"),
    })?;
    check_lives(rig)
}

fn oversized_packets_close_the_connection(rig: &mut Rig) -> Result<()> {
    let socket = rig.helper_socket();
    for length in [MAX_PACKET + 1, 2 * MAX_PACKET, 100_000] {
        let silent = HelperClient::connect(&socket)?;
        silent.send(&vec![0; length])?;
        silent.check_closed()?;
        let client = HelperClient::welcomed(&socket)?;
        let request = encode(&delete("vol-a"))?;
        client.send(&[request.as_slice(), &vec![0; length]].concat())?;
        client.check_closed()?;
    }
    check_lives(rig)
}

fn uninvited_descriptors_are_refused(rig: &mut Rig) -> Result<()> {
    let pid = rig.helper_pid()?;
    let open = || processes::descriptors(pid);
    // That of an earlier connection may still be open.
    let before = rig.eventually(5, || {
        let found = open()?;
        std::thread::sleep(Duration::from_millis(200));
        ensure!(open()? == found, "they were {found} a moment before");
        Ok(found)
    })?;
    for _ in 0..20 {
        let client = rig.helper()?;
        let file = fs::File::open("/etc/passwd")?;
        // Since Linux 6.16 it cannot be sent; before that, the connection is closed.
        if client.send_with_descriptor(&encode(&Request::PoolStatus { pool: "default".parse()? })?, &file).is_ok() {
            client.check_closed()?;
        }
    }
    rig.eventually(5, || {
        ensure!(open()? == before, "{} descriptors became {}", before, open()?);
        Ok(())
    })?;
    check_lives(rig)
}

fn other_users_are_turned_away(rig: &mut Rig) -> Result<()> {
    let socket = rig.helper_socket();
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&socket)?) & 0o777;
    ensure!(mode == 0o600, "{mode:o}");
    // Root gets past the socket's mode, but no further.
    let root = HelperClient::connect_as(&socket, 0)?;
    let _ = root.send(&encode(&Hello::new(HIGHEST_VERSION))?);
    root.check_closed()?;
    for uid in [1000, 65534] {
        ensure!(HelperClient::connect_as(&socket, uid).is_err(), "user {uid} has connected");
    }
    check_lives(rig)
}

fn who_says_nothing_is_turned_away(rig: &mut Rig) -> Result<()> {
    let start = Instant::now();
    let silent = HelperClient::connect(&rig.helper_socket())?;
    silent.check_closed()?;
    let waited = start.elapsed();
    ensure!(waited > Duration::from_secs(3) && waited < rig.patience(Duration::from_secs(8)), "after {waited:?}");
    check_lives(rig)
}

fn one_connection_too_many_is_turned_away(rig: &mut Rig) -> Result<()> {
    let mut clients = Vec::new();
    for _ in 0..80 {
        let client = HelperClient::connect(&rig.helper_socket())?;
        match client.hello(HIGHEST_VERSION) {
            Ok(_) => clients.push(client),
            Err(_) => break,
        }
    }
    ensure!((2..80).contains(&clients.len()), "{} connections", clients.len());
    // The frontend keeps its connections, and closing one makes room for another.
    rig.csi()?.probe(Default::default())?;
    clients.pop();
    rig.eventually(5, || rig.helper().map(drop))?;
    drop(clients);
    rig.eventually(5, || rig.helper().map(drop))?;
    check_lives(rig)
}

fn a_reader_that_does_not_read_holds_up_nobody(rig: &mut Rig) -> Result<()> {
    let deaf = rig.helper()?;
    let request = encode(&Request::PoolStatus { pool: "default".parse()? })?;
    deaf.set_nonblocking()?;
    while deaf.send(&request).is_ok() {}
    check_lives(rig)?;
    let client = rig.csi()?;
    client.create_volume(csi::create("vol-a", 1 << 20, csi::mount()))?;
    client.delete_volume(csi::delete("vol-a"))?;
    // It never receives its answers: the connection is closed.
    drop(deaf);
    check_lives(rig)
}
