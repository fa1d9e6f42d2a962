//! What a process can still do when an attacker has taken it over. The process itself makes the system calls.

use std::fs::{self, Metadata};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::v1::ProbeRequest;
use bulkhead_tests::monitoring;
use bulkhead_tests::observe::processes;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::takeover::Argument::{Bytes, Number};
use bulkhead_tests::takeover::{Argument, Outcome, Takeover};
use nix::errno::Errno;
use nix::libc;

cases! {
    an_emptier_that_is_taken_over_writes_nothing_and_leaves_its_pool_nowhere,
    a_frontend_that_is_taken_over_runs_opens_and_reaches_nothing,
    an_agent_that_is_taken_over_reaches_its_api_server_only,
}

/// The file that marks and names each pool.
const MARKER: &[u8] = b".bulkhead\0";
const REFUSED: Outcome = Outcome::Refused(Errno::EACCES);

// Calls that the C library has no names for yet.
const STATMOUNT: i64 = 457;
const LISTMOUNT: i64 = 458;
const OPEN_TREE_ATTR: i64 = 467;

/// `struct open_how` of openat2(2).
fn how(flags: i32, mode: u64) -> Result<Vec<u8>> {
    Ok([u64::try_from(flags)?, mode, 0].map(u64::to_ne_bytes).concat())
}

/// Opens a path in a process that is taken over.
fn open(process: &mut Takeover, directory: i64, path: &[u8], flags: i32) -> Result<Outcome> {
    let mode = if flags & libc::O_CREAT == 0 { 0 } else { 0o600 };
    let how = how(flags, mode)?;
    let arguments = [Number(directory), Bytes(path), Bytes(&how), Number(i64::try_from(how.len())?)];
    process.call(libc::SYS_openat2, &arguments)
}

fn an_emptier_that_is_taken_over_writes_nothing_and_leaves_its_pool_nowhere(rig: &mut Rig) -> Result<()> {
    let (emptier, patience) = (rig.emptier_pid()?, rig.patience(Duration::from_secs(5)));
    // It is still being confined when the helper may already be serving.
    rig.eventually(5, || processes::check_filtered(emptier))?;
    let pool = descriptor(emptier, Metadata::is_dir)?;
    let marker = rig.pool().directory.join(".bulkhead");
    let before = fs::read(&marker)?;
    let mut emptier = Takeover::of(emptier, patience)?;
    for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_RDONLY | libc::O_TRUNC] {
        let opened = open(&mut emptier, pool, MARKER, flags)?;
        ensure!(opened == REFUSED, "opening a file with {flags:#o}: {opened:?}");
    }
    let made = open(&mut emptier, pool, b"new\0", libc::O_CREAT | libc::O_EXCL | libc::O_RDONLY)?;
    ensure!(made == REFUSED, "making a file: {made:?}");
    let renamed = emptier.call(
        libc::SYS_renameat2,
        &[Number(pool), Bytes(MARKER), Number(pool), Bytes(b"other\0"), Number(libc::RENAME_NOREPLACE.into())],
    )?;
    ensure!(renamed == REFUSED, "renaming a file: {renamed:?}");
    for path in [&b"/\0"[..], b"/bulkhead-pools\0"] {
        let opened = open(&mut emptier, libc::AT_FDCWD.into(), path, libc::O_RDONLY | libc::O_DIRECTORY)?;
        ensure!(opened == REFUSED, "opening a directory outside the pool: {opened:?}");
    }
    let listed = open(&mut emptier, pool, b".\0", libc::O_RDONLY | libc::O_DIRECTORY)?;
    ensure!(matches!(listed, Outcome::Done(_)), "its own work is left to it: {listed:?}");
    let made = emptier.call(libc::SYS_mkdirat, &[Number(pool), Bytes(b"new\0"), Number(0o700)])?;
    ensure!(made == Outcome::Killed, "making a directory: {made:?}");
    drop(emptier);
    ensure!(fs::read(&marker)? == before, "the pool's marker has changed");
    // The helper ends along with its emptier.
    rig.abandon();
    rig.start_helper()
}

