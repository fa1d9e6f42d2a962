//! Kubernetes' own tests of storage drivers, run against Bulkhead on a node in a machine.

mod images;

use std::process::{Command, ExitStatus};

use anyhow::Result;

use crate::directory::run_directory;
use crate::go_tool::for_snapshots;
use crate::kubernetes;
use crate::node::{self, Equipment};
use crate::programs::Programs;
use crate::workspace::Workspace;

/// The suites grow volumes of one gibibyte and run several tests at a time.
const DISK: u64 = 32 << 10;

const MEMORY: u32 = 3072;

/// Boots the node and runs the tests whose names match the filter, or all of them.
pub fn run(
    workspace: &Workspace,
    programs: &Programs,
    filter: Option<&str>,
    qemu: bool,
    run_program: impl FnOnce(&mut Command) -> Result<ExitStatus> + Send,
) -> Result<ExitStatus> {
    let assets = kubernetes::cluster_with_tests(workspace)?;
    let archives = run_directory(&workspace.runs())?;
    let images = images::write(&assets, archives.path())?;
    let definitions = workspace.root.join("tests/storage-e2e");
    let mut arguments = vec!["storage-suite".to_owned(), definitions.to_string_lossy().into_owned()];
    arguments.extend(filter.map(str::to_owned));
    let equipment = Equipment { assets, images, memory: MEMORY, disk: DISK, qemu };
    let snapshots = for_snapshots(workspace)?;
    node::run(workspace, programs, equipment, &arguments, |program| run_program(program.envs(snapshots)))
}
