//! The command line and the configuration file, which holds the same flags, one a line.

use std::path::{Path, PathBuf};

use bulkhead_protocol::{DriverName, MAX_POOLS, MAX_PUBLISH_DIRECTORIES, PoolName, PublishName, QuotaMode};

use crate::sys::seccomp::OnViolation;

/// What `--help` prints.
pub const HELP: &str = "\
The privileged half of Bulkhead: mounts, loop devices and quotas for the frontend, and nothing else.

usage: bulkhead-privhelper --pool NAME=DIR[,quota=none][,overcommit=R][,reserve=BYTES] ...
                           --socket PATH --allow-uid UID [--kubelet-dir DIR] [--publish-dir NAME=DIR ...]
                           [--driver-name NAME] [--csi-socket PATH] [--registration-socket PATH]
                           [--project-ids FIRST-LAST] [--seccomp=kill|log] [--config FILE]
       bulkhead-privhelper --init-pool [NAME=]DIR ...
       bulkhead-privhelper --check (the flags above)

  --pool NAME=DIR[,...]       serve the pool in DIR: XFS or ext4 mounted with project quotas
             quota=none       serve it without quotas: sizes are not enforced
             overcommit=R     promise up to R times the room there is (default 1.0)
             reserve=BYTES    leave so many bytes unpromised (default 0)
  --socket PATH               where the frontend connects; ignored when systemd passes the socket
  --allow-uid UID             the only user who may; neither 0 nor 65534
  --kubelet-dir DIR           publish at the kubelet's own targets, in four subtrees of DIR only
  --publish-dir NAME=DIR      publish at any target below DIR
  --driver-name NAME          CSI plugin name (default bulkhead.csi.local)
  --csi-socket PATH           CSI socket (default DIR/plugins/<driver>/csi.sock of --kubelet-dir)
  --registration-socket PATH  registration socket (default DIR/plugins_registry/<driver>-reg.sock)
  --project-ids FIRST-LAST    project ids that volumes get (default 100000-999999)
  --seccomp=kill|log          on a system call that is not allowed (default kill)
  --config FILE               read more flags from FILE, one a line; # begins a comment
  --init-pool [NAME=]DIR      mark DIR as a pool, and do nothing else
  --check                     test kernel, pools, propagation and capabilities, change nothing; exit 0 or 1
  --help, --version
";

/// What to do.
#[derive(Debug)]
pub enum Command {
    /// Serve requests.
    Serve(Config),
    /// Only test whether serving would work.
    Check(Config),
    /// Mark directories as pools.
    InitPools(Vec<(Option<PoolName>, PathBuf)>),
    /// Print this and stop.
    Print(String),
}

/// How to serve.
#[derive(Debug)]
pub struct Config {
    /// Pools to serve, at least one.
    pub pools: Vec<PoolConfig>,
    /// Where the frontend connects, unless systemd passes the socket.
    pub socket: Option<PathBuf>,
    /// The only user who may connect.
    pub allowed_uid: u32,
    /// The kubelet's directory.
    pub kubelet: Option<PathBuf>,
    /// Other directories to publish in.
    pub publish: Vec<(PublishName, PathBuf)>,
    /// CSI plugin name.
    pub driver: DriverName,
    /// The CSI socket to make for the frontend.
    pub csi_socket: Option<PathBuf>,
    /// The registration socket to make for the frontend.
    pub registration_socket: Option<PathBuf>,
    /// First and last project id for volumes.
    pub project_ids: (u32, u32),
    /// What a forbidden system call does.
    pub on_violation: OnViolation,
}

/// One pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Its name in requests.
    pub name: PoolName,
    /// Where it is.
    pub directory: PathBuf,
    /// Whether sizes are to be enforced.
    pub quota: QuotaMode,
    /// How much of the room is promised, in thousandths.
    pub overcommit_permille: u64,
    /// How many bytes are kept unpromised.
    pub reserve: u64,
}

/// What is wrong with the configuration, in one sentence.
pub type Complaint = String;

#[derive(Default)]
struct Flags {
    check: bool,
    print: Option<String>,
    init: Vec<(Option<PoolName>, PathBuf)>,
    pools: Vec<PoolConfig>,
    socket: Option<PathBuf>,
    allowed_uid: Option<u32>,
    kubelet: Option<PathBuf>,
    publish: Vec<(PublishName, PathBuf)>,
    driver: Option<DriverName>,
    csi_socket: Option<PathBuf>,
    registration_socket: Option<PathBuf>,
    project_ids: Option<(u32, u32)>,
    on_violation: Option<OnViolation>,
}

/// Reads the command line (without the program's name) and the files it names.
pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Command, Complaint> {
    let mut flags = Flags::default();
    flags.read(&mut arguments.into_iter(), true)?;
    flags.finish()
}

