//! The protocol as documented, and packets that the documentation does not allow.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{MountFlags, Reply, Request, Response, Socket, decode, encode};
use bulkhead_tests::cases;
use bulkhead_tests::daemon::FRONTEND_UID;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::random::Random;
use bulkhead_tests::rig::Rig;

cases! {
    a_client_written_from_the_page_alone_is_served: Bare + Host,
    hostile_conversations_end_as_the_page_says: Bare + Host,
    random_packets_leave_nothing: Bare,
    very_many_random_packets_leave_nothing: Bare + Long,
}

/// The Python client, as it is in the repository.
const SCRIPTS: [(&str, &str); 3] = [
    ("client.py", include_str!("../../../../protocol/client.py")),
    ("corpus.py", include_str!("../../../../protocol/corpus.py")),
    ("hostile.py", include_str!("../../../../protocol/hostile.py")),
];
/// Debian's own: a user's own Python may be where the frontend's user cannot read it.
const PYTHON: &str = "/usr/bin/python3";
const SIZE: u64 = 1 << 20;

fn a_client_written_from_the_page_alone_is_served(rig: &mut Rig) -> Result<()> {
    let scripts = begin(rig)?;
    let client = rig.helper()?;
    for number in 0..20 {
        client.ask(&create(&format!("vol-{number}"), directory_spec(SIZE)))?;
    }
    client.ask(&bind("vol-3", "t"))?;
    let said = |arguments: &[&str]| python(rig, &scripts, "client.py", arguments);
    ensure!(said(&["welcome"])?.contains("'driver': 'bulkhead.csi.local'"));
    ensure!(said(&["list"])?.lines().count() == 20);
    ensure!(said(&["pool", "default"])?.contains("'volumes': 20"));
    ensure!(said(&["usage", "vol-3"])?.contains("'targets': 1"));
    // A LoopResize of vk-1, which does not exist.
    let unknown = said(&["raw", "070000000400000000000000766b2d31"]);
    ensure!(unknown.is_err_and(|error| error.to_string().contains("NotFound: ")));
    Ok(())
}

fn hostile_conversations_end_as_the_page_says(rig: &mut Rig) -> Result<()> {
    let scripts = begin(rig)?;
    let said = python(rig, &scripts, "hostile.py", &[])?;
    let verdict = said.lines().last().unwrap_or_default();
    ensure!(verdict.ends_with(" passed, 0 failed") && verdict.len() > 19, "{said}");
    println!("{verdict}");
    Ok(())
}

/// Starts only the helper, and writes the scripts to a place where the frontend's user can read them.
fn begin(rig: &mut Rig) -> Result<PathBuf> {
    rig.start_helper()?;
    let directory = rig.work().join("scripts");
    fs::create_dir(&directory)?;
    for (name, text) in SCRIPTS {
        fs::write(directory.join(name), text)?;
    }
    Ok(directory)
}

fn python(rig: &Rig, scripts: &Path, name: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(PYTHON);
    command.arg("-B").arg(scripts.join(name)).arg("--socket").arg(rig.helper_socket()).args(arguments);
    let output = command.uid(FRONTEND_UID).gid(FRONTEND_UID).output().context("start /usr/bin/python3")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{name}: {}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(said)
}

fn random_packets_leave_nothing(rig: &mut Rig) -> Result<()> {
    random_packets(rig, 10_000)
}

fn very_many_random_packets_leave_nothing(rig: &mut Rig) -> Result<()> {
    random_packets(rig, 120_000)
}

/// Real requests in random order, most of them with a few bytes changed. Each is answered or ends its connection; the
/// helper survives, and whatever they created can be undone.
fn random_packets(rig: &mut Rig, number: u32) -> Result<()> {
    rig.start_helper()?;
    let seeds = requests().iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    let mut random = Random::new(10);
    let mut client = rig.helper()?;
    let (mut answered, mut granted) = (0, 0);
    for round in 0..number {
        let packet = random.mutated(&seeds);
        // The helper may have closed the connection because of the previous packet.
        let answer = client.send(&packet).and_then(|()| client.receive()).with_context(|| format!("packet {round}"))?;
        let Some(answer) = answer else {
            rig.running_helper()?.check_alive().with_context(|| format!("packet {round}: {packet:02x?}"))?;
            client = rig.helper()?;
            continue;
        };
        let response: Response = decode(&answer).with_context(|| format!("packet {round}: {packet:02x?}"))?;
        answered += 1;
        granted += u32::from(response.is_ok());
    }
    println!("{number} packets, of which {answered} were answered and {granted} granted");
    ensure!(answered > number / 10 && granted > number / 50, "too few packets were requests");
    undo_everything(rig)
}

/// Requests that are related to one another.
fn requests() -> Vec<Request> {
    let id = |name: &str| volume(name);
    let mut requests = Vec::new();
    for target_path in ["a", "b"] {
        let at = || target("work", target_path);
        let flags = MountFlags { read_only: target_path == "b", ..MountFlags::default() };
        requests.extend([
            create("vol-a", directory_spec(SIZE)),
            create("vol-b", image_spec(SIZE)),
            Request::BindMount { volume: id("vol-a"), target: at(), flags, exclusive: false },
            Request::Unmount { volume: id("vol-a"), target: at() },
            Request::LoopAttach { volume: id("vol-b"), read_only: false },
            Request::MakeDevice { volume: id("vol-b"), target: at(), exclusive: false },
            Request::RemoveDevice { volume: id("vol-b"), target: at() },
            Request::LoopDetach { volume: id("vol-b") },
            Request::Usage { volume: id("vol-a"), target: Some(at()) },
            Request::Usage { volume: id("vol-b"), target: None },
        ]);
    }
    requests.extend([
        Request::SetQuota { volume: id("vol-a"), size: bytes(2 * SIZE), inodes: 8192.try_into().expect("inodes") },
        Request::SetInodes { volume: id("vol-a"), inodes: 4096.try_into().expect("inodes") },
        Request::GrowImage { volume: id("vol-b"), size: bytes(2 * SIZE) },
        Request::LoopResize { volume: id("vol-b") },
        Request::List { after: Some(id("vol-a")), limit: 16 },
        Request::PoolStatus { pool: "default".parse().expect("a name") },
        Request::Listen { socket: Socket::Csi },
        Request::SetOwner { volume: id("vol-a"), owner: "claim=shop/data\n".parse().expect("a record") },
        Request::Owner { volume: id("vol-a") },
        Request::DeleteUnused { volume: id("vol-a") },
        delete("vol-a"),
        delete("vol-b"),
    ]);
    requests
}

/// Unpublishes and deletes everything there is.
fn undo_everything(rig: &Rig) -> Result<()> {
    let client = rig.helper()?;
    let publish = rig.publish_directory();
    loop {
        let page = client.ask(&Request::List { after: None, limit: 16 })?;
        let Reply::Volumes(page) = page else { anyhow::bail!("a list is no list") };
        if page.as_slice().is_empty() {
            return Ok(());
        }
        for listed in page.as_slice() {
            for mount in mounts::below(&publish)? {
                let path = mount.point.strip_prefix(&publish)?.to_str().context("a target that is no text")?.to_owned();
                let (volume, target) = (listed.volume.clone(), target("work", &path));
                // It may belong to another volume.
                let _ = client.request(&match listed.block {
                    true => Request::RemoveDevice { volume, target },
                    false => Request::Unmount { volume, target },
                })?;
            }
            client.ask(&Request::Delete { volume: listed.volume.clone() })?;
        }
    }
}
