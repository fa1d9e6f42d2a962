//! The virtual machine: a kernel with project quotas, XFS and ext4, in user-mode Linux or under QEMU, without any
//! privileges.
//!
//! Every test that needs a kernel like the users' runs here. A [`Machine`] is a node: `/` is shared, the pools are
//! mounted at `/pools/xfs` and `/pools/ext4`, `/var/lib` outlives a reboot, our programs are in `/opt/bulkhead/bin`.

mod apt;
mod channel;
mod cpio;
mod debian;
mod disks;
mod elf;
mod engine;
mod kernel;
mod lend;
mod network;
mod node;
mod parts;
mod process;
mod qemu;
mod root;
mod session;
mod tools;
mod user_mode;
mod user_mode_kernel;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Result;

pub use self::apt::Apt;
use self::engine::{Engine, Guest};
pub use self::node::Node;
pub use self::parts::{AGENT, require_packages};
use self::session::Session;
pub use self::session::{Output, Sink};
pub use self::tools::files_of_host;
use crate::progress::say;
use crate::workspace::{Architecture, Workspace};

/// Programs that run only on this host. The machine's first root is in its memory, which has no room to spare.
const ON_HOST: [&str; 4] = ["bulkhead-bench", "bulkhead-cluster", "bulkhead-cluster-bench", "bulkhead-node"];

/// What runs in the machine in addition to our programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Userland {
    /// busybox and some tools, in memory: boots in seconds.
    Small,
    /// A complete Debian, with systemd as PID 1.
    Debian,
    /// Debian with containerd and a kubelet.
    Node(Node),
}

impl Userland {
    /// How many processors its machine has. Only the suite asks for a second one: QEMU's translator is wrong, though very
    /// seldom, about code that one processor changes while another runs it, and a systemd that starts its units, or a
    /// container runtime its containers, changes the kernel's all the time.
    fn processors(&self) -> u32 {
        match self {
            Userland::Small => 2,
            Userland::Debian | Userland::Node(_) => 1,
        }
    }
}

/// A description of a machine to boot.
pub struct Options {
    /// The processor.
    pub architecture: Architecture,
    /// What runs in it.
    pub userland: Userland,
    /// Memory in MiB.
    pub memory: u32,
    /// Size of each pool's disk in MiB; the disks are sparse.
    pub disk: u64,
    /// The package of a kernel to use instead of the default one.
    pub kernel: Option<String>,
    /// Run it under QEMU, with Debian's own kernel and two processors, even if user-mode Linux would do.
    pub qemu: bool,
    /// Programs for `/opt/bulkhead/bin`, including the agent.
    pub programs: Vec<PathBuf>,
    /// Additional disks: serial number and image.
    pub more_disks: Vec<(String, PathBuf)>,
}

impl Options {
    /// The usual machine, with those of these programs that run in it.
    pub fn new(mut programs: Vec<PathBuf>) -> Self {
        programs.retain(|program| !ON_HOST.iter().any(|name| program.ends_with(name)));
        Options {
            architecture: Architecture::host(),
            userland: Userland::Small,
            memory: 1536,
            disk: 2048,
            kernel: None,
            qemu: false,
            programs,
            more_disks: Vec::new(),
        }
    }
}

/// A running machine. It ends when this value is dropped.
pub struct Machine {
    // First, so that the process ends before the directory of its disks is removed.
    session: Session,
    engine: Engine,
    guest: Guest,
}

impl Machine {
    /// Builds the kernel of the usual machine unless it is in the cache. Worth doing before steps that each wait for it.
    pub fn provide_kernel(workspace: &Workspace) -> Result<()> {
        let options = Options::new(Vec::new());
        if engine::suits_user_mode(&options) {
            user_mode_kernel::provide(&workspace.machine_cache()?, options.architecture)?;
        }
        Ok(())
    }

    /// Provides the parts, makes the disks and boots.
    pub fn boot(workspace: &Workspace, options: &Options) -> Result<Self> {
        let guest = parts::provide(workspace, options)?;
        let cache = workspace.machine_cache()?;
        let mut engine = Engine::best(options, &cache);
        let session = match Session::start(&guest, engine) {
            Err(_) if engine == Engine::Kvm => {
                say("KVM cannot boot a guest on this host; from now on the processor is emulated");
                Engine::remember_that_kvm_fails(&cache)?;
                engine = Engine::Translated;
                Session::start(&guest, engine)
            }
            session => session,
        };
        Ok(Machine { session: session?, engine, guest })
    }

    /// Runs a shell command, with our standard output and standard error as its own.
    pub fn run(&mut self, command: &str, timeout: Duration) -> Result<ExitStatus> {
        self.run_with(command, timeout, &mut show)
    }

    /// Runs a shell command and passes its output to the sink.
    pub fn run_with(&mut self, command: &str, timeout: Duration, sink: Sink<'_>) -> Result<ExitStatus> {
        self.session.run(command, timeout, sink)
    }

    /// Reboots: every process gets SIGTERM, filesystems are unmounted, and the kernel starts again.
    pub fn reboot(&mut self) -> Result<()> {
        let start = Instant::now();
        self.session.shut_down()?;
        self.session = Session::start(&self.guest, self.engine)?;
        say(format_args!("rebooted in {:.1} s", start.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Cuts the power, and boots again from the same disks.
    pub fn power_cut(&mut self) -> Result<()> {
        self.session.power_off();
        self.session = Session::start(&self.guest, self.engine)?;
        Ok(())
    }
}

/// Passes on a command's output. If the reader is gone, that is not the command's fault.
pub fn show(output: Output, bytes: &[u8]) {
    let _ = match output {
        Output::Stdout => io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()),
        Output::Stderr => io::stderr().write_all(bytes),
    };
}
