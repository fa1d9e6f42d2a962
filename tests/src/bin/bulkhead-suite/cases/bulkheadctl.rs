//! `bulkheadctl` with the real processes: what it shows when all is well, and when it is not.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::commands::{Printed, bulkheadctl, bulkheadctl_json};
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::expect::refused;
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::program;
use tonic::Code;

use super::copies::dying::repair;

cases! {
    volumes_are_listed_with_what_is_used: Filesystem,
    a_volume_is_shown,
    a_volume_of_a_dead_pool_is_shown_with_what_is_wrong: Bare + Xfs,
    pools_are_listed: Filesystem,
    a_pool_that_is_not_served_is_listed_and_diagnosed: Bare,
    without_an_agent_nobody_knows_orphans,
    the_doctor_finds_nothing_wrong: Filesystem,
    the_doctor_says_that_the_helper_is_away,
    a_stopped_frontend_is_told_in_seconds: Slow,
    a_deletion_asks_first: Host,
    sizes_in_errors_are_for_people,
}

const SIZE: i64 = 16 * MIB;

fn ctl(rig: &Rig, arguments: &[&str]) -> Result<Printed> {
    Printed::by(bulkheadctl(&rig.kubelet.csi_socket())?.args(arguments))
}

/// What can no longer be read of it keeps nobody from seeing the rest.
fn a_volume_of_a_dead_pool_is_shown_with_what_is_wrong(rig: &mut Rig) -> Result<()> {
    let csi = rig.started_csi()?;
    csi.create_volume(create(own("vol-b"), SIZE, block()))?;
    let shown = ctl(rig, &["volume", "show", own("vol-b")])?.succeeded()?;
    Printed::row(&shown, &["own:", "16 MiB"])?;
    run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&rig.pool().directory))?;
    let shown = ctl(rig, &["volume", "show", own("vol-b")])?.succeeded()?;
    Printed::row(&shown, &["own:", "-"])?;
    ensure!(shown.contains("shut down"), "{shown}");
    repair(rig)?;
    let shown = ctl(rig, &["volume", "show", own("vol-b")])?.succeeded()?;
    Printed::row(&shown, &["own:", "16 MiB"])?;
    Ok(())
}

fn volumes_are_listed_with_what_is_used(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let target = rig.target("a");
    csi.create_volume(create(own("vol-a"), SIZE, mount()))?;
    csi.create_volume(create(own("vol-b"), SIZE, block()))?;
    csi.node_publish_volume(publish(own("vol-a"), &target, mount()))?;
    let table = ctl(rig, &["volume", "list"])?.succeeded()?;
    Printed::row(&table, &["ID", "POOL", "KIND", "SIZE", "USED", "TARGETS", "CONDITION"])?;
    let directory = Printed::row(&table, &[own("vol-a"), "default", "directory", "16 MiB"])?;
    // Whether usage is counted depends on the kernel.
    let words: Vec<_> = directory.split_whitespace().collect();
    let targets = if words[0] == "-" { words.get(1) } else { words.get(2) };
    ensure!(targets == Some(&"1"), "{directory}");
    let device = Printed::row(&table, &[own("vol-b"), "default", "block", "16 MiB"])?;
    ensure!(device.ends_with("0        healthy"), "{device}");
    let json = bulkheadctl_json(&rig.kubelet.csi_socket(), &["volume", "list"])?;
    ensure!(json[0]["id"] == own("vol-a") && json[0]["bytes"] == SIZE && json[0]["targets"] == 1, "{json}");
    ensure!(json[1]["id"] == own("vol-b") && json[1]["abnormal"] == false, "{json}");
    Ok(())
}

fn a_volume_is_shown(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    csi.create_volume(create(own("vol-a"), SIZE, mount()))?;
    let facts = ctl(rig, &["volume", "show", own("vol-a")])?.succeeded()?;
    for words in [
        ["id:", own("vol-a")],
        ["pool:", "default"],
        ["size:", "16 MiB"],
        ["settings:", "dirMode=0755"],
        ["targets:", "0"],
    ] {
        Printed::row(&facts, &words)?;
    }
    csi.create_volume(create(own("vol-b"), SIZE, block()))?;
    for (id, target, capability) in [(own("vol-a"), rig.target("a"), mount()), (own("vol-b"), rig.target("b"), block())]
    {
        csi.node_publish_volume(publish(id, &target, capability))?;
        let target = target.to_str().context("a path that is no text")?;
        let shown = ctl(rig, &["volume", "show", id])?.succeeded()?;
        Printed::row(&shown, &["targets:", "1:", target])?;
        ctl(rig, &["volume", "unpublish", id, target])?.succeeded()?;
        let again = ctl(rig, &["volume", "unpublish", id, target])?.succeeded()?;
        ensure!(again.contains("was not published at"), "{again}");
    }
    csi.delete_volume(delete(own("vol-b")))?;
    csi.delete_volume(delete(own("vol-a")))?;
    let told = ctl(rig, &["volume", "show", own("vol-a")])?.failed()?;
    ensure!(told.contains("NOT_FOUND") && told.contains(own("vol-a")), "{told}");
    Ok(())
}

fn pools_are_listed(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    csi.create_volume(create(own("vol-a"), SIZE, block()))?;
    let table = ctl(rig, &["pool", "list"])?.succeeded()?;
    Printed::row(
        &table,
        &["POOL", "TOTAL", "AVAILABLE", "PROMISED", "USED", "FREE-INODES", "VOLUMES", "EMPTYING", "CONDITION"],
    )?;
    let row = Printed::row(&table, &["default"])?;
    ensure!(row.contains("16 MiB") && !row.contains("not served"), "{row}");
    let json = bulkheadctl_json(&rig.kubelet.csi_socket(), &["pool", "list"])?;
    let pool = &json[0];
    ensure!(pool["name"] == "default" && pool["served"] == true && pool["volumes"] == 1, "{json}");
    ensure!(pool["promisedBytes"] == SIZE && pool["usedBytes"].as_i64() >= Some(SIZE), "{json}");
    ensure!(pool["enforced"] == rig.run_options.enforces_sizes(), "{json}");
    Ok(())
}

