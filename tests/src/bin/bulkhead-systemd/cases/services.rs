//! Starting, stopping and restarting the services, and their privileges.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{HIGHEST_VERSION, Request};
use bulkhead_tests::cases;
use bulkhead_tests::csi::v1::ProbeRequest;
use bulkhead_tests::daemon::FRONTEND_UID;
use bulkhead_tests::documented;
use bulkhead_tests::helper::HelperClient;
use bulkhead_tests::observe::processes;
use bulkhead_tests::pool::output;
use bulkhead_tests::wait;
use k8s_openapi::jiff::Timestamp;

use crate::node::{AGENT_FILES, CONFIGURATION, FRONTEND_USER, HELPER_SOCKET, Node, install_files, set_modes};
use crate::unit::{FRONTEND, HELPER, SOCKET, Unit, systemctl};

cases! {
    on Node;
    the_units_have_no_mistake,
    the_helper_is_ready_when_systemd_says_so,
    a_client_that_connects_starts_the_helper,
    the_helpers_socket_outlives_its_restart,
    the_helpers_socket_is_the_frontends_alone,
    the_frontend_has_a_user_of_its_own_and_no_capability,
    the_helper_has_no_capability_its_placer_two_and_its_emptier_three,
    a_program_that_is_killed_is_started_again,
    a_helper_that_cannot_serve_is_tried_until_it_can,
    a_stop_ends_every_process,
    the_documented_commands_stop_the_helper_for_good_and_start_it,
    the_journal_stamps_lines_and_the_programs_do_not,
    an_agent_whose_cluster_is_away_serves_the_kubelet,
    exposure_is_as_low_as_the_work_allows,
}

const UNITS: [Unit; 3] = [SOCKET, HELPER, FRONTEND];
/// What a systemd older than that call says. It does no harm: the helper works without the call.
const NEWER_CALL: &str = "Failed to parse system call, ignoring: statmount";

fn the_units_have_no_mistake(_: &mut Node) -> Result<()> {
    // The manual pages are not installed here.
    let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(UNITS.map(Unit::name)).output()?;
    let complaints = String::from_utf8_lossy(&verify.stderr).into_owned();
    // Other units on the machine do not matter here.
    let ours = complaints.lines().filter(|line| line.contains("bulkhead") && !line.ends_with(NEWER_CALL));
    let ours: Vec<&str> = ours.collect();
    ensure!(verify.status.success() && ours.is_empty(), "{complaints}");
    for unit in UNITS {
        ensure!(
            unit.property("UnitFileState")? == "enabled"
                && unit.property("LoadError")?.trim_matches('"').trim().is_empty()
        );
    }
    Ok(())
}

fn the_helper_is_ready_when_systemd_says_so(node: &mut Node) -> Result<()> {
    ensure!(HELPER.property("Type")? == "notify");
    for _ in 0..3 {
        HELPER.restart()?;
        // Without any wait.
        HELPER.check("active")?;
        ensure!(HELPER.property("StatusText")? == "Serving requests", "{}", HELPER.property("StatusText")?);
        node.helper()?.ask(&Request::List { after: None, limit: 1 })?;
    }
    Ok(())
}

fn a_client_that_connects_starts_the_helper(node: &mut Node) -> Result<()> {
    FRONTEND.stop()?;
    HELPER.stop()?;
    HELPER.check("inactive")?;
    SOCKET.check("active")?;
    node.helper()?.ask(&Request::List { after: None, limit: 1 })?;
    HELPER.check("active")?;
    // Starting only the frontend also starts the helper.
    HELPER.stop()?;
    FRONTEND.start()?;
    node.wait()?;
    HELPER.check("active")
}

