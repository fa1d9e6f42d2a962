//! A driver whose volumes and snapshots are compared: what it is asked with, where its volumes are, and what it costs.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::audit::{Requests, agents, requests_by};
use bulkhead_tests::observe::processes;
use bulkhead_tests::run_options::PoolFilesystem;

/// The size of each driver's filesystem.
pub const POOL_MEBIBYTES: u64 = 4096;

const MARK: u8 = 7;
const MEBIBYTE: u64 = 1 << 20;

/// One of them.
pub struct Driver {
    /// What it is called in the figures.
    pub name: &'static str,
    /// Its class of volumes, whose claims wait for a node.
    pub class: String,
    /// Its class of snapshots.
    pub snapshot_class: String,
    /// Who makes its requests.
    pub users: Vec<String>,
    /// The processes that it has on a node, without those that they start.
    pub processes: Vec<u32>,
    /// The directory of its volumes.
    pub directory: PathBuf,
    /// The file of a volume, by the volume's handle.
    pub file: fn(&Path, &str) -> PathBuf,
}

impl Driver {
    /// The agent, on a pool of its own.
    pub fn agent(cluster: &mut Cluster) -> Result<Self> {
        let class = cluster.add_class(|_| {})?;
        let agent = cluster.add_agent_with(|rig| {
            rig.run_options.pool_fs = PoolFilesystem::Xfs;
            rig.run_options.pool_mebibytes = POOL_MEBIBYTES;
            rig.add_pool("default")
        })?;
        let processes = vec![agent.rig.running_frontend()?.pid(), agent.rig.running_helper()?.pid()];
        let directory = agent.rig.pool().directory.clone();
        let snapshot_class = cluster.add_snapshot_class("bulkhead", |_| {})?;
        let file = |pool: &Path, handle: &str| pool.join(handle).join("image");
        Ok(Self { name: "bulkhead", class, snapshot_class, users: vec![agents()], processes, directory, file })
    }

    /// Writes the first of a bound claim's mebibytes, and waits until they are on the disk.
    pub fn write(&self, cluster: &Cluster, claim: &str, mebibytes: u64) -> Result<()> {
        let file = File::options().write(true).open(self.file_of(cluster, claim)?)?;
        let part = vec![MARK; usize::try_from(MEBIBYTE)?];
        (0..mebibytes).try_for_each(|at| file.write_all_at(&part, at * MEBIBYTE))?;
        Ok(file.sync_all()?)
    }

    /// Checks that a bound claim has what was written.
    pub fn check(&self, cluster: &Cluster, claim: &str, mebibytes: u64) -> Result<()> {
        let file = File::open(self.file_of(cluster, claim)?)?;
        for at in [0, mebibytes * MEBIBYTE - 1] {
            let mut found = [0];
            file.read_exact_at(&mut found, at)?;
            ensure!(found == [MARK], "{claim} by {} has {found:?} at {at}", self.name);
        }
        Ok(())
    }

    fn file_of(&self, cluster: &Cluster, claim: &str) -> Result<PathBuf> {
        let csi = cluster.bound(claim)?.spec.and_then(|spec| spec.csi).context("a volume of no driver")?;
        Ok((self.file)(&self.directory, &csi.volume_handle))
    }

    /// All its requests so far.
    pub fn requests(&self, cluster: &Cluster) -> Result<Requests> {
        let mut all = Requests::new();
        for user in &self.users {
            for (what, number) in requests_by(&cluster.access, user)? {
                *all.entry(what).or_default() += number;
            }
        }
        Ok(all)
    }

    /// Prints the memory of its processes.
    pub fn print_memory(&self, when: &str) -> Result<()> {
        let (mut all, mut each) = (0, Vec::new());
        for pid in &self.processes {
            let started = processes::descendants(i32::try_from(*pid)?)?;
            let started: Vec<u32> =
                started.iter().map(|process| u32::try_from(process.pid)).collect::<Result<_, _>>()?;
            let mut bytes = 0;
            for pid in std::iter::once(pid).chain(&started) {
                bytes += processes::proportional(*pid)?;
            }
            let program = std::fs::read_link(format!("/proc/{pid}/exe"))?;
            let name = program.file_name().context("a program without a name")?.display().to_string();
            each.push(format!("{name} {:.1}", mebibytes(bytes)));
            all += bytes;
        }
        println!("{}: memory {when}: {:.1} MiB: {}", self.name, mebibytes(all), each.join(", "));
        Ok(())
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}
