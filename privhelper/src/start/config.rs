//! The command line, and the configuration file, which holds the same flags, one per line.

mod doubts;
mod values;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bulkhead_protocol::{DriverName, PublishName};
use rustix::fs::OFlags;

pub use self::values::{absolute, name, project_ids};
use self::values::{number, pool, publish, uid, violation};
use super::filter::OnViolation;
use crate::bookkeeping::Limits;
use crate::place::Shape;
use crate::state::PoolConfig;
use crate::sys::file;
use crate::sys::walk;

/// What `--help` prints.
const HELP: &str = include_str!("help.txt");
/// No configuration file is longer than this.
const MAX_FILE: usize = 64 << 10;
/// The flags that may be repeated.
const LISTS: [&str; 3] = ["--config", "--pool", "--publish-dir"];

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    /// Serve requests.
    Serve(Config),
    /// Print this text, and do nothing else.
    Print(String),
}

/// How to serve.
#[derive(Debug)]
pub struct Config {
    /// The pools, at least one.
    pub pools: Vec<PoolConfig>,
    /// Where the frontend connects, unless systemd passes the socket.
    pub socket: Option<PathBuf>,
    /// The only user that may connect.
    pub allowed_uid: u32,
    /// The user that mounts filesystems in images.
    pub mounter_uid: u32,
    /// The kubelet's directory.
    pub kubelet: Option<PathBuf>,
    /// Where volumes are published, at least one directory.
    pub publish: Vec<PublishConfig>,
    /// CSI plugin name.
    pub driver: DriverName,
    /// The CSI socket that the frontend gets.
    pub csi_socket: Option<PathBuf>,
    /// The registration socket that the frontend gets.
    pub registration_socket: Option<PathBuf>,
    /// The first and the last project id for volumes.
    pub project_ids: (u32, u32),
    /// How many volumes and targets there may be.
    pub limits: Limits,
    /// What happens on a system call that is not allowed.
    pub on_violation: OnViolation,
    /// The flags that were given, except those that may be repeated.
    given: BTreeSet<String>,
}

/// A directory below which volumes are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishConfig {
    /// Its name in requests.
    pub name: PublishName,
    /// Where it is.
    pub path: PathBuf,
    /// Which targets are allowed below it.
    pub shape: Shape,
}

/// Reads the command line (without the program's name) and the configuration files that it names.
///
/// # Errors
/// One sentence on what is wrong.
pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Command, String> {
    let mut config = Config::of_defaults()?;
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" | "-h" => return Ok(Command::Print(HELP.to_owned())),
            "--version" => return Ok(Command::Print(format!("bulkhead-privhelper {}\n", env!("CARGO_PKG_VERSION")))),
            "--check" | "--init-pool" => {
                return Err(format!("{argument} is a command of bulkhead-setup; see bulkhead-setup --help"));
            }
            _ => match argument.split_once('=') {
                Some((flag, value)) => config.set(flag, value)?,
                None => config.set(&argument, &arguments.next().unwrap_or_default())?,
            },
        }
    }
    config.complete()?;
    Ok(Command::Serve(config))
}

impl Config {
    fn of_defaults() -> Result<Self, String> {
        Ok(Self {
            pools: Vec::new(),
            socket: None,
            allowed_uid: u32::MAX,
            mounter_uid: u32::MAX,
            kubelet: None,
            publish: Vec::new(),
            driver: name("bulkhead.csi.local")?,
            csi_socket: None,
            registration_socket: None,
            project_ids: (100_000, 999_999),
            limits: Limits::default(),
            on_violation: OnViolation::Kill,
            given: BTreeSet::new(),
        })
    }

    /// The table of flags.
    fn set(&mut self, flag: &str, value: &str) -> Result<(), String> {
        if !LISTS.contains(&flag) && !self.given.insert(flag.to_owned()) {
            return Err(format!("{flag} is given twice"));
        }
        let result = match flag {
            "--config" => self.read_file(value),
            "--pool" => pool(value).map(|pool| self.pools.push(pool)),
            "--publish-dir" => publish(value).map(|publish| self.publish.push(publish)),
            "--socket" => absolute(value).map(|path| self.socket = Some(path)),
            "--allow-uid" => uid(value).map(|uid| self.allowed_uid = uid),
            "--mounter-uid" => uid(value).map(|uid| self.mounter_uid = uid),
            "--kubelet-dir" => absolute(value).map(|path| self.kubelet = Some(path)),
            "--driver-name" => name(value).map(|name| self.driver = name),
            "--csi-socket" => absolute(value).map(|path| self.csi_socket = Some(path)),
            "--registration-socket" => absolute(value).map(|path| self.registration_socket = Some(path)),
            "--project-ids" => project_ids(value).map(|range| self.project_ids = range),
            "--max-volumes" => number(value).map(|number| self.limits.volumes = number),
            "--max-targets" => number(value).map(|number| self.limits.targets = number),
            "--seccomp" => violation(value).map(|violation| self.on_violation = violation),
            _ => Err("unknown flag; see --help".to_owned()),
        };
        result.map_err(|complaint| format!("{flag}: {complaint}"))
    }

    fn read_file(&mut self, path: &str) -> Result<(), String> {
        let content = walk::open_at_start(path, OFlags::RDONLY).and_then(|file| file::read_up_to(file, MAX_FILE));
        let content = content.map_err(|error| format!("cannot read {path}: {error}"))?;
        let text = String::from_utf8_lossy(&content);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.split_once([' ', '\t', '=']).unwrap_or((line, "")) {
                ("--config", _) => return Err(format!("{path}: a configuration file cannot name another")),
                (flag, value) => self.set(flag, value.trim()).map_err(|complaint| format!("{path}: {complaint}"))?,
            }
        }
        Ok(())
    }

    /// Adds what follows from the kubelet's directory.
    fn complete(&mut self) -> Result<(), String> {
        let Some(kubelet) = &self.kubelet else { return Ok(()) };
        let own =
            |title, path, shape| Ok::<_, String>(PublishConfig { name: name(title)?, path: kubelet.join(path), shape });
        let pods = own("kubelet-pods", "pods", Shape::KubeletPods);
        let devices = own("kubelet-csi", "plugins/kubernetes.io/csi", Shape::KubeletDevices);
        self.publish.splice(..0, [pods?, devices?]);
        let driver = &self.driver;
        self.csi_socket.get_or_insert_with(|| kubelet.join(format!("plugins/{driver}/csi.sock")));
        // The kubelet turns this path into an HTTP authority, with "%2F" for each "/". Strict servers, the frontend's
        // among them, accept that only before an "@".
        let registration_socket = || kubelet.join(format!("plugins_registry/{driver}@reg.sock"));
        self.registration_socket.get_or_insert_with(registration_socket);
        Ok(())
    }

    /// The kubelet's directory and the rest of the path, if the path lies below it.
    pub fn below_kubelet<'a>(&'a self, path: &'a Path) -> Option<(&'a Path, &'a Path)> {
        let kubelet = self.kubelet.as_deref().filter(|kubelet| *kubelet != path)?;
        Some((kubelet, path.strip_prefix(kubelet).ok()?))
    }
}

#[cfg(test)]
mod tests;
