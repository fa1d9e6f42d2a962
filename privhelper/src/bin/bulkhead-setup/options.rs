//! The command line of `requota`.

use std::path::PathBuf;

use bulkhead_privhelper::start::config::{absolute, project_ids};

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    /// The pool.
    pub pool: PathBuf,
    /// Other pools on the same filesystem, besides those that are found.
    pub others: Vec<PathBuf>,
    /// The first and the last project id for volumes.
    pub ids: (u32, u32),
    /// Whether anything is to be changed.
    pub writes: bool,
    /// Whether volumes may be in use meanwhile.
    pub while_in_use: bool,
}

/// Reads the command line.
///
/// # Errors
/// A sentence on what is wrong with it.
pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let (mut pool, mut others, mut ids) = (None, Vec::new(), (100_000, 999_999));
    let (mut writes, mut while_in_use) = (true, false);
    while let Some(argument) = arguments.next() {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (argument, None),
        };
        let mut value = || value.clone().or_else(|| arguments.next()).unwrap_or_default();
        match flag.as_str() {
            "--dry-run" => writes = false,
            "--while-in-use" => while_in_use = true,
            "--pool" if pool.is_some() => return Err("--pool is given twice; one pool at a time".to_owned()),
            "--pool" => pool = Some(absolute(&value()).map_err(|complaint| format!("--pool: {complaint}"))?),
            "--other-pool" => {
                others.push(absolute(&value()).map_err(|complaint| format!("--other-pool: {complaint}"))?);
            }
            "--project-ids" => {
                ids = project_ids(&value()).map_err(|complaint| format!("--project-ids: {complaint}"))?;
            }
            _ => return Err(format!("unknown argument {flag:?}; see --help")),
        }
    }
    let pool = pool.ok_or("--pool DIR is missing; see --help")?;
    Ok(Options { pool, others, ids, writes, while_in_use })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Options, String> {
        parse(arguments.iter().map(|&argument| argument.to_owned()))
    }

    #[test]
    fn the_range_is_that_of_the_helper_unless_one_is_given() {
        let Options { pool, ids, writes, while_in_use, .. } = parsed(&["--pool", "/srv/pool"]).expect("options");
        assert_eq!((pool, ids, writes), ("/srv/pool".into(), (100_000, 999_999), true));
        assert!(!while_in_use, "limits would be lifted while somebody writes");
        assert!(include_str!("../../start/help.txt").contains("(default 100000-999999,"));
        let given = parsed(&["--dry-run", "--pool=/srv/pool", "--project-ids", "5-7"]).expect("options");
        assert_eq!((given.ids, given.writes), ((5, 7), false));
        let others = ["--other-pool", "/a", "--pool=/srv/pool", "--other-pool=/b", "--while-in-use"];
        let given = parsed(&others).expect("options");
        assert_eq!((given.others, given.while_in_use), (vec!["/a".into(), "/b".into()], true));
    }

    #[test]
    fn what_is_wrong_with_an_argument_is_said() {
        for (arguments, part) in [
            (&[][..], "--pool DIR is missing"),
            (&["--pool", "pool"], "absolute path"),
            (&["--pool", "/a", "--pool", "/b"], "one pool at a time"),
            (&["--pool", "/a", "--project-ids", "0-1"], "FIRST-LAST"),
            (&["--pool", "/a", "--other-pool", "b"], "--other-pool: expected an absolute path"),
            (&["/a"], "unknown argument \"/a\""),
        ] {
            let complaint = parsed(arguments).expect_err(part);
            assert!(complaint.contains(part), "{arguments:?}: {complaint}");
        }
    }
}
