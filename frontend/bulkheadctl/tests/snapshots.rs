//! `bulkheadctl` on snapshots and copies, against the real services and a helper that can copy.

#[allow(dead_code, reason = "each suite uses a part of it")]
#[path = "../../tests/fake/mod.rs"]
mod fake;
#[allow(dead_code, reason = "each suite uses a part of it")]
#[path = "../../tests/world/mod.rs"]
mod world;

use std::process::Command;

use serde_json::{Value, json};

use fake::FakeHelper;

/// Returns what the program prints beside this helper: on standard output if it succeeds.
async fn run(fake: &FakeHelper, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bulkheadctl"));
    command.args(arguments).env_clear().env("BULKHEAD_HELPER_SOCKET", fake.path());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

async fn json(fake: &FakeHelper, arguments: &[&str]) -> Value {
    let printed = run(fake, &[&["--json"], arguments].concat()).await.unwrap();
    serde_json::from_str(&printed).unwrap()
}

#[tokio::test]
async fn snapshots_come_and_go() {
    let fake = world::start();
    let taken = run(&fake, &["snapshot", "create", "block", "monday"]).await.unwrap();
    assert_eq!(taken, "monday is a snapshot of block, and has 8 MiB\n");
    run(&fake, &["snapshot", "create", "image", "tuesday"]).await.unwrap();
    let list = run(&fake, &["snapshot", "list"]).await.unwrap();
    let expected = "ID       POOL     KIND        SIZE     ALLOCATED  SOURCE  TAKEN\n\
                    monday   default  block       8 MiB    4 KiB      block   1970-01-01T00:00:01Z\n\
                    tuesday  default  filesystem  300 MiB  4 KiB      image   1970-01-01T00:00:01Z\n";
    assert_eq!(list, expected);
    let of_block = run(&fake, &["snapshot", "list", "--of", "block"]).await.unwrap();
    assert!(of_block.contains("monday") && !of_block.contains("tuesday"), "{of_block}");
    let shown = run(&fake, &["snapshot", "show", "monday"]).await.unwrap();
    assert!(shown.contains("source:     block\nfamily:     block\ntaken:      1970"), "{shown}");
    let expected = json!({
        "id": "monday", "pool": "default", "kind": "block", "bytes": 8 << 20, "allocatedBytes": 4096,
        "source": "block", "family": "block", "taken": "1970-01-01T00:00:01Z",
    });
    assert_eq!(json(&fake, &["snapshot", "show", "monday"]).await, expected);
    assert_eq!(json(&fake, &["snapshot", "list", "--of", "block"]).await, json!([expected]));
    let refused = run(&fake, &["snapshot", "show", "block"]).await.unwrap_err();
    assert_eq!(refused, "bulkheadctl: NOT_FOUND: no such snapshot: block is a volume\n");

    let asked = run(&fake, &["snapshot", "delete", "monday"]).await.unwrap_err();
    assert!(asked.contains("This deletes snapshot monday of volume block") && asked.contains("--yes"), "{asked}");
    assert_eq!(run(&fake, &["snapshot", "delete", "monday", "--yes"]).await.unwrap(), "monday has been deleted\n");
    assert_eq!(run(&fake, &["snapshot", "delete", "monday"]).await.unwrap(), "there was no snapshot monday\n");
}

#[tokio::test]
async fn snapshots_are_taken_and_deleted_together() {
    let fake = world::start();
    let taken = json(&fake, &["snapshot", "together", "evening", "image", "block"]).await;
    assert_eq!((&taken["id"], taken["snapshots"].as_array().unwrap().len()), (&"evening".into(), 2));
    let printed = run(&fake, &["snapshot", "together", "evening", "block", "image"]).await.unwrap();
    for one in taken["snapshots"].as_array().unwrap() {
        let (id, source) = (one["id"].as_str().unwrap(), one["source"].as_str().unwrap());
        assert!(printed.contains(&format!("{id}  {source}\n")) && id.starts_with("evening.of-"), "{printed}");
    }
    let refused = run(&fake, &["snapshot", "together", "evening", "block"]).await.unwrap_err();
    assert!(refused.starts_with("bulkheadctl: ALREADY_EXISTS"), "{refused}");
    let asked = run(&fake, &["snapshot", "delete", "evening"]).await.unwrap_err();
    assert!(asked.contains("taken together as evening: evening.of-") && asked.contains("--yes"), "{asked}");
    assert_eq!(run(&fake, &["snapshot", "delete", "evening", "--yes"]).await.unwrap(), "evening has been deleted\n");
    assert_eq!(run(&fake, &["snapshot", "delete", "evening"]).await.unwrap(), "there was no snapshot evening\n");
}

#[tokio::test]
async fn volumes_are_made_as_copies_and_say_of_what() {
    let fake = world::start();
    run(&fake, &["snapshot", "create", "block", "monday"]).await.unwrap();
    run(&fake, &["snapshot", "create", "image", "tuesday"]).await.unwrap();
    let restored = run(&fake, &["snapshot", "restore", "monday", "copy", "--size", "16Mi", "--sparse"]).await.unwrap();
    assert_eq!(restored, "copy has 16 MiB, and the content of monday\n");
    let restored = run(&fake, &["snapshot", "restore", "tuesday", "files"]).await.unwrap();
    assert_eq!(restored, "files has 300 MiB, and the content of tuesday\n");
    let cloned = json(&fake, &["volume", "clone", "copy", "second"]).await;
    assert_eq!(cloned, json!({ "id": "second", "bytes": 16 << 20, "source": "copy" }));
    let shown = run(&fake, &["volume", "show", "second"]).await.unwrap();
    assert!(shown.contains("source:            copy\nfamily:            block\n"), "{shown}");
    let sharing = "shared:            12 KiB\nown:               1012 KiB\nsnapshots:         none\n";
    assert!(shown.contains(sharing), "both parts of the helper's answer count: {shown}");
    let shown = json(&fake, &["volume", "show", "block"]).await;
    assert_eq!((&shown["source"], &shown["family"]), (&Value::Null, &"block".into()));
    assert_eq!(shown["snapshots"], json!(["monday"]));
    assert_eq!((&shown["sharedBytes"], &shown["ownBytes"]), (&(12 << 10).into(), &(1012 << 10).into()));
    let directory = json(&fake, &["volume", "show", "directory"]).await;
    assert_eq!((&directory["sharedBytes"], &directory["ownBytes"]), (&Value::Null, &Value::Null));
    let refused = run(&fake, &["volume", "clone", "directory", "third"]).await.unwrap_err();
    assert!(refused.starts_with("bulkheadctl: INVALID_ARGUMENT"), "{refused}");
    let refused = run(&fake, &["volume", "clone", "monday", "third"]).await.unwrap_err();
    assert_eq!(refused, "bulkheadctl: NOT_FOUND: no such volume: monday is a snapshot\n");
    let refused = run(&fake, &["snapshot", "create", "pieces", "wednesday"]).await.unwrap_err();
    assert!(refused.starts_with("bulkheadctl: FAILED_PRECONDITION: volume pieces is too fragmented"), "{refused}");
}

#[tokio::test]
async fn what_a_backup_has_to_read_is_listed() {
    let fake = world::start();
    for name in ["monday", "tuesday"] {
        run(&fake, &["snapshot", "create", "block", name]).await.unwrap();
    }
    let all = json(&fake, &["snapshot", "delta", "monday"]).await;
    assert_eq!((&all["id"], &all["base"], &all["bytes"]), (&"monday".into(), &Value::Null, &(8 << 20).into()));
    let ranges = all["ranges"].as_array().unwrap();
    assert_eq!((ranges.len(), &ranges[255]), (256, &json!({ "offset": 255 * 8192, "length": 4096 })));
    let changed = run(&fake, &["snapshot", "delta", "monday", "tuesday"]).await.unwrap();
    assert_eq!(changed, "OFFSET  LENGTH\n0       8192\n");
}
