//! Makes system calls that this process never needs fail with EPERM, or as if the kernel did not have them.
//!
//! This is a list of what is forbidden, not of what is allowed: the async runtime, TLS and the C library's resolver
//! make calls of their own choice, which differ between releases and between processors, and a frontend broken by a new
//! release of one of them would take the node's volumes down with it. The list has what would turn a flaw in this
//! process into more: other programs and processes, namespaces, mounts, executable memory, and the parts of the kernel
//! that unprivileged code attacks.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule};

use super::{Needs, sockets};

/// The calls that a filter refuses, each if any of its rules applies, or always if it has none.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Installs the filters, permanently, for the calling thread and all that it starts. A process that creates no
/// listening socket of its own has no need of listen(2): the sockets that it is given are listening already.
pub(super) fn restrict(needs: &Needs) -> Result<(), seccompiler::Error> {
    seccompiler::apply_filter(&compile(missing(), libc::ENOSYS)?)?;
    // The last one: after it there is no seccomp(2).
    seccompiler::apply_filter(&compile(forbidden(needs)?, libc::EPERM)?)
}

/// clone3 keeps its flags in memory, where no filter sees them. The C library starts threads with clone instead if the
/// kernel does not have clone3, and with no other error.
fn missing() -> Rules {
    Rules::from([(libc::SYS_clone3, vec![])])
}

fn forbidden(needs: &Needs) -> Result<Rules, BackendError> {
    let mut rules: Rules = NEVER.iter().copied().flatten().map(|call| (*call, vec![])).collect();
    let is = |argument, operation, value| SeccompCondition::new(argument, Dword, operation, value);
    let exactly = |mask: i32| MaskedEq(u64::from(mask.cast_unsigned()));
    let executable = u64::from(libc::PROT_EXEC.cast_unsigned());
    // Threads, but no processes; only a process can have a namespace of its own.
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![is(0, exactly(libc::CLONE_THREAD), 0)?])?]);
    for call in [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_pkey_mprotect] {
        rules.insert(call, vec![SeccompRule::new(vec![is(2, exactly(libc::PROT_EXEC), executable)?])?]);
    }
    rules.insert(libc::SYS_socket, sockets::refused(needs)?);
    rules.insert(libc::SYS_socketpair, sockets::refused_pairs()?);
    // Limits of other processes of the same user.
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![is(0, Ne, 0)?])?]);
    // A listener decides about the calls of whoever inherits its filter. This is the older way to install filters.
    let filter = is(0, Eq, libc::PR_SET_SECCOMP.cast_unsigned().into())?;
    rules.insert(libc::SYS_prctl, vec![SeccompRule::new(vec![filter])?]);
    // Connecting by sending, or later than connect(2), would bypass those rules too.
    let fast_open = u64::from(libc::MSG_FASTOPEN.cast_unsigned());
    for (call, flags) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
        rules.insert(call, vec![SeccompRule::new(vec![is(flags, exactly(libc::MSG_FASTOPEN), fast_open)?])?]);
    }
    let of_tcp = is(1, Eq, libc::IPPROTO_TCP.cast_unsigned().into())?;
    let later = is(2, Eq, libc::TCP_FASTOPEN_CONNECT.cast_unsigned().into())?;
    rules.insert(libc::SYS_setsockopt, vec![SeccompRule::new(vec![of_tcp, later])?]);
    if needs.sockets.is_empty() {
        // Listening on a socket that is bound to no port takes any port.
        rules.insert(libc::SYS_listen, vec![]);
    }
    Ok(rules)
}

