//! Project quotas, as xfs_quota(8) reports them for XFS and ext4.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::pool::output;

/// A project with usage or limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectQuota {
    /// Project id.
    pub project: u32,
    /// KiB or inodes in use.
    pub used: u64,
    /// The hard limit on that.
    pub limit: u64,
}

/// Usage and limits in KiB, of all projects except project 0.
pub fn blocks(filesystem: &Path) -> Result<Vec<ProjectQuota>> {
    report(filesystem, "-b")
}

/// Usage and limits in inodes, of all projects except project 0.
pub fn inodes(filesystem: &Path) -> Result<Vec<ProjectQuota>> {
    report(filesystem, "-i")
}

/// A petabyte, in KiB.
const END: u64 = 1 << 40;

fn report(filesystem: &Path, what: &str) -> Result<Vec<ProjectQuota>> {
    let what = format!("report -p -n -N {what}");
    let text = output(Command::new("xfs_quota").args(["-f", "-x", "-c", &what]).arg(filesystem))?;
    let quotas: Vec<ProjectQuota> = text.lines().filter_map(parse).collect();
    // A project that nothing is charged to, with a limit above all that a filesystem can hold, is where the helper ends
    // the kernel's walk over projects.
    let matters = |quota: &ProjectQuota| quota.project != 0 && quota.limit < END && (quota.used, quota.limit) != (0, 0);
    Ok(quotas.into_iter().filter(matters).collect())
}

/// `#100000  used  soft  hard  warnings [grace]`
fn parse(line: &str) -> Option<ProjectQuota> {
    let mut fields = line.strip_prefix('#')?.split_whitespace();
    let project = fields.next()?.parse().ok()?;
    let used = fields.next()?.parse().ok()?;
    let limit = fields.nth(1)?.parse().ok()?;
    Some(ProjectQuota { project, used, limit })
}
