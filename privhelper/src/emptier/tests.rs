use rustix::fs::Mode;

use super::*;
use crate::sys::walk;

#[test]
fn a_search_among_names_that_a_pod_anticipated_ends_with_its_turn() {
    let everywhere = walk::open_at_start(&std::env::temp_dir(), DIRECTORY).expect("a directory");
    let own = format!("bulkhead-emptier-{}", std::process::id());
    // The emptier's next names are 1 to 8.
    for below in (1..=8).map(|name| name.to_string()).chain(["deep/d".to_owned()]) {
        walk::make_directories(everywhere.as_fd(), &format!("{own}/{below}"), Mode::RWXU).expect("a directory");
    }
    let top = file::open(&everywhere, &*own, DIRECTORY).expect("the top");
    let deep = file::open(&top, "deep", DIRECTORY).expect("a directory that is too deep");
    let now = Instant::now();
    let (mut moved, mut tops) = (0, Tops::new());
    let mut turn = |begun: Option<Instant>| {
        let begun = begun.expect("a moment");
        let mut emptying = Emptying { moved: &mut moved, begun, rested: now, failed: None, tops: &mut tops };
        let result = emptying.move_up(&top, &deep, c"d");
        (result, moved)
    };
    assert_eq!(turn(now.checked_sub(PATIENCE.saturating_mul(2))), (Err(SysError::of(LONG)), 1));
    // The next turn goes on with the names that have not been tried yet.
    assert_eq!(turn(now.checked_add(PATIENCE)), (Ok(()), 9));
    assert_eq!(file::status_at(&top, "9").map(|status| status.file_type), Ok(FileType::Directory));
    for name in (1..=9).map(|name| name.to_string()).chain(["deep".to_owned()]) {
        file::remove_directory(&top, &*name).expect("an empty directory");
    }
    file::remove_directory(everywhere, &*own).expect("nothing is left");
}
