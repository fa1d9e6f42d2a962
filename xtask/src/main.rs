//! The project's own commands. `cargo xtask --help` lists them.

mod archive;
mod audit;
mod cache;
mod cargo_tool;
mod checksum;
mod commands;
mod desktop;
mod directory;
mod former;
mod go;
mod go_tool;
mod image;
mod kubernetes;
mod node;
mod packages;
mod policy;
mod process;
mod programs;
mod progress;
mod release;
mod sanity;
mod storage_suite;
mod templates;
mod test;
mod vm;
mod workspace;
mod zig;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use self::commands::{
    AuditArguments, BenchArguments, DemoArguments, ImageArguments, LintArguments, NodeArguments, ReleaseArguments,
    TemplatesArguments, TestArguments, VmArguments,
};
use self::desktop::Desktop;
use self::progress::timed;
use self::workspace::{Architecture, Profile, Selection, Workspace};
use self::zig::Zig;

/// Builds, tests and shows Bulkhead.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build the programs that are shipped: static, for musl.
    Build {
        /// Optimize as for a release, which takes longer to build.
        #[arg(long)]
        release: bool,
        /// The processor to build for.
        #[arg(long, value_enum, default_value_t = Architecture::host())]
        arch: Architecture,
        /// Build only kubectl's plugin, optimized, for this other system.
        #[arg(long, value_enum, value_name = "SYSTEM", conflicts_with_all = ["release", "arch"])]
        plugin_for: Option<Desktop>,
    },
    /// Write the container images, for a container runtime to import.
    Image(ImageArguments),
    /// Write a release: programs, images, chart, manifests, lists of the crates in them, checksums.
    Release(ReleaseArguments),
    /// Check formatting, lints, licenses and sources of crates. The last line is `lint: ok`.
    Lint(LintArguments),
    /// Run the tests. The last line is `N passed, N failed`.
    Test(TestArguments),
    /// Print what a reviewer of the privileged code wants to know first: lines, unsafe blocks, crates, capabilities, system
    /// calls, claims and their tests, advisories.
    Audit(AuditArguments),
    /// Make the filesystems that the helper writes into fresh images.
    Templates(TemplatesArguments),
    /// Demonstrate the whole life of real volumes. The last line is `demo: ok`.
    Demo(DemoArguments),
    /// Measure the CSI services, or the agent on a control plane, on this host.
    Bench(BenchArguments),
    /// Build the programs of a Kubernetes cluster, unless they are in the cache, and print their directory.
    ControlPlane,
    /// Start a Kubernetes node with Bulkhead on it, and run a command against it.
    Node(NodeArguments),
    /// Run a command in the virtual machine, with our programs in its PATH.
    Vm(VmArguments),
}

fn main() -> ExitCode {
    match run(&Arguments::parse().task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &Task) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    match task {
        Task::Build { plugin_for: Some(desktop), .. } => {
            let plugin = timed("building", || desktop.build(&workspace, &Zig::provide()?))?;
            println!("{}", plugin.display());
            Ok(ExitCode::SUCCESS)
        }
        Task::Build { release, arch, plugin_for: None } => {
            let profile = if *release { Profile::Release } else { Profile::Dev };
            for program in timed("building", || workspace.build(Selection::Shipped, *arch, profile))? {
                println!("{}", program.display());
            }
            Ok(ExitCode::SUCCESS)
        }
        Task::Image(arguments) => commands::image(&workspace, arguments),
        Task::Release(arguments) => commands::release(&workspace, arguments),
        Task::Lint(arguments) => commands::lint(&workspace, arguments),
        Task::Test(arguments) => commands::test(&workspace, arguments),
        Task::Audit(arguments) => commands::audit(&workspace, arguments),
        Task::Templates(arguments) => commands::templates(&workspace, arguments),
        Task::Demo(arguments) => commands::demo(&workspace, arguments),
        Task::Bench(arguments) => commands::bench(&workspace, arguments),
        Task::ControlPlane => {
            println!("{}", kubernetes::cluster(&workspace)?.display());
            Ok(ExitCode::SUCCESS)
        }
        Task::Node(arguments) => commands::node(&workspace, arguments),
        Task::Vm(arguments) => commands::vm(&workspace, arguments),
    }
}
