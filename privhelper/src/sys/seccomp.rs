//! The system calls that the two processes may make once they serve. It is part of the jail: without it CAP_SYS_ADMIN
//! could make a mount of its own. Compiled to BPF by seccompiler; anything not listed ends the process.

use std::collections::BTreeMap;

use linux_raw_sys::loop_device as loops;
use nix::libc;
use nix::libc::{
    SYS_accept4, SYS_bind, SYS_brk, SYS_capget, SYS_capset, SYS_chdir, SYS_clock_gettime, SYS_clock_nanosleep,
    SYS_close, SYS_exit, SYS_exit_group, SYS_fallocate, SYS_fchdir, SYS_fchmod, SYS_fcntl, SYS_fsetxattr, SYS_fstatfs,
    SYS_fsync, SYS_ftruncate, SYS_futex, SYS_getdents64, SYS_getrandom, SYS_getsockopt, SYS_gettid, SYS_ioctl,
    SYS_listen, SYS_lseek, SYS_madvise, SYS_mkdirat, SYS_mknodat, SYS_mmap, SYS_mount_setattr, SYS_move_mount,
    SYS_mprotect, SYS_mremap, SYS_munmap, SYS_nanosleep, SYS_open_tree, SYS_openat2, SYS_prctl, SYS_quotactl_fd,
    SYS_read, SYS_recvfrom, SYS_renameat2, SYS_restart_syscall, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sched_yield,
    SYS_sendmsg, SYS_setsockopt, SYS_sigaltstack, SYS_socket, SYS_statx, SYS_umount2, SYS_unlinkat, SYS_utimensat,
    SYS_write, SYS_writev,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Is, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use super::file::{FILE_GETATTR, FILE_SETATTR, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR};
use super::quota;

/// What happens on a system call that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnViolation {
    /// The process is killed.
    Kill,
    /// The kernel logs it and lets it pass: for bringing up a new platform only.
    Log,
}

/// Which of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// Serves requests.
    Server,
    /// Empties deleted volumes.
    Emptier,
}

/// Puts the filter on every thread of the calling process, for ever, and asks the kernel whether it is there. Needs
/// no_new_privs.
pub fn install(process: Process, on_violation: OnViolation) -> Result<(), String> {
    let program = program(process, on_violation).map_err(|error| error.to_string())?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| error.to_string())?;
    match rustix::thread::secure_computing_mode() {
        Ok(rustix::thread::SecureComputingMode::Filter) => Ok(()),
        _ => Err("the kernel says that no filter is installed".to_owned()),
    }
}

fn program(process: Process, on_violation: OnViolation) -> Result<BpfProgram, seccompiler::Error> {
    let violation = match on_violation {
        OnViolation::Kill => SeccompAction::KillProcess,
        OnViolation::Log => SeccompAction::Log,
    };
    let architecture = std::env::consts::ARCH.try_into().map_err(seccompiler::Error::Backend)?;
    let mut rules = rules(EVERYWHERE, COMMON)?;
    rules.extend(match process {
        Process::Server => self::rules(SERVER_ANY, SERVER)?,
        Process::Emptier => self::rules(EMPTIER_ANY, EMPTIER)?,
    });
    let filter = SeccompFilter::new(rules, violation, SeccompAction::Allow, architecture)
        .map_err(seccompiler::Error::Backend)?;
    BpfProgram::try_from(filter).map_err(seccompiler::Error::Backend)
}

/// A call that is allowed when one argument has one of some values.
struct Filtered {
    call: libc::c_long,
    argument: u8,
    allowed: &'static [Value],
    /// What another argument must be as well.
    and: Option<(u8, Value)>,
}

/// A value an argument may have. Flag arguments are 32 bits wide to the kernel; the upper half of the register is not
/// looked at.
#[derive(Clone, Copy)]
enum Value {
    /// This one.
    Exactly(u64),
    /// Any with these bits (first) equal to those (second).
    Masked(u64, u64),
}
use Value::{Exactly, Masked};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn rules(unconditional: &[libc::c_long], filtered: &[Filtered]) -> Result<Rules, seccompiler::Error> {
    let mut rules: Rules = unconditional.iter().map(|call| (*call, Vec::new())).collect();
    for Filtered { call, argument, allowed, and } in filtered {
        let alternatives = allowed.iter().map(|value| {
            let first = std::iter::once(condition(*argument, *value));
            let second = and.iter().map(|(argument, value)| condition(*argument, *value));
            SeccompRule::new(first.chain(second).collect::<Result<_, _>>()?)
        });
        let alternatives: Result<Vec<_>, _> = alternatives.collect();
        rules.insert(*call, alternatives.map_err(seccompiler::Error::Backend)?);
    }
    Ok(rules)
}

fn condition(argument: u8, value: Value) -> Result<SeccompCondition, seccompiler::BackendError> {
    match value {
        Exactly(value) => SeccompCondition::new(argument, Width::Dword, Is::Eq, value),
        Masked(mask, value) => SeccompCondition::new(argument, Width::Dword, Is::MaskedEq(mask), value),
    }
}

