//! `cargo xtask vm`: one command in the machine.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::exit_code;
use crate::progress::{say, timed};
use crate::vm::{Machine, Options, Userland, require_packages};
use crate::workspace::{Architecture, Profile, Selection, Workspace};

/// What `vm` takes.
#[derive(Args)]
pub struct Arguments {
    /// Boot a complete Debian, with systemd as PID 1.
    #[arg(long, conflicts_with = "arch")]
    systemd: bool,
    /// The machine's processor; one that differs from this host's is emulated.
    #[arg(long, value_enum, default_value_t = Architecture::host())]
    arch: Architecture,
    /// Memory of the machine in MiB.
    #[arg(long, default_value_t = 2048, value_name = "MIB")]
    memory: u32,
    /// Size of each of its disks in MiB; the disks are sparse.
    #[arg(long, default_value_t = 2048, value_name = "MIB")]
    disk: u64,
    /// Package of another kernel, such as linux-image-cloud-amd64.
    #[arg(long, value_name = "PACKAGE")]
    kernel: Option<String>,
    /// Run the machine under QEMU, with Debian's own kernel and two processors, even if user-mode Linux would do.
    #[arg(long)]
    qemu: bool,
    /// Seconds after which the command is killed.
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    timeout: u64,
    /// Use the programs from an earlier build.
    #[arg(long)]
    no_build: bool,
    /// Then reboot the machine and run this command.
    #[arg(long, value_name = "COMMAND")]
    after_reboot: Option<String>,
    /// Then cut the machine's power, boot it again and run this command.
    #[arg(long, value_name = "COMMAND", conflicts_with = "after_reboot")]
    after_power_cut: Option<String>,
    /// The command; several words are one shell command line.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Boots a machine, runs the commands and returns the exit status of the last one.
pub fn execute(workspace: &Workspace, arguments: &Arguments) -> Result<ExitCode> {
    let architecture = arguments.arch;
    require_packages(architecture)?;
    let programs = match arguments.no_build {
        true => workspace.built(Selection::All, architecture, Profile::Dev)?,
        false => timed("building", || workspace.build(Selection::All, architecture, Profile::Dev))?,
    };
    let options = Options {
        architecture,
        userland: if arguments.systemd { Userland::Debian } else { Userland::Small },
        memory: arguments.memory,
        disk: arguments.disk,
        kernel: arguments.kernel.clone(),
        qemu: arguments.qemu,
        ..Options::new(programs)
    };
    let mut machine = Machine::boot(workspace, &options)?;
    let timeout = Duration::from_secs(arguments.timeout);
    let mut status = machine.run(&arguments.command.join(" "), timeout)?;
    if let (true, Some(next)) = (status.success(), &arguments.after_reboot) {
        machine.reboot()?;
        status = machine.run(next, timeout)?;
    }
    if let (true, Some(next)) = (status.success(), &arguments.after_power_cut) {
        machine.power_cut()?;
        status = machine.run(next, timeout)?;
    }
    if !status.success() {
        say(format_args!("the command ended with {status}"));
    }
    Ok(exit_code(status))
}
