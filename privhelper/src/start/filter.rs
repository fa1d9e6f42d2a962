//! The system calls that each process may make once it serves. This is part of the jail: without it, a process
//! with CAP_SYS_ADMIN could make mounts of its own. seccompiler compiles these tables to BPF; a call that is not in
//! them ends the process. Each row says why it is there.

use std::collections::BTreeMap;

use self::If::{Arg, Size};
use linux_raw_sys::ioctl::{BLKROSET, FICLONE, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR};
use linux_raw_sys::loop_device as loops;
use linux_raw_sys::net::{SO_PEERPIDFD, SO_RCVTIMEO_NEW, SO_SNDTIMEO_NEW};
use nix::libc;
use rustix::mount::{FsMountFlags, FsOpenFlags};
use rustix::thread::SecureComputingMode;
use seccompiler::SeccompCmpOp::{self, Eq, Ge};
use seccompiler::{BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCondition, SeccompFilter, SeccompRule};

use super::refusal::{Refusal, Why};
use crate::log;
use crate::state::layout::DELETED_MODE;
use crate::sys::xflags::{FILE_GETATTR, FILE_SETATTR};
use crate::sys::{extents, mount, quota, quotastate, xfs};

/// What happens on a system call that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnViolation {
    /// The process is killed.
    Kill,
    /// The kernel logs the call and executes it: only for bringing up a new platform.
    Log,
}

/// Which of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// Serves requests.
    Keeper,
    /// Mounts, makes nodes and sets limits for it.
    Placer,
    /// Empties deleted volumes.
    Emptier,
    /// Mounts filesystems in images.
    Mounter,
    /// Looks at what may hang, during the start.
    Child,
}

/// Installs the filter on every thread of the calling process, forever, and asks the kernel whether it is in place.
/// Needs no_new_privs.
///
/// # Errors
/// A sentence on what failed.
pub fn install(process: Process, on_violation: OnViolation) -> Result<(), Refusal> {
    let fail = |error: seccompiler::Error| format!("cannot install the seccomp filter: {error}");
    let program = compile(process, on_violation).map_err(|error| fail(error.into()))?;
    seccompiler::apply_filter_all_threads(&program).map_err(fail)?;
    match rustix::thread::secure_computing_mode() {
        Ok(SecureComputingMode::Filter) if on_violation == OnViolation::Kill => Ok(()),
        Ok(SecureComputingMode::Filter) => {
            log::warning!("not confined: system calls that are not allowed are only logged process={process:?}");
            Ok(())
        }
        _ => Err(Why::NotConfined.because("the kernel reports that no seccomp filter is installed")),
    }
}

