//! The two logs, read together: one number leads from a call to the end of what it has deleted, every line has its time,
//! the first and the last say what runs and that it has ended, and nothing is said while nothing changes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::{GetCapacityRequest, ProbeRequest};
use bulkhead_tests::helper::{self, HelperClient};
use bulkhead_tests::monitoring;
use bulkhead_tests::rig::Rig;

cases! {
    one_number_leads_from_a_call_to_the_end_of_what_it_deleted: Bare,
    a_client_that_gives_no_number_is_served: Bare,
    every_line_has_a_time_and_the_first_and_the_last_are_said: Bare,
    an_idle_node_logs_nothing: Bare + Slow,
}

/// Returns what follows `key=` in a line.
fn value<'a>(line: &'a str, key: &str) -> Result<&'a str> {
    let (_, rest) = line.split_once(&format!(" {key}=")).with_context(|| format!("no {key} in {line:?}"))?;
    rest.split_whitespace().next().with_context(|| format!("no value of {key} in {line:?}"))
}

/// The line of a log that has all these parts.
fn line_with<'a>(log: &'a str, parts: &[&str]) -> Result<&'a str> {
    let mut lines = log.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
    lines.next().with_context(|| format!("no line has {parts:?}: {log}"))
}

fn one_number_leads_from_a_call_to_the_end_of_what_it_deleted(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    rig.start()?;
    let csi = rig.csi()?;
    csi.create_volume(create("vol-a", MIB, mount()))?;
    csi.node_publish_volume(publish("vol-a", &rig.target("a"), mount()))?;
    csi.node_unpublish_volume(unpublish("vol-a", &rig.target("a")))?;
    csi.delete_volume(delete("vol-a"))?;
    let mut numbers = Vec::new();
    for (rpc, operation) in [
        ("CreateVolume", "create"),
        ("NodePublishVolume", "bind-mount"),
        ("NodeUnpublishVolume", "unmount"),
        ("DeleteVolume", "delete"),
    ] {
        let mut number = String::new();
        rig.running_frontend()?.check_log(|log| {
            let line = line_with(log, &[&format!("rpc=\"{rpc}\""), "volume=\"vol-a\"", "code=\"OK\""])?;
            number = value(line, "call")?.to_owned();
            Ok(())
        })?;
        ensure!(number.len() == 8 && number != "00000000", "the number of {rpc} is {number:?}");
        let audit = format!("audit operation={operation} volume=vol-a ");
        rig.running_helper()?.check_log(|log| {
            let found = value(line_with(log, &[&audit, "outcome=ok"])?, "call")?;
            ensure!(found == number, "{rpc} is {number}, and its request {found}");
            Ok(())
        })?;
        ensure!(!numbers.contains(&number), "{number} stands for two calls");
        numbers.push(number);
    }
    let deleted = numbers.pop().context("no call")?;
    rig.running_helper()?.check_log(|log| {
        let line = line_with(log, &["a deleted volume is gone", ".vol-a\""])?;
        ensure!(value(line, "call")? == deleted && value(line, "pool")? == "default", "{line:?} instead of {deleted}");
        Ok(())
    })
}

/// One that is written for an earlier version, or does without.
fn a_client_that_gives_no_number_is_served(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    rig.start_helper()?;
    for version in [2, 3] {
        let client = HelperClient::connect(&rig.helper_socket())?;
        client.hello(version)?;
        client.ask(&helper::create("vol-a", helper::directory_spec(1 << 20)))?;
        client.ask(&helper::delete("vol-a"))?;
    }
    rig.running_helper()?.check_log(|log| {
        let gone = log.lines().filter(|line| line.contains("a deleted volume is gone") && line.ends_with(" call=-"));
        ensure!(gone.count() == 2, "{log}");
        value(line_with(log, &["audit operation=delete volume=vol-a call=- "])?, "outcome").map(drop)
    })
}

