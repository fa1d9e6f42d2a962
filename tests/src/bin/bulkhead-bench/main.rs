//! What Bulkhead costs, in one report: calls compared with the system calls they cannot avoid, calls and memory with
//! many volumes, storms, the data path, copies, and filesystems in images. Nothing here is a test; the figures depend on the machine.

mod calls;
mod copies;
mod data_path;
mod density;
mod driver;
mod filesystems;
mod floor;
mod machine;
mod mounts;
mod options;
mod output;
mod room;
mod run;
mod storms;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bulkhead_tests::bench;
use bulkhead_tests::bench::report::Report;
use bulkhead_tests::kubelet::Kubelet;
use bulkhead_tests::observe::mounts::unmount_all;
use bulkhead_tests::pool::Pool;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{PoolFilesystem, RunOptions};
use clap::Parser;

use crate::driver::{Driver, Kind, Targets};
use crate::floor::Floor;
use crate::options::{Amount, Options, Part};
use crate::run::Run;

/// Space for the inodes of a million files. The image is sparse.
const POOL_MEBIBYTES: u64 = 8192;

/// More volumes than are created here.
const LIMITS: [&str; 4] = ["--max-volumes", "100000", "--max-targets", "200000"];

fn main() -> ExitCode {
    let options = Options::parse();
    bench::run(RunOptions::ordinary(options.place, options.pool_fs), |run_options, work, templates| {
        // An unreadable file is reported right away, and the new report may replace the old one.
        let earlier = options.compare.as_deref().map(Report::read).transpose()?;
        run_options.pool_mebibytes = POOL_MEBIBYTES;
        let mut run = Run::new(options.amount().limit);
        run.report.machine = machine::describe(&options)?;
        // On a filesystem of its own: the host's may be slow to make a directory, or tell its disk at once about one
        // that is removed.
        Pool::make_unmarked(run_options, templates, &work.join("kubelet"), "kubelet")?;
        let mut rig = Rig::new(run_options, work, templates)?;
        let measured = measure(&mut run, &mut rig, &options);
        rig.abandon();
        if let Err(error) = &measured {
            run.leave_out(format!("all that follows: {error:#}"));
        }
        output::write(&options, &run.report, earlier.as_ref())?;
        measured
    })
}

fn measure(run: &mut Run, rig: &mut Rig, options: &Options) -> Result<()> {
    let amount = options.amount();
    rig.add_pool("default")?;
    rig.pools[0].options.push_str(",overcommit=100");
    rig.helper_flags.extend(LIMITS.map(str::to_owned));
    // Before the helper starts: names that start with a dot in its pool belong to it.
    let floor = floor::measure(run, &rig.pool().directory, &rig.kubelet.pods(), &amount)?;
    rig.start()?;
    let socket = format!("unix://{}", rig.kubelet.csi_socket().display());
    let driver = Driver::connect(&socket, Targets::Kubelet(Kubelet::make(rig.kubelet.root())?))?;
    if options.wants(Part::Calls) {
        calls::measure(run, "", &driver, &floor, &amount)?;
    }
    for uri in &options.peer_endpoint {
        measure_peer(run, uri, options, &floor, &amount)?;
    }
    if options.wants(Part::Mounts) {
        mounts::measure(run, rig, &driver, &amount)?;
    }
    if options.wants(Part::Storms) {
        storms::measure(run, &driver, &floor, &amount)?;
        storms::measure_beside_emptying(run, rig, &driver, &amount)?;
    }
    if options.wants(Part::DataPath) {
        data_path::measure(run, &Kind::ALL, &rig.pool().directory, &driver, amount.round)?;
    }
    if options.wants(Part::Density) {
        density::measure(run, rig, &driver, &amount)?;
        density::measure_created(run, rig, &driver, options.created)?;
    }
    if options.wants(Part::Copies) && options.pool_fs == PoolFilesystem::Xfs {
        room::measure(run, rig)?;
        copies::measure(run, rig)?;
    }
    // Last, because it makes another pool, which only it needs, and starts the helper on both.
    if options.wants(Part::Filesystems) {
        filesystems::measure(run, rig, &driver, &amount)?;
    }
    let pools: Vec<_> = rig.pools.iter().map(|pool| pool.directory.clone()).collect();
    // Only the clean-up is left.
    rig.abandon();
    pools.iter().try_for_each(|pool| unmount_all(pool))?;
    unmount_all(rig.kubelet.root())
}

/// The other driver publishes in its own mount namespace, so the published volumes are not visible here.
fn measure_peer(run: &mut Run, uri: &str, options: &Options, floor: &Floor, amount: &Amount) -> Result<()> {
    let directory = &options.peer_directory;
    let peer = Driver::connect(uri, Targets::Below(directory.clone()))?;
    let name = peer.name()?;
    fs::create_dir(directory).with_context(|| format!("make {}, which must not exist", directory.display()))?;
    let measured = calls::measure(run, &name, &peer, floor, amount);
    let removed = fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()));
    measured.and(removed)
}