fn a_frontend_that_is_taken_over_runs_opens_and_reaches_nothing(rig: &mut Rig) -> Result<()> {
    // Its listening sockets were opened before it was confined.
    rig.frontend_flags.extend(monitoring::FLAGS.map(Into::into));
    rig.restart_frontend()?;
    let pid = i32::try_from(rig.running_frontend()?.pid())?;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = fs::read_to_string(thread?.path().join("status"))?;
        ensure!(status.contains("\nNoNewPrivs:\t1\n") && status.contains("\nSeccomp:\t2\n"), "{status}");
    }
    let mut frontend = Takeover::of(pid, rig.patience(Duration::from_secs(5)))?;
    let here = Number(libc::AT_FDCWD.into());
    for path in [&b"/etc/passwd\0"[..], b"/proc/self/maps\0", b"/\0"] {
        let opened = frontend.call(libc::SYS_openat, &[here, Bytes(path), Number(libc::O_RDONLY.into())])?;
        ensure!(opened == REFUSED, "opening {}: {opened:?}", String::from_utf8_lossy(path));
    }
    let program = Bytes(b"/proc/self/exe\0");
    let page = [Number(0), Number(4096), number(libc::PROT_READ | libc::PROT_EXEC), Number(0x22), Number(-1)];
    // The number of execve(2) in the x32 ABI.
    let foreign = 0x4000_0000 + 520;
    for (what, call, arguments) in [
        ("running a program", libc::SYS_execve, &[program, Number(0), Number(0)][..]),
        ("running a program by x32", foreign, &[program, Number(0), Number(0)]),
        ("a process", libc::SYS_clone, &[number(libc::SIGCHLD)]),
        ("a user namespace", libc::SYS_unshare, &[number(libc::CLONE_NEWUSER)]),
        ("executable memory", libc::SYS_mmap, &page),
        ("a file without a name", libc::SYS_memfd_create, &[program, Number(0)]),
        ("a ring", libc::SYS_io_uring_setup, &[Number(1), Number(0)]),
        ("a netlink socket", libc::SYS_socket, &[number(libc::AF_NETLINK), number(libc::SOCK_RAW)]),
        ("a socket for ciphers", libc::SYS_socket, &[number(libc::AF_ALG), number(libc::SOCK_SEQPACKET)]),
        // It is no agent, so it needs no network.
        ("a socket for TCP", libc::SYS_socket, &[number(libc::AF_INET), number(libc::SOCK_STREAM)]),
        ("a socket for UDP", libc::SYS_socket, &[number(libc::AF_INET6), number(libc::SOCK_DGRAM)]),
        ("a message to another program", libc::SYS_socket, &[number(libc::AF_UNIX), number(libc::SOCK_DGRAM)]),
        ("a pair for messages", libc::SYS_socketpair, &[number(libc::AF_UNIX), number(libc::SOCK_DGRAM), Number(0)]),
        ("another process's limits", libc::SYS_prlimit64, &[Number(pid.into()), number(7), Number(0), Number(0)]),
        ("where another process runs", libc::SYS_sched_setaffinity, &[Number(pid.into()), Number(8), Bytes(&[1; 8])]),
        ("how another process runs", libc::SYS_sched_setscheduler, &[Number(pid.into()), Number(0), Bytes(&[0; 4])]),
        ("another process's weight", libc::SYS_setpriority, &[Number(0), Number(pid.into()), Number(19)]),
        ("another process's turn at the disk", libc::SYS_ioprio_set, &[Number(1), Number(pid.into()), Number(3 << 13)]),
        ("a listener of system calls", libc::SYS_seccomp, &[Number(1), Number(8), Bytes(&[0; 16])]),
        ("a filter of system calls", libc::SYS_prctl, &[number(libc::PR_SET_SECCOMP), Number(2), Bytes(&[0; 16])]),
        ("a detached mount", OPEN_TREE_ATTR, &[here, Bytes(b"/\0"), Number(0), Number(0), Number(0)]),
        ("what is mounted", STATMOUNT, &[Bytes(&[0; 32]), Bytes(&[0; 512]), Number(512), Number(0)]),
        ("which mounts there are", LISTMOUNT, &[Bytes(&[0; 32]), Bytes(&[0; 64]), Number(8), Number(0)]),
        ("watching files", libc::SYS_inotify_init1, &[Number(0)]),
        ("another process", libc::SYS_ptrace, &[Number(16), Number(1)]),
        ("a signal", libc::SYS_kill, &[Number(pid.into()), Number(0)]),
    ] {
        let done = frontend.call(call, arguments)?;
        ensure!(done == Outcome::Refused(Errno::EPERM), "{what}: {done:?}");
    }
    // The C library falls back to clone.
    let process = frontend.call(libc::SYS_clone3, &[Number(0), Number(0)])?;
    ensure!(process == Outcome::Refused(Errno::ENOSYS), "a process: {process:?}");
    drop(frontend);
    ensure!(rig.csi()?.probe(ProbeRequest {})?.ready == Some(true), "it serves no more");
    // The kubelet registers it some time after it serves.
    rig.eventually(20, || monitoring::check_ready(rig, 200, "[+]helper ok"))
}

