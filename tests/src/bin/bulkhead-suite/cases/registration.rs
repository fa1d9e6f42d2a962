//! The plugin's registration with the kubelet.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::CsiClient;
use bulkhead_tests::csi::registration::registration_client::RegistrationClient;
use bulkhead_tests::csi::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use bulkhead_tests::rig::Rig;

cases! {
    the_kubelet_learns_what_it_needs,
    the_csi_socket_serves_when_the_registration_socket_appears: Bare,
    the_kubelet_sees_nothing_of_restarts,
    a_refusal_is_logged_and_asked_again,
    the_registry_holds_one_socket_and_no_half_made_one,
    a_socket_that_was_removed_comes_back_with_the_next_start,
    a_socket_that_was_removed_comes_back_by_itself: Long,
    a_registration_socket_that_was_removed_comes_back_by_itself: Slow,
}

fn get_info(rig: &Rig) -> Result<PluginInfo> {
    let client = CsiClient::connect(&rig.registration_socket()?)?;
    let mut registration = RegistrationClient::new(client.channel());
    Ok(client.run(registration.get_info(InfoRequest {}))?.into_inner())
}

fn notify(rig: &Rig, plugin_registered: bool, error: &str) -> Result<()> {
    let client = CsiClient::connect(&rig.registration_socket()?)?;
    let mut registration = RegistrationClient::new(client.channel());
    let status = RegistrationStatus { plugin_registered, error: error.to_owned() };
    client.run(registration.notify_registration_status(status))?;
    Ok(())
}

fn the_kubelet_learns_what_it_needs(rig: &mut Rig) -> Result<()> {
    // As after each restart of the kubelet, which may ask any number of times.
    for _ in 0..3 {
        let info = get_info(rig)?;
        ensure!(info.r#type == "CSIPlugin" && info.name == "bulkhead.csi.local", "{info:?}");
        ensure!(info.endpoint == rig.kubelet.csi_socket().to_string_lossy(), "{info:?}");
        let major = info.supported_versions.iter().filter_map(|version| version.split('.').next()?.parse::<u32>().ok());
        ensure!(!info.supported_versions.is_empty() && major.max().is_some_and(|major| major < 2), "{info:?}");
        notify(rig, true, "")?;
    }
    Ok(())
}

fn the_csi_socket_serves_when_the_registration_socket_appears(rig: &mut Rig) -> Result<()> {
    rig.start_helper()?;
    ensure!(!rig.kubelet.registration_socket().exists() && !rig.kubelet.csi_socket().exists());
    rig.launch_frontend()?;
    rig.registration_socket()?;
    // The kubelet calls it immediately.
    let info = rig.csi()?.get_plugin_info(Default::default())?;
    ensure!(info.name == "bulkhead.csi.local", "{info:?}");
    rig.csi()?.node_get_info(Default::default())?;
    Ok(())
}

fn the_kubelet_sees_nothing_of_restarts(rig: &mut Rig) -> Result<()> {
    let inode = |rig: &Rig| -> Result<u64> { Ok(fs::symlink_metadata(rig.registration_socket()?)?.ino()) };
    let before = inode(rig)?;
    rig.restart_frontend()?;
    get_info(rig)?;
    rig.restart_helper()?;
    get_info(rig)?;
    ensure!(inode(rig)? == before, "the kubelet would register the plugin anew");
    Ok(())
}

fn a_refusal_is_logged_and_asked_again(rig: &mut Rig) -> Result<()> {
    notify(rig, false, "a plugin of that name is registered already")?;
    let frontend = rig.running_frontend()?;
    frontend.has_logged("a plugin of that name is registered already")?;
    frontend.check_alive()?;
    get_info(rig)?;
    notify(rig, true, "")
}

fn the_registry_holds_one_socket_and_no_half_made_one(rig: &mut Rig) -> Result<()> {
    for _ in 0..2 {
        let socket = rig.registration_socket()?;
        let names: Vec<_> = fs::read_dir(rig.kubelet.root().join("plugins_registry"))?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        ensure!(names == [socket], "{names:?}");
        rig.restart()?;
    }
    Ok(())
}

fn a_socket_that_was_removed_comes_back_with_the_next_start(rig: &mut Rig) -> Result<()> {
    fs::remove_file(rig.registration_socket()?)?;
    fs::remove_file(rig.kubelet.csi_socket())?;
    rig.kill_frontend()?;
    rig.restart_helper()?;
    rig.start_frontend()?;
    let info = get_info(rig)?;
    ensure!(info.name == "bulkhead.csi.local", "{info:?}");
    Ok(())
}

/// Both processes go on, and the kubelet reaches them again within a minute.
fn a_registration_socket_that_was_removed_comes_back_by_itself(rig: &mut Rig) -> Result<()> {
    let path = rig.registration_socket()?;
    fs::remove_file(&path)?;
    is_back(rig, || get_info(rig).map(drop))
}

/// A frontend that loses one soon after it was given it believes in a second frontend, and ends.
fn a_socket_that_was_removed_comes_back_by_itself(rig: &mut Rig) -> Result<()> {
    sleep(Duration::from_secs(61));
    fs::remove_file(rig.kubelet.csi_socket())?;
    is_back(rig, || rig.csi()?.node_get_info(Default::default()).map(drop).map_err(Into::into))?;
    rig.running_frontend()?.check_alive()
}

fn is_back(rig: &Rig, works: impl FnMut() -> Result<()>) -> Result<()> {
    rig.eventually(60, works)
}
