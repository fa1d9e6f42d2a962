//! The compiled filters, run by an interpreter of the few BPF instructions that seccompiler makes.

use super::*;
use crate::sys::quotastate;

/// What a filter returns (linux/seccomp.h).
const KILL: u32 = 0x8000_0000;
const LOG: u32 = 0x7ffc_0000;
const ALLOW: u32 = 0x7fff_0000;

/// `AUDIT_ARCH_*` of the processor that runs the test.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Runs a program on `struct seccomp_data`.
fn run(program: &BpfProgram, architecture: u32, call: i64, arguments: &[u64]) -> u32 {
    let mut data = vec![u32::try_from(call).expect("a call's number"), architecture, 0, 0];
    for index in 0..6 {
        let argument = arguments.get(index).copied().unwrap_or(0);
        data.extend([argument as u32, (argument >> 32) as u32]);
    }
    let (mut at, mut accumulator) = (0, 0);
    loop {
        let step = &program[at];
        at += 1;
        let jump = |taken: bool| usize::from(if taken { step.jt } else { step.jf });
        match step.code {
            0x20 => accumulator = data[step.k as usize / 4],
            0x54 => accumulator &= step.k,
            0x15 => at += jump(accumulator == step.k),
            0x25 => at += jump(accumulator > step.k),
            0x35 => at += jump(accumulator >= step.k),
            0x05 => at += step.k as usize,
            0x06 => return step.k,
            code => panic!("instruction {code:#x} is unknown"),
        }
    }
}

fn allows(process: Process, call: libc::c_long, arguments: &[u64]) -> bool {
    let program = compile(process, OnViolation::Kill).expect("the tables are well formed");
    match run(&program, ARCHITECTURE, call, arguments) {
        ALLOW => true,
        KILL => false,
        other => panic!("the filter returns {other:#x}"),
    }
}

fn keeper(call: libc::c_long, arguments: &[u64]) -> bool {
    allows(Process::Keeper, call, arguments)
}

fn placer(call: libc::c_long, arguments: &[u64]) -> bool {
    allows(Process::Placer, call, arguments)
}

fn emptier(call: libc::c_long, arguments: &[u64]) -> bool {
    allows(Process::Emptier, call, arguments)
}

fn mounter(call: libc::c_long, arguments: &[u64]) -> bool {
    allows(Process::Mounter, call, arguments)
}

fn child(call: libc::c_long, arguments: &[u64]) -> bool {
    allows(Process::Child, call, arguments)
}

#[test]
fn all_filters_compile_and_stay_far_below_the_kernels_limit() {
    for process in [Process::Keeper, Process::Placer, Process::Emptier, Process::Mounter, Process::Child] {
        let program = compile(process, OnViolation::Kill).expect("the tables are well formed");
        assert!(program.len() < 1024, "{process:?}: {} instructions of at most 4096", program.len());
    }
}

#[test]
fn no_call_is_allowed_both_always_and_on_a_condition() {
    for (files, own) in [(BOTH, KEEPER), (BOTH, EMPTIER), (&[][..], PLACER), (&[][..], MOUNTER), (&[][..], CHILD)] {
        let calls = |conditional: bool| -> Vec<libc::c_long> {
            let rows =
                ALL.iter().chain(files).chain(own).filter(|Row(_, conditions, _)| conditions.is_empty() != conditional);
            rows.flat_map(|Row(calls, ..)| *calls).copied().collect()
        };
        let always = calls(false);
        for (index, call) in always.iter().enumerate() {
            assert!(!always[..index].contains(call), "call {call} is in the tables twice");
        }
        for call in calls(true) {
            assert!(!always.contains(&call), "call {call} is allowed without its condition");
        }
    }
}

#[test]
fn every_row_has_a_reason() {
    for Row(calls, _, why) in [ALL, BOTH, KEEPER, PLACER, EMPTIER, MOUNTER, CHILD].into_iter().flatten() {
        assert!(why.len() > 3, "{calls:?}: {why:?}");
    }
}

