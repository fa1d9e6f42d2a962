//! Configurations that can be read but make no sense.

use std::collections::BTreeSet;

use bulkhead_protocol::{MAX_POOLS, MAX_PUBLISH_DIRECTORIES};

use super::Config;
use crate::start::privileges::Unprivileged;

/// The longest path of a unix socket (`sun_path`, unix(7)), less what hides the name while the socket is made.
const MAX_SOCKET_PATH: usize = 106;

impl Config {
    /// Refuses what can only be a mistake.
    ///
    /// # Errors
    /// One sentence on the first mistake.
    pub fn refuse_doubtful(&self, _: &Unprivileged) -> Result<(), String> {
        let mut sockets = [&self.csi_socket, &self.registration_socket].into_iter().flatten();
        let doubts = [
            (!self.given.contains("--allow-uid"), "--allow-uid is missing: which user does the frontend run as?"),
            (
                matches!(self.allowed_uid, 0 | 65534 | u32::MAX),
                "--allow-uid: neither root nor the shared user nobody is accepted; give the frontend a user of its own",
            ),
            (
                !self.given.contains("--mounter-uid") && self.pools.iter().any(|pool| pool.filesystems > 0),
                "--mounter-uid is missing: as which user are filesystems in images to be mounted?",
            ),
            (
                self.given.contains("--mounter-uid")
                    && (matches!(self.mounter_uid, 0 | 65534 | u32::MAX) || self.mounter_uid == self.allowed_uid),
                "--mounter-uid: neither root, nor the shared user nobody, nor the frontend's user is accepted; give it a user of its own",
            ),
            (self.pools.is_empty(), "no pool is given: --pool NAME=DIR"),
            (self.pools.len() > MAX_POOLS, "one helper serves at most 16 pools"),
            (self.publish.is_empty(), "no publish directory is given: --kubelet-dir DIR or --publish-dir NAME=DIR"),
            (
                self.publish.len() > MAX_PUBLISH_DIRECTORIES,
                "one helper serves at most 16 publish directories, and --kubelet-dir counts as two",
            ),
            (repeated(self.pools.iter().map(|pool| pool.name.as_str())), "two pools have the same name"),
            (repeated(self.pools.iter().map(|pool| &pool.directory)), "two pools have the same directory"),
            (
                repeated(self.publish.iter().map(|directory| directory.name.as_str())),
                "two publish directories have the same name",
            ),
            (
                sockets.any(|path| path.as_os_str().len() > MAX_SOCKET_PATH),
                "a socket's path is longer than 106 bytes, which is the limit for unix sockets",
            ),
        ];
        doubts.iter().find(|(doubtful, _)| *doubtful).map_or(Ok(()), |(_, complaint)| Err((*complaint).to_owned()))
    }
}

fn repeated<T: Ord>(mut values: impl Iterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    !values.all(|value| seen.insert(value))
}
