//! The system calls that the two processes may make once they serve. This is part of the jail: without it, a process
//! with CAP_SYS_ADMIN could make mounts of its own. seccompiler compiles these tables to BPF; a call that is not in
//! them ends the process.

use std::collections::BTreeMap;

use linux_raw_sys::ioctl::{BLKROSET, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR};
use linux_raw_sys::loop_device as loops;
use linux_raw_sys::net::{SO_RCVTIMEO_NEW, SO_SNDTIMEO_NEW};
use nix::libc;
use rustix::thread::SecureComputingMode;
use seccompiler::SeccompCmpOp::{self, Eq, Ge};
use seccompiler::{BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCondition, SeccompFilter, SeccompRule};

use crate::log;
use crate::sys::file::{FILE_GETATTR, FILE_SETATTR};
use crate::sys::{loopdevice, mount, quota};

/// What happens on a system call that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnViolation {
    /// The process is killed.
    Kill,
    /// The kernel logs the call and executes it: only for bringing up a new platform.
    Log,
}

/// What is wrong with [`OnViolation::Log`].
pub const NOT_CONFINED: &str =
    "the helper is not confined: with --seccomp=log, system calls that are not allowed are only logged";

/// Which of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// Serves requests.
    Server,
    /// Empties deleted volumes.
    Emptier,
}

/// Installs the filter on every thread of the calling process, forever, and asks the kernel whether it is in place.
/// Needs no_new_privs.
///
/// # Errors
/// A sentence on what failed.
pub fn install(process: Process, on_violation: OnViolation) -> Result<(), String> {
    let fail = |error: seccompiler::Error| format!("cannot install the seccomp filter: {error}");
    let program = compile(process, on_violation).map_err(|error| fail(error.into()))?;
    seccompiler::apply_filter_all_threads(&program).map_err(fail)?;
    match rustix::thread::secure_computing_mode() {
        Ok(SecureComputingMode::Filter) if on_violation == OnViolation::Kill => Ok(()),
        Ok(SecureComputingMode::Filter) => {
            log::warning!("{NOT_CONFINED} process={process:?}");
            Ok(())
        }
        _ => Err("the kernel reports that no seccomp filter is installed".to_owned()),
    }
}

