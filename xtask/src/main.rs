//! The project's own commands. `cargo xtask --help` lists them.

mod archive;
mod audit;
mod cache;
mod cargo_tool;
mod checksum;
mod commands;
mod desktop;
mod directory;
mod files;
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
mod storage_images;
mod templates;
mod test;
mod vm;
mod workspace;
mod zig;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

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
    Image {
        /// The processor that the programs are for.
        #[arg(long, value_enum, default_value_t = Architecture::host())]
        arch: Architecture,
        /// Build without the optimizations of a release, which is quicker.
        #[arg(long)]
        dev: bool,
        /// Where the archives go (default: images in cargo's target directory).
        #[arg(long, value_name = "DIRECTORY")]
        output: Option<PathBuf>,
    },
    /// Write a release: programs, images, chart, manifests, lists of the crates in them, checksums.
    Release(commands::release::Arguments),
    /// Check formatting, lints, licenses and sources of crates. The last line is `lint: ok`.
    Lint(commands::lint::Arguments),
    /// Run the tests. The last line is `N passed, N failed`.
    Test(commands::test::Arguments),
    /// Print what a reviewer of the privileged code wants to know first, as docs/audit.md has it, and open advisories.
    Audit {
        /// Write what comes from the source into docs/audit.md.
        #[arg(long, conflicts_with = "build")]
        write: bool,
        /// Also build the helper, optimized and twice, and print its hash. This takes minutes.
        #[arg(long)]
        build: bool,
    },
    /// Make the filesystems that the helper writes into fresh images.
    Templates {
        /// Write nothing: print what the files hold, one run of bytes a line.
        #[arg(long)]
        print: bool,
    },
    /// Demonstrate the whole life of real volumes. The last line is `demo: ok`.
    Demo(commands::demo::Arguments),
    /// Measure the CSI services, or the agent on a control plane, on this host.
    Bench(commands::bench::Arguments),
    /// Build the programs of a Kubernetes cluster, unless they are in the cache, and print their directory.
    ControlPlane,
    /// Start a Kubernetes node with Bulkhead on it, and run a command against it.
    Node(commands::node::Arguments),
    /// Run a command in the virtual machine, with our programs in its PATH.
    Vm(commands::vm::Arguments),
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
            show_paths(&[timed("building", || desktop.build(&workspace, &Zig::provide()?))?])
        }
        Task::Build { release, arch, plugin_for: None } => {
            let profile = if *release { Profile::Release } else { Profile::Dev };
            show_paths(&timed("building", || workspace.build(Selection::Shipped, *arch, profile))?)
        }
        Task::Image { arch, dev, output } => {
            let profile = if *dev { Profile::Dev } else { Profile::Release };
            timed("building", || workspace.build(Selection::Shipped, *arch, profile))?;
            let directory = output.clone().unwrap_or_else(|| workspace.target.join("images"));
            show_paths(&image::write(|name| workspace.program(name, *arch, profile), *arch, &directory)?)
        }
        Task::Release(arguments) => commands::release::execute(&workspace, arguments),
        Task::Lint(arguments) => commands::lint::execute(&workspace, arguments),
        Task::Test(arguments) => commands::test::execute(&workspace, arguments),
        Task::Audit { write: true, .. } => show_paths(&[audit::write(&workspace.root)?]),
        Task::Audit { build, write: false } => show(&audit::as_text(&audit::page(&workspace, *build)?)),
        Task::Templates { print: true } => show(&templates::as_text(&workspace)?),
        Task::Templates { print: false } => show_paths(&templates::write(&workspace)?),
        Task::Demo(arguments) => commands::demo::execute(&workspace, arguments),
        Task::Bench(arguments) => commands::bench::execute(&workspace, arguments),
        Task::ControlPlane => show_paths(&[kubernetes::cluster(&workspace)?]),
        Task::Node(arguments) => commands::node::execute(&workspace, arguments),
        Task::Vm(arguments) => commands::vm::execute(&workspace, arguments),
    }
}

fn show_paths(paths: &[PathBuf]) -> Result<ExitCode> {
    show(&paths.iter().map(|path| format!("{}\n", path.display())).collect::<String>())
}

/// Prints a text. Whoever reads only the beginning closes the pipe.
fn show(text: &str) -> Result<ExitCode> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}
