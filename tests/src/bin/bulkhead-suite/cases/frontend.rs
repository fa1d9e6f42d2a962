//! The frontend as a process: its command line, its own endpoint, and its behaviour without a helper.

use std::fs;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::CsiClient;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::*;
use bulkhead_tests::daemon::{Daemon, FRONTEND_UID};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::program;
use bulkhead_tests::wait;

cases! {
    doubtful_command_lines_are_refused: Bare,
    an_endpoint_of_its_own_replaces_a_stale_socket: Bare,
    it_waits_for_a_helper_that_starts_later: Bare,
    it_serves_what_it_can_while_the_helper_is_away,
    it_ends_when_it_is_asked_to,
    each_call_may_come_on_a_connection_of_its_own,
    one_of_another_user_is_told_which_it_must_be: Bare,
    a_condition_of_a_pool_is_logged_when_it_appears_and_when_it_is_gone: Bare,
}

fn frontend() -> Result<Command> {
    let mut command = Command::new(program("bulkhead-frontend")?);
    command.uid(FRONTEND_UID).gid(FRONTEND_UID).current_dir("/");
    Ok(command)
}

/// Root gets through to the helper, which hangs up; anybody else does not even get there.
fn one_of_another_user_is_told_which_it_must_be(rig: &mut Rig) -> Result<()> {
    rig.start_helper()?;
    for uid in [0, FRONTEND_UID + 1] {
        let mut command = Command::new(program("bulkhead-frontend")?);
        command.uid(uid).gid(uid).current_dir("/").args(["--node-id", "node", "--probe", "--helper-socket"]);
        let output = command.arg(rig.helper_socket()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected =
            format!("serves user {FRONTEND_UID}, and this process is user {uid}: run it as user {FRONTEND_UID}");
        ensure!(!output.status.success() && said.contains(&expected), "{said}");
        ensure!(said.contains(&format!("--allow-uid {uid}")), "{said}");
    }
    rig.running_helper()?.has_logged(&format!("this one not of --allow-uid {FRONTEND_UID} uid=0 pid="))
}

fn a_condition_of_a_pool_is_logged_when_it_appears_and_when_it_is_gone(rig: &mut Rig) -> Result<()> {
    rig.helper_flags = vec!["--max-volumes".to_owned(), "1".to_owned()];
    let csi = rig.started_csi()?;
    csi.create_volume(create("vol-a", MIB, mount()))?;
    for _ in 0..3 {
        ensure!(csi.get_capacity(GetCapacityRequest::default())?.available_capacity == 0);
    }
    // The frontend does not wait for its log to be written.
    let patience = rig.patience(Duration::from_secs(10));
    let log = |rig: &mut Rig| rig.running_frontend()?.log();
    wait::until(patience, || {
        let log = log(rig)?;
        let lines = log.matches("the pool reports: there are 1 volumes").count();
        ensure!(lines == 1, "{lines} lines: {log}");
        Ok(())
    })?;
    csi.delete_volume(delete("vol-a"))?;
    wait::until(patience, || {
        ensure!(csi.get_capacity(GetCapacityRequest::default())?.available_capacity > 0);
        let log = log(rig)?;
        ensure!(log.contains("the pool no longer reports: there are"), "{log}");
        Ok(())
    })
}

fn doubtful_command_lines_are_refused(rig: &mut Rig) -> Result<()> {
    let socket = rig.helper_socket().display().to_string();
    let long = "n".repeat(257);
    for flags in [
        vec!["--node-id", "node"],
        vec!["--helper-socket", &socket],
        vec!["--helper-socket", &socket, "--node-id", ""],
        vec!["--helper-socket", &socket, "--node-id", &long],
        vec!["--helper-socket", &socket, "--node-id", "node", "--csi-endpoint", "tcp://127.0.0.1:1"],
        vec!["--helper-socket", &socket, "--node-id", "node", "--csi-endpoint", "unix://relative"],
        vec!["--helper-socket", &socket, "--node-id", "node", "--no-such-flag"],
    ] {
        let output = frontend()?.args(&flags).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code().is_some_and(|code| code != 0), "{flags:?} ended with {}", output.status);
        ensure!(!text.trim().is_empty() && !text.contains("panicked"), "{flags:?}: {text}");
    }
    Ok(())
}

fn an_endpoint_of_its_own_replaces_a_stale_socket(rig: &mut Rig) -> Result<()> {
    rig.start_helper()?;
    let directory = rig.work().join("run/own");
    fs::create_dir(&directory)?;
    std::os::unix::fs::chown(&directory, Some(FRONTEND_UID), Some(FRONTEND_UID))?;
    let endpoint = directory.join("csi.sock");
    drop(UnixListener::bind(&endpoint)?);
    let mut command = frontend()?;
    command.arg("--helper-socket").arg(rig.helper_socket()).args(["--node-id", "node", "--csi-endpoint"]);
    command.arg(format!("unix://{}", endpoint.display()));
    let mut own = Daemon::start("frontend", &mut command, &rig.logs())?;
    own.wait_until(rig.patience(Duration::from_secs(20)), || {
        let csi = CsiClient::connect(&endpoint)?;
        ensure!(csi.probe(ProbeRequest {})?.ready == Some(true), "not ready");
        Ok(())
    })?;
    let csi = CsiClient::connect(&endpoint)?;
    csi.create_volume(create("vol-a", MIB, mount()))?;
    csi.delete_volume(delete("vol-a"))?;
    own.stop(rig.patience(Duration::from_secs(10)))?;
    if endpoint.exists() {
        fs::remove_file(&endpoint)?;
    }
    Ok(())
}

fn it_waits_for_a_helper_that_starts_later(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    rig.launch_frontend()?;
    std::thread::sleep(rig.patience(Duration::from_millis(500)));
    rig.running_frontend()?.check_alive()?;
    rig.start_helper()?;
    rig.eventually(20, || rig.csi()?.check_ready())
}

fn it_serves_what_it_can_while_the_helper_is_away(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    rig.kill_helper()?;
    csi.get_plugin_info(GetPluginInfoRequest {})?;
    csi.get_plugin_capabilities(GetPluginCapabilitiesRequest {})?;
    csi.node_get_capabilities(NodeGetCapabilitiesRequest {})?;
    csi.controller_get_capabilities(ControllerGetCapabilitiesRequest {})?;
    csi.node_get_info(NodeGetInfoRequest {})?;
    rig.start_helper()
}

fn it_ends_when_it_is_asked_to(rig: &mut Rig) -> Result<()> {
    let before = rig.running_frontend()?.pid();
    rig.stop()?;
    rig.start_helper()?;
    rig.start_frontend()?;
    ensure!(rig.running_frontend()?.pid() != before);
    Ok(())
}

/// The kubelet opens a connection for each call.
fn each_call_may_come_on_a_connection_of_its_own(rig: &mut Rig) -> Result<()> {
    let target = rig.target("a");
    rig.csi()?.create_volume(create("vol-a", MIB, mount()))?;
    for _ in 0..50 {
        rig.csi()?.node_get_capabilities(NodeGetCapabilitiesRequest {})?;
        rig.csi()?.node_publish_volume(publish("vol-a", &target, mount()))?;
        rig.csi()?.node_get_volume_stats(stats("vol-a", &target))?;
        rig.csi()?.node_unpublish_volume(unpublish("vol-a", &target))?;
    }
    Ok(())
}