fn compile(process: Process, on_violation: OnViolation) -> Result<BpfProgram, seccompiler::BackendError> {
    let violation = match on_violation {
        OnViolation::Kill => SeccompAction::KillProcess,
        OnViolation::Log => SeccompAction::Log,
    };
    let (files, own) = match process {
        Process::Keeper => (BOTH, KEEPER),
        Process::Placer => (&[][..], PLACER),
        Process::Emptier => (BOTH, EMPTIER),
        Process::Mounter => (&[][..], MOUNTER),
        Process::Child => (&[][..], CHILD),
    };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for Row(calls, conditions, _) in ALL.iter().chain(files).chain(own) {
        for call in *calls {
            let alternatives = rules.entry(*call).or_default();
            if !conditions.is_empty() {
                let conditions = conditions.iter().map(|condition| condition.compile());
                alternatives.push(SeccompRule::new(conditions.collect::<Result<_, _>>()?)?);
            }
        }
    }
    SeccompFilter::new(rules, violation, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// Calls that are allowed if all these conditions hold, and the reason. Rows for one call are alternatives.
#[derive(Debug)]
pub struct Row(pub &'static [libc::c_long], pub &'static [If], pub &'static str);

/// How an argument (counted from 0) must compare with a value. To the kernel an argument is 32 bits wide, and the upper
/// half of the register is ignored; a size has 64 bits.
#[derive(Debug)]
pub enum If {
    /// An argument of 32 bits.
    Arg(u8, SeccompCmpOp, u32),
    /// An argument of 64 bits, which is exactly this.
    Size(u8, u64),
}

impl If {
    fn compile(&self) -> Result<SeccompCondition, seccompiler::BackendError> {
        match self {
            Self::Arg(argument, comparison, value) => {
                SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, comparison.clone(), (*value).into())
            }
            Self::Size(argument, value) => SeccompCondition::new(*argument, SeccompCmpArgLen::Qword, Eq, *value),
        }
    }
}

/// Compares the bits in a mask with those of the value.
const fn masked(mask: u32) -> SeccompCmpOp {
    SeccompCmpOp::MaskedEq(mask as u64)
}

const ANONYMOUS: u32 = libc::MAP_ANONYMOUS as u32;
const EXECUTABLE: u32 = libc::PROT_EXEC as u32;
/// The level of socket(7) options.
const SOCKET: u32 = libc::SOL_SOCKET as u32;
/// The bits that say that a number is one of a helper's own loop devices: [`crate::sys::loopdevice::OURS`].
const OURS: u32 = 0xfff8_0000;
/// [`OURS`], and the major number of loop devices, in the encoding of makedev(3).
const OUR_NODES: u32 = 0x800f_ff00;

/// Commands of fsconfig(2).
const SET_FLAG: u32 = 0;
/// See [`SET_FLAG`].
const SET_STRING: u32 = 1;
/// See [`SET_FLAG`].
const CREATE: u32 = 6;

/// What every process may call: what Rust's runtime, the C library and packets need. Each has started its threads.
pub const ALL: &[Row] = &[
    Row(&[libc::SYS_brk, libc::SYS_munmap, libc::SYS_mremap], &[], "memory"),
    Row(
        &[libc::SYS_mmap],
        &[Arg(2, masked(EXECUTABLE), 0), Arg(3, masked(ANONYMOUS), ANONYMOUS)],
        "memory is never executable, and never a file",
    ),
    Row(&[libc::SYS_mprotect], &[Arg(2, masked(EXECUTABLE), 0)], "memory is never executable"),
    Row(&[libc::SYS_madvise], &[Arg(2, Eq, libc::MADV_DONTNEED as u32)], "returning memory"),
    Row(&[libc::SYS_madvise], &[Arg(2, Eq, libc::MADV_FREE as u32)], "returning memory"),
    Row(&[libc::SYS_futex, libc::SYS_sched_yield, libc::SYS_gettid, libc::SYS_sigaltstack], &[], "threads"),
    Row(&[libc::SYS_rt_sigreturn, libc::SYS_rt_sigprocmask, libc::SYS_restart_syscall], &[], "signals"),
    Row(&[libc::SYS_clock_gettime, libc::SYS_clock_nanosleep], &[], "time"),
    Row(&[libc::SYS_exit, libc::SYS_exit_group], &[], "ending"),
    Row(&[libc::SYS_capget, libc::SYS_capset], &[], "raising and lowering capabilities"),
    Row(&[libc::SYS_recvfrom, libc::SYS_sendmsg], &[], "packets"),
    Row(&[libc::SYS_write, libc::SYS_writev], &[Arg(0, Eq, 2)], "log lines go to standard error"),
    Row(&[libc::SYS_close], &[Arg(0, Ge, 3)], "standard error stays open"),
    Row(&[libc::SYS_prctl], &[Arg(0, Eq, libc::PR_GET_SECCOMP as u32)], "checking that the filter is in place"),
    Row(&[libc::SYS_fcntl], &[Arg(1, Eq, libc::F_GETFD as u32)], "Rust checks each descriptor that it closes"),
];

/// What the keeper and an emptier may call besides.
pub const BOTH: &[Row] = &[
    Row(&[libc::SYS_setsockopt], &[Arg(1, Eq, SOCKET), Arg(2, Eq, SO_RCVTIMEO_NEW)], "how long to wait for a packet"),
    Row(&[libc::SYS_openat2, libc::SYS_statx, libc::SYS_unlinkat], &[], "files below a held directory"),
    Row(&[libc::SYS_fcntl], &[Arg(1, Eq, libc::F_DUPFD_CLOEXEC as u32)], "duplicating a descriptor"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, FS_IOC_FSGETXATTR)], "the project id and the flags of an open file"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, FS_IOC_FSSETXATTR)], "the project id and the flags of an open file"),
];

