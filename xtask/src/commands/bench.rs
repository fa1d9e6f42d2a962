//! `cargo xtask bench`: the cost of the services, or of storage agents, measured on this host with optimized programs.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use super::exit_code;
use crate::go_tool::{CSI_PROVISIONER, CSI_SNAPSHOTTER, LOCAL_PATH, for_snapshots};
use crate::kubernetes;
use crate::packages;
use crate::process::command;
use crate::programs::Programs;
use crate::progress::timed;
use crate::vm::{AGENT, Machine, Options, require_packages};
use crate::workspace::{Architecture, Profile, Selection, Workspace};

const BENCH: [&str; 1] = ["bulkhead-bench"];
/// It times loop devices, whose ioctls would need unsafe code in Rust.
const LOOP_TIMER: [&str; 1] = ["python3"];
const BENCH_IN_MACHINE: [&str; 2] = [BENCH[0], AGENT];
const CLUSTER_BENCH: [&str; 1] = ["bulkhead-cluster-bench"];

/// The machine's memory in MiB, the size of its disks in MiB, and the longest a run may take.
const MEMORY: u32 = 4096;
const DISK: u64 = 10 << 10;
const PATIENCE: Duration = Duration::from_secs(7200);

/// What `bench` takes.
#[derive(Args)]
pub struct Arguments {
    /// Measure storage agents on a real control plane instead of the CSI services.
    #[arg(long)]
    kubernetes: bool,
    /// Measure the CSI services in the virtual machine, whose pool has project quotas; its processor is emulated.
    #[arg(long, conflicts_with = "kubernetes")]
    vm: bool,
    /// Arguments for the measuring program; `-- --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds the shipped programs and the measuring program, and runs the latter.
pub fn execute(workspace: &Workspace, arguments: &Arguments) -> Result<ExitCode> {
    if arguments.vm {
        return in_machine(workspace, &arguments.arguments);
    }
    let bench = if arguments.kubernetes { &CLUSTER_BENCH } else { &BENCH };
    ensure!(rustix::process::geteuid().is_root(), "measuring needs root: run it with sudo");
    packages::require(&packages::FILESYSTEM_TOOLS)?;
    packages::require(&LOOP_TIMER)?;
    let programs = timed("building", || Programs::build(workspace, Selection::ShippedWith(bench), Profile::Release))?;
    let mut measure = command("env");
    if arguments.kubernetes {
        measure.env(kubernetes::ASSETS, kubernetes::control_plane(workspace)?);
        measure.envs(for_snapshots(workspace)?);
        // Another driver's sidecars take minutes to build, and are there for that driver.
        let other_driver = arguments.arguments.iter().any(|argument| argument.starts_with("--host-path"));
        let sidecars: &[_] = if other_driver { &[CSI_PROVISIONER, CSI_SNAPSHOTTER] } else { &[] };
        for tool in [LOCAL_PATH].iter().chain(sidecars) {
            measure.envs([tool.variable(workspace)?]);
        }
    }
    measure.arg(programs.path(bench[0]));
    if !arguments.kubernetes {
        measure.arg("--output").arg(workspace.target.join("bench"));
    }
    Ok(exit_code(measure.args(&arguments.arguments).status()?))
}

/// Under QEMU, as a load needs both processors. Unless parts are selected, the data path is left out: an emulated
/// processor says nothing about it.
fn in_machine(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode> {
    let architecture = Architecture::host();
    require_packages(architecture)?;
    let selection = Selection::ShippedWith(&BENCH_IN_MACHINE);
    let programs = timed("building", || workspace.build(selection, architecture, Profile::Release))?;
    let options = Options { memory: MEMORY, disk: DISK, programs, qemu: true, ..Options::new(Vec::new()) };
    let mut machine = Machine::boot(workspace, &options)?;
    let chosen = arguments.iter().any(|argument| argument.starts_with("--only"));
    let parts = if chosen { "" } else { "--only calls,storms,density" };
    let command = format!("bulkhead-bench --place vm --output /tmp/bench {parts} {}", arguments.join(" "));
    Ok(exit_code(machine.run(&command, PATIENCE)?))
}