#[test]
fn what_is_not_in_the_tables_ends_the_process_or_is_logged() {
    for call in
        [libc::SYS_mount, libc::SYS_execve, libc::SYS_ptrace, libc::SYS_fsopen, libc::SYS_unshare, libc::SYS_setns]
    {
        assert!(!keeper(call, &[]) && !placer(call, &[]) && !emptier(call, &[]), "{call}");
        let logging = compile(Process::Keeper, OnViolation::Log).expect("the tables are well formed");
        assert_eq!(run(&logging, ARCHITECTURE, call, &[]), LOG, "{call}");
        assert_eq!(run(&logging, ARCHITECTURE, libc::SYS_close, &[3]), ALLOW);
    }
}

#[test]
fn the_numbers_of_another_architecture_end_the_process() {
    let program = compile(Process::Keeper, OnViolation::Kill).expect("the tables are well formed");
    assert_eq!(run(&program, ARCHITECTURE, libc::SYS_close, &[3]), ALLOW);
    assert_eq!(run(&program, 0x4000_0003, libc::SYS_close, &[3]), KILL);
}

#[test]
fn each_process_has_only_its_own_calls() {
    for call in [libc::SYS_accept4, libc::SYS_bind, libc::SYS_mkdirat, libc::SYS_pwrite64, libc::SYS_ftruncate] {
        assert!(keeper(call, &[]) && !emptier(call, &[]), "{call}");
    }
    for call in [libc::SYS_getdents64, FILE_GETATTR, FILE_SETATTR] {
        assert!(emptier(call, &[]) && !keeper(call, &[]), "{call}");
    }
    let mounts: [(libc::c_long, &[u64]); 4] = [
        (libc::SYS_open_tree, &[3, 0, 0x8_1001]),
        (libc::SYS_move_mount, &[3, 0, 4, 0, 0x44]),
        (libc::SYS_umount2, &[0, 8]),
        (libc::SYS_mknodat, &[3, 0, 0o060_600, 0x8000_0701]),
    ];
    for (call, arguments) in mounts {
        assert!(placer(call, arguments) && !keeper(call, arguments) && !emptier(call, arguments), "{call}");
    }
    for call in [libc::SYS_accept4, libc::SYS_bind, libc::SYS_ftruncate, libc::SYS_renameat2, libc::SYS_pwrite64] {
        assert!(!placer(call, &[]), "{call}: the placer makes targets, and writes nothing");
    }
}

#[test]
fn a_mounter_makes_mounts_of_one_kind_and_does_nothing_else() {
    // fsopen: FSOPEN_CLOEXEC, by the placer. fsconfig: a flag, a string, then binary, a path, an empty path, a descriptor,
    // create, reconfigure, create and nothing else. fsmount: its flag, nosuid and nodev; then one of them, none, read-only
    // besides.
    for (flags, allowed) in [(1, true), (0, false), (2, false), (3, false)] {
        assert_eq!(placer(libc::SYS_fsopen, &[0, flags]), allowed, "{flags}");
        assert!(![keeper, emptier, mounter, child].iter().any(|other| other(libc::SYS_fsopen, &[0, flags])), "{flags}");
    }
    for command in 0..9 {
        assert_eq!(placer(libc::SYS_fsconfig, &[3, command]), command < 2, "the placer sets options: {command}");
        assert_eq!(mounter(libc::SYS_fsconfig, &[3, command]), command == 6, "a mounter sets none: {command}");
    }
    for (flags, attributes, allowed) in
        [(1, 6, true), (0, 6, false), (1, 2, false), (1, 4, false), (1, 0, false), (1, 7, false), (1, 0x10_0006, false)]
    {
        assert_eq!(mounter(libc::SYS_fsmount, &[3, flags, attributes]), allowed, "{flags} {attributes:#x}");
    }
    for (call, command) in [(libc::SYS_fsconfig, 6), (libc::SYS_fsmount, 1)] {
        let arguments = [3, command, 6];
        assert!(![keeper, placer, emptier, child].iter().any(|other| other(call, &arguments)), "{call}");
    }
    let rows = BOTH.iter().chain(KEEPER).chain(PLACER).chain(EMPTIER).flat_map(|Row(calls, ..)| *calls);
    let others = [libc::SYS_openat, libc::SYS_mount, libc::SYS_fspick, libc::SYS_setns];
    let own = [(libc::SYS_fcntl, libc::F_GETFD as u64), (libc::SYS_fsconfig, u64::from(CREATE))];
    for call in rows.chain(&others) {
        for first in 0..8 {
            let allowed = own.contains(&(*call, first));
            assert_eq!(mounter(*call, &[3, first, first, first, first]), allowed, "{call} {first}");
        }
    }
    for (call, arguments, allowed) in [
        (libc::SYS_close_range, [3, 9], true),
        (libc::SYS_close_range, [2, 9], false),
        (libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as u64, 9], true),
        (libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as u64, 0], false),
        (libc::SYS_prctl, [libc::PR_SET_DUMPABLE as u64, 9], false),
    ] {
        assert_eq!(mounter(call, &arguments), allowed, "{call} {arguments:?}");
    }
    for (call, arguments) in [(libc::SYS_recvfrom, [3]), (libc::SYS_sendmsg, [3]), (libc::SYS_exit_group, [0])] {
        assert!(mounter(call, &arguments), "{call}");
    }
}