/// What only the keeper may call.
pub const KEEPER: &[Row] = &[
    Row(&[libc::SYS_accept4, libc::SYS_bind, libc::SYS_listen], &[], "the frontend's connections and sockets"),
    Row(&[libc::SYS_ppoll], &[], "mounts of the host; whether a socket was shut down or a process has ended"),
    Row(&[libc::SYS_socket], &[Arg(0, Eq, libc::AF_UNIX as u32)], "a socket for the frontend"),
    Row(&[libc::SYS_fchmod], &[Arg(1, Eq, 0o600)], "a socket is its owner's alone before it has a name"),
    Row(&[libc::SYS_fchmod], &[Arg(1, Eq, DELETED_MODE)], "deleting a volume in place"),
    Row(
        &[libc::SYS_setsockopt],
        &[Arg(1, Eq, SOCKET), Arg(2, Eq, SO_SNDTIMEO_NEW)],
        "how long a reply may stay unread",
    ),
    Row(&[libc::SYS_getsockopt], &[Arg(1, Eq, SOCKET), Arg(2, Eq, libc::SO_PEERCRED as u32)], "who is connected"),
    Row(&[libc::SYS_getsockopt], &[Arg(1, Eq, SOCKET), Arg(2, Eq, SO_PEERPIDFD)], "whether a frontend still lives"),
    Row(&[libc::SYS_recvmsg], &[Arg(2, Eq, libc::MSG_PEEK as u32)], "whether descriptors come with a packet"),
    Row(&[libc::SYS_recvmsg], &[Arg(2, Eq, libc::MSG_CMSG_CLOEXEC as u32)], "a device that the placer has opened"),
    Row(&[libc::SYS_shutdown], &[Arg(1, Eq, libc::SHUT_RDWR as u32)], "the end of a connection"),
    Row(&[libc::SYS_fchdir, libc::SYS_chdir], &[], "bind takes no directory descriptor"),
    Row(&[libc::SYS_mkdirat, libc::SYS_fsync, libc::SYS_ftruncate], &[], "volumes"),
    Row(&[libc::SYS_fstatfs], &[], "space on a filesystem"),
    Row(&[libc::SYS_pwrite64], &[], "the beginning of a filesystem in a fresh image"),
    Row(&[libc::SYS_rt_sigtimedwait], &[], "waiting to be asked to end"),
    Row(&[libc::SYS_pread64, libc::SYS_read], &[], "the host's mount table, and what changes in it"),
    Row(
        &[libc::SYS_lseek],
        &[Arg(2, Eq, libc::SEEK_DATA as u32)],
        "whether an image that was never published holds data; where a hole of a copy ends",
    ),
    Row(&[libc::SYS_lseek], &[Arg(2, Eq, libc::SEEK_HOLE as u32)], "the holes of a copy, which are filled"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, FICLONE)], "an image that shares the blocks of another"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, extents::MAP)], "what differs between two snapshots"),
    Row(
        &[libc::SYS_renameat2],
        &[Arg(4, masked(!libc::RENAME_NOREPLACE), 0)],
        "a name is replaced only where a new socket takes the place of an old one",
    ),
    Row(
        &[libc::SYS_fallocate],
        &[Arg(1, masked(!(libc::FALLOC_FL_KEEP_SIZE as u32)), 0)],
        "images are extended, and no holes are ever punched",
    ),
    Row(&[mount::STATMOUNT], &[Size(2, mount::STATMOUNT_ROOM as u64), Arg(3, Eq, 0)], "what a mount shows"),
    Row(&[libc::SYS_quotactl_fd], &[Arg(1, Eq, quotastate::GET_XFS_STATE)], "whether limits are enforced"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, loops::LOOP_CTL_ADD), Arg(2, masked(OURS), 0x8_0000)], "a new loop device"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, loops::LOOP_CTL_REMOVE), Arg(2, masked(OURS), 0x8_0000)], "one too many"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, loops::LOOP_CONFIGURE)], "attaching an image"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, loops::LOOP_GET_STATUS64)], "what a device is bound to"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, loops::LOOP_CLR_FD)], "detaching an image"),
];

