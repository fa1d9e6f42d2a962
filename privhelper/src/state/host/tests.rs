use std::collections::BTreeMap;

use super::super::ways::Step;
use super::*;
use crate::place::wire::{Answer, Failure};
use crate::state::testing::{id, volumes};
use crate::sys::packet;

/// A placer to which no publish directory has moved.
fn placer() -> Arc<Placer> {
    let (line, other) = packet::pair().expect("sockets");
    std::thread::spawn(move || {
        let answer = bulkhead_protocol::encode(&Ok::<_, Failure>(Answer::Is(false))).expect("it can be encoded");
        while matches!(packet::receive(&other, &mut [0; 64]), Ok(packet::Received::Packet(_))) {
            packet::send(&other, &answer, None).expect("there is room");
        }
    });
    Arc::new(Placer::new(vec![line], BTreeMap::new()))
}

/// A node with a root, a disk for the kubelet, and a pool of which `more` is mounted.
fn host(table: &str) -> Host {
    let step = |mount, leads_to: &str| Step { mount, leads_to: leads_to.into() };
    let steps = vec![step(2, "/kubelet/pods"), step(1, "/kubelet")];
    let name = "kubelet-pods".parse().expect("a name");
    let way = Way { name, peers: 7, steps };
    let tables = [MountTable::of(table), MountTable::of(table)];
    Host::new("nodes/driver".to_owned(), vec![way], tables, placer(), volumes(&["vol-a", "vol-b"]))
}

const ROOT: &str = "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw";
const KUBELET: &str = "2 1 8:2 / /kubelet rw shared:7 - ext4 /dev/sda2 rw";

fn pools() -> [PoolAt; 1] {
    [((8, 3), "/pool".into())]
}

fn check(host: &Host, volume: &str, device: Option<u32>) -> Result<(), Error> {
    host.check_unmounted(&pools(), &id(volume), device)
}

fn asked(table: &[&str], node: Option<u32>) -> Result<(), Error> {
    check(&host(&table.join("\n")), "vol-a", node)
}

#[test]
fn a_volume_is_found_wherever_a_part_of_it_is_mounted() {
    assert_eq!(asked(&[ROOT, KUBELET], None), Ok(()));
    for root in ["/pool/vol-a", "/pool/vol-a/data", "/pool/vol-a/data/sub", "/pool/vol-a//deleted"] {
        let line = format!("3 2 8:3 {root} /somewhere\\040else rw - xfs /dev/sdb rw");
        let error = asked(&[ROOT, KUBELET, &line], None).expect_err(root);
        assert!(error.message.as_str().contains("is mounted at /somewhere else"), "{error}");
    }
    for line in [
        "3 2 8:3 /pool/vol-ab/data /t rw - xfs /dev/sdb rw",
        "3 2 8:3 /pool /t rw - xfs /dev/sdb rw",
        "3 2 8:3 /pool2/vol-a /t rw - xfs /dev/sdb rw",
        "3 2 8:4 /pool/vol-a/data /t rw - xfs /dev/sdc rw",
    ] {
        assert_eq!(asked(&[ROOT, KUBELET, line], None), Ok(()), "{line}");
    }
}

#[test]
fn a_node_is_ours_only_if_it_is_from_our_own_tmpfs() {
    let ours = "3 2 0:50 /loop7 /t rw - tmpfs nodes/driver rw";
    assert!(asked(&[ROOT, KUBELET, ours], Some(7)).is_err());
    assert!(asked(&[ROOT, KUBELET, &ours.replace("/loop7", "/loop7//deleted")], Some(7)).is_err());
    for (line, node) in [
        (ours, Some(8)),
        (ours, None),
        ("3 2 0:50 /loop7 /t rw - tmpfs tmpfs rw", Some(7)),
        ("3 2 0:50 /loop7 /t rw - tmpfs nodes/other rw", Some(7)),
        ("3 2 0:50 /loop7 /t rw - xfs nodes/driver rw", Some(7)),
        ("3 2 0:50 /x/loop7 /t rw - tmpfs nodes/driver rw", Some(7)),
        ("3 2 0:50 /loop70 /t rw - tmpfs nodes/driver rw", Some(7)),
    ] {
        assert_eq!(asked(&[ROOT, KUBELET, line], node), Ok(()), "{line}");
    }
}