#[test]
fn a_child_of_the_start_looks_and_changes_nothing() {
    // O_DIRECTORY | O_CLOEXEC; then for writing, for both, making one, emptying one, without a name.
    for (flags, allowed) in
        [(0x9_0000, true), (1, false), (2, false), (0o100, false), (0o1000, false), (0o20_200_002, false)]
    {
        assert_eq!(child(libc::SYS_openat, &[0, 0, flags]), allowed, "{flags:#o}");
    }
    for (request, allowed) in [(0x4c05, true), (0x4c04, false), (0x4c01, false), (0x4c0a, false), (0x125d, false)] {
        assert_eq!(child(libc::SYS_ioctl, &[3, request]), allowed, "{request:#x}");
    }
    for call in [
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_move_mount,
        libc::SYS_open_tree,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_execve,
        libc::SYS_clone,
        libc::SYS_renameat2,
        libc::SYS_mkdirat,
        libc::SYS_socket,
        libc::SYS_fallocate,
        libc::SYS_quotactl_fd,
        libc::SYS_recvmsg,
        libc::SYS_mknodat,
        libc::SYS_unlinkat,
    ] {
        assert!(!child(call, &[3, 1, 1, 1]), "{call}");
    }
}

#[test]
fn memory_is_never_executable_and_never_a_file() {
    for process in [Process::Keeper, Process::Placer, Process::Emptier, Process::Mounter, Process::Child] {
        for call in [libc::SYS_mmap, libc::SYS_mprotect] {
            for (protection, allowed) in [(0, true), (1, true), (3, true), (4, false), (5, false), (7, false)] {
                assert_eq!(allows(process, call, &[0, 4096, protection, 0x22]), allowed, "{call}, {protection}");
            }
        }
        // MAP_PRIVATE and MAP_SHARED, of memory and of a file.
        for (flags, allowed) in [(0x22, true), (0x21, true), (0x02, false), (0x01, false)] {
            assert_eq!(allows(process, libc::SYS_mmap, &[0, 4096, 1, flags, 3]), allowed, "{flags:#x}");
        }
    }
}

#[test]
fn a_mount_is_cloned_alone_moved_by_descriptors_and_unmounted_by_name_only() {
    // OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH, and neighbours: a tree, no clone, by path.
    for (flags, allowed) in [(0x8_1001, true), (0x8_9001, false), (0x8_1000, false), (0x8_0001, false)] {
        assert_eq!(placer(libc::SYS_open_tree, &[3, 0, flags]), allowed, "{flags:#x}");
    }
    for (flags, allowed) in [(0x44, true), (0x04, false), (0x40, false), (0x45, false), (0x144, false)] {
        assert_eq!(placer(libc::SYS_move_mount, &[3, 0, 4, 0, flags]), allowed, "{flags:#x}");
    }
    for (flags, allowed) in [(8, true), (0, false), (2, false), (0xa, false)] {
        assert_eq!(placer(libc::SYS_umount2, &[0, flags]), allowed, "{flags:#x}");
    }
    // statmount(2) fills a buffer of this length.
    let room = mount::STATMOUNT_ROOM as u64;
    for (length, flags, allowed) in [
        (0, 0, true),
        (room, 0, true),
        (1, 0, false),
        (512, 0, false),
        (room - 1, 0, false),
        (1 << 32, 0, false),
        (room | 1 << 32, 0, false),
        (0, 1, false),
    ] {
        assert_eq!(placer(457, &[0, 0, length, flags]), allowed, "{length} {flags}");
        assert_eq!(keeper(457, &[0, 0, length, flags]), allowed && length == room, "{length} {flags}");
        assert!(!emptier(457, &[0, 0, length, flags]), "{length} {flags}");
    }
    for (flags, allowed) in [(0x1000, true), (0x9000, false), (0, false)] {
        assert_eq!(placer(libc::SYS_mount_setattr, &[3, 0, flags]), allowed, "{flags:#x}");
    }
}