/// A time as in RFC 3339, and what follows it.
fn without_time(line: &str) -> Result<&str> {
    let (time, rest) = line.split_once(' ').with_context(|| format!("no time: {line:?}"))?;
    let digits = time.bytes().filter(u8::is_ascii_digit).count();
    let is_time = time.starts_with("20") && time.ends_with('Z') && time.get(10..11) == Some("T") && digits >= 17;
    ensure!(is_time && time.is_ascii(), "no time: {line:?}");
    Ok(rest.trim_start())
}

fn every_line_has_a_time_and_the_first_and_the_last_are_said(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    rig.start()?;
    rig.csi()?.create_volume(create("vol-a", MIB, mount()))?;
    rig.csi()?.delete_volume(delete("vol-a"))?;
    // Its emptying is not waited for by an end, and what it says may otherwise follow the last line.
    rig.running_helper()?.has_logged("a deleted volume is gone")?;
    let logs = ["helper", "frontend"].map(|name| rig.logs().join(format!("{name}.log")));
    rig.stop()?;
    let release = env!("CARGO_PKG_VERSION");
    for (log, first, last) in [
        (
            &logs[0],
            format!("serving requests release={release} pools=[\"default\"]"),
            "the helper ends: it was asked to",
        ),
        (
            &logs[1],
            format!("the frontend starts: connecting to the privileged helper release=\"{release}\""),
            "the frontend has ended",
        ),
    ] {
        let log = std::fs::read_to_string(log)?;
        line_with(&log, &[&first])?;
        for line in log.lines() {
            let rest = without_time(line)?;
            ensure!(!rest.starts_with('<') && without_time(rest).is_err(), "{line:?}");
            ensure!(
                ["Info ", "INFO ", "Warning ", "WARN ", "Error "].iter().any(|level| rest.starts_with(level)),
                "{line:?}"
            );
        }
        ensure!(log.lines().last().is_some_and(|line| line.ends_with(last)), "{log}");
    }
    let log = std::fs::read_to_string(&logs[1])?;
    line_with(&log, &["serving CSI", "pools=[\"default\"]", &format!("helper=\"{release}\"")])?;
    // What was deleted may not be released yet.
    rig.start_helper()
}

/// What a kubelet, a scheduler and Prometheus ask a node in a quarter of an hour, and more than a minute's time for the
/// programs' own periods. docs/operate.md says that there are no lines; this counts them.
fn an_idle_node_logs_nothing(rig: &mut Rig) -> Result<()> {
    rig.frontend_flags.extend(monitoring::FLAGS.map(Into::into));
    rig.add_pool("default")?;
    rig.start()?;
    let csi = rig.csi()?;
    csi.create_volume(create("idle", MIB, mount()))?;
    csi.node_publish_volume(publish("idle", &rig.target("a"), mount()))?;
    let lines = |rig: &mut Rig| -> Result<(usize, usize)> {
        let (helper, frontend) = (rig.running_helper()?.log()?, rig.running_frontend()?.log()?);
        Ok((helper.lines().count(), frontend.lines().count()))
    };
    // What has just been done is still being written.
    std::thread::sleep(Duration::from_secs(2));
    let (before, begun) = (lines(rig)?, Instant::now());
    let mut asked = 0;
    while begun.elapsed() < Duration::from_secs(65) || asked < 90 {
        csi.probe(ProbeRequest {})?;
        csi.get_capacity(GetCapacityRequest::default())?;
        csi.node_get_volume_stats(stats("idle", &rig.target("a")))?;
        for path in ["/healthz", "/readyz", "/metrics"] {
            ensure!(monitoring::get(rig, path)?.0 == 200, "{path}");
        }
        asked += 1;
        std::thread::sleep(Duration::from_millis(500));
    }
    let after = lines(rig)?;
    ensure!(before == after, "{before:?} lines became {after:?} after {asked} rounds of questions");
    Ok(())
}
