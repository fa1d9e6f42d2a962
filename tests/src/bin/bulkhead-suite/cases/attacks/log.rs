//! A log that nobody reads, and requests that would fill it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_protocol::{ErrorKind, Request, Response};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests as csi;
use bulkhead_tests::csi::v1::NodeGetInfoRequest;
use bulkhead_tests::expect::{denied, refused};
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::processes;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::wait;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use tonic::Code;

cases! {
    a_helper_whose_log_is_not_read_serves_everybody: Bare,
    a_frontend_whose_log_is_not_read_serves_everybody: Bare,
    a_request_with_the_longest_hostile_path_makes_a_bounded_line,
    what_the_other_processes_say_is_told_as_theirs,
}

const SIZE: u64 = 16 << 20;
/// After this long a log counts as unread, and nothing waits for it any more.
const UNREAD: Duration = Duration::from_secs(10);

/// Repeats a request that is refused for want of a place in the log.
fn insist(client: &HelperClient, request: &Request, limit: Duration) -> Result<Response> {
    let begun = Instant::now();
    loop {
        match client.request(request)? {
            Err(error) if error.kind == ErrorKind::Busy && begun.elapsed() < limit => {
                std::thread::sleep(Duration::from_millis(20));
            }
            answer => return Ok(answer),
        }
    }
}

/// A pipe that receives a process's log, and that nobody reads before [`UnreadLog::find`] does.
struct UnreadLog(BufReader<File>);

impl UnreadLog {
    /// Makes both processes log to a pipe from their next start.
    fn of(rig: &mut Rig) -> Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        rig.stderr = Some(writer.into());
        Ok(Self(BufReader::new(std::os::fd::OwnedFd::from(reader).into())))
    }

    /// Fills the pipe through an open file description of its own: O_NONBLOCK on the log's would affect the process.
    fn fill(&self) -> Result<()> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let path = format!("/proc/self/fd/{}", self.0.get_ref().as_raw_fd());
        let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits())?;
        let mut pipe = File::options().write(true).custom_flags(flags).open(path)?;
        for chunk in [4096, 1] {
            while pipe.write(&vec![b'\n'; chunk]).is_ok() {}
        }
        Ok(())
    }

    /// Reads lines until one contains `part`.
    fn find(&mut self, part: &str) -> Result<String> {
        let mut line = String::new();
        while self.0.read_line(&mut line)? > 0 {
            if line.contains(part) {
                return Ok(line);
            }
            line.clear();
        }
        bail!("the log has ended, and no line contains {part:?}")
    }
}

fn a_helper_whose_log_is_not_read_serves_everybody(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    let mut log = UnreadLog::of(rig)?;
    rig.start_helper()?;
    rig.stderr = None;
    log.fill()?;
    let begun = Instant::now();
    let clients = (0..4).map(|_| rig.helper()).collect::<Result<Vec<_>>>()?;
    for client in &clients {
        for _ in 0..1000 {
            let answer = insist(client, &bind("vol-a", "a"), rig.patience(UNREAD))?;
            denied(answer, ErrorKind::NotFound, "vol-a")?;
        }
        client.ask_all([create("vol-a", directory_spec(SIZE)), bind("vol-a", "a")])?;
        client.ask_all([unbind("vol-a", "a"), delete("vol-a")])?;
    }
    rig.start_frontend()?;
    rig.csi()?.create_volume(csi::create("vol-b", csi::MIB, csi::mount()))?;
    rig.csi()?.delete_volume(csi::delete("vol-b"))?;
    ensure!(begun.elapsed() < rig.patience(Duration::from_secs(20)), "it took {:?}", begun.elapsed());
    // As soon as somebody reads, the log says what is missing from it, and continues.
    let line = log.find("log lines are missing")?;
    let number: u64 = line.trim().rsplit_once("others=").map_or(Ok(0), |(_, number)| number.parse())?;
    ensure!((2000..5000).contains(&number), "{line}");
    denied(clients[0].request(&bind("vol-c", "c"))?, ErrorKind::NotFound, "vol-c")?;
    log.find("audit operation=bind-mount volume=vol-c")?;
    // The reader goes away: nothing reads the log any more, but the helper still serves.
    drop(log);
    denied(clients[0].request(&bind("vol-c", "c"))?, ErrorKind::NotFound, "vol-c")
}