/// An agent has sockets for TCP, and can connect to its API server's port only.
fn an_agent_that_is_taken_over_reaches_its_api_server_only(rig: &mut Rig) -> Result<()> {
    let directory = rig.work().join("agent");
    fs::create_dir(&directory)?;
    let kubeconfig = directory.join("kubeconfig");
    // Nobody listens there.
    let cluster = "{name: a, cluster: {server: 'https://127.0.0.1:1', certificate-authority-data: ''}}";
    let text = format!(
        "{{clusters: [{cluster}], users: [{{name: a, user: {{token: a}}}}],\n contexts: [{{name: a, context: {{cluster: a, user: a}}}}], current-context: a}}"
    );
    fs::write(&kubeconfig, text)?;
    rig.frontend_flags.extend(["--kubeconfig".into(), kubeconfig.into()]);
    rig.restart_frontend()?;
    let pid = i32::try_from(rig.running_frontend()?.pid())?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut frontend = Takeover::of(pid, rig.patience(Duration::from_secs(5)))?;
    let socket = frontend.call(libc::SYS_socket, &[number(libc::AF_INET), number(libc::SOCK_STREAM)])?;
    let Outcome::Done(socket) = socket else { anyhow::bail!("a socket for TCP: {socket:?}") };
    for (call, port) in [(libc::SYS_connect, listener.local_addr()?.port()), (libc::SYS_bind, 0)] {
        let mut address = u16::try_from(libc::AF_INET)?.to_ne_bytes().to_vec();
        address.extend(port.to_be_bytes().iter().chain(&[127, 0, 0, 1]).chain(&[0; 8]));
        let reached = frontend.call(call, &[Number(socket), Bytes(&address), Number(16)])?;
        ensure!(reached == REFUSED, "call {call} with port {port}: {reached:?}");
    }
    let mut address = u16::try_from(libc::AF_INET)?.to_ne_bytes().to_vec();
    address.extend(listener.local_addr()?.port().to_be_bytes().iter().chain(&[127, 0, 0, 1]).chain(&[0; 8]));
    let fast = number(libc::MSG_FASTOPEN);
    let by_sending = [Number(socket), Bytes(b"x"), Number(1), fast, Bytes(&address), Number(16)];
    for (what, call, arguments) in [
        // The API server's address is known, so there is no name server to ask.
        ("a socket for UDP", libc::SYS_socket, &[number(libc::AF_INET), number(libc::SOCK_DGRAM)][..]),
        ("packets of any protocol", libc::SYS_socket, &[number(libc::AF_INET), number(libc::SOCK_RAW), Number(255)]),
        ("another kind of socket", libc::SYS_socket, &[number(libc::AF_INET), number(libc::SOCK_SEQPACKET)]),
        (
            "a connection of another protocol",
            libc::SYS_socket,
            &[number(libc::AF_INET), number(libc::SOCK_STREAM), number(libc::IPPROTO_MPTCP)],
        ),
        ("a connection by sending", libc::SYS_sendto, &by_sending),
        ("a connection by sending", libc::SYS_sendmsg, &[Number(socket), Number(0), fast]),
        ("a connection by sending", libc::SYS_sendmmsg, &[Number(socket), Number(0), Number(1), fast]),
        (
            "a connection at the first sending",
            libc::SYS_setsockopt,
            &[
                Number(socket),
                number(libc::IPPROTO_TCP),
                number(libc::TCP_FASTOPEN_CONNECT),
                Bytes(&[1, 0, 0, 0]),
                Number(4),
            ],
        ),
        ("any port", libc::SYS_listen, &[Number(socket), Number(1)]),
    ] {
        let done = frontend.call(call, arguments)?;
        ensure!(done == Outcome::Refused(Errno::EPERM), "{what}: {done:?}");
    }
    let closed = frontend.call(libc::SYS_close, &[Number(socket)])?;
    ensure!(closed == Outcome::Done(0), "{closed:?}");
    drop(frontend);
    ensure!(rig.csi()?.probe(ProbeRequest {})?.ready == Some(true), "it serves no more");
    Ok(())
}

fn number(value: i32) -> Argument<'static> {
    Number(value.into())
}

/// The first descriptor of a process that refers to such a file.
fn descriptor(process: i32, wanted: impl Fn(&Metadata) -> bool) -> Result<i64> {
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        let entry = entry?;
        let found = fs::metadata(entry.path());
        if found.is_ok_and(|found| wanted(&found) && found.ino() != 0) {
            return entry.file_name().to_str().and_then(|name| name.parse().ok()).context("a descriptor");
        }
    }
    anyhow::bail!("process {process} has no such descriptor")
}