fn the_helpers_socket_outlives_its_restart(node: &mut Node) -> Result<()> {
    let inode = || Ok::<_, anyhow::Error>(fs::symlink_metadata(HELPER_SOCKET)?.ino());
    let before = inode()?;
    let frontend = FRONTEND.pid()?;
    for _ in 0..2 {
        let pid = HELPER.pid()?;
        HELPER.restart()?;
        ensure!(HELPER.pid()? != pid && inode()? == before);
        node.wait()?;
    }
    ensure!(FRONTEND.pid()? == frontend, "the frontend was restarted as well");
    // A client that connects while no process is serving waits, and is then served.
    HELPER.stop()?;
    let client = HelperClient::connect_as(Path::new(HELPER_SOCKET), FRONTEND_USER)?;
    client.hello(HIGHEST_VERSION)?;
    Ok(())
}

fn the_helpers_socket_is_the_frontends_alone(_: &mut Node) -> Result<()> {
    let socket = fs::symlink_metadata(HELPER_SOCKET)?;
    ensure!((socket.uid(), socket.mode() & 0o7777) == (FRONTEND_USER, 0o600), "{socket:?}");
    let refused =
        HelperClient::connect_as(Path::new(HELPER_SOCKET), FRONTEND_UID).err().context("another user is let in")?;
    ensure!(format!("{refused:#}").contains("ermission denied"), "{refused:#}");
    // Root gets past the socket's mode, but not past the helper.
    let root = HelperClient::connect_as(Path::new(HELPER_SOCKET), 0)?;
    root.check_closed()
}

fn the_frontend_has_a_user_of_its_own_and_no_capability(_: &mut Node) -> Result<()> {
    let user = output(Command::new("id").args(["-u", "bulkhead"]))?;
    ensure!(user == FRONTEND_USER.to_string(), "{user}");
    ensure!(FRONTEND.status("Uid")?.split_whitespace().all(|id| id == user), "{}", FRONTEND.status("Uid")?);
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        ensure!(FRONTEND.status(name)? == "0000000000000000", "{name}: {}", FRONTEND.status(name)?);
    }
    ensure!(FRONTEND.status("NoNewPrivs")? == "1" && FRONTEND.status("Seccomp")? == "2");
    // It sees neither the content of the volumes nor their targets.
    let root = format!("/proc/{}/root", FRONTEND.pid()?);
    for hidden in ["/var/lib/kubelet", "/srv/bulkhead"] {
        let mode = fs::metadata(format!("{root}{hidden}"))?.mode() & 0o7777;
        ensure!(mode == 0, "{hidden} has mode {mode:o}");
    }
    // Of all that runs on the host, the only socket that it sees is its helper's.
    let seen = fs::read_dir(format!("{root}/run"))?.map(|entry| Ok(entry?.file_name()));
    let seen = seen.collect::<Result<Vec<_>>>()?;
    ensure!(seen.iter().all(|name| name == "bulkhead" || name == "systemd"), "it sees {seen:?} in /run");
    ensure!(!Path::new(&format!("{root}/run/systemd/private")).exists(), "it sees systemd's own socket");
    ensure!(!Path::new(&format!("{root}/run/dbus")).exists(), "it sees the message bus");
    Ok(())
}

fn the_helper_has_no_capability_its_placer_two_and_its_emptier_three(_: &mut Node) -> Result<()> {
    const SYS_ADMIN_AND_MKNOD: &str = "0000000008200000";
    const DAC_OVERRIDE_FOWNER_AND_LINUX_IMMUTABLE: &str = "000000000000020a";
    let helper = HELPER.pid()?;
    let placer = processes::placer(helper)?;
    let children = processes::descendants(helper)?;
    let emptiers: Vec<i32> = children.iter().map(|child| child.pid).filter(|pid| *pid != placer).collect();
    let [emptier] = emptiers.as_slice() else { anyhow::bail!("not one emptier: {children:?}") };
    for (pid, permitted) in [
        (helper, "0000000000000000"),
        (placer, SYS_ADMIN_AND_MKNOD),
        (*emptier, DAC_OVERRIDE_FOWNER_AND_LINUX_IMMUTABLE),
    ] {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        ensure!(status.contains(&format!("CapPrm:\t{permitted}")), "{status}");
        for line in ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
            ensure!(status.contains(line), "{status}");
        }
    }
    Ok(())
}

