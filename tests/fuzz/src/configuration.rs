//! The helper's configuration file.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd as _;
use std::path::{Component, Path};

use bulkhead_privhelper::start::config::{self, Command, Config};
use bulkhead_privhelper::start::privileges;

/// What is accepted makes sense.
pub fn run(content: &[u8]) {
    let file = crate::file(content);
    match config::parse([format!("--config=/proc/self/fd/{}", file.as_raw_fd())]) {
        Ok(Command::Serve(config)) => {
            let unprivileged = privileges::give_up().expect("lowering needs no privilege");
            match config.refuse_doubtful(&unprivileged) {
                Ok(()) => makes_sense(&config),
                Err(complaint) => assert!(!complaint.is_empty()),
            }
        }
        Ok(Command::Print(text)) => panic!("a file asks for {text:?}"),
        Err(complaint) => assert!(!complaint.is_empty()),
    }
}

fn makes_sense(config: &Config) {
    let Config { pools, publish, allowed_uid, mounter_uid, project_ids: (first, last), limits, .. } = config;
    let directories = pools.iter().map(|pool| &pool.directory).chain(publish.iter().map(|directory| &directory.path));
    let sockets = [&config.socket, &config.csi_socket, &config.registration_socket, &config.kubelet];
    for path in directories.chain(sockets.into_iter().flatten()) {
        assert!(is_absolute(path), "{path:?}");
    }
    assert!((1..=16).contains(&pools.len()) && (1..=16).contains(&publish.len()));
    let names: BTreeSet<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
    let places: BTreeSet<_> = pools.iter().map(|pool| &pool.directory).collect();
    assert!(names.len() == pools.len() && places.len() == pools.len());
    let titles: BTreeSet<_> = publish.iter().map(|directory| directory.name.as_str()).collect();
    assert_eq!(titles.len(), publish.len());
    assert!(![0, 65534, u32::MAX].contains(allowed_uid));
    assert!(*mounter_uid != 0 && (mounter_uid != allowed_uid));
    assert!(pools.iter().all(|pool| pool.filesystems == 0) || *mounter_uid != u32::MAX);
    assert!(pools.iter().all(|pool| (1..=1_000_000).contains(&pool.overcommit_permille)));
    // The kubelet's own begin at 1048577.
    assert!(1 <= *first && first <= last && *last <= 1_048_575);
    assert!([limits.volumes, limits.targets].iter().all(|number| (1..=1_000_000).contains(number)));
}

fn is_absolute(path: &Path) -> bool {
    let mut components = path.components();
    components.next() == Some(Component::RootDir)
        && components.clone().next().is_some()
        && components.all(|part| matches!(part, Component::Normal(_)))
}
