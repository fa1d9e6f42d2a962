//! What is noted on a volume about whose it is: it is kept as it is, whatever it says, and nothing depends on it.

use std::fs::File;

use anyhow::{Result, ensure};
use bulkhead_protocol::{ErrorKind, MAX_OWNER, OwnerRecord, Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::commands::Printed;
use bulkhead_tests::commands::bulkheadctl;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use serde_json::Value;

cases! {
    a_note_is_kept_and_replaced,
    a_note_survives_a_kill,
    garbage_is_no_note_and_can_be_replaced,
    volumes_are_exported_with_their_notes,
}

const SIZE: u64 = 1 << 20;
/// What is noted on a volume.
pub const NOTE: &str = "bulkhead-owner=1\nclaim=shop/data\n";

/// The request to note this on a volume.
pub fn set(id: &str, note: &str) -> Request {
    Request::SetOwner { volume: volume(id), owner: note.parse().expect("a record") }
}

fn get(id: &str) -> Request {
    Request::Owner { volume: volume(id) }
}

/// Returns what is noted on a volume, and whether it has ever been published.
pub fn noted(rig: &Rig, id: &str) -> Result<(Option<String>, bool)> {
    let Reply::Owner { owner, used } = rig.helper()?.ask(&get(id))? else { anyhow::bail!("another reply") };
    Ok((owner.map(|owner: OwnerRecord| owner.as_str().to_owned()), used))
}

fn a_note_is_kept_and_replaced(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    for request in [set("vol-a", NOTE), get("vol-a")] {
        denied(helper.request(&request)?, ErrorKind::NotFound, "vol-a")?;
    }
    for (id, spec) in [("vol-a", directory_spec(SIZE)), ("vol-b", image_spec(SIZE))] {
        helper.ask(&create(id, spec))?;
        ensure!(noted(rig, id)? == (None, false), "something is noted on a new volume");
        helper.ask_all([set(id, NOTE), set(id, NOTE)])?;
        ensure!(noted(rig, id)? == (Some(NOTE.to_owned()), false));
        let long = "x".repeat(MAX_OWNER);
        helper.ask(&set(id, &long))?;
        ensure!(noted(rig, id)? == (Some(long), false));
        // The settings are where they were.
        helper.ask(&create(id, spec))?;
    }
    helper.ask_all([bind("vol-a", "a"), unbind("vol-a", "a")])?;
    ensure!(noted(rig, "vol-a")?.1, "it was published");
    helper.ask_all(["vol-a", "vol-b"].map(delete))?;
    helper.ask_patiently(&create("vol-a", directory_spec(SIZE)))?;
    ensure!(noted(rig, "vol-a")? == (None, false), "a new volume has the note of a former one");
    Ok(())
}

fn a_note_survives_a_kill(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([create("vol-a", directory_spec(SIZE)), set("vol-a", NOTE)])?;
    rig.kill_helper()?;
    let outer = File::open(rig.pool().volume("vol-a"))?;
    let mut bytes = [0; 64];
    let length = fgetxattr(&outer, "trusted.bulkhead.owner", &mut bytes[..])?;
    ensure!(bytes[..length] == *NOTE.as_bytes(), "an administrator can read it without any program of ours");
    rig.start_helper()?;
    ensure!(noted(rig, "vol-a")? == (Some(NOTE.to_owned()), false));
    Ok(())
}

fn garbage_is_no_note_and_can_be_replaced(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", directory_spec(SIZE)))?;
    let outer = File::open(rig.pool().volume("vol-a"))?;
    for (garbage, errno) in [(&b"\xff\xfe"[..], 74), (b"a\x1b[2J", 74), (&[b'x'; 2000], 34)] {
        fsetxattr(&outer, "trusted.bulkhead.owner", garbage, XattrFlags::empty())?;
        denied(helper.request(&get("vol-a"))?, ErrorKind::Io(errno), "read the owner of volume vol-a")?;
    }
    let helper = rig.restarted_helper()?;
    helper.ask(&set("vol-a", NOTE))?;
    ensure!(noted(rig, "vol-a")? == (Some(NOTE.to_owned()), false));
    Ok(())
}

fn volumes_are_exported_with_their_notes(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    for (id, note) in [("vol-a", NOTE), ("vol-b", "written by hand"), ("vol-c", "")] {
        helper.ask(&create(id, directory_spec(SIZE)))?;
        if !note.is_empty() {
            helper.ask(&set(id, note))?;
        }
    }
    let socket = rig.kubelet.csi_socket();
    let text = Printed::by(bulkheadctl(&socket)?.args(["volume", "export", "--pool", "default"]))?.succeeded()?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    ensure!(
        lines.len() == 3 && lines.iter().all(|line| line["bytes"] == SIZE && line["everPublished"] == false),
        "{text}"
    );
    ensure!(lines[0]["volume"] == "vol-a" && lines[0]["owner"]["claim"] == "shop/data", "{text}");
    let problem = lines[1]["problem"].as_str().unwrap_or_default();
    ensure!(problem.contains("its first line is not") && lines[1]["owner"].is_null(), "{text}");
    ensure!(lines[2]["owner"].is_null() && lines[2].get("problem").is_none(), "{text}");
    let other = Printed::by(bulkheadctl(&socket)?.args(["volume", "export", "--pool", "other"]))?.succeeded()?;
    ensure!(other.is_empty(), "{other}");
    Ok(())
}