#[test]
fn only_nodes_of_the_helpers_own_loop_devices_are_made() {
    let block = u64::from(libc::S_IFBLK | 0o600);
    for (mode, device, allowed) in [
        (block, 0x8000_0700, true),
        (block, 0x8000_07ff, true),
        (block, 0x8010_0700, true),
        (block, 0xfff0_07ff, true),
        // Loop devices of other programs.
        (block, 0x700, false),
        (block, 0x7ff0_07ff, false),
        (block, 0x8000_0600, false),
        (block, 0x8000_0800, false),
        (block, 0x8000_1700, false),
        (block, 0x8000_0007, false),
        (u64::from(libc::S_IFCHR | 0o600), 0x8000_0700, false),
        (u64::from(libc::S_IFREG | 0o600), 0x8000_0700, false),
        (0o600, 0x8000_0700, false),
    ] {
        assert_eq!(placer(libc::SYS_mknodat, &[3, 0, mode, device]), allowed, "{mode:o} {device:#x}");
    }
}

#[test]
fn requests_of_ioctl_and_quotactl_are_those_of_the_tables_and_not_their_neighbours() {
    let both = [0x801c_581f, 0x401c_5820];
    let (loops, of_placer) = ([0x4c00 + 0xa, 0x4c01, 0x4c05], [0x4c04, 0x4c05, 0x4c07, 0x125d]);
    // XFS_IOC_FSGROWFSDATA, FIFREEZE and FITHAW.
    for request in [0x4010_586e, 0xc004_5877, 0xc004_5878] {
        assert!(mounter(libc::SYS_ioctl, &[3, request]) && !keeper(libc::SYS_ioctl, &[3, request]), "{request:#x}");
        let other = request ^ 0x10;
        assert!(!mounter(libc::SYS_ioctl, &[3, other]) && !emptier(libc::SYS_ioctl, &[3, request]), "{request:#x}");
    }
    for request in both {
        assert!(keeper(libc::SYS_ioctl, &[3, request]) && emptier(libc::SYS_ioctl, &[3, request]), "{request:#x}");
    }
    for request in loops {
        assert!(keeper(libc::SYS_ioctl, &[3, request]) && !emptier(libc::SYS_ioctl, &[3, request]), "{request:#x}");
    }
    for request in both.iter().chain(&loops).flat_map(|request| [request - 1, request + 1]) {
        let allowed = loops.contains(&request) || both.contains(&request);
        assert_eq!(keeper(libc::SYS_ioctl, &[3, request]), allowed, "{request:#x}");
    }
    for request in both.iter().chain(&loops).chain(&of_placer).flat_map(|request| [request - 1, *request, request + 1])
    {
        assert_eq!(placer(libc::SYS_ioctl, &[3, request]), of_placer.contains(&request), "{request:#x}");
    }
    // LOOP_SET_FD and LOOP_CHANGE_FD take whatever descriptor they are given; LOOP_CTL_GET_FREE gives numbers that are
    // other programs'.
    for request in [0x4c00, 0x4c06, 0x4c82] {
        assert!(!keeper(libc::SYS_ioctl, &[3, request]) && !placer(libc::SYS_ioctl, &[3, request]), "{request:#x}");
    }
    // LOOP_CTL_ADD and LOOP_CTL_REMOVE: only with the helpers' own numbers.
    for (number, allowed) in [(0x8_0000, true), (0xf_ffff, true), (0x7_ffff, false), (0x10_0000, false), (7, false)] {
        for request in [0x4c80, 0x4c81] {
            assert_eq!(keeper(libc::SYS_ioctl, &[3, request, number]), allowed, "{number:#x}");
        }
        assert_eq!(crate::sys::loopdevice::OURS.contains(&(number as u32)), allowed, "{number:#x}");
    }
    let commands = [quota::GET, quota::XFS_GET, quota::GET_NEXT, quota::XFS_GET_NEXT, quota::SET].map(u64::from);
    for command in commands {
        let arguments = &[3, command];
        assert!(placer(libc::SYS_quotactl_fd, arguments) && !keeper(libc::SYS_quotactl_fd, arguments), "{command:#x}");
        // The same for users and groups, and the commands beside it.
        for neighbour in [command ^ 2, command ^ 3, command + 0x100, command - 0x100] {
            assert_eq!(placer(libc::SYS_quotactl_fd, &[3, neighbour]), commands.contains(&neighbour), "{neighbour:#x}");
        }
    }
    let state = u64::from(quotastate::GET_XFS_STATE);
    assert!(keeper(libc::SYS_quotactl_fd, &[3, state]) && !emptier(libc::SYS_quotactl_fd, &[3, state]));
}

