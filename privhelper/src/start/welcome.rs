//! The answer to a hello, which is the same for every connection.

use std::path::PathBuf;

use bulkhead_protocol::{Pool, PublishDirectory, Text, UpTo, Welcome};

use super::config::Config;
use super::refusal::{Refusal, Why};
use crate::state::{self, State};

/// Returns what every frontend receives first.
///
/// # Errors
/// A sentence when names and paths are too long for one packet.
pub fn welcome(config: &Config, state: &State) -> Result<Welcome, Refusal> {
    let publish: Vec<_> = state
        .publish_directories
        .iter()
        .map(|directory| PublishDirectory { name: directory.name.clone(), host_path: directory.host_path.clone() })
        .collect();
    let pools: Vec<_> = state.pools.iter().map(|served| pool(served)).collect();
    let is_long = publish.iter().any(|directory| directory.host_path.as_str().len() >= Text::MAX_LENGTH);
    let path = |path: &Option<PathBuf>| path.iter().map(|path| path.to_string_lossy()).collect::<String>();
    let welcome = Welcome {
        version: bulkhead_protocol::HIGHEST_VERSION,
        release: Text::new(env!("CARGO_PKG_VERSION")),
        driver: config.driver.clone(),
        csi_socket: Text::new(path(&config.csi_socket)),
        registers: config.registration_socket.is_some(),
        publish_directories: UpTo::try_from(publish)
            .map_err(|error| Why::Configuration.because(format!("publish directories: {error}")))?,
        pools: UpTo::try_from(pools).map_err(|error| Why::Configuration.because(format!("pools: {error}")))?,
    };
    let encoded = bulkhead_protocol::encode(&Ok::<_, bulkhead_protocol::Error>(&welcome));
    if is_long || encoded.is_err() {
        return Err(Why::Configuration.because(
            "the names and paths of pools and publish directories are too long for one packet; shorten them",
        ));
    }
    Ok(welcome)
}

fn pool(pool: &state::Pool) -> Pool {
    let filesystem = pool.served().map(|served| served.filesystem.kind()).unwrap_or_default();
    Pool { name: pool.config.name.clone(), quota: pool.config.quota, filesystem: Text::new(filesystem) }
}
