//! The command line of `prepare`.

use std::path::{Path, PathBuf};

use bulkhead_privhelper::start::config::{absolute, name};
use bulkhead_protocol::PoolName;

use super::rule::{Rule, sizes};

/// What stands for a number in a pattern of names.
const NUMBER: &str = "{n}";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    /// Which disks.
    pub rule: Rule,
    /// How their pools are called.
    pub names: Names,
    /// The directory that has the pools' directories.
    pub directory: PathBuf,
    /// Pools that get another disk.
    pub replaced: Vec<PoolName>,
    /// The file in which mounts are noted.
    pub fstab: PathBuf,
    /// Where a container has the root of its host.
    pub host: Option<PathBuf>,
    /// Whether anything is to be changed.
    pub writes: bool,
    /// Whether programs are to read what is printed.
    pub json: bool,
}

/// A name, or a pattern of names with a number.
#[derive(Debug, PartialEq, Eq)]
pub struct Names(String);

impl Names {
    fn parse(text: &str) -> Result<Self, String> {
        name::<PoolName>(&text.replacen(NUMBER, "1000", 1))?;
        Ok(Self(text.to_owned()))
    }

    /// The names in their order.
    pub fn all(&self) -> impl Iterator<Item = PoolName> {
        let last = if self.are_many() { 1000 } else { 1 };
        (1..=last).filter_map(|number: u32| self.0.replacen(NUMBER, &number.to_string(), 1).parse().ok())
    }

    /// Whether there is more than one.
    pub fn are_many(&self) -> bool {
        self.0.contains(NUMBER)
    }
}

/// Reads the command line.
///
/// # Errors
/// A sentence on what is wrong with it.
pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        rule: Rule::default(),
        names: Names("disk-{n}".to_owned()),
        directory: "/srv/bulkhead".into(),
        replaced: Vec::new(),
        fstab: "/etc/fstab".into(),
        host: None,
        writes: false,
        json: false,
    };
    while let Some(argument) = arguments.next() {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (argument, None),
        };
        let mut value = || value.clone().or_else(|| arguments.next()).filter(|value| !value.is_empty());
        let mut needed = || value().ok_or_else(|| format!("{flag}: its value is missing; see --help"));
        let told = |complaint: String| format!("{flag}: {complaint}");
        match flag.as_str() {
            "--size" if options.rule.sizes.is_some() => return Err("--size is given twice".to_owned()),
            "--size" => options.rule.sizes = Some(sizes(&needed()?).map_err(told)?),
            "--model" => options.rule.models.push(needed()?),
            "--path" => options.rule.paths.push(needed()?),
            "--type" => options.rule.types.push(needed()?),
            "--name" => options.names = Names::parse(&needed()?).map_err(told)?,
            "--directory" => options.directory = plain(&needed()?).map_err(told)?,
            "--replace" => options.replaced.push(name(&needed()?).map_err(told)?),
            "--fstab" => options.fstab = absolute(&needed()?).map_err(told)?,
            "--host" => options.host = Some(absolute(&needed()?).map_err(told)?),
            "--yes" => options.writes = true,
            "--json" => options.json = true,
            _ => return Err(format!("unknown argument {flag:?}; see --help")),
        }
    }
    if options.rule.is_empty() {
        return Err("say which disks are meant, by at least one of --size, --model and --path; see --help".to_owned());
    }
    Ok(options)
}

/// A path that can stand in a line of fstab as it is.
fn plain(text: &str) -> Result<PathBuf, String> {
    let path = absolute(text)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte);
    if text.bytes().all(is_plain) {
        Ok(path)
    } else {
        Err(format!("expected a path of letters, digits, '-', '_' and '.', not {text:?}"))
    }
}

impl Options {
    /// Where a pool is mounted.
    pub fn directory_of(&self, name: &PoolName) -> PathBuf {
        self.directory.join(Path::new(name.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Options, String> {
        parse(arguments.iter().map(|&argument| argument.to_owned()))
    }

    #[test]
    fn nothing_is_changed_unless_it_is_said() {
        let options = parsed(&["--size", "1T.."]).expect("options");
        assert!(!options.writes && !options.json && options.host.is_none());
        assert_eq!(options.fstab, Path::new("/etc/fstab"));
        assert_eq!(options.directory_of(&"disk-1".parse().expect("a name")), Path::new("/srv/bulkhead/disk-1"));
        let names: Vec<_> = options.names.all().take(2).map(|name| name.to_string()).collect();
        assert_eq!(names, ["disk-1", "disk-2"]);
        let options =
            parsed(&["--path=/dev/sd?", "--name", "fast", "--yes", "--type=loop", "--replace=a"]).expect("options");
        assert!(options.writes && !options.names.are_many());
        assert_eq!(options.names.all().count(), 1);
        assert_eq!(options.rule.types, ["loop"]);
    }

    #[test]
    fn what_is_wrong_with_an_argument_is_said() {
        for (arguments, part) in [
            (&[][..], "say which disks are meant"),
            (&["--yes", "--type", "disk"], "say which disks are meant"),
            (&["--size", "1T"], "--size: expected MIN..MAX"),
            (&["--size", "1T..", "--size", "2T.."], "--size is given twice"),
            (&["--model"], "--model: its value is missing"),
            (&["--path="], "--path: its value is missing"),
            (&["--name", "Disk-{n}"], "--name: \"Disk-1000\" is not a valid name"),
            (&["--name", "a{n}{n}"], "--name: \"a1000{n}\" is not a valid name"),
            (&["--directory", "srv"], "--directory: expected an absolute path"),
            (&["--host", "host"], "--host: expected an absolute path"),
            (&["--directory", "/srv/a b"], "--directory: expected a path of letters"),
            (&["/dev/sdb"], "unknown argument \"/dev/sdb\""),
        ] {
            let complaint = parsed(arguments).expect_err(part);
            assert!(complaint.contains(part), "{arguments:?}: {complaint}");
        }
    }
}