fn a_program_that_is_killed_is_started_again(node: &mut Node) -> Result<()> {
    for unit in [HELPER, FRONTEND] {
        let pid = unit.pid()?;
        systemctl(&["kill", "--kill-who=main", "--signal=KILL", unit.name()])?;
        wait::until(node.patience(Duration::from_secs(3)), || {
            ensure!(unit.pid()? != pid, "it was not killed");
            unit.check("active")
        })?;
        node.wait()?;
    }
    Ok(())
}

/// How many starts systemd allows within ten seconds before it gives up, unless a unit says otherwise.
const USUAL_BURST: u32 = 5;

/// As when a configuration is corrected.
fn a_helper_that_cannot_serve_is_tried_until_it_can(node: &mut Node) -> Result<()> {
    for unit in [HELPER, FRONTEND] {
        ensure!(unit.property("StartLimitIntervalUSec")? == "0", "{} gives up after some failures", unit.name());
    }
    let good = fs::read_to_string(CONFIGURATION)?;
    fs::write(CONFIGURATION, good.replace("/srv/bulkhead/default", "srv/bulkhead/default"))?;
    let refused = HELPER.restart();
    // By this time systemd would have given up, unless the unit told it not to.
    let tried = wait::until(node.patience(Duration::from_secs(30)), || {
        let restarts: u32 = HELPER.property("NRestarts")?.parse()?;
        ensure!(restarts > USUAL_BURST, "it was started again {restarts} times");
        Ok(())
    });
    let state = HELPER.property("ActiveState");
    let pid = FRONTEND.pid();
    fs::write(CONFIGURATION, good)?;
    ensure!(refused.is_err(), "it is ready with a path that is not absolute");
    tried?;
    ensure!(state? != "failed", "systemd has given up on it: {}", HELPER.log());
    ensure!(HELPER.log().contains("absolute"), "{}", HELPER.log());
    pid.context("the frontend has not waited")?;
    wait::until(node.patience(Duration::from_secs(3)), || HELPER.check("active"))?;
    SOCKET.check("active")?;
    node.wait()
}

fn a_stop_ends_every_process(node: &mut Node) -> Result<()> {
    for unit in UNITS {
        unit.stop()?;
        unit.check("inactive")?;
    }
    for name in ["bulkhead-privhelper", "bulkhead-frontend"] {
        let found = Command::new("pgrep").args(["--full", &format!("^/usr/local/bin/{name}")]).output()?;
        ensure!(!found.status.success(), "{name} still runs: {}", String::from_utf8_lossy(&found.stdout));
    }
    // Nothing answers, and connecting does not start anything.
    ensure!(node.csi().is_err() || node.csi()?.probe(ProbeRequest {}).is_err());
    ensure!(node.helper().is_err());
    HELPER.check("inactive")
}

