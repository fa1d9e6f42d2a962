//! The command line and the configuration file, which holds the same flags, one a line.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use bulkhead_protocol::{DriverName, MAX_POOLS, MAX_PUBLISH_DIRECTORIES, PoolName, PublishName, QuotaMode};
use rustix::fs::OFlags;

use crate::state::{KUBELET_PROJECTS, PoolConfig};
use crate::sys::file;
use crate::sys::seccomp::OnViolation;

/// What `--help` prints.
pub const HELP: &str = include_str!("help.txt");

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

/// What is wrong with the configuration, in one sentence.
pub type Complaint = String;

/// Every flag that takes a value, and whether it may be given more than once.
const FLAGS: [(&str, bool); 12] = [
    ("--pool", true),
    ("--init-pool", true),
    ("--publish-dir", true),
    ("--config", true),
    ("--socket", false),
    ("--allow-uid", false),
    ("--kubelet-dir", false),
    ("--driver-name", false),
    ("--csi-socket", false),
    ("--registration-socket", false),
    ("--project-ids", false),
    ("--seccomp", false),
];

/// Flags and their values, in the order in which they were given.
#[derive(Default)]
struct Flags(Vec<(&'static str, String)>);

/// Reads the command line (without the program's name) and the files it names.
pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Command, Complaint> {
    let (mut flags, mut check) = (Flags::default(), false);
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" | "-h" => return Ok(Command::Print(HELP.to_owned())),
            "--version" => return Ok(Command::Print(format!("bulkhead-privhelper {}\n", env!("CARGO_PKG_VERSION")))),
            "--check" => check = true,
            _ => match argument.split_once('=') {
                Some((flag, value)) => flags.add(flag, Some(value.to_owned()))?,
                None => flags.add(&argument, arguments.next())?,
            },
        }
    }
    let files: Vec<_> = flags.all("--config").map(str::to_owned).collect();
    for file in files {
        flags.add_file(&file)?;
    }
    let pools = flags.all("--init-pool").map(init_pool).collect::<Result<Vec<_>, _>>()?;
    if !pools.is_empty() {
        return Ok(Command::InitPools(pools));
    }
    let config = Config::from_flags(&flags)?;
    config.refuse_doubtful()?;
    Ok(if check { Command::Check(config) } else { Command::Serve(config) })
}

impl Flags {
    fn add(&mut self, flag: &str, value: Option<String>) -> Result<(), Complaint> {
        let known = FLAGS.iter().find(|(known, _)| *known == flag);
        let (flag, often) = known.ok_or_else(|| format!("unknown flag {flag:?}; see --help"))?;
        let value =
            value.filter(|value| !value.is_empty()).ok_or_else(|| format!("{flag} wants a value; see --help"))?;
        if !often && self.all(flag).next().is_some() {
            return Err(format!("{flag} is given twice"));
        }
        self.0.push((flag, value));
        Ok(())
    }

    fn add_file(&mut self, path: &str) -> Result<(), Complaint> {
        let fail = |errno| format!("cannot read --config {path}: {errno}");
        let file = file::open_at_start(path, OFlags::RDONLY).map_err(fail)?;
        let text = String::from_utf8_lossy(&file::read_up_to(file, 64 << 10).map_err(fail)?).into_owned();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (flag, value) = line.split_once([' ', '\t', '=']).unwrap_or((line, ""));
            if flag == "--config" {
                return Err(format!("{path}: a configuration file cannot name another"));
            }
            self.add(flag, Some(value.trim().to_owned())).map_err(|complaint| format!("{path}: {complaint}"))?;
        }
        Ok(())
    }

    fn all<'a>(&'a self, flag: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(given, _)| *given == flag).map(|(_, value)| value.as_str())
    }

    /// The value of a flag that is given at most once.
    fn one<T>(&self, flag: &str, read: impl FnOnce(&str) -> Result<T, Complaint>) -> Result<Option<T>, Complaint> {
        self.all(flag).next().map(|value| read(value).map_err(|complaint| format!("{flag}: {complaint}"))).transpose()
    }
}

impl Config {
    fn from_flags(flags: &Flags) -> Result<Self, Complaint> {
        let driver = flags.one("--driver-name", named)?.map_or_else(|| named("bulkhead.csi.local"), Ok)?;
        let kubelet = flags.one("--kubelet-dir", absolute)?;
        let below_kubelet = |path: String| kubelet.as_ref().map(|kubelet| kubelet.join(path));
        let csi_socket =
            flags.one("--csi-socket", absolute)?.or_else(|| below_kubelet(format!("plugins/{driver}/csi.sock")));
        let registration = flags.one("--registration-socket", absolute)?;
        let allowed_uid =
            flags.one("--allow-uid", |value| value.parse().map_err(|_| format!("{value:?} is no numeric user id")))?;
        Ok(Self {
            pools: flags.all("--pool").map(pool).collect::<Result<_, _>>()?,
            socket: flags.one("--socket", absolute)?,
            allowed_uid: allowed_uid.ok_or("--allow-uid is missing: which user does the frontend run as?")?,
            publish: flags.all("--publish-dir").map(publish).collect::<Result<_, _>>()?,
            csi_socket,
            // The kubelet makes an HTTP authority of the path, "%2F" for each "/". Servers that look closely, the
            // frontend's among them, take that for well-formed only before an "@".
            registration_socket: registration.or_else(|| below_kubelet(format!("plugins_registry/{driver}@reg.sock"))),
            project_ids: flags.one("--project-ids", project_ids)?.unwrap_or((100_000, 999_999)),
            on_violation: flags.one("--seccomp", on_violation)?.unwrap_or(OnViolation::Kill),
            kubelet,
            driver,
        })
    }