/// What Rust's runtime and the C library need, and packets, in both processes. Each process starts its threads before.
///
/// `getrandom` seeds the hash sets in which caps holds capabilities, `capget` and `capset` raise one and lower it, `write`
/// is for log lines: standard error is the only stream that is open.
const EVERYWHERE: &[libc::c_long] = &[
    SYS_brk, SYS_munmap, SYS_mremap, SYS_futex, SYS_sched_yield, SYS_rt_sigreturn, SYS_rt_sigprocmask, SYS_sigaltstack,
    SYS_restart_syscall, SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep, SYS_getrandom, SYS_gettid, SYS_exit,
    SYS_exit_group, SYS_close, SYS_write, SYS_writev, SYS_capget, SYS_capset, SYS_recvfrom, SYS_sendmsg, SYS_openat2,
    SYS_statx, SYS_unlinkat,
];

const COMMON: &[Filtered] = &[
    // Reading back that the filter is there.
    Filtered { call: SYS_prctl, argument: 0, allowed: &[Exactly(libc::PR_GET_SECCOMP as u64)], and: None },
    Filtered { call: SYS_mmap, argument: 2, allowed: NOT_EXECUTABLE, and: None },
    Filtered { call: SYS_mprotect, argument: 2, allowed: NOT_EXECUTABLE, and: None },
    Filtered {
        call: SYS_madvise,
        argument: 2,
        allowed: &[Exactly(libc::MADV_DONTNEED as u64), Exactly(libc::MADV_FREE as u64)],
        and: None,
    },
    // Rust checks descriptors it closes; owned ones are duplicated with close-on-exec.
    Filtered {
        call: SYS_fcntl,
        argument: 1,
        allowed: &[Exactly(libc::F_GETFD as u64), Exactly(libc::F_DUPFD_CLOEXEC as u64), Exactly(libc::F_GETFL as u64)],
        and: None,
    },
];

const NOT_EXECUTABLE: &[Value] = &[Masked(libc::PROT_EXEC as u64, 0)];

const SERVER_ANY: &[libc::c_long] = &[
    SYS_accept4, SYS_setsockopt, SYS_getsockopt, SYS_bind, SYS_listen, SYS_fchdir, SYS_chdir, SYS_mkdirat,
    SYS_renameat2, SYS_fchmod, SYS_fsync, SYS_utimensat, SYS_ftruncate, SYS_fallocate, SYS_fstatfs, SYS_read,
    SYS_fsetxattr,
];

const SERVER: &[Filtered] = &[
    Filtered { call: SYS_socket, argument: 0, allowed: &[Exactly(libc::AF_UNIX as u64)], and: None },
    // Mounts are only cloned, changed while detached, moved into place, and unmounted by name without following links.
    Filtered {
        call: SYS_open_tree,
        argument: 2,
        allowed: &[Exactly(0x1 | libc::O_CLOEXEC as u64 | libc::AT_EMPTY_PATH as u64)],
        and: None,
    },
    Filtered { call: SYS_mount_setattr, argument: 2, allowed: &[Exactly(libc::AT_EMPTY_PATH as u64)], and: None },
    Filtered { call: SYS_move_mount, argument: 4, allowed: &[Exactly(0x44)], and: None },
    Filtered { call: SYS_umount2, argument: 1, allowed: &[Exactly(libc::UMOUNT_NOFOLLOW as u64)], and: None },
    // Nodes of loop devices only: major 7, in the encoding of makedev(3).
    Filtered {
        call: SYS_mknodat,
        argument: 3,
        allowed: &[Masked(0x000f_ff00, 7 << 8)],
        and: Some((2, Masked(libc::S_IFMT as u64, libc::S_IFBLK as u64))),
    },
    Filtered {
        call: SYS_quotactl_fd,
        argument: 1,
        allowed: &[
            Exactly(quota::COMMANDS[0] as u64),
            Exactly(quota::COMMANDS[1] as u64),
            Exactly(quota::COMMANDS[2] as u64),
            Exactly(quota::COMMANDS[3] as u64),
        ],
        and: None,
    },
    Filtered {
        call: SYS_ioctl,
        argument: 1,
        allowed: &[
            Exactly(loops::LOOP_CTL_GET_FREE as u64),
            Exactly(loops::LOOP_CONFIGURE as u64),
            Exactly(loops::LOOP_GET_STATUS64 as u64),
            Exactly(loops::LOOP_SET_STATUS64 as u64),
            Exactly(loops::LOOP_SET_CAPACITY as u64),
            Exactly(loops::LOOP_CLR_FD as u64),
            Exactly(FS_IOC_FSGETXATTR as u32 as u64),
            Exactly(FS_IOC_FSSETXATTR as u32 as u64),
        ],
        and: None,
    },
];

const EMPTIER_ANY: &[libc::c_long] = &[SYS_getdents64, SYS_lseek, SYS_renameat2, FILE_GETATTR, FILE_SETATTR];

const EMPTIER: &[Filtered] = &[Filtered {
    call: SYS_ioctl,
    argument: 1,
    allowed: &[Exactly(FS_IOC_FSGETXATTR as u32 as u64), Exactly(FS_IOC_FSSETXATTR as u32 as u64)],
    and: None,
}];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_filters_compile_and_stay_far_below_the_kernels_limit() {
        for process in [Process::Server, Process::Emptier] {
            let program = program(process, OnViolation::Kill).expect("the rules are well formed");
            assert!(program.len() < 1024, "{process:?}: {} instructions of at most 4096", program.len());
        }
    }
}