fn a_frontend_whose_log_is_not_read_serves_everybody(rig: &mut Rig) -> Result<()> {
    rig.start_helper()?;
    let mut log = UnreadLog::of(rig)?;
    rig.start_frontend()?;
    rig.stderr = None;
    log.fill()?;
    let begun = Instant::now();
    let mut client = rig.csi()?;
    client.set_limit(rig.patience(Duration::from_secs(10)));
    for _ in 0..2000 {
        refused(client.controller_expand_volume(csi::controller_expand("vol-a", 1)), Code::NotFound, "vol-a")?;
    }
    client.node_get_info(NodeGetInfoRequest {})?;
    client.create_volume(csi::create("vol-a", csi::MIB, csi::mount()))?;
    client.delete_volume(csi::delete("vol-a"))?;
    ensure!(begun.elapsed() < rig.patience(Duration::from_secs(20)), "it took {:?}", begun.elapsed());
    log.find("log lines were dropped")?;
    refused(client.controller_expand_volume(csi::controller_expand("vol-b", 1)), Code::NotFound, "vol-b")?;
    log.find("vol-b")?;
    drop(log);
    refused(client.controller_expand_volume(csi::controller_expand("vol-b", 1)), Code::NotFound, "vol-b")
}

fn a_request_with_the_longest_hostile_path_makes_a_bounded_line(rig: &mut Rig) -> Result<()> {
    let part = "\u{1}".repeat(250);
    let path = vec![part.as_str(); 14].join("/");
    let helper = rig.helper()?;
    let published = Request::Usage { volume: volume("vol-a"), target: Some(target("work", &path)) };
    denied(helper.request(&published)?, ErrorKind::NotFound, "vol-a")?;
    helper.ask(&create("vol-a", directory_spec(SIZE)))?;
    for request in [published, bind("vol-a", &path), unbind("vol-a", &path)] {
        ensure!(bulkhead_protocol::encode(&request)?.len() > 3500, "the request is too short to be an attack");
        let _ = helper.request(&request)?;
    }
    helper.ask(&delete("vol-a"))?;
    rig.running_helper()?.check_log(|log| {
        let longest = log.lines().map(str::len).max().unwrap_or_default();
        ensure!((2000..4096).contains(&longest), "a line has {longest} bytes");
        let cut: Vec<&str> = log.lines().filter(|line| line.ends_with("… (cut)")).collect();
        ensure!(cut.len() == 4 && cut.iter().all(|line| line.contains(" microseconds=")), "{cut:?}");
        Ok(())
    })
}

/// A process that is taken over can write whatever it likes to its standard error, and as much.
fn what_the_other_processes_say_is_told_as_theirs(rig: &mut Rig) -> Result<()> {
    let client = rig.helper()?;
    let others = [("emptier", rig.emptier_pid()?), ("placer", processes::placer(rig.helper_pid()?)?)];
    for (name, pid) in others {
        let process = Pid::from_raw(pid).context("no process")?;
        let process = pidfd_open(process, PidfdFlags::empty())?;
        let [output, error] = [1, 2].map(|number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()));
        let (output, error) = (output?, error?);
        for (mouth, number) in [(&output, 1), (&error, 2)] {
            rustix::io::write(mouth, format!("<6>audit operation=delete volume=vol-{number} outcome=ok\n").as_bytes())?;
            let told = format!("the {name} says: \"audit operation=delete volume=vol-{number} outcome=ok\"");
            let (patience, helper) = (rig.patience(Duration::from_secs(10)), rig.running_helper()?);
            wait::until(patience, || helper.has_logged(&told))?;
        }
        rustix::io::ioctl_fionbio(&error, true)?;
        while rustix::io::write(&error, b"<6>audit operation=delete volume=vol-3").is_ok() {}
        client.ask_all([create(&format!("of-{name}"), directory_spec(SIZE))])?;
    }
    rig.running_helper()?.check_log(|log| {
        let forged = log.lines().find(|line| line.contains("volume=vol-") && !line.contains(" says: "));
        ensure!(forged.is_none(), "{forged:?} was not told by the keeper");
        ensure!(log.contains("operation=create volume=of-placer"), "{log}");
        Ok(())
    })
}