impl Flags {
    fn read(&mut self, arguments: &mut dyn Iterator<Item = String>, files: bool) -> Result<(), Complaint> {
        while let Some(argument) = arguments.next() {
            let (flag, mut attached) = match argument.split_once('=') {
                Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
                None => (argument, None),
            };
            match flag.as_str() {
                "--check" => self.check = true,
                "--help" | "-h" => self.print = Some(HELP.to_owned()),
                "--version" => {
                    self.print = Some(concat!("bulkhead-privhelper ", env!("CARGO_PKG_VERSION"), "\n").to_owned())
                }
                _ => {
                    let value = attached.take().or_else(|| arguments.next());
                    let value =
                        value.filter(|value| !value.is_empty()).ok_or(format!("{flag} wants a value; see --help"))?;
                    self.set(&flag, &value, files)?;
                }
            }
            if attached.is_some() {
                return Err(format!("{flag} takes no value"));
            }
        }
        Ok(())
    }

    fn set(&mut self, flag: &str, value: &str, files: bool) -> Result<(), Complaint> {
        match flag {
            "--pool" => self.pools.push(pool(value)?),
            "--init-pool" => self.init.push(match value.split_once('=') {
                Some((name, directory)) => (Some(named(name, flag)?), absolute(directory, flag)?),
                None => (None, absolute(value, flag)?),
            }),
            "--publish-dir" => {
                let (name, directory) = value.split_once('=').ok_or(format!("{flag} wants NAME=DIR, not {value:?}"))?;
                self.publish.push((named(name, flag)?, absolute(directory, flag)?));
            }
            "--socket" => once(&mut self.socket, flag, absolute(value, flag)?)?,
            "--kubelet-dir" => once(&mut self.kubelet, flag, absolute(value, flag)?)?,
            "--csi-socket" => once(&mut self.csi_socket, flag, absolute(value, flag)?)?,
            "--registration-socket" => once(&mut self.registration_socket, flag, absolute(value, flag)?)?,
            "--driver-name" => once(&mut self.driver, flag, named(value, flag)?)?,
            "--allow-uid" => {
                let uid = value.parse().ok().filter(|uid| *uid != u32::MAX);
                once(
                    &mut self.allowed_uid,
                    flag,
                    uid.ok_or(format!("{flag} wants a numeric user id, not {value:?}"))?,
                )?;
            }
            "--project-ids" => {
                let range =
                    value.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
                let range = range.filter(|(first, last): &(u32, u32)| *first >= 1 && first <= last);
                once(
                    &mut self.project_ids,
                    flag,
                    range.ok_or(format!("{flag} wants FIRST-LAST, both at least 1, not {value:?}"))?,
                )?;
            }
            "--seccomp" => {
                let action = match value {
                    "kill" => OnViolation::Kill,
                    "log" => OnViolation::Log,
                    _ => return Err(format!("{flag} is kill or log, not {value:?}")),
                };
                once(&mut self.on_violation, flag, action)?;
            }
            "--config" if files => self.read_file(value)?,
            "--config" => return Err("a configuration file cannot name another".to_owned()),
            _ => return Err(format!("unknown flag {flag:?}; see --help")),
        }
        Ok(())
    }

    fn read_file(&mut self, path: &str) -> Result<(), Complaint> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read --config {path}: {error}"))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let words = lines.flat_map(|line| match line.split_once(char::is_whitespace) {
            Some((flag, value)) => vec![flag.to_owned(), value.trim().to_owned()],
            None => vec![line.to_owned()],
        });
        self.read(&mut words.collect::<Vec<_>>().into_iter(), false).map_err(|complaint| format!("{path}: {complaint}"))
    }

    fn finish(self) -> Result<Command, Complaint> {
        if let Some(text) = self.print {
            return Ok(Command::Print(text));
        }
        if !self.init.is_empty() {
            return Ok(Command::InitPools(self.init));
        }
        let driver = match self.driver {
            Some(driver) => driver,
            None => named("bulkhead.csi.local", "--driver-name")?,
        };
        let below_kubelet = |path: String| self.kubelet.as_ref().map(|kubelet| kubelet.join(path));
        let config = Config {
            socket: self.socket,
            allowed_uid: self.allowed_uid.ok_or("--allow-uid is missing: which user does the frontend run as?")?,
            csi_socket: self.csi_socket.or_else(|| below_kubelet(format!("plugins/{driver}/csi.sock"))),
            registration_socket: self
                .registration_socket
                .or_else(|| below_kubelet(format!("plugins_registry/{driver}-reg.sock"))),
            pools: self.pools,
            kubelet: self.kubelet,
            publish: self.publish,
            driver,
            project_ids: self.project_ids.unwrap_or((100_000, 999_999)),
            on_violation: self.on_violation.unwrap_or(OnViolation::Kill),
        };
        config.refuse_doubtful()?;
        Ok(if self.check { Command::Check(config) } else { Command::Serve(config) })
    }
}