/// The commands of the page on operations for the helper on the host. The frontend goes on connecting all the while.
fn the_documented_commands_stop_the_helper_for_good_and_start_it(node: &mut Node) -> Result<()> {
    let section = documented::section(documented::OPERATE, "Stop and start the helper")?;
    let row = section.lines().find(|line| line.starts_with("| host service")).context("no row for the host service")?;
    let commands: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
    let [stop, start, restart] = commands[..] else { anyhow::bail!("not three commands: {row}") };
    let run = |command: &str| output(Command::new("sh").args(["-c", command])).with_context(|| command.to_owned());
    run(stop)?;
    let frontend = FRONTEND.pid()?;
    // The frontend tries again within two seconds.
    for _ in 0..10 {
        for unit in [HELPER, SOCKET] {
            unit.check("inactive").with_context(|| format!("after {stop}"))?;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let running = Command::new("pgrep").args(["-a", "bulkhead-privh"]).output()?;
    ensure!(running.stdout.is_empty(), "{}", String::from_utf8_lossy(&running.stdout));
    run(start)?;
    node.wait()?;
    let pid = HELPER.pid()?;
    run(restart)?;
    node.wait()?;
    ensure!(HELPER.pid()? != pid, "it was not restarted");
    ensure!(FRONTEND.pid()? == frontend, "the frontend did not wait");
    // Without the socket among them, the helper comes back by itself: this is why the page has it first.
    HELPER.stop()?;
    wait::until(node.patience(Duration::from_secs(10)), || HELPER.check("active"))?;
    node.wait()
}

/// The journal has the time and the level of each line already.
fn the_journal_stamps_lines_and_the_programs_do_not(_: &mut Node) -> Result<()> {
    for (unit, own) in [(HELPER, "a frontend is connected"), (FRONTEND, "ready")] {
        let log = output(Command::new("journalctl").args(["--no-pager", "--output=cat", "--unit", unit.name()]))?;
        ensure!(log.lines().any(|line| line.contains(own)), "{} has not logged {own:?}: {log}", unit.name());
        let is_stamped = |line: &&str| line.split(' ').any(|word| word.parse::<Timestamp>().is_ok());
        let has_level = |line: &&str| line.starts_with('<') && line.get(2..3) == Some(">");
        let found = log.lines().find(|line| is_stamped(line) || has_level(line));
        ensure!(found.is_none(), "{} has a line with a time or a level of its own: {found:?}", unit.name());
    }
    Ok(())
}

fn an_agent_whose_cluster_is_away_serves_the_kubelet(node: &mut Node) -> Result<()> {
    let authority = fs::read_to_string("/etc/ssl/certs/ca-certificates.crt")?;
    let secrets = [("/etc/bulkhead/ca.crt", authority.as_str()), ("/etc/bulkhead/token", "a token")];
    let files = AGENT_FILES.into_iter().chain(secrets);
    let served = install_files(files.clone()).and_then(|()| serves_without_a_cluster(node));
    for (path, _) in files {
        // It may not have been created.
        let _ = fs::remove_file(path);
    }
    systemctl(&["daemon-reload"])?;
    FRONTEND.restart()?;
    served
}

fn serves_without_a_cluster(node: &mut Node) -> Result<()> {
    set_modes()?;
    let token = fs::metadata("/etc/bulkhead/token")?;
    ensure!((token.uid(), token.gid(), token.mode() & 0o7777) == (0, FRONTEND_USER, 0o640), "{token:?}");
    systemctl(&["daemon-reload"])?;
    FRONTEND.restart()?;
    node.wait()?;
    let pid = FRONTEND.pid()?;
    wait::until(node.patience(Duration::from_secs(15)), || {
        let log = FRONTEND.log();
        ensure!(log.contains("not working for Kubernetes yet"), "it does not say that it has no cluster: {log}");
        Ok(())
    })?;
    node.csi()?.probe(ProbeRequest {})?;
    ensure!(FRONTEND.pid()? == pid, "it did not stay: {}", FRONTEND.log());
    Ok(())
}

/// The figures of systemd-analyze(1), from 0 to 10. It does not see the restrictions that the helper imposes on itself.
fn exposure_is_as_low_as_the_work_allows(_: &mut Node) -> Result<()> {
    for (unit, most) in [(FRONTEND, 0.5), (HELPER, 5.0)] {
        let verdict = output(Command::new("systemd-analyze").args(["security", "--no-pager", unit.name()]))?;
        let line = verdict.lines().last().unwrap_or_default();
        let figure = line.split_whitespace().find_map(|word| word.parse::<f64>().ok());
        ensure!(figure.context("no figure")? <= most, "{line}");
    }
    Ok(())
}
