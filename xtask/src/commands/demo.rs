//! `cargo xtask demo`: the whole life of real volumes, checked at every step.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use crate::packages;
use crate::process::{command, run};
use crate::programs::Programs;
use crate::progress::{say, timed};
use crate::vm::{AGENT, Machine, Options, require_packages};
use crate::workspace::{Architecture, Profile, Selection, Workspace};

const DEMO: &str = "bulkhead-demo";
const PROGRAMS: Selection = Selection::ShippedWith(&[DEMO, AGENT]);
const TIMEOUT: Duration = Duration::from_secs(900);

/// What `demo` takes.
#[derive(Args)]
pub struct Arguments {
    /// Use this host instead of a virtual machine: needs root, makes real mounts and loop devices, and shows no reboot.
    #[arg(long)]
    here: bool,
}

/// Runs the demonstration. `demo: ok` is printed only if every step of both phases was checked.
pub fn execute(workspace: &Workspace, arguments: &Arguments) -> Result<ExitCode> {
    if arguments.here {
        packages::require(&packages::FILESYSTEM_TOOLS)?;
    } else {
        require_packages(Architecture::host())?;
    }
    let programs = timed("building", || Programs::build(workspace, PROGRAMS, Profile::Dev))?;
    if arguments.here {
        on_this_host(&programs)?;
    } else {
        // The first thing that somebody runs does not wait for a kernel to be built.
        let options = Options { qemu: true, ..Options::new(programs.all()?) };
        let mut machine = Machine::boot(workspace, &options)?;
        phase(&mut machine, "before-reboot")?;
        say("rebooting the machine");
        machine.reboot()?;
        phase(&mut machine, "after-reboot")?;
    }
    println!("next: `cargo xtask node` brings up a Kubernetes node with Bulkhead, and a shell with kubectl to try it");
    println!("next: docs/kubernetes.md for your own cluster, docs/install.md for a node without Kubernetes");
    println!("demo: ok");
    Ok(ExitCode::SUCCESS)
}

fn phase(machine: &mut Machine, phase: &str) -> Result<()> {
    let status = machine.run(&format!("{DEMO} --phase {phase}"), TIMEOUT)?;
    ensure!(status.success(), "the demonstration failed {}: {status}", phase.replace('-', " "));
    Ok(())
}

fn on_this_host(programs: &Programs) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "--here needs root: run it with sudo, or leave out --here");
    say("on this host: mounts and loop devices are made here and removed at the end");
    say("on this host: nothing is rebooted, so the effects of a reboot are not shown");
    say("on this host: sizes are enforced only if this kernel has project quotas");
    for phase in ["before-reboot", "after-reboot"] {
        run(command("env").arg(programs.path(DEMO)).args(["--here", "--phase", phase]))?;
    }
    Ok(())
}
