//! The agent inside the virtual machine: it takes one shell command at a time from the port, and sends back its output
//! and exit status.
//!
//! Both pipes live as long as the agent, so a process that a command leaves in the background can keep writing.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bulkhead_vm_agent::{Frame, MAX_PAYLOAD, PORT_NAME, PORT_VARIABLE};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process_group, pidfd_open, setrlimit,
};

/// Our programs first, then the system's own.
const PATH: &str = "/opt/bulkhead/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn main() -> io::Result<()> {
    // As the helper's unit does. What the machine boots has as many as an init gets, which are few.
    let allowed = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { maximum: Some(OPEN_FILES), ..allowed })?;
    Agent::start()?.serve()
}

/// How many files the programs may have open.
const OPEN_FILES: u64 = 1 << 20;

struct Agent {
    port: File,
    /// Standard output and standard error.
    outputs: [Output; 2],
    pending: Vec<u8>,
    running: Option<Running>,
}

struct Running {
    child: Child,
    pidfd: OwnedFd,
}

/// A pipe that commands write to; only its read end is non-blocking.
struct Output {
    read: File,
    write: OwnedFd,
    frame: fn(Vec<u8>) -> Frame,
}

impl Output {
    fn new(frame: fn(Vec<u8>) -> Frame) -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&read, true)?;
        Ok(Output { read: read.into(), write, frame })
    }

    fn forward(&mut self, port: &mut File) -> io::Result<()> {
        let mut buffer = [0; MAX_PAYLOAD];
        loop {
            match self.read.read(&mut buffer) {
                Ok(length) => port.write_all(&(self.frame)(buffer[..length].to_vec()).encode())?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Agent {
    fn start() -> io::Result<Self> {
        let mut port = open_port()?;
        port.write_all(&Frame::Ready.encode())?;
        let outputs = [Output::new(Frame::Stdout)?, Output::new(Frame::Stderr)?];
        Ok(Agent { port, outputs, pending: Vec::new(), running: None })
    }

    fn serve(mut self) -> io::Result<()> {
        loop {
            let [port, exit] = self.wait()?;
            self.forward()?;
            if exit {
                self.reap()?;
            }
            if port {
                self.receive()?;
            }
        }
    }

    /// Waits for bytes from the port or either pipe, or for the command to end. Returns whether the first or the last is so.
    fn wait(&self) -> io::Result<[bool; 2]> {
        let mut sources = vec![PollFd::new(&self.port, PollFlags::IN)];
        sources.extend(self.outputs.iter().map(|output| PollFd::new(&output.read, PollFlags::IN)));
        sources.extend(self.running.as_ref().map(|running| PollFd::new(&running.pidfd, PollFlags::IN)));
        poll(&mut sources, None)?;
        let ready = |index: usize| sources.get(index).is_some_and(|source| !source.revents().is_empty());
        Ok([ready(0), ready(1 + self.outputs.len())])
    }

    /// Passes on all that is in the pipes.
    fn forward(&mut self) -> io::Result<()> {
        self.outputs.iter_mut().try_for_each(|output| output.forward(&mut self.port))
    }

    fn receive(&mut self) -> io::Result<()> {
        match Frame::read(&mut self.port)? {
            Frame::Command(piece) => {
                let last = piece.len() < MAX_PAYLOAD;
                self.pending.extend(piece);
                if last {
                    self.spawn()?;
                }
            }
            Frame::Kill => {
                if let Some(running) = &self.running {
                    // It may have ended a moment ago, which is just as good.
                    let _ = kill_process_group(Pid::from_child(&running.child), Signal::KILL);
                }
            }
            other => return Err(io::Error::other(format!("unexpected frame {other:?}"))),
        }
        Ok(())
    }

    fn spawn(&mut self) -> io::Result<()> {
        let command = String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned();
        let [stdout, stderr] = &self.outputs;
        let child = Command::new("/bin/sh")
            .args(["-c", &command])
            .env("PATH", PATH)
            .current_dir("/root")
            .stdin(Stdio::null())
            .stdout(stdout.write.try_clone()?)
            .stderr(stderr.write.try_clone()?)
            .process_group(0)
            .spawn()?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        self.running = Some(Running { child, pidfd });
        Ok(())
    }

    /// Sends all output of the command before its exit status.
    fn reap(&mut self) -> io::Result<()> {
        if let Some(mut running) = self.running.take() {
            let status = running.child.wait()?;
            self.forward()?;
            self.port.write_all(&Frame::Exited(status.into_raw()).encode())?;
        }
        Ok(())
    }
}

/// Finds the port by its name, unless the device is given: only udev creates links in /dev/virtio-ports, and it may not be
/// running.
fn open_port() -> io::Result<File> {
    if let Some(device) = env::var_os(PORT_VARIABLE) {
        return open(Path::new(&device));
    }
    for entry in fs::read_dir("/sys/class/virtio-ports")? {
        let entry = entry?;
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim() == PORT_NAME {
            return open(&Path::new("/dev").join(entry.file_name()));
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("no virtio port is named {PORT_NAME}")))
}

/// A terminal does not become the agent's: its end would be sent a hangup.
fn open(device: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(OFlags::NOCTTY.bits() as i32).open(device)
}
