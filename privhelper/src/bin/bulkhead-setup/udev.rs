//! `install-udev-rule`: has udev leave pods' devices alone on a node where nothing but containers is installed.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use bulkhead_privhelper::log::shown;
use bulkhead_privhelper::start::config::absolute;
use bulkhead_privhelper::{Called, SysError, file, walk};
use rustix::fs::{Mode, OFlags};

use crate::open_to_write;

const RULE: &str = include_str!("../../../../deploy/udev/59-bulkhead.rules");
const NAME: &str = "59-bulkhead.rules";
/// Not a name that udev reads.
const UNFINISHED: &str = ".59-bulkhead.new";
/// More than any rule of ours has.
const LONGEST: usize = 64 << 10;
/// Before an event udevd looks whether rules have changed, but only if it has not looked for three seconds.
const NOTICED_WITHIN: Duration = Duration::from_secs(3);

/// Installs the rule in the directory that is given. When this returns, udevd goes by it.
pub fn install(mut arguments: impl Iterator<Item = String>) -> Result<bool, String> {
    let (Some(directory), None) = (arguments.next(), arguments.next()) else {
        return Err("install-udev-rule: expected one directory, such as /run/udev/rules.d; see --help".to_owned());
    };
    let path = absolute(&directory).map_err(|complaint| format!("install-udev-rule: {complaint}"))?;
    let failed = |error: SysError| {
        format!(
            "cannot write the udev rule into {}: {error}; if the node is not to have it so, set udevRule.enabled=false \
             in the chart",
            shown(&path)
        )
    };
    let is_new = open_to_write(&path).and_then(|directory| place(&directory)).map_err(failed)?;
    println!("{NAME} {} {}", if is_new { "is now in" } else { "is already in" }, shown(&path));
    if is_new {
        sleep(NOTICED_WITHIN);
    }
    Ok(true)
}

/// Puts the rule there in one step, unless it is there; whether it was not.
fn place(directory: &OwnedFd) -> Result<bool, SysError> {
    let found = file::open(directory, NAME, OFlags::RDONLY).and_then(|found| file::read_up_to(found, LONGEST));
    if found.is_ok_and(|text| text == RULE.as_bytes()) {
        return Ok(false);
    }
    // Left by one that was interrupted.
    let _ = file::remove(directory, UNFINISHED);
    let rule = file::create(directory, UNFINISHED, Mode::from_raw_mode(0o644))?;
    walk::write_at(&rule, RULE.as_bytes(), 0)?;
    file::sync(&rule)?;
    rustix::fs::renameat(directory, UNFINISHED, directory, NAME).by_with("renameat", Path::new(NAME))?;
    Ok(true)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test's own directory")]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_rule_is_placed_whole_and_again_only_when_it_has_changed() {
        let path = std::env::temp_dir().join(format!("bulkhead-udev-{}", std::process::id()));
        fs::create_dir(&path).expect("a directory");
        let directory = open_to_write(&path).expect("the directory");
        let rule = path.join(NAME);
        let inode = || fs::metadata(&rule).expect("the rule").ino();
        let place = || place(&directory).map_err(|error| error.to_string());
        let first = place();
        let placed = inode();
        let again = (place(), inode() == placed);
        // One of an earlier release, and what an interrupted run has left.
        fs::write(&rule, "# an earlier rule\n").expect("a rule");
        fs::write(path.join(UNFINISHED), "# half of").expect("a file");
        let replaced = (place(), fs::read_to_string(&rule).expect("the rule"));
        // What a link leads to is not written to.
        let other = path.join("other");
        fs::write(&other, "other").expect("a file");
        fs::remove_file(&rule).expect("an end");
        std::os::unix::fs::symlink("other", &rule).expect("a link");
        let linked = (place(), fs::read_to_string(&other).expect("the other"));
        let names = fs::read_dir(&path).expect("names").count();
        fs::remove_dir_all(&path).expect("an end");
        assert_eq!((first, again), (Ok(true), (Ok(false), true)));
        assert_eq!(replaced, (Ok(true), RULE.to_owned()));
        assert_eq!(linked, (Ok(true), "other".to_owned()));
        assert_eq!(names, 2, "something is left over");
    }

    #[test]
    fn one_directory_is_needed_and_a_failure_says_what_to_do() {
        let told = |arguments: &[&str]| install(arguments.iter().map(|&argument| argument.to_owned())).unwrap_err();
        assert!(told(&[]).contains("expected one directory"));
        assert!(told(&["/a", "/b"]).contains("expected one directory"));
        assert!(told(&["rules.d"]).contains("absolute path"));
        let missing = told(&["/nonexistent/rules.d"]);
        assert!(missing.contains("/nonexistent/rules.d") && missing.contains("udevRule.enabled=false"), "{missing}");
    }
}