/// What only the placer may call.
pub const PLACER: &[Row] = &[
    Row(&[libc::SYS_setsockopt], &[Arg(1, Eq, SOCKET), Arg(2, Eq, SO_RCVTIMEO_NEW)], "how long to wait for a mounter"),
    Row(&[libc::SYS_setsockopt], &[Arg(1, Eq, SOCKET), Arg(2, Eq, SO_SNDTIMEO_NEW)], "how long to wait for a mounter"),
    Row(
        &[libc::SYS_recvmsg],
        &[Arg(2, Eq, libc::MSG_CMSG_CLOEXEC as u32)],
        "a mount that a child of the mounter has made",
    ),
    Row(&[libc::SYS_socketpair], &[Arg(0, Eq, libc::AF_UNIX as u32)], "a line to a child of the mounter"),
    Row(&[libc::SYS_ppoll], &[], "whether the keeper or a mounter has ended"),
    Row(&[libc::SYS_openat2, libc::SYS_statx, libc::SYS_unlinkat], &[], "files below a held directory"),
    Row(&[libc::SYS_fchdir, libc::SYS_chdir], &[], "umount2 takes no directory descriptor"),
    Row(&[libc::SYS_mkdirat, libc::SYS_fsync], &[], "targets; the directory that a filesystem in an image shows"),
    Row(&[libc::SYS_read], &[], "the kubelet's record"),
    Row(&[libc::SYS_fgetxattr, libc::SYS_fsetxattr], &[], "records of volumes; the mark of an image"),
    Row(&[libc::SYS_fstatfs], &[], "which filesystem; how much room is in one in an image"),
    Row(&[libc::SYS_open_tree], &[Arg(2, Eq, mount::CLONE_ONE.bits())], "cloning one mount, never a tree"),
    Row(&[libc::SYS_fsopen], &[Arg(1, Eq, FsOpenFlags::FSOPEN_CLOEXEC.bits())], "which filesystem a mounter mounts"),
    Row(&[libc::SYS_fsconfig], &[Arg(1, Eq, SET_FLAG)], "with which option"),
    Row(&[libc::SYS_fsconfig], &[Arg(1, Eq, SET_STRING)], "from which device, and with which label"),
    Row(&[libc::SYS_mount_setattr], &[Arg(2, Eq, libc::AT_EMPTY_PATH as u32)], "changing a mount that is held open"),
    Row(&[libc::SYS_move_mount], &[Arg(4, Eq, mount::BY_DESCRIPTORS.bits())], "from one descriptor to another"),
    Row(&[libc::SYS_umount2], &[Arg(1, Eq, libc::UMOUNT_NOFOLLOW as u32)], "by name, without following links"),
    Row(&[mount::STATMOUNT], &[Size(2, 0), Arg(3, Eq, 0)], "whether a mount is still there"),
    Row(&[mount::STATMOUNT], &[Size(2, mount::STATMOUNT_ROOM as u64), Arg(3, Eq, 0)], "what a mount shows"),
    Row(
        &[libc::SYS_mknodat],
        &[Arg(2, masked(libc::S_IFMT), libc::S_IFBLK), Arg(3, masked(OUR_NODES), 0x8000_0700)],
        "nodes of loop devices whose numbers are the helpers' own",
    ),
    Row(&[libc::SYS_quotactl_fd], &[Arg(1, Eq, quota::GET)], "a project's quota"),
    Row(&[libc::SYS_quotactl_fd], &[Arg(1, Eq, quota::XFS_GET)], "a project's quota"),
    Row(&[libc::SYS_quotactl_fd], &[Arg(1, Eq, quota::GET_NEXT)], "projects that belong to no volume"),
    Row(&[libc::SYS_quotactl_fd], &[Arg(1, Eq, quota::XFS_GET_NEXT)], "projects that belong to no volume"),
    Row(&[libc::SYS_quotactl_fd], &[Arg(1, Eq, quota::SET)], "a project's limits"),
    Row(&[libc::SYS_lseek], &[Arg(2, Eq, libc::SEEK_END as u32)], "whether a device is bound to anything"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, BLKROSET)], "making a device read-only"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, loops::LOOP_GET_STATUS64)], "what a device is bound to"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, loops::LOOP_SET_STATUS64)], "undoing what a tenant has changed"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, loops::LOOP_SET_CAPACITY)], "an image that has grown"),
];

