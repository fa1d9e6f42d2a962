//! A frontend that was taken over keeps the socket on which kubelets connect: no connection reaches it once another
//! frontend has asked for the socket.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_protocol::Socket;
use bulkhead_tests::cases;
use bulkhead_tests::csi::v1::ProbeRequest;
use bulkhead_tests::helper::listen;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::wait;

cases! {
    a_process_that_keeps_the_socket_gets_no_connection_any_more: Bare,
    a_process_that_takes_the_socket_again_and_again_keeps_nothing: Bare,
    a_client_in_the_queue_of_a_kept_socket_is_not_left_waiting: Bare,
}

fn begin(rig: &mut Rig) -> Result<()> {
    rig.start_helper()
}

fn csi_socket(rig: &Rig) -> Result<u64> {
    Ok(fs::symlink_metadata(rig.kubelet.csi_socket())?.ino())
}

/// Starts a frontend, and waits until its socket has taken the name of the one that a process keeps: whoever connects
/// before is in the queue of that one.
fn start_frontend(rig: &mut Rig) -> Result<()> {
    let (before, patience) = (csi_socket(rig)?, rig.patience(Duration::from_secs(10)));
    rig.launch_frontend()?;
    wait::until(patience, || {
        ensure!(csi_socket(rig)? != before, "the socket is the same still");
        Ok(())
    })?;
    wait::until(patience, || {
        let mut csi = rig.csi()?;
        csi.set_limit(rig.patience(Duration::from_secs(2)));
        ensure!(csi.probe(ProbeRequest {})?.ready == Some(true), "it is not ready");
        Ok(())
    })
}

fn a_process_that_keeps_the_socket_gets_no_connection_any_more(rig: &mut Rig) -> Result<()> {
    begin(rig)?;
    // Neither does it matter that it has closed its connection to the helper.
    for is_connected in [true, false] {
        let helper = rig.helper()?;
        let kept = UnixListener::from(listen(&helper, Socket::Csi)?);
        let registration = UnixListener::from(listen(&helper, Socket::Registration)?);
        let _connected = is_connected.then_some(helper);
        for listener in [&kept, &registration] {
            listener.set_nonblocking(true)?;
            // Whoever connected while it was this process's own.
            while listener.accept().is_ok() {}
        }
        let path = rig.kubelet.registration_socket();
        let before = fs::symlink_metadata(&path)?.ino();
        start_frontend(rig)?;
        // It comes a moment later.
        rig.eventually(10, || {
            ensure!(fs::symlink_metadata(&path)?.ino() != before, "the registration's socket is the same still");
            Ok(())
        })?;
        for number in 0..50 {
            ensure!(rig.csi()?.probe(ProbeRequest {})?.ready == Some(true), "call {number} is not answered");
            ensure!(kept.accept().is_err(), "the old holder got connection {number}");
        }
        drop(UnixStream::connect(&path)?);
        ensure!(registration.accept().is_err(), "the old holder got a kubelet's registration");
        rig.kill_frontend()?;
    }
    rig.start_frontend()
}

/// It takes the socket from a frontend, and keeps it beyond the end of the helper.
fn a_process_that_takes_the_socket_again_and_again_keeps_nothing(rig: &mut Rig) -> Result<()> {
    begin(rig)?;
    rig.start_frontend()?;
    let mut kept = Vec::new();
    for round in 0..5 {
        let taken = UnixListener::from(listen(&rig.helper()?, Socket::Csi)?);
        taken.set_nonblocking(true)?;
        kept.push(taken);
        if round % 2 == 0 {
            rig.abandon();
            rig.start_helper()?;
        } else {
            rig.kill_frontend()?;
        }
        start_frontend(rig)?;
        for _ in 0..10 {
            ensure!(rig.csi()?.probe(ProbeRequest {})?.ready == Some(true));
        }
        ensure!(kept.iter().all(|taken| taken.accept().is_err()), "a process that kept a socket got a connection");
    }
    Ok(())
}

/// The kubelet connects while nobody serves, and gives up a call only after minutes.
fn a_client_in_the_queue_of_a_kept_socket_is_not_left_waiting(rig: &mut Rig) -> Result<()> {
    begin(rig)?;
    let kept = UnixListener::from(listen(&rig.helper()?, Socket::Csi)?);
    let mut waiting = UnixStream::connect(rig.kubelet.csi_socket())?;
    start_frontend(rig)?;
    waiting.set_read_timeout(Some(rig.patience(Duration::from_secs(3))))?;
    let answer = waiting.read(&mut [0; 64]);
    drop(kept);
    ensure!(answer.is_ok(), "it is neither served nor closed: {answer:?}");
    Ok(())
}