fn compile(mut rules: Rules, errno: i32) -> Result<BpfProgram, BackendError> {
    if cfg!(target_arch = "x86_64") {
        // The same calls by their x32 numbers, and those that have numbers of their own there.
        let twins: Vec<_> = rules.iter().map(|(call, rules)| (call | X32, rules.clone())).collect();
        rules.extend(twins);
        rules.extend(X32_ONLY.map(|call| (call | X32, vec![])));
    }
    let refused = SeccompAction::Errno(errno.cast_unsigned());
    SeccompFilter::new(rules, SeccompAction::Allow, refused, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// The bit that marks an x32 call, and the numbers of those whose arguments have another layout (x86 only).
const X32: i64 = 0x4000_0000;
const X32_ONLY: std::ops::RangeInclusive<i64> = 512..=547;

/// Calls that the C library has no names for yet. They have the same numbers on every processor.
const STATMOUNT: c_long = 457;
const LISTMOUNT: c_long = 458;
const OPEN_TREE_ATTR: c_long = 467;
const LISTNS: c_long = 470;

const NEVER: &[&[c_long]] = &[
    // Other programs.
    &[libc::SYS_execve, libc::SYS_execveat],
    // Processes, besides those of clone and clone3.
    #[cfg(target_arch = "x86_64")]
    &[libc::SYS_fork, libc::SYS_vfork],
    // Other processes' memory, descriptors and signals.
    &[
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_process_madvise,
        libc::SYS_pidfd_open,
        libc::SYS_pidfd_getfd,
        libc::SYS_pidfd_send_signal,
        libc::SYS_kcmp,
        libc::SYS_kill,
        libc::SYS_rt_sigqueueinfo,
        libc::SYS_rt_tgsigqueueinfo,
    ],
    // When and where others of the same user run. None of these is needed for the process itself.
    &[
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setattr,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setscheduler,
        libc::SYS_setpriority,
        libc::SYS_ioprio_set,
        libc::SYS_migrate_pages,
        libc::SYS_move_pages,
    ],
    // Namespaces, roots and mounts.
    &[
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_chroot,
        libc::SYS_pivot_root,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_fsopen,
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_fspick,
        libc::SYS_open_tree,
        libc::SYS_move_mount,
        libc::SYS_mount_setattr,
        STATMOUNT,
        LISTMOUNT,
        OPEN_TREE_ATTR,
        LISTNS,
        libc::SYS_swapon,
        libc::SYS_swapoff,
    ],
    // Parts of the kernel that unprivileged code has attacked.
    &[
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_personality,
        libc::SYS_fanotify_init,
        libc::SYS_fanotify_mark,
        libc::SYS_inotify_init1,
        libc::SYS_inotify_add_watch,
        libc::SYS_seccomp,
        libc::SYS_shmget,
        libc::SYS_msgget,
        libc::SYS_semget,
        libc::SYS_mq_open,
    ],
    #[cfg(target_arch = "x86_64")]
    &[libc::SYS_modify_ldt, libc::SYS_inotify_init],
    // Files without names, which could hold a program; files by handle; special files.
    &[
        libc::SYS_memfd_create,
        libc::SYS_memfd_secret,
        libc::SYS_name_to_handle_at,
        libc::SYS_open_by_handle_at,
        libc::SYS_mknodat,
    ],
    #[cfg(target_arch = "x86_64")]
    &[libc::SYS_mknod],
    // Calls that need privilege, in case the process has any.
    &[
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_delete_module,
        libc::SYS_kexec_load,
        libc::SYS_reboot,
        libc::SYS_syslog,
        libc::SYS_acct,
        libc::SYS_quotactl,
        libc::SYS_quotactl_fd,
        libc::SYS_vhangup,
        libc::SYS_settimeofday,
        libc::SYS_clock_settime,
        libc::SYS_adjtimex,
        libc::SYS_clock_adjtime,
        libc::SYS_sethostname,
        libc::SYS_setdomainname,
        libc::SYS_setuid,
        libc::SYS_setgid,
        libc::SYS_setreuid,
        libc::SYS_setregid,
        libc::SYS_setresuid,
        libc::SYS_setresgid,
        libc::SYS_setgroups,
        libc::SYS_capset,
    ],
];

#[cfg(test)]
mod tests {
    use std::io::Error;

    use super::*;

    #[test]
    fn the_filter_compiles_and_stays_below_the_kernels_limit() {
        for ports in [None, Some(vec![]), Some(vec![443])] {
            let program = compile(forbidden(&Needs { ports, ..Needs::default() }).unwrap(), libc::EPERM).unwrap();
            assert!(program.len() < 3072, "{} instructions of at most 4096", program.len());
        }
    }

    #[test]
    fn no_call_is_listed_twice() {
        let all: Vec<_> = NEVER.iter().copied().flatten().collect();
        for (index, call) in all.iter().enumerate() {
            assert!(!all[..index].contains(call), "{call}");
        }
    }

    /// Only the thread that installs the filter is subject to it.
    #[test]
    fn programs_and_other_sockets_are_refused_and_threads_are_not() {
        let confined = std::thread::spawn(|| {
            let listening = Needs { sockets: vec!["/".into()], ports: Some(vec![443]), ..Needs::default() };
            restrict(&listening).unwrap();
            let refused = |error: Error| error.raw_os_error() == Some(libc::EPERM);
            assert!(std::process::Command::new("/proc/self/exe").spawn().is_err_and(refused));
            assert!(std::net::TcpListener::bind("127.0.0.1:0").is_ok());
            assert!(std::os::unix::net::UnixStream::pair().is_ok());
            assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_err_and(refused));
            assert!(std::os::unix::net::UnixDatagram::unbound().is_err_and(refused));
            assert!(std::thread::available_parallelism().is_ok());
            std::thread::spawn(|| rustix::thread::secure_computing_mode().unwrap()).join().unwrap()
        });
        assert_eq!(confined.join().unwrap(), rustix::thread::SecureComputingMode::Filter);
    }

    /// A name server is asked over UDP; without an agent there is no network at all.
    #[test]
    fn the_internet_is_for_agents_and_udp_for_names() {
        use std::net::{TcpListener, UdpSocket};
        for (ports, tcp, udp) in [
            (Some(vec![]), false, false),
            (Some(vec![6443]), true, false),
            (Some(vec![443, 53]), true, true),
            (None, true, true),
        ] {
            let confined = std::thread::spawn(|| {
                restrict(&Needs { sockets: vec!["/".into()], ports, ..Needs::default() }).unwrap();
                (TcpListener::bind("127.0.0.1:0").is_ok(), UdpSocket::bind("[::]:0").is_ok())
            });
            assert_eq!(confined.join().unwrap(), (tcp, udp));
        }
    }
}