fn compile(process: Process, on_violation: OnViolation) -> Result<BpfProgram, seccompiler::BackendError> {
    let violation = match on_violation {
        OnViolation::Kill => SeccompAction::KillProcess,
        OnViolation::Log => SeccompAction::Log,
    };
    let (calls, conditional) = match process {
        Process::Server => (SERVER, SERVER_IF),
        Process::Emptier => (EMPTIER, EMPTIER_IF),
    };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    rules.extend(BOTH.iter().chain(calls).copied().flatten().map(|call| (*call, Vec::new())));
    for Row(call, conditions) in BOTH_IF.iter().chain(conditional) {
        let conditions = conditions.iter().map(|If(argument, comparison, value)| {
            SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, comparison.clone(), (*value).into())
        });
        rules.entry(*call).or_default().push(SeccompRule::new(conditions.collect::<Result<_, _>>()?)?);
    }
    SeccompFilter::new(rules, violation, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// A call that is allowed if all these conditions hold. Rows for the same call are alternatives.
struct Row(libc::c_long, &'static [If]);

/// How an argument (counted from 0) must compare with a value. To the kernel these arguments are 32 bits wide, and the
/// upper half of the register is ignored.
struct If(u8, SeccompCmpOp, u32);

/// Compares the bits in a mask with those of the value.
const fn masked(mask: u32) -> SeccompCmpOp {
    SeccompCmpOp::MaskedEq(mask as u64)
}

/// What Rust's runtime, the C library and packets need. Each process has already started its threads.
const BOTH: &[&[libc::c_long]] = &[
    // Memory, threads, signals, time, exit.
    &[
        libc::SYS_brk,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_futex,
        libc::SYS_sched_yield,
        libc::SYS_gettid,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigprocmask,
        libc::SYS_restart_syscall,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ],
    // Raising and lowering capabilities; the first call seeds the hash sets in which caps holds them.
    &[libc::SYS_getrandom, libc::SYS_capget, libc::SYS_capset],
    // Packets, and files below a held directory.
    &[libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_openat2, libc::SYS_statx, libc::SYS_unlinkat],
];

const ANONYMOUS: u32 = libc::MAP_ANONYMOUS as u32;

const BOTH_IF: &[Row] = &[
    // Log lines go to standard error, which stays open.
    Row(libc::SYS_write, &[If(0, Eq, 2)]),
    Row(libc::SYS_writev, &[If(0, Eq, 2)]),
    Row(libc::SYS_close, &[If(0, Ge, 3)]),
    // Checking that the filter is in place.
    Row(libc::SYS_prctl, &[If(0, Eq, libc::PR_GET_SECCOMP as u32)]),
    // Memory is never executable, and never a file.
    Row(libc::SYS_mmap, &[If(2, masked(libc::PROT_EXEC as u32), 0), If(3, masked(ANONYMOUS), ANONYMOUS)]),
    Row(libc::SYS_mprotect, &[If(2, masked(libc::PROT_EXEC as u32), 0)]),
    // Returning memory.
    Row(libc::SYS_madvise, &[If(2, Eq, libc::MADV_DONTNEED as u32)]),
    Row(libc::SYS_madvise, &[If(2, Eq, libc::MADV_FREE as u32)]),
    // Rust checks each descriptor that it closes, and duplicates descriptors with close-on-exec.
    Row(libc::SYS_fcntl, &[If(1, Eq, libc::F_GETFD as u32)]),
    Row(libc::SYS_fcntl, &[If(1, Eq, libc::F_DUPFD_CLOEXEC as u32)]),
    // The project id and the flags of an open file.
    Row(libc::SYS_ioctl, &[If(1, Eq, FS_IOC_FSGETXATTR)]),
    Row(libc::SYS_ioctl, &[If(1, Eq, FS_IOC_FSSETXATTR)]),
];

/// The level of socket(7) options.
const SOCKET: u32 = libc::SOL_SOCKET as u32;

const SERVER: &[&[libc::c_long]] = &[
    // The frontend's connections and sockets; whether somebody has shut one down.
    &[libc::SYS_accept4, libc::SYS_bind, libc::SYS_listen, libc::SYS_ppoll],
    // umount2 and bind take no directory descriptor.
    &[libc::SYS_fchdir, libc::SYS_chdir],
    // Volumes and their records.
    &[libc::SYS_mkdirat, libc::SYS_fsync, libc::SYS_ftruncate, libc::SYS_fstatfs, libc::SYS_read, libc::SYS_fsetxattr],
];

const SERVER_IF: &[Row] = &[
    // How long a connection may be silent or leave replies unread, and who is at its other end.
    Row(libc::SYS_setsockopt, &[If(1, Eq, SOCKET), If(2, Eq, SO_RCVTIMEO_NEW)]),
    Row(libc::SYS_setsockopt, &[If(1, Eq, SOCKET), If(2, Eq, SO_SNDTIMEO_NEW)]),
    Row(libc::SYS_getsockopt, &[If(1, Eq, SOCKET), If(2, Eq, libc::SO_PEERCRED as u32)]),
    // Whether descriptors come with a packet, before it is received; the end of a connection.
    Row(libc::SYS_recvmsg, &[If(2, Eq, libc::MSG_PEEK as u32)]),
    Row(libc::SYS_shutdown, &[If(1, Eq, libc::SHUT_RDWR as u32)]),
    // A socket for the frontend, which is its owner's alone before it has a name.
    Row(libc::SYS_socket, &[If(0, Eq, libc::AF_UNIX as u32)]),
    Row(libc::SYS_fchmod, &[If(1, Eq, 0o600)]),
    // A name is replaced only where a new socket takes the place of an old one.
    Row(libc::SYS_renameat2, &[If(4, masked(!libc::RENAME_NOREPLACE), 0)]),
    // Images are extended, and no holes are ever punched.
    Row(libc::SYS_fallocate, &[If(1, masked(!(libc::FALLOC_FL_KEEP_SIZE as u32)), 0)]),
    // A mount is only cloned (one, never a tree), changed while it is detached, moved from one descriptor to another,
    // and unmounted by name without following links.
    Row(libc::SYS_open_tree, &[If(2, Eq, mount::CLONE_ONE.bits())]),
    Row(libc::SYS_mount_setattr, &[If(2, Eq, libc::AT_EMPTY_PATH as u32)]),
    Row(libc::SYS_move_mount, &[If(4, Eq, mount::BY_DESCRIPTORS.bits())]),
    Row(libc::SYS_umount2, &[If(1, Eq, libc::UMOUNT_NOFOLLOW as u32)]),
    // Whether a mount is still there: nothing is written about it, since the buffer has length 0.
    Row(mount::STATMOUNT, &[If(2, Eq, 0), If(3, Eq, 0)]),
    // Nodes of loop devices only: major 7, in the encoding of makedev(3).
    Row(libc::SYS_mknodat, &[If(2, masked(libc::S_IFMT), libc::S_IFBLK), If(3, masked(0x000f_ff00), 7 << 8)]),
    // Project quotas: find the next one, in either way; set one.
    Row(libc::SYS_quotactl_fd, &[If(1, Eq, quota::GET_NEXT)]),
    Row(libc::SYS_quotactl_fd, &[If(1, Eq, quota::XFS_GET_NEXT)]),
    Row(libc::SYS_quotactl_fd, &[If(1, Eq, quota::SET)]),
    // Loop devices: add a new one, remove one; attach, make read-only, inspect, undo a tenant's changes, grow, detach.
    Row(libc::SYS_ioctl, &[If(1, Eq, loops::LOOP_CTL_ADD), If(2, Eq, loopdevice::ANY as u32)]),
    Row(libc::SYS_ioctl, &[If(1, Eq, loops::LOOP_CTL_REMOVE)]),
    Row(libc::SYS_ioctl, &[If(1, Eq, loops::LOOP_CONFIGURE)]),
    Row(libc::SYS_ioctl, &[If(1, Eq, BLKROSET)]),
    Row(libc::SYS_ioctl, &[If(1, Eq, loops::LOOP_GET_STATUS64)]),
    Row(libc::SYS_ioctl, &[If(1, Eq, loops::LOOP_SET_STATUS64)]),
    Row(libc::SYS_ioctl, &[If(1, Eq, loops::LOOP_SET_CAPACITY)]),
    Row(libc::SYS_ioctl, &[If(1, Eq, loops::LOOP_CLR_FD)]),
];

const EMPTIER: &[&[libc::c_long]] = &[
    // Walking through directories.
    &[libc::SYS_getdents64, libc::SYS_lseek],
    // Flags of what cannot be opened.
    &[FILE_GETATTR, FILE_SETATTR],
];

const EMPTIER_IF: &[Row] = &[
    // What lies deep is moved to the top, and never replaces anything.
    Row(libc::SYS_renameat2, &[If(4, Eq, libc::RENAME_NOREPLACE)]),
];

#[cfg(test)]
mod tests;
