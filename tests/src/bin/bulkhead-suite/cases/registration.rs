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
use bulkhead_tests::stand::Stand;
use bulkhead_tests::wait;

cases! {
    the_kubelet_learns_what_it_needs,
    the_csi_socket_serves_when_the_registration_socket_appears: Bare,
    the_kubelet_sees_nothing_of_restarts,
    a_refusal_is_logged_and_asked_again,
    the_registry_holds_one_socket_and_no_half_made_one,
    a_socket_that_was_removed_comes_back_with_the_next_start,
    a_socket_that_was_removed_comes_back_by_itself: Long,
    a_registration_socket_that_was_removed_comes_back_by_itself,
}

fn get_info(stand: &Stand) -> Result<PluginInfo> {
    let client = CsiClient::connect(&stand.registration_socket()?)?;
    let mut registration = RegistrationClient::new(client.channel());
    Ok(client.run(registration.get_info(InfoRequest {}))?.into_inner())
}

fn notify(stand: &Stand, plugin_registered: bool, error: &str) -> Result<()> {
    let client = CsiClient::connect(&stand.registration_socket()?)?;
    let mut registration = RegistrationClient::new(client.channel());
    let status = RegistrationStatus { plugin_registered, error: error.to_owned() };
    client.run(registration.notify_registration_status(status))?;
    Ok(())
}

fn the_kubelet_learns_what_it_needs(stand: &mut Stand) -> Result<()> {
    // As after each restart of the kubelet, which may ask any number of times.
    for _ in 0..3 {
        let info = get_info(stand)?;
        ensure!(info.r#type == "CSIPlugin" && info.name == "bulkhead.csi.local", "{info:?}");
        ensure!(info.endpoint == stand.kubelet.csi_socket().to_string_lossy(), "{info:?}");
        let major = info.supported_versions.iter().filter_map(|version| version.split('.').next()?.parse::<u32>().ok());
        ensure!(!info.supported_versions.is_empty() && major.max().is_some_and(|major| major < 2), "{info:?}");
        notify(stand, true, "")?;
    }
    Ok(())
}

fn the_csi_socket_serves_when_the_registration_socket_appears(stand: &mut Stand) -> Result<()> {
    stand.add_pool("default")?;
    stand.start_helper()?;
    ensure!(!stand.kubelet.registration_socket().exists() && !stand.kubelet.csi_socket().exists());
    stand.launch_frontend()?;
    stand.registration_socket()?;
    // The kubelet calls it immediately.
    let info = stand.csi()?.get_plugin_info(Default::default())?;
    ensure!(info.name == "bulkhead.csi.local", "{info:?}");
    stand.csi()?.node_get_info(Default::default())?;
    Ok(())
}

fn the_kubelet_sees_nothing_of_restarts(stand: &mut Stand) -> Result<()> {
    let inode = |stand: &Stand| -> Result<u64> { Ok(fs::symlink_metadata(stand.registration_socket()?)?.ino()) };
    let before = inode(stand)?;
    stand.restart_frontend()?;
    get_info(stand)?;
    stand.restart_helper()?;
    get_info(stand)?;
    ensure!(inode(stand)? == before, "the kubelet would register the plugin anew");
    Ok(())
}

fn a_refusal_is_logged_and_asked_again(stand: &mut Stand) -> Result<()> {
    notify(stand, false, "a plugin of that name is registered already")?;
    let frontend = stand.running_frontend()?;
    frontend.check_log(|log| {
        ensure!(log.contains("a plugin of that name is registered already"), "the log is silent");
        Ok(())
    })?;
    frontend.check_alive()?;
    get_info(stand)?;
    notify(stand, true, "")
}

fn the_registry_holds_one_socket_and_no_half_made_one(stand: &mut Stand) -> Result<()> {
    for _ in 0..2 {
        let socket = stand.registration_socket()?;
        let names: Vec<_> = fs::read_dir(stand.kubelet.root().join("plugins_registry"))?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        ensure!(names == [socket], "{names:?}");
        stand.restart_helper()?;
        stand.restart_frontend()?;
    }
    Ok(())
}

fn a_socket_that_was_removed_comes_back_with_the_next_start(stand: &mut Stand) -> Result<()> {
    fs::remove_file(stand.registration_socket()?)?;
    fs::remove_file(stand.kubelet.csi_socket())?;
    stand.kill_frontend()?;
    stand.restart_helper()?;
    stand.start_frontend()?;
    let info = get_info(stand)?;
    ensure!(info.name == "bulkhead.csi.local", "{info:?}");
    Ok(())
}

/// Both processes go on, and the kubelet reaches them again within a minute.
fn a_registration_socket_that_was_removed_comes_back_by_itself(stand: &mut Stand) -> Result<()> {
    let path = stand.registration_socket()?;
    fs::remove_file(&path)?;
    is_back(stand, || get_info(stand).map(drop))
}

/// A frontend that loses one soon after it was given it believes in a second frontend, and ends.
fn a_socket_that_was_removed_comes_back_by_itself(stand: &mut Stand) -> Result<()> {
    sleep(Duration::from_secs(61));
    fs::remove_file(stand.kubelet.csi_socket())?;
    is_back(stand, || stand.csi()?.node_get_info(Default::default()).map(drop).map_err(Into::into))?;
    stand.running_frontend()?.check_alive()
}

fn is_back(stand: &Stand, works: impl FnMut() -> Result<()>) -> Result<()> {
    wait::until(stand.patience(Duration::from_secs(60)), works)
}