fn a_pool_that_is_not_served_is_listed_and_diagnosed(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "fast"])?;
    mounts::unmount_all(&rig.pools[1].directory)?;
    rig.start()?;
    let table = ctl(rig, &["pool", "list"])?.succeeded()?;
    let row = Printed::row(&table, &["fast", "-", "-", "-", "-", "-", "-", "-"])?;
    ensure!(row == "not_served", "{row}");
    let told = Printed::row(&table, &["fast:"])?;
    ensure!(told.contains("mount"), "it does not say what to do: {told}");
    Printed::row(&table, &["default"])?;
    let told = ctl(rig, &["doctor"])?.failed()?;
    Printed::row(&told, &["FAILED", "pool fast"])?;
    rig.pools.truncate(1);
    Ok(())
}

fn without_an_agent_nobody_knows_orphans(rig: &mut Rig) -> Result<()> {
    let told = ctl(rig, &["volume", "orphans"])?.failed()?;
    ensure!(told.contains("FAILED_PRECONDITION") && told.contains("kubectl get pv"), "{told}");
    Ok(())
}

fn the_doctor_finds_nothing_wrong(rig: &mut Rig) -> Result<()> {
    let told = ctl(rig, &["doctor"])?.succeeded()?;
    Printed::row(&told, &["ok", "frontend", "answers at"])?;
    Printed::row(&told, &["ok", "helper", "answers; release"])?;
    Printed::row(&told, &["ok", "kubelet", "has registered the driver"])?;
    Printed::row(&told, &["note", "API server", "not used"])?;
    // This kernel may not enforce sizes.
    let pool = told.lines().find(|line| line.contains("pool default")).context("no pool")?;
    ensure!(pool.starts_with(if rig.run_options.enforces_sizes() { "ok" } else { "note" }), "{pool}");
    let json = bulkheadctl_json(&rig.kubelet.csi_socket(), &["doctor"])?;
    ensure!(json["healthy"] == true, "{json}");
    Ok(())
}

fn the_doctor_says_that_the_helper_is_away(rig: &mut Rig) -> Result<()> {
    rig.kill_helper()?;
    let told = ctl(rig, &["doctor"])?.failed()?;
    let helper = Printed::row(&told, &["FAILED", "helper"])?;
    ensure!(helper.contains("is bulkhead-privhelper running"), "{helper}");
    rig.start_helper()?;
    rig.kill_frontend()?;
    let told = ctl(rig, &["doctor"])?.failed()?;
    let frontend = Printed::row(&told, &["FAILED", "frontend"])?;
    ensure!(!frontend.is_empty(), "{told}");
    rig.start_frontend()
}

/// The helper keeps the socket, so that whoever connects waits.
fn a_stopped_frontend_is_told_in_seconds(rig: &mut Rig) -> Result<()> {
    rig.kill_frontend()?;
    let begun = Instant::now();
    let told = ctl(rig, &["pool", "list"])?.failed()?;
    ensure!(told.contains("bulkhead-frontend is stopped or hangs"), "{told}");
    ensure!(begun.elapsed() < rig.patience(Duration::from_secs(40)), "{:?}", begun.elapsed());
    rig.start_frontend()
}

fn a_deletion_asks_first(rig: &mut Rig) -> Result<()> {
    let (csi, id) = (rig.csi()?, own("vol-a"));
    let command = format!("volume delete {id}");
    csi.create_volume(create(id, SIZE, mount()))?;
    let told = ctl(rig, &["volume", "delete", id])?.failed()?;
    ensure!(told.contains("no terminal") && told.contains("--yes"), "{told}");
    let told = on_a_terminal(rig, &command, "n")?.failed()?;
    ensure!(told.contains(&format!("This deletes volume {id} (16 MiB) and all its data.")), "{told}");
    ensure!(told.contains("no storage agent runs on this node. Continue? [y/N]"), "{told}");
    ensure!(rig.pool().volume(id).exists(), "it was deleted");
    on_a_terminal(rig, &command, "y")?.succeeded()?;
    ensure!(!rig.pool().volume(id).exists(), "it was not deleted");
    csi.create_volume(create(own("vol-b"), SIZE, mount()))?;
    ctl(rig, &["volume", "delete", own("vol-b"), "--yes"])?.succeeded()?;
    ensure!(!rig.pool().volume(own("vol-b")).exists(), "it was not deleted");
    Ok(())
}

/// Returns what `bulkheadctl` prints on a terminal when somebody types `answer`.
fn on_a_terminal(rig: &Rig, arguments: &str, answer: &str) -> Result<Printed> {
    let line = format!("{} {arguments}", program("bulkheadctl")?.display());
    // The answer waits in the terminal until it is read.
    let pipe = format!("echo {answer} | script --quiet --return --command '{line}' /dev/null");
    Printed::by(Command::new("sh").args(["-c", &pipe]).env("BULKHEAD_ENDPOINT", rig.kubelet.csi_socket()))
}

fn sizes_in_errors_are_for_people(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    refused(
        csi.create_volume(create(own("vol-a"), 1 << 50, block())),
        Code::ResourceExhausted,
        "1024 TiB are requested",
    )
}
