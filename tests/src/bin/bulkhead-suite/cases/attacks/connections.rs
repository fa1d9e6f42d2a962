//! Connections and sockets that one user breaks for the next.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use bulkhead_protocol::{Condition, Reply, Request, Socket, encode};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::Tracer;
use bulkhead_tests::wait;
use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size};

cases! {
    descriptors_that_take_long_to_close_keep_no_connection,
    descriptors_that_take_long_to_close_keep_no_connection_of_an_older_kernel: Bare + Long,
    a_socket_that_a_frontend_has_shut_down_is_made_anew: Bare,
    a_csi_socket_that_was_removed_is_made_anew,
    a_capability_that_cannot_be_lowered_ends_the_helper: Bare,
    a_flood_of_refused_connections_does_not_flood_the_log,
    a_filter_that_only_logs_is_a_condition_of_every_pool: Bare,
}

const SIZE: u64 = 16 << 20;

/// A connection with data that its peer does not read, so that closing it takes long.
fn lingering() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    let (deaf, _) = listener.accept()?;
    // By default the kernel buffers megabytes.
    set_socket_recv_buffer_size(&deaf, 1 << 12)?;
    set_socket_send_buffer_size(&sender, 1 << 12)?;
    sender.set_nonblocking(true)?;
    while sender.write(&[0; 1 << 16]).is_ok() {}
    sender.set_nonblocking(false)?;
    set_socket_linger(&sender, Some(Duration::from_secs(30)))?;
    Ok((sender, deaf))
}

fn descriptors_that_take_long_to_close_keep_no_connection(rig: &mut Rig) -> Result<()> {
    let status = encode(&Request::PoolStatus { pool: "default".parse()? })?;
    // The ends that do not read are dropped before the others, which can then be closed without waiting.
    let mut deaf = Vec::new();
    let (mut refused, mut closing) = (Vec::new(), Vec::new());
    for round in 0..16 {
        let (sender, peer) = lingering()?;
        deaf.push(peer);
        let sender = OwnedFd::from(sender);
        // The first packet of a connection, or a later one.
        let client = if round % 2 == 0 { HelperClient::connect(&rig.helper_socket())? } else { rig.helper()? };
        if client.send_with_descriptor(&status, &sender).is_err() {
            refused.push(sender);
        } else {
            // If the helper has closed the connection before it received the descriptor, the last to close that is here.
            closing.push(std::thread::spawn(move || drop((sender, client))));
        }
    }
    let begun = Instant::now();
    let clients = (0..4).map(|_| rig.helper()).collect::<Result<Vec<_>>>()?;
    for client in clients {
        client.pool_status("default")?;
    }
    ensure!(begun.elapsed() < rig.patience(Duration::from_secs(3)), "it took {:?}", begun.elapsed());
    drop(deaf);
    closing.into_iter().try_for_each(|closing| closing.join().map_err(|_| anyhow!("a thread that closes panicked")))
}

/// A kernel before 6.16 cannot refuse descriptors.
fn descriptors_that_take_long_to_close_keep_no_connection_of_an_older_kernel(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    let trace = rig.work().join("trace").display().to_string();
    let strace =
        |output: &str| ["strace", "-D", "-f", "-o", output, "-e", "trace=setsockopt"].map(str::to_owned).to_vec();
    // strace makes a call fail by giving it a number that the filter does not know.
    rig.helper_flags = vec!["--seccomp=log".to_owned()];
    rig.helper_wrapper = strace(&trace);
    rig.start_helper()?;
    rig.kill_helper()?;
    let number = number_of_refusal(&fs::read_to_string(&trace)?)?;
    rig.helper_wrapper = strace("/dev/null");
    rig.helper_wrapper.extend(["-e".to_owned(), format!("inject=setsockopt:error=ENOPROTOOPT:when={number}")]);
    rig.start_helper()?;
    // The call with that number fails in each thread: until every thread has made it, not all of them serve.
    let mut served = Vec::new();
    rig.eventually(10, || {
        served.push(rig.helper()?);
        ensure!(served.len() == 33, "{} connections are served", served.len());
        Ok(())
    })?;
    drop(served);
    let (client, file) = (rig.helper()?, fs::File::open("/etc/passwd")?);
    client.send_with_descriptor(&encode(&delete("vol-a"))?, &file).context("the kernel refuses descriptors anyway")?;
    client.check_closed()?;
    descriptors_that_take_long_to_close_keep_no_connection(rig)?;
    rig.kill_helper()?;
    rig.helper_wrapper.clear();
    rig.helper_flags.clear();
    rig.start()
}

