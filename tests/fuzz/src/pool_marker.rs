//! The marker of a pool, which says which pool is on a disk.

use std::sync::LazyLock;

use bulkhead_privhelper::start::config::{self, Command};
use bulkhead_privhelper::start::judge;
use bulkhead_privhelper::start::marker::{self, HEADER};

/// The pool as which each marker is looked at.
static CONFIG: LazyLock<config::Config> = LazyLock::new(|| {
    let flags = ["--allow-uid=64103", "--pool=fast=/srv/fast", "--publish-dir=work=/srv/work"];
    match config::parse(flags.map(str::to_owned)) {
        Ok(Command::Serve(config)) => config,
        other => panic!("{other:?}"),
    }
});

/// What is accepted is of this layout and of no other pool, and is read again as it is written.
pub fn run(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    let pool = &CONFIG.pools[0];
    let Ok(marker) = judge::marker::check(&text, pool) else { return };
    assert_eq!(text.lines().next(), Some(HEADER));
    let name = text.lines().find_map(|line| line.strip_prefix("name "));
    assert!(name.is_none_or(|name| name == "fast"));
    assert_eq!(judge::marker::uuid(&text), Some(marker.uuid.as_str()));
    // Ends of lines may be those of another system, though nobody writes such.
    if !marker.uuid.contains('\r') {
        assert_eq!(judge::marker::check(&marker::text(&marker, Some(&pool.name)), pool), Ok(marker));
    }
}