impl Config {
    fn refuse_doubtful(&self) -> Result<(), Complaint> {
        if matches!(self.allowed_uid, 0 | 65534) {
            return Err(format!(
                "--allow-uid {} is refused: root needs no helper, and nobody's id is shared; give the frontend a user of its own",
                self.allowed_uid
            ));
        }
        if self.pools.is_empty() {
            return Err("no pool is given: --pool NAME=DIR".to_owned());
        }
        if self.pools.len() > MAX_POOLS {
            return Err(format!("{} pools are given; one helper serves {MAX_POOLS} at most", self.pools.len()));
        }
        if self.kubelet.is_none() && self.publish.is_empty() {
            return Err("nowhere to publish: give --kubelet-dir DIR or --publish-dir NAME=DIR".to_owned());
        }
        if self.publish.len().saturating_add(2) > MAX_PUBLISH_DIRECTORIES {
            return Err(format!("{} publish directories are too many", self.publish.len()));
        }
        if let Some(name) = repeated(self.pools.iter().map(|pool| &pool.name)) {
            return Err(format!("two pools are called {name}"));
        }
        if let Some(directory) = repeated(self.pools.iter().map(|pool| &pool.directory)) {
            return Err(format!("two pools are in {}", directory.display()));
        }
        if let Some(name) = repeated(self.publish.iter().map(|(name, _)| name)) {
            return Err(format!("two publish directories are called {name}"));
        }
        if let Some((name, _)) = self.publish.iter().find(|(name, _)| name.as_str().starts_with("kubelet-")) {
            return Err(format!("publish directory {name}: names that begin with kubelet- are taken"));
        }
        for path in [&self.csi_socket, &self.registration_socket].into_iter().flatten() {
            if path.as_os_str().len() > 107 {
                return Err(format!(
                    "socket path {} is longer than 107 bytes, which unix sockets cannot have",
                    path.display()
                ));
            }
        }
        Ok(())
    }
}

fn repeated<T: PartialEq>(mut values: impl Iterator<Item = T> + Clone) -> Option<T> {
    while let Some(value) = values.next() {
        if values.clone().any(|other| other == value) {
            return Some(value);
        }
    }
    None
}

fn once<T>(slot: &mut Option<T>, flag: &str, value: T) -> Result<(), Complaint> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{flag} is given twice")),
    }
}

fn named<T: std::str::FromStr<Err = bulkhead_protocol::InvalidName>>(text: &str, flag: &str) -> Result<T, Complaint> {
    text.parse().map_err(|error| format!("{flag}: {text:?} is no name: {error}"))
}

fn absolute(text: &str, flag: &str) -> Result<PathBuf, Complaint> {
    use std::path::Component;
    let path = Path::new(text);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if plain && path.is_absolute() && path.parent().is_some() {
        Ok(path.components().collect())
    } else {
        Err(format!("{flag} wants an absolute path without '..' and not /, not {text:?}"))
    }
}

fn pool(value: &str) -> Result<PoolConfig, Complaint> {
    let wanted = || format!("--pool wants NAME=DIR[,quota=none][,overcommit=R][,reserve=BYTES], not {value:?}");
    let (name, rest) = value.split_once('=').ok_or_else(wanted)?;
    let mut parts = rest.split(',');
    let mut pool = PoolConfig {
        name: named(name, "--pool")?,
        directory: absolute(parts.next().ok_or_else(wanted)?, "--pool")?,
        quota: QuotaMode::Enforced,
        overcommit_permille: 1000,
        reserve: 0,
    };
    for part in parts {
        match part.split_once('=') {
            Some(("quota", "none")) => pool.quota = QuotaMode::None,
            Some(("overcommit", ratio)) => {
                pool.overcommit_permille =
                    permille(ratio).ok_or(format!("overcommit is a number from 0.001 to 1000, not {ratio:?}"))?;
            }
            Some(("reserve", bytes)) => {
                pool.reserve = bytes.parse().map_err(|_| format!("reserve is a number of bytes, not {bytes:?}"))?;
            }
            _ => return Err(wanted()),
        }
    }
    Ok(pool)
}

/// A decimal number with at most three decimals, in thousandths.
fn permille(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    if decimals.is_empty() || decimals.len() > 3 || !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    let thousandths: u64 = format!("{decimals:0<3}").parse().ok()?;
    let value = whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(thousandths)?;
    (1..=1_000_000).contains(&value).then_some(value)
}