/// Returns how many such calls the thread that refuses descriptors has made when it does, as strace has seen them.
fn number_of_refusal(trace: &str) -> Result<usize> {
    let thread = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let calls: Vec<_> = trace.lines().filter(|line| line.contains("setsockopt(")).collect();
    // SO_PASSRIGHTS is newer than strace.
    let refusal = calls.iter().position(|line| line.contains("SOL_SOCKET, 0x53")).context("it refuses nothing")?;
    Ok(calls[..=refusal].iter().filter(|line| thread(line) == thread(calls[refusal])).count())
}

fn listen(client: &HelperClient) -> Result<OwnedFd> {
    client.send(&encode(&Request::Listen { socket: Socket::Csi })?)?;
    let (_, socket) = client.receive_with_descriptor()?.context("the helper has closed the connection")?;
    socket.context("no socket comes with the reply")
}

fn a_socket_that_a_frontend_has_shut_down_is_made_anew(rig: &mut Rig) -> Result<()> {
    use rustix::net::Shutdown::{Both, Read};
    rig.start_helper()?;
    for how in [Read, Both] {
        let socket = listen(&rig.helper()?)?;
        let waiting = UnixStream::connect(rig.kubelet.csi_socket())?;
        // The socket is kept as long as it works: no client that is waiting on it is lost.
        let again = listen(&rig.helper()?)?;
        rustix::net::accept(&again).context("accept the one who waits")?;
        drop(waiting);
        rustix::net::shutdown(&socket, how)?;
        ensure!(UnixStream::connect(rig.kubelet.csi_socket()).is_err(), "the attack has no effect");
    }
    rig.start_frontend()
}

fn a_csi_socket_that_was_removed_is_made_anew(rig: &mut Rig) -> Result<()> {
    for replace in [false, true] {
        fs::remove_file(rig.kubelet.csi_socket())?;
        if replace {
            drop(std::os::unix::net::UnixListener::bind(rig.kubelet.csi_socket())?);
        }
        rig.restart_frontend()?;
    }
    Ok(())
}

fn a_capability_that_cannot_be_lowered_ends_the_helper(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    // strace makes a call fail by giving it a number that the filter does not know.
    rig.helper_flags = vec!["--seccomp=log".to_owned()];
    let client = rig.started_helper()?;
    client.ask(&create("vol-a", directory_spec(SIZE)))?;
    let limit = rig.patience(Duration::from_secs(10));
    // The second change in a thread lowers what the first one raised.
    let faults = Tracer::fail(rig.helper_pid()?, "capset", "EPERM", "2+")?;
    ensure!(rig.helper()?.request(&bind("vol-a", "a")).is_err(), "the helper goes on with a capability raised");
    let status = rig.running_helper()?.wait(limit)?;
    ensure!(status.code() == Some(1), "{status}");
    rig.running_helper()?.has_logged("a capability cannot be lowered again")?;
    drop(faults);
    rig.helper_flags.clear();
    rig.start()
}

fn a_flood_of_refused_connections_does_not_flood_the_log(rig: &mut Rig) -> Result<()> {
    let begun = Instant::now();
    let lines = |rig: &mut Rig| -> Result<usize> {
        Ok(rig.running_helper()?.log()?.lines().filter(|line| line.contains("not of --allow-uid")).count())
    };
    for _ in 0..1000 {
        HelperClient::connect_as(&rig.helper_socket(), 0)?;
    }
    wait::until(rig.patience(Duration::from_secs(5)), || {
        HelperClient::connect_as(&rig.helper_socket(), 0)?;
        ensure!(lines(rig)? > 0, "nothing is logged");
        Ok(())
    })?;
    let (lines, seconds) = (lines(rig)?, begun.elapsed().as_secs_f64());
    ensure!(lines as f64 <= seconds + 2.0, "{lines} lines in {seconds:.1} s");
    Ok(())
}

fn a_filter_that_only_logs_is_a_condition_of_every_pool(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    rig.helper_flags = vec!["--seccomp=log".to_owned()];
    rig.start()?;
    let Reply::Pool(status) = rig.helper()?.ask(&Request::PoolStatus { pool: "default".parse()? })? else {
        anyhow::bail!("no status");
    };
    let conditions = status.conditions.as_slice();
    ensure!(conditions.contains(&Condition::Unconfined), "{conditions:?}");
    rig.running_helper()?.has_logged("not confined: system calls that are not allowed are only logged")
}
