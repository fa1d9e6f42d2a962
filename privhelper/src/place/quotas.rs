//! Quotas of projects, on the filesystem of a pool.

use std::os::fd::OwnedFd;

use caps::Capability::CAP_SYS_ADMIN;

use super::wire::Answer;
use crate::sys::quota::{self, Look, ProjectId};
use crate::sys::{Errno, Error as SysError, Result as SysResult, capability};

/// What these projects use and may use.
pub fn get(pool: &OwnedFd, look: Look, projects: &[ProjectId]) -> SysResult<Answer> {
    // Not raised for each of them: a call for one is shorter than raising, and none waits for what a tenant controls.
    let get_all = || projects.iter().map(|project| quota::get(pool, look, *project)).collect::<SysResult<Vec<_>>>();
    capability::with(&[CAP_SYS_ADMIN], get_all)?.try_into().map(Answer::Quotas).map_err(|_| SysError::of(Errno::INVAL))
}

/// The first project from this one on.
pub fn next(pool: &OwnedFd, look: Look, from: ProjectId) -> SysResult<Answer> {
    capability::with(&[CAP_SYS_ADMIN], || quota::get_next(pool, look, from)).map(Answer::Next)
}

/// Checks that a project is in the range for volumes, or the one after it, where the search for strays ends.
///
/// # Errors
/// `PERM` when it is another's.
pub fn check((first, last): (u32, u32), project: ProjectId) -> SysResult<()> {
    if (first..=last.saturating_add(1)).contains(&project.0) { Ok(()) } else { Err(SysError::of(Errno::PERM)) }
}

/// Sets the limits of a project.
pub fn set(pool: &OwnedFd, project: ProjectId, limits: (u64, u64)) -> SysResult<Answer> {
    capability::with(&[CAP_SYS_ADMIN], || quota::set(pool, project, limits)).map(|()| Answer::Done)
}