#[test]
fn a_directory_that_is_apart_is_told_with_its_cause() {
    use Separation::{Covered, NotShared, Unmounted};
    for (table, cause) in [
        (vec![ROOT, KUBELET], None),
        (vec![ROOT], Some(Unmounted)),
        (vec![KUBELET], Some(Unmounted)),
        (vec![ROOT, "2 1 8:2 / /moved rw shared:7 - ext4 /dev/sda2 rw"], Some(Unmounted)),
        (vec![ROOT, "2 1 8:2 / /kubelet rw - ext4 /dev/sda2 rw"], Some(NotShared)),
        (vec![ROOT, "2 1 8:2 / /kubelet rw shared:8 - ext4 /dev/sda2 rw"], Some(NotShared)),
        (vec![ROOT, KUBELET, "9 2 8:2 / /kubelet rw shared:9 - ext4 /dev/sda2 rw"], Some(Covered)),
        (vec![ROOT, KUBELET, "9 2 8:2 / /kubelet/pods rw shared:9 - ext4 /dev/sda2 rw"], Some(Covered)),
        (vec![ROOT, KUBELET, "9 2 8:2 / /kubelet/pods/u rw shared:9 - ext4 /dev/sda2 rw"], None),
        (vec![ROOT, KUBELET, "9 2 8:2 / /kubelet/plugins rw shared:9 - ext4 /dev/sda2 rw"], None),
        (vec![ROOT, KUBELET, "9 1 8:4 / / rw shared:9 - ext4 /dev/sdd rw"], Some(Covered)),
        (vec![ROOT, KUBELET, "9 1 8:4 / /kubelet rw shared:9 - ext4 /dev/sdd rw"], None),
        (vec![ROOT, KUBELET, "9 1 8:4 / /kube rw shared:9 - ext4 /dev/sdd rw"], None),
    ] {
        let host = host(&table.join("\n"));
        let answer = check(&host, "vol-a", None);
        assert_eq!(host.apart().map(|(_, cause)| cause), cause, "{table:?}");
        assert_eq!(answer.is_err(), cause.is_some(), "{table:?}: what is apart hides what is mounted");
        // What the last whole reading has shown is known, and what its own mount shows is asked anew.
        assert_eq!(host.check_joined(&"kubelet-pods".parse().expect("a name")).is_err(), cause.is_some(), "{table:?}");
    }
}

#[test]
fn the_beginning_of_the_table_is_enough_for_a_publish() {
    let name = "kubelet-pods".parse().expect("a name");
    let garbage = format!("{ROOT}\n{KUBELET}\n{}\nnot a mount\n", "3 1 8:1 /x /x rw - ext4 /dev/sda1 rw\n".repeat(99));
    assert_eq!(host(&garbage).check_joined(&name), Ok(()), "the rest is not read");
    assert!(
        check(&host(&garbage), "vol-a", None).is_err(),
        "a line that is not understood might be the one that matters"
    );
    assert_eq!(host(ROOT).check_joined(&"other".parse().expect("a name")), Ok(()));
}

#[test]
fn one_reading_answers_all_that_wait_for_it() {
    let host = host(&[ROOT, KUBELET, "3 2 8:3 /pool/vol-b/data /t rw - xfs /dev/sdb rw"].join("\n"));
    let reading = lock(&host.mounts);
    std::thread::scope(|scope| {
        let asks = |volume: &'static str| scope.spawn(|| check(&host, volume, None).is_err());
        let asked = ["vol-a", "vol-b", "vol-c", "vol-d"].map(asks);
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(reading);
        assert_eq!(asked.map(|asked| asked.join().expect("an answer")), [false, true, false, false]);
    });
    // Those that had asked by then are answered by one, whichever of them reads.
    assert!(host.begun.load(SeqCst) < 4);
}