#[test]
fn sockets_are_unix_sockets_and_descriptors_are_duplicated_with_close_on_exec() {
    assert!(
        keeper(libc::SYS_socket, &[1, 5]) && !keeper(libc::SYS_socket, &[2, 1]) && !keeper(libc::SYS_socket, &[16, 3])
    );
    // MSG_PEEK alone, MSG_CMSG_CLOEXEC alone, and neighbours: a client's message is never received with its descriptors.
    for (flags, allowed) in
        [(2, true), (0x4000_0000, true), (0, false), (3, false), (0x22, false), (0x4000_0002, false)]
    {
        assert_eq!(keeper(libc::SYS_recvmsg, &[3, 0, flags]), allowed, "{flags:#x}");
        assert!(!emptier(libc::SYS_recvmsg, &[3, 0, flags]), "{flags:#x}");
    }
    for (how, allowed) in [(2, true), (0, false), (1, false), (3, false)] {
        assert_eq!(keeper(libc::SYS_shutdown, &[3, how]), allowed, "{how}");
        assert!(!emptier(libc::SYS_shutdown, &[3, how]), "{how}");
    }
    assert!(keeper(libc::SYS_ppoll, &[]) && !emptier(libc::SYS_ppoll, &[]));
    for (command, allowed) in [(1, true), (1030, true), (0, false), (2, false), (3, false), (4, false), (1029, false)] {
        assert_eq!(keeper(libc::SYS_fcntl, &[3, command]), allowed, "{command}");
    }
    for (option, allowed) in [(21, true), (20, false), (22, false), (4, false), (38, false)] {
        assert_eq!(keeper(libc::SYS_prctl, &[option]), allowed, "{option}");
    }
    for (advice, allowed) in [(4, true), (8, true), (3, false), (9, false)] {
        assert_eq!(keeper(libc::SYS_madvise, &[0, 4096, advice]), allowed, "{advice}");
    }
}

#[test]
fn only_standard_error_is_written_to_and_it_stays_open() {
    for process in [Process::Keeper, Process::Placer, Process::Emptier, Process::Mounter, Process::Child] {
        for (descriptor, written, closed) in [(0, false, false), (1, false, false), (2, true, false), (3, false, true)]
        {
            assert_eq!(allows(process, libc::SYS_write, &[descriptor]), written, "{descriptor}");
            assert_eq!(allows(process, libc::SYS_writev, &[descriptor]), written, "{descriptor}");
            assert_eq!(allows(process, libc::SYS_close, &[descriptor]), closed, "{descriptor}");
        }
        assert!(allows(process, libc::SYS_close, &[0x7fff_ffff]));
    }
}

#[test]
fn files_are_renamed_extended_and_given_modes_in_one_way_only() {
    // Nothing, NOREPLACE, EXCHANGE, both, WHITEOUT.
    for (flags, by_keeper, by_emptier) in
        [(0, true, false), (1, true, true), (2, false, false), (3, false, false), (4, false, false)]
    {
        let arguments = [3, 0, 3, 0, flags];
        assert_eq!(keeper(libc::SYS_renameat2, &arguments), by_keeper, "{flags}");
        assert_eq!(emptier(libc::SYS_renameat2, &arguments), by_emptier, "{flags}");
    }
    // Nothing, KEEP_SIZE, PUNCH_HOLE, both, ZERO_RANGE.
    for (mode, allowed) in [(0, true), (1, true), (2, false), (3, false), (0x10, false)] {
        assert_eq!(keeper(libc::SYS_fallocate, &[3, mode]), allowed, "{mode}");
    }
    for (mode, allowed) in [
        (0o600, true),
        (0o1700, true),
        (0o700, false),
        (0o1777, false),
        (0o4600, false),
        (0o2600, false),
        (0o644, false),
        (0, false),
    ] {
        assert_eq!(keeper(libc::SYS_fchmod, &[3, mode]), allowed, "{mode:o}");
    }
}