/// What only an emptier may call.
pub const EMPTIER: &[Row] = &[
    Row(&[libc::SYS_getdents64, libc::SYS_lseek], &[], "walking through directories"),
    Row(&[FILE_GETATTR, FILE_SETATTR], &[], "flags of what cannot be opened"),
    Row(
        &[libc::SYS_renameat2],
        &[Arg(4, Eq, libc::RENAME_NOREPLACE)],
        "what lies deep is moved to the top, and never replaces anything",
    ),
];

/// What only a mounter may call: no call that opens, configures, places, moves or removes anything.
pub const MOUNTER: &[Row] = &[
    Row(&[libc::SYS_fsconfig], &[Arg(1, Eq, CREATE)], "the filesystem, as the placer has configured it"),
    Row(
        &[libc::SYS_fsmount],
        &[Arg(1, Eq, FsMountFlags::FSMOUNT_CLOEXEC.bits()), Arg(2, Eq, xfs::FLAGS.bits())],
        "the mount, without setuid programs and device nodes",
    ),
    Row(&[libc::SYS_recvmsg], &[Arg(2, Eq, libc::MSG_CMSG_CLOEXEC as u32)], "a line, or what comes over it"),
    Row(&[libc::SYS_syncfs], &[], "a filesystem in an image that is to be copied or unmounted"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, xfs::GROW)], "a filesystem in an image that has grown"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, xfs::FREEZE)], "what is in the kernel's memory of it is brought to the image"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, xfs::THAW)], "and it goes on"),
    Row(&[libc::SYS_setsockopt], &[Arg(1, Eq, SOCKET), Arg(2, Eq, SO_RCVTIMEO_NEW)], "how long it is kept frozen"),
    #[cfg(target_arch = "x86_64")]
    Row(&[libc::SYS_fork], &[], "a child for each line"),
    #[cfg(not(target_arch = "x86_64"))]
    Row(&[libc::SYS_clone], &[Arg(0, Eq, libc::SIGCHLD as u32)], "a child for each line"),
    Row(&[libc::SYS_set_tid_address], &[], "the C library knows the child by its number"),
    Row(&[libc::SYS_getpid, libc::SYS_getppid], &[], "the child ends with the mounter"),
    Row(
        &[libc::SYS_prctl],
        &[Arg(0, Eq, libc::PR_SET_PDEATHSIG as u32), Arg(1, Eq, libc::SIGKILL as u32)],
        "the child ends with the mounter",
    ),
    Row(&[libc::SYS_close_range], &[Arg(0, Ge, 3)], "the child has nothing but that line"),
];

/// What only a child of the start may call, to look and to set times.
pub const CHILD: &[Row] = &[
    Row(
        &[libc::SYS_openat],
        &[Arg(2, masked((libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u32), 0)],
        "a pool by the administrator's path, for reading",
    ),
    Row(&[libc::SYS_openat2, libc::SYS_read], &[], "its marker; a device"),
    Row(&[libc::SYS_getdents64, libc::SYS_lseek], &[], "the names of its volumes"),
    Row(&[libc::SYS_utimensat, libc::SYS_fsync], &[], "whether its filesystem can write"),
    Row(&[libc::SYS_statx, libc::SYS_fstatfs], &[], "what its filesystem is"),
    Row(&[libc::SYS_uname], &[], "the kernel's release"),
    Row(&[libc::SYS_quotactl_fd], &[Arg(1, Eq, quotastate::GET_XFS_STATE)], "whether limits are enforced"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, FS_IOC_FSGETXATTR)], "the project that it is in"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, extents::GEOMETRY)], "whether its files can share blocks"),
    Row(&[libc::SYS_flock], &[], "whether another helper has it"),
    Row(&[libc::SYS_ioctl], &[Arg(1, Eq, loops::LOOP_GET_STATUS64)], "what a device is bound to"),
];

#[cfg(test)]
mod tests;
