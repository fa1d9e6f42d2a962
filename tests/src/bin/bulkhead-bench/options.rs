//! What is measured, and how long that may take.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead_tests::run_options::{Place, PoolFilesystem};
use clap::{Parser, ValueEnum};

/// Measures what Bulkhead costs on this host, and prints one report.
#[derive(Debug, Parser)]
#[command(name = "bulkhead-bench")]
pub struct Options {
    /// Measure less, in less than a minute
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Measure everything: up to 20,000 volumes of each kind, and a deletion of 1,000,000 files
    #[arg(long)]
    full: bool,
    /// Only these parts; the floor is measured with each
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// Calls of each kind
    #[arg(long)]
    calls: Option<usize>,
    /// Concurrent calls
    #[arg(long, value_delimiter = ',')]
    in_flight: Vec<usize>,
    /// Numbers of published volumes of each kind with which calls are measured
    #[arg(long, value_delimiter = ',')]
    volumes: Vec<usize>,
    /// Numbers of published filesystems in images with which memory and restarts are measured
    #[arg(long, value_delimiter = ',')]
    filesystems: Vec<usize>,
    /// Directory volumes to create at the end without publishing them, for their memory and the time of a start
    #[arg(long, default_value_t = 0)]
    pub created: usize,
    /// Mounts of the host's own beside which calls are measured; 0 skips this
    #[arg(long)]
    mounts: Option<usize>,
    /// Volumes in a storm
    #[arg(long)]
    storm: Option<usize>,
    /// Files of a deleted volume that is being emptied while calls are timed; 0 skips this
    #[arg(long)]
    emptying: Option<usize>,
    /// Seconds after which nothing more is begun
    #[arg(long)]
    limit: Option<u64>,
    /// Where this runs; the virtual machine has project quotas
    #[arg(long, default_value = "host")]
    pub place: Place,
    /// Filesystem of the pool
    #[arg(long, default_value = "xfs")]
    pub pool_fs: PoolFilesystem,
    /// Another CSI driver that is measured with the same calls, by its socket: unix:///run/csi.sock
    #[arg(long)]
    pub peer_endpoint: Vec<String>,
    /// Where the other driver publishes; it needs the same path there
    #[arg(long, default_value = "/tmp/bulkhead-bench-peer")]
    pub peer_directory: PathBuf,
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,
    /// Show what has changed since this earlier report
    #[arg(long)]
    pub compare: Option<PathBuf>,
    /// Where the report and the plots are written
    #[arg(long, default_value = "target/bench", overrides_with = "output")]
    pub output: PathBuf,
}

/// A part of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Each call, alone and concurrently with others.
    Calls,
    /// Calls and memory with many volumes.
    Density,
    /// Calls beside very many mounts that are none of the driver's.
    Mounts,
    /// Many volumes at once, and a large deletion.
    Storms,
    /// Reading and writing.
    DataPath,
    /// Snapshots and copies, by size and extents.
    Copies,
    /// Filesystems in images beside directories: calls, memory, restarts, reading and writing.
    Filesystems,
}

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Amount {
    /// Calls of each kind.
    pub calls: usize,
    /// Numbers of concurrent calls.
    pub in_flight: Vec<usize>,
    /// Numbers of published volumes of each kind.
    pub volumes: Vec<usize>,
    /// Numbers of published filesystems in images.
    pub filesystems: Vec<usize>,
    /// Mounts of the host's own.
    pub mounts: usize,
    /// Volumes in a storm.
    pub storm: usize,
    /// Files of the volume that is emptied.
    pub emptying: usize,
    /// How long each round of reading or writing takes.
    pub round: Duration,
    /// When to stop starting measurements.
    pub limit: Duration,
}

impl Options {
    /// Returns whether a part is to be measured.
    pub fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Returns how much is measured.
    pub fn amount(&self) -> Amount {
        let by_size = |quick, usual, full| match (self.quick, self.full) {
            (true, _) => quick,
            (_, true) => full,
            _ => usual,
        };
        let list = |given: &Vec<usize>, size: &[usize]| if given.is_empty() { size.to_vec() } else { given.clone() };
        let volumes: &[usize] = match (self.quick, self.full) {
            (true, _) => &[0, 100],
            (_, true) => &[0, 100, 1000, 5000, 20_000],
            _ => &[0, 100, 1000],
        };
        let filesystems: &[usize] = match (self.quick, self.full) {
            (true, _) => &[0, 20],
            (_, true) => &[0, 100, 300, 1000],
            _ => &[0, 100],
        };
        let in_flight: &[usize] = if self.quick { &[1, 8] } else { &[1, 8, 64] };
        Amount {
            calls: self.calls.unwrap_or(by_size(40, 200, 500)).max(1),
            in_flight: list(&self.in_flight, in_flight),
            volumes: list(&self.volumes, volumes),
            filesystems: list(&self.filesystems, filesystems),
            mounts: self.mounts.unwrap_or(by_size(2000, 20_000, 20_000)),
            storm: self.storm.unwrap_or(by_size(50, 300, 1000)),
            emptying: self.emptying.unwrap_or(by_size(5000, 50_000, 1_000_000)),
            round: Duration::from_millis(by_size(100, 300, 1000) as u64),
            limit: Duration::from_secs(self.limit.unwrap_or(by_size(50, 270, 7200) as u64)),
        }
    }

    /// Its name in the report.
    pub fn size(&self) -> &'static str {
        match (self.quick, self.full) {
            (true, _) => "quick",
            (_, true) => "full",
            _ => "default",
        }
    }
}
