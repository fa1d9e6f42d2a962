//! The real node: a machine with a kubelet, and a program on this host that starts the control plane and has the
//! machine on its standard input.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow};

use crate::directory::run_directory;
use crate::image;
use crate::kubernetes;
use crate::process::command;
use crate::programs::Programs;
use crate::vm::{Machine, Node, Options, Userland};
use crate::workspace::{Architecture, Workspace};

/// The program.
pub const PROGRAM: &str = "bulkhead-node";

/// What a node is made from.
pub struct Equipment {
    /// The directory with the programs of Kubernetes.
    pub assets: PathBuf,
    /// Archives of container images, in addition to those of Bulkhead and the shell.
    pub images: Vec<PathBuf>,
    /// The machine, apart from what makes it a node.
    pub options: Options,
    /// Whether SELinux enforces there.
    pub enforces: bool,
}

impl Equipment {
    /// The usual one.
    pub fn usual(workspace: &Workspace, programs: &Programs, qemu: bool) -> Result<Self> {
        let options = Options { memory: 2048, qemu, ..Options::new(programs.all()?) };
        Ok(Equipment { assets: kubernetes::cluster(workspace)?, images: Vec::new(), options, enforces: false })
    }
}

/// Boots the node and runs the program with these arguments. The node ends when the program does.
pub fn run<T: Send>(
    workspace: &Workspace,
    programs: &Programs,
    equipment: Equipment,
    arguments: &[String],
    run_program: impl FnOnce(&mut Command) -> Result<T> + Send,
) -> Result<T> {
    let Equipment { assets, images: more_images, options, enforces } = equipment;
    let archives = run_directory(&workspace.runs())?;
    let mut images = image::write(|name| programs.path(name), Architecture::host(), archives.path())?;
    images.extend(image::write_shells(archives.path())?);
    images.extend(more_images);
    let [kubelet_port, relay_port] = free_ports()?;
    let node = Node { kubelet: assets.join("kubelet"), images, kubelet_port, relay_port, enforces };
    let options = Options { userland: Userland::Node(node), ..options };
    let (lender, borrower) = UnixStream::pair().context("make a socket pair for the program")?;
    let mut program = command(programs.path(PROGRAM));
    program.env(kubernetes::ASSETS, &assets).arg("--deploy").arg(workspace.root.join("deploy"));
    program.arg("--relay-port").arg(relay_port.to_string()).args(arguments);
    program.stdin(OwnedFd::from(borrower));
    thread::scope(|scope| {
        // It starts the control plane while the machine boots, and when it ends, its end of the socket is closed.
        let running = scope.spawn(move || run_program(&mut program));
        let lent = Machine::boot(workspace, &options).and_then(|mut machine| machine.lend(lender));
        let status = running.join().map_err(|_| anyhow!("the thread that ran {PROGRAM} panicked"))?;
        lent.and(status)
    })
}

/// Ports that nothing is listening on. While the machine reboots nobody holds them, so they are below those that the
/// kernel gives to whoever asks for any port (/proc/sys/net/ipv4/ip_local_port_range).
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let begin = 20_000 + (std::process::id() % 10_000) as u16;
    let mut free = (begin..32_768).filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let ports: Vec<u16> = free.by_ref().take(N).collect();
    ports.try_into().map_err(|_| anyhow!("no port between 20000 and 32767 is free on the loopback device"))
}
