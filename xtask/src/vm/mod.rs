//! The virtual machine: Debian's kernel with project quotas, XFS and ext4, under QEMU without any privilege.
//!
//! Whoever needs a kernel like the one that users run asks here. A [`Machine`] is a small node: `/` is shared, the pools
//! are mounted at `/pools/xfs` and `/pools/ext4`, `/var/lib` outlives a reboot, our programs are in `/opt/bulkhead/bin`.

mod apt;
mod channel;
mod cpio;
mod directory;
mod disks;
mod kernel;
mod qemu;
mod root;
mod session;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Result;

use self::apt::Apt;
use self::directory::RunDirectory;
use self::kernel::Kernel;
use self::qemu::{Accelerator, Guest};
use self::session::Session;
pub use self::session::{Output, Sink};
use crate::packages;
use crate::progress::say;
use crate::workspace::{Architecture, Workspace};

const BOOT_PATIENCE: Duration = Duration::from_secs(120);
const KVM_PATIENCE: Duration = Duration::from_secs(10);

/// What machine is wanted.
pub struct Options {
    /// The processor.
    pub architecture: Architecture,
    /// Memory in MiB.
    pub memory: u32,
    /// Size of each disk in MiB; the disks are sparse.
    pub disk: u64,
    /// A kernel's package instead of the default one.
    pub kernel: Option<String>,
    /// Programs for `/opt/bulkhead/bin`.
    pub programs: Vec<PathBuf>,
}

impl Options {
    /// The usual machine with these programs in it.
    pub fn new(programs: Vec<PathBuf>) -> Self {
        Options { architecture: Architecture::host(), memory: 1024, disk: 2048, kernel: None, programs }
    }
}

/// A machine that is up. It ends with this value.
pub struct Machine {
    // First, so that QEMU ends before the directory of its disks is removed.
    session: Session,
    accelerator: Accelerator,
    parts: Parts,
}

impl Machine {
    /// Provides the parts, makes the disks and boots.
    pub fn boot(workspace: &Workspace, options: &Options) -> Result<Self> {
        let cache = workspace.machine_cache();
        let parts = Parts::provide(workspace, options)?;
        for accelerator in Accelerator::candidates(options.architecture, &cache) {
            match parts.start(accelerator) {
                Ok(session) => return Ok(Machine { session, accelerator, parts }),
                Err(_) if accelerator == Accelerator::Kvm => {
                    say("KVM brings no guest up on this host; from now on the processor is emulated");
                    Accelerator::remember_that_kvm_fails(&cache)?;
                }
                Err(error) => return Err(error),
            }
        }
        unreachable!("emulation is always a candidate")
    }

    /// Runs a shell command, with our standard output and standard error as its own.
    pub fn run(&mut self, command: &str, timeout: Duration) -> Result<ExitStatus> {
        self.run_with(command, timeout, &mut show)
    }

    /// Runs a shell command and hands what it writes to the sink.
    pub fn run_with(&mut self, command: &str, timeout: Duration, sink: Sink<'_>) -> Result<ExitStatus> {
        self.session.run(command, timeout, sink)
    }

    /// Reboots: every process gets SIGTERM, filesystems are unmounted, the kernel starts anew.
    pub fn reboot(&mut self) -> Result<()> {
        let start = Instant::now();
        self.session.reboot(BOOT_PATIENCE)?;
        say(format_args!("rebooted in {:.1} s", start.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Cuts the power, and boots again from the same disks.
    pub fn power_cut(&mut self) -> Result<()> {
        self.session.power_off();
        self.session = self.parts.start(self.accelerator)?;
        Ok(())
    }
}

/// Everything that a machine is started from, also after a power cut.
struct Parts {
    kernel: Kernel,
    architecture: Architecture,
    memory: u32,
    directory: RunDirectory,
}

impl Parts {
    fn provide(workspace: &Workspace, options: &Options) -> Result<Self> {
        let packages: Vec<&str> = ["qemu-system-x86", "kmod"].into_iter().chain(root::packages()).collect();
        packages::require(&packages)?;
        let cache = workspace.machine_cache();
        let kernel = {
            let _lock = directory::lock(&cache)?;
            Kernel::provide(&cache, &Apt::new(options.architecture), options.kernel.as_deref())?
        };
        let directory = RunDirectory::new(&cache)?;
        for disk in &disks::DISKS {
            disk.make(directory.path(), options.disk)?;
        }
        root::write(&directory.path().join("initrd"), &kernel, &options.programs)?;
        Ok(Parts { kernel, architecture: options.architecture, memory: options.memory, directory })
    }

    fn start(&self, accelerator: Accelerator) -> Result<Session> {
        let start = Instant::now();
        let guest = Guest {
            architecture: self.architecture,
            memory: self.memory,
            kernel: &self.kernel.image,
            initrd: &self.directory.path().join("initrd"),
            append: "",
            more_disks: &[],
            directory: self.directory.path(),
        };
        let patience = if accelerator == Accelerator::Kvm { KVM_PATIENCE } else { BOOT_PATIENCE };
        let session = Session::start(&guest, accelerator, patience)?;
        let (release, seconds) = (&self.kernel.release, start.elapsed().as_secs_f64());
        say(format_args!("booted Linux {release} ({}) in {seconds:.1} s", accelerator.name()));
        Ok(session)
    }
}

/// Passes a command's output on. A reader that went away is not the command's fault.
pub fn show(output: Output, bytes: &[u8]) {
    let _ = match output {
        Output::Stdout => io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()),
        Output::Stderr => io::stderr().write_all(bytes),
    };
}