#[test]
fn of_a_socket_only_its_timeouts_are_set_and_only_its_peer_is_read() {
    // SO_RCVTIMEO and SO_SNDTIMEO of Linux 5.1, then SO_PASSCRED, SO_RCVBUFFORCE, SO_ATTACH_FILTER; another level.
    for (level, option, allowed) in
        [(1, 66, true), (1, 67, true), (1, 16, false), (1, 33, false), (1, 26, false), (6, 66, false)]
    {
        assert_eq!(keeper(libc::SYS_setsockopt, &[3, level, option]), allowed, "{level} {option}");
        assert_eq!(emptier(libc::SYS_setsockopt, &[3, level, option]), (level, option) == (1, 66), "{level} {option}");
    }
    // SO_PEERCRED, SO_PEERPIDFD, then SO_PASSCRED, SO_TYPE, SO_PEERSEC.
    for (option, allowed) in [(17, true), (77, true), (16, false), (3, false), (31, false)] {
        assert_eq!(keeper(libc::SYS_getsockopt, &[3, 1, option]), allowed, "{option}");
    }
}

/// The calls that the operations make on x86-64, which the suite `faults::every_call_that_is_listed_is_made` compares
/// with what they do, and those that are rare, each with its reason.
#[cfg(target_arch = "x86_64")]
const NEEDED: &str = include_str!("needed.txt");

/// A line of that list.
#[cfg(target_arch = "x86_64")]
struct Needed {
    by: &'static str,
    call: libc::c_long,
    arguments: Vec<(u8, u32)>,
}

#[cfg(target_arch = "x86_64")]
fn needed() -> Vec<Needed> {
    let parse = |line: &'static str| {
        let (call, reason) = line.split_once(": ").map_or((line, None), |(call, reason)| (call, Some(reason)));
        let mut words = call.split_whitespace();
        let by = words.next().expect("a process, or rare");
        assert_eq!(by == "rare", reason.is_some(), "a rare call has a reason: {line}");
        let call = words.next().and_then(|word| word.parse().ok()).expect("a call's number");
        let argument = |word: &str| {
            let (index, value) = word.split_once("=0x").expect("an argument");
            let index = index.split('&').next().unwrap_or_default();
            (index.parse().expect("an index"), u32::from_str_radix(value, 16).expect("a value"))
        };
        Needed { by, call, arguments: words.skip(1).map(argument).collect() }
    };
    NEEDED.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(parse).collect()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn every_row_is_needed() {
    let needed = needed();
    let has = |by: &[&str], call: libc::c_long, conditions: &[If]| {
        let holds = |line: &Needed, condition: &If| {
            let (index, comparison, value) = match condition {
                Arg(index, comparison, value) => (index, comparison.clone(), *value),
                Size(index, value) => (index, Eq, u32::try_from(*value).expect("a small size")),
            };
            let own = line.arguments.iter().find(|(argument, _)| argument == index).map(|(_, own)| *own);
            own.is_some_and(|own| match comparison {
                Eq => own == value,
                Ge => own >= value,
                SeccompCmpOp::MaskedEq(mask) => u64::from(own) & mask == u64::from(value) & mask,
                _ => false,
            })
        };
        let is_it = |line: &&Needed| {
            (line.by == "rare" || by.contains(&line.by))
                && line.call == call
                && conditions.iter().all(|one| holds(line, one))
        };
        needed.iter().any(|line| is_it(&line))
    };
    let tables: [(&[&str], &[Row]); 7] = [
        (&["keeper", "placer", "emptier"], ALL),
        (&["keeper", "emptier"], BOTH),
        (&["keeper"], KEEPER),
        (&["placer"], PLACER),
        (&["emptier"], EMPTIER),
        (&["mounter"], MOUNTER),
        // None of them is there when the operations are traced, and they do what the others do.
        (&["keeper", "placer", "emptier"], CHILD),
    ];
    for (by, rows) in tables {
        for Row(calls, conditions, why) in rows {
            for call in *calls {
                assert!(
                    has(by, *call, conditions),
                    "no operation of {by:?} makes call {call} ({why}), and it is not rare"
                );
            }
        }
    }
}