    fn refuse_doubtful(&self) -> Result<(), Complaint> {
        let repeated_pool = repeated(self.pools.iter().map(|pool| pool.name.as_str()));
        let repeated_directory = repeated(self.pools.iter().map(|pool| &pool.directory));
        let repeated_publish = repeated(self.publish.iter().map(|(name, _)| name.as_str()));
        let taken = self.publish.iter().any(|(name, _)| name.as_str().starts_with("kubelet-"));
        let mut sockets = [&self.csi_socket, &self.registration_socket].into_iter().flatten();
        let doubts = [
            (
                matches!(self.allowed_uid, 0 | 65534 | u32::MAX),
                "--allow-uid: root needs no helper, and nobody's id is shared; give the frontend a user of its own",
            ),
            (self.pools.is_empty(), "no pool is given: --pool NAME=DIR"),
            (self.pools.len() > MAX_POOLS, "one helper serves 16 pools at most"),
            (
                self.publish.len().saturating_add(2) > MAX_PUBLISH_DIRECTORIES,
                "one helper serves 14 --publish-dir at most",
            ),
            (
                self.kubelet.is_none() && self.publish.is_empty(),
                "nowhere to publish: give --kubelet-dir DIR or --publish-dir NAME=DIR",
            ),
            (repeated_pool, "two pools have one name"),
            (repeated_directory, "two pools are in one directory"),
            (repeated_publish, "two publish directories have one name"),
            (taken, "--publish-dir: names that begin with kubelet- are taken"),
            (
                sockets.any(|path| path.as_os_str().len() > 106),
                "a socket's path is longer than 106 bytes, and unix sockets cannot have that",
            ),
        ];
        match doubts.iter().find(|(doubtful, _)| *doubtful) {
            Some((_, complaint)) => Err((*complaint).to_owned()),
            None => Ok(()),
        }
    }
}

fn repeated<T: Ord>(values: impl Iterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    !values.into_iter().all(|value| seen.insert(value))
}

fn named<T: std::str::FromStr<Err = bulkhead_protocol::Invalid>>(text: &str) -> Result<T, Complaint> {
    text.parse().map_err(|error| format!("{text:?} is no name: {error}"))
}

fn absolute(text: &str) -> Result<PathBuf, Complaint> {
    let path = Path::new(text);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if plain && path.is_absolute() && path.parent().is_some() {
        Ok(path.components().collect())
    } else {
        Err(format!("an absolute path without '..', and not /, is wanted, not {text:?}"))
    }
}

fn init_pool(value: &str) -> Result<(Option<PoolName>, PathBuf), Complaint> {
    match value.split_once('=') {
        Some((name, directory)) => Ok((Some(named(name)?), absolute(directory)?)),
        None => Ok((None, absolute(value)?)),
    }
}

fn publish(value: &str) -> Result<(PublishName, PathBuf), Complaint> {
    let (name, directory) =
        value.split_once('=').ok_or_else(|| format!("--publish-dir wants NAME=DIR, not {value:?}"))?;
    Ok((named(name)?, absolute(directory)?))
}

fn project_ids(value: &str) -> Result<(u32, u32), Complaint> {
    let range = value.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    range.filter(|(first, last)| *first >= 1 && first <= last && *last < KUBELET_PROJECTS).ok_or_else(|| {
        format!("FIRST-LAST is wanted, from 1 to 1048576 (the kubelet's begin behind it), not {value:?}")
    })
}

fn on_violation(value: &str) -> Result<OnViolation, Complaint> {
    match value {
        "kill" => Ok(OnViolation::Kill),
        "log" => Ok(OnViolation::Log),
        _ => Err(format!("kill or log is wanted, not {value:?}")),
    }
}

fn pool(value: &str) -> Result<PoolConfig, Complaint> {
    let wanted = || format!("--pool wants NAME=DIR[,quota=none][,overcommit=R][,reserve=BYTES], not {value:?}");
    let (name, rest) = value.split_once('=').ok_or_else(wanted)?;
    let mut parts = rest.split(',');
    let mut pool = PoolConfig {
        name: named(name)?,
        directory: absolute(parts.next().ok_or_else(wanted)?)?,
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
