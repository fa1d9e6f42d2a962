//! What an administrator runs before the helper serves: makes pools, and tests whether this node can be served.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects, clippy::expect_used, clippy::indexing_slicing, clippy::panic,
        clippy::unreachable, clippy::unwrap_used
    )
)]
#![allow(clippy::disallowed_macros, reason = "nobody but its caller waits for who reads its standard error")]

mod below;
mod domain;
mod in_use;
mod lines;
mod neighbours;
mod options;
mod prepare;
mod requota;
mod tree;
mod udev;
mod walls;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bulkhead_privhelper::log::shown;
use bulkhead_privhelper::start::config::{self, Command, Config, absolute, name};
use bulkhead_privhelper::start::privileges::Unprivileged;
use bulkhead_privhelper::start::refusal::Refusal;
use bulkhead_privhelper::start::{directory, host, jail, judge, marker, patience, privileges, proof};
use bulkhead_privhelper::{SysError, file, walk};
use bulkhead_protocol::{PoolName, QuotaMode};
use caps::{CapSet, Capability};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::FsOpenFlags;

const HELP: &str = "\
Prepare a node for bulkhead-privhelper.

usage: bulkhead-setup init-pool [NAME=]DIR ...
       bulkhead-setup prepare [--size MIN..MAX] [--model GLOB] [--path GLOB] [--name NAME] [--type TYPE] [--directory DIR]
                              [--replace NAME] [--fstab FILE] [--host DIR] [--yes] [--json]
       bulkhead-setup check FLAGS ...
       bulkhead-setup requota --pool DIR [--other-pool DIR ...] [--project-ids FIRST-LAST] [--dry-run] [--while-in-use]
       bulkhead-setup install-udev-rule DIR
       bulkhead-setup run-in-domain DOMAIN PROGRAM [ARGUMENT ...]

  init-pool  make each DIR a pool, which is called NAME if one is given; a DIR that is that pool already is left as it is
  prepare    find empty disks and make each a pool of its own: format it (mkfs.xfs), mount it by UUID with project quotas,
             with a line in fstab, and mark it. Without --yes, only say of each block device what becomes of it, and why
             not. A disk in which anything is found is never taken, nor is one that is in use. What is ready is left as it
             is, and a run that was interrupted is finished by the next. Exit status 0 if there is a pool, or would be, and
             nothing is wrong
               --size MIN..MAX   disks of this size, as in 900G..1100G, 1Ti.. or ..2T
               --model GLOB      disks that call themselves so, as lsblk shows it; may be repeated
               --path GLOB       disks with such a node, or such a link to it, as in '/dev/disk/by-id/nvme-*'; may be
                                 repeated. At least one of these three is needed, and all that are given must match
               --type TYPE       instead of disk: a type of lsblk's, as lvm, part or raid1; may be repeated
               --name NAME       the pool's name; with {n}, a number for each disk (default disk-{n})
               --directory DIR   where the directories of the pools are (default /srv/bulkhead)
               --replace NAME    make this pool anew on an empty disk, as its own is gone; may be repeated
               --fstab FILE      instead of /etc/fstab
               --host DIR        in a container that has the root of its host in DIR: do it there. Exit status 0 whatever is
                                 wrong, as the helper serves the pools that there are
               --yes             do it
               --json            print JSON
  check      test the kernel, the capabilities, the pools and mount propagation with the FLAGS of bulkhead-privhelper, and
             change nothing; one line for each test: ok, FAILED with the reason, or skipped because of an earlier failure;
             exit status 0 if the helper can serve, 1 if not. `bulkhead-privhelper --help` explains the FLAGS
  requota    put each volume of the pool DIR, and everything in it, into a project of its own and set its limits, after the
             pool was copied (cp -a, rsync) or had quota=none; with --dry-run, only say what is to be done. The helper must
             be stopped, and no volume mounted or attached: limits are lifted meanwhile, and with --while-in-use whoever
             uses a volume can fill the pool. What is right already is left alone, and a run that was interrupted is
             finished by the next. --project-ids is that of the helper (default 100000-999999). Other pools on the
             filesystem are found in the directory that DIR is in; --other-pool names one elsewhere. Exit status 0 if every
             volume is limited; one of which something was left out is not, and stays unserved
  install-udev-rule
             write 59-bulkhead.rules, which keeps the host's programs from pods' devices, into DIR, such as
             /run/udev/rules.d, unless it is there, and wait until udev goes by it
  run-in-domain
             where there is SELinux, run PROGRAM in this DOMAIN of it, as container runtimes run privileged containers in one
             of their own; elsewhere, just run it
  --help, --version
";

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(complaint) => {
            eprintln!("bulkhead-setup: {complaint}");
            ExitCode::FAILURE
        }
    }
}

/// Does what the command line asks for; `false` if a test has failed.
fn run(arguments: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut arguments = arguments.peekable();
    let command = arguments.next();
    if arguments.peek().is_some_and(|first| matches!(first.as_str(), "--help" | "-h")) {
        return print(HELP);
    }
    match command.as_deref() {
        Some("init-pool") => init_pools(arguments),
        Some("check") => match config::parse(arguments)? {
            Command::Serve(config) => check(&config),
            Command::Print(text) => print(&text),
        },
        Some("prepare") => prepare::prepare(arguments),
        Some("requota") => requota::requota(arguments),
        Some("install-udev-rule") => udev::install(arguments),
        Some("run-in-domain") => domain::run(arguments),
        Some("--help" | "-h") => print(HELP),
        Some("--version") => print(&format!("bulkhead-setup {}\n", env!("CARGO_PKG_VERSION"))),
        Some(other) => Err(format!("unknown command {other:?}; see --help")),
        None => {
            Err("a command is missing: init-pool, prepare, check, requota, install-udev-rule or run-in-domain; see \
                     --help"
                .to_owned())
        }
    }
}

fn print(text: &str) -> Result<bool, String> {
    print!("{text}");
    Ok(true)
}

fn init_pools(arguments: impl Iterator<Item = String>) -> Result<bool, String> {
    let pools: Vec<_> = arguments.map(|argument| pool(&argument)).collect::<Result<_, _>>()?;
    if pools.is_empty() {
        return Err("init-pool: no directory is given; see --help".to_owned());
    }
    for (name, path) in pools {
        let failed = |error: SysError| format!("cannot make {} a pool: {error}", shown(&path));
        let directory = open_to_write(&path).map_err(failed)?;
        let is_new = mark(&directory, &path, name.as_ref())?;
        println!("{} is {} a pool", shown(&path), if is_new { "now" } else { "already" });
    }
    Ok(true)
}

/// Makes a directory a pool with this name, unless it is that already. Returns whether it was not.
fn mark(directory: &OwnedFd, path: &Path, name: Option<&PoolName>) -> Result<bool, String> {
    let failed = |error: SysError| format!("cannot make {} a pool: {error}", shown(path));
    match marker::make(directory, name) {
        Ok(_) => Ok(true),
        Err(SysError { errno: Errno::EXIST, .. }) => {
            let text = judge::marker::read(directory).map_err(failed)?;
            is_called(&String::from_utf8_lossy(&text), name)
                .map_err(|complaint| format!("{} {complaint}", shown(path)))?;
            Ok(false)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Whether the marker with this text is that of a pool with the name that is wanted. One without a name is for any.
fn is_called(text: &str, wanted: Option<&PoolName>) -> Result<(), String> {
    let found = text.lines().find_map(|line| line.strip_prefix("name "));
    match (found, wanted) {
        (Some(found), Some(wanted)) if found != wanted.as_str() => {
            Err(format!("is already a pool, which is called {found:?} and not {wanted}"))
        }
        _ => Ok(()),
    }
}

/// Reads `[NAME=]DIR`.
fn pool(argument: &str) -> Result<(Option<PoolName>, PathBuf), String> {
    let read = || match argument.split_once('=') {
        Some((title, directory)) => Ok((Some(name(title)?), absolute(directory)?)),
        None => Ok((None, absolute(argument)?)),
    };
    read().map_err(|complaint: String| format!("init-pool: {complaint}"))
}

fn open_to_write(directory: &Path) -> Result<OwnedFd, SysError> {
    walk::open_at_start(directory, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Prints a line for each thing that must be right; `false` if one is not. Changes nothing except for trial mounts,
/// which are gone at the end.
///
/// # Errors
/// A sentence on an option that makes no sense, on a host that can have it judged.
fn check(config: &Config) -> Result<bool, String> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mounts_images = config.pools.iter().any(|pool| pool.filesystems > 0);
    let (kernel, capabilities) = (judge::host::check_kernel(&release), check_capabilities(mounts_images));
    if kernel.is_ok() && capabilities.is_ok() {
        let doubts = |unprivileged: &Unprivileged| Ok(config.refuse_doubtful(unprivileged)?);
        patience::judged(config.on_violation, doubts).map_err(|refusal| refusal.to_string())?;
    }
    let mut good = true;
    let mut say = |what: &str, result: Result<(), Refusal>| {
        match &result {
            Ok(()) => println!("ok      {what}"),
            Err(complaint) => println!("FAILED  {what}: {complaint}"),
        }
        good &= result.is_ok();
    };
    say("kernel", kernel);
    say("capabilities", capabilities.map_err(Refusal::from));
    if mounts_images {
        let context = rustix::mount::fsopen("xfs", FsOpenFlags::FSOPEN_CLOEXEC);
        let why = |error| format!("the kernel cannot mount XFS: {error}; load its module (modprobe xfs)");
        say("filesystems in images", context.map(drop).map_err(|errno| why(errno).into()));
    }
    match host::inspect(config, open_nearest, false) {
        Ok(host) => {
            say("loop devices", Ok(()));
            let mut facts = Vec::new();
            for pool in &host.pools {
                let title = format!("pool {} in {}", pool.config.name, shown(&pool.config.directory));
                say(&title, pool.state.as_ref().map(|_| ()).map_err(Clone::clone));
                if pool.state.as_ref().is_ok_and(|found| found.fit.inherited.no_exec) {
                    println!("note    pool {}: it is mounted noexec: no program can be run from it", pool.config.name);
                }
                let device = pool.state.as_ref().ok().and_then(|found| file::status(&found.directory.descriptor).ok());
                let layers = device.map(|found| below::layers(Path::new("/sys"), found.id.device)).unwrap_or_default();
                if !layers.is_empty() {
                    println!("note    pool {}: below it: {}", pool.config.name, layers.join(", on "));
                }
                facts.extend(pool.state.as_ref().ok().zip(device).map(|(found, status)| walls::Facts {
                    name: pool.config.name.clone(),
                    device: status.id.device,
                    shares_blocks: found.fit.shares_blocks,
                    has_filesystems: pool.config.filesystems > 0,
                    has_directories: walls::has_directories(&found.directory.descriptor, &pool.volumes),
                    has_limits: pool.config.quota != QuotaMode::None,
                }));
            }
            for (name, note) in walls::of_pools(&release, &facts) {
                println!("note    pool {name}: {note}");
            }
            for note in walls::of_host(Path::new("/")) {
                println!("note    {note}");
            }
            let proved = jail::enter(config, &host).and_then(|jail| proof::prove(&host, &jail));
            say("jail, and mounts that reach the host", proved);
        }
        Err(complaint) => {
            say("loop devices, publish directories and sockets", Err(complaint));
            let why = "only tested once the above is right";
            for pool in &config.pools {
                println!("skipped pool {} in {}: {why}", pool.name, shown(&pool.directory));
            }
            println!("skipped jail, and mounts that reach the host: {why}");
        }
    }
    Ok(good)
}

fn check_capabilities(mounts_images: bool) -> Result<(), String> {
    let permitted = caps::read(None, CapSet::Permitted).map_err(|error| error.to_string())?;
    let for_the_start = [Capability::CAP_SETPCAP, Capability::CAP_CHOWN];
    let for_a_mounter: &[_] = if mounts_images { &[Capability::CAP_SETUID, Capability::CAP_SETGID] } else { &[] };
    let needed = privileges::PLACER.iter().chain(privileges::EMPTIER).chain(&for_the_start).chain(for_a_mounter);
    let missing = needed.filter(|capability| !permitted.contains(capability));
    let missing: Vec<_> = missing.map(Capability::to_string).collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(format!("{} missing; run this as root with these capabilities", missing.join(", ")))
    }
}

/// Opens a directory from the configuration. For one that the helper would make, the nearest directory above stands in.
fn open_nearest(config: &Config, path: &Path) -> Result<(PathBuf, OwnedFd), SysError> {
    let mut nearest = path;
    loop {
        match (directory::open(nearest), nearest.parent()) {
            (Err(SysError { errno: Errno::NOENT, .. }), Some(parent)) if config.below_kubelet(nearest).is_some() => {
                nearest = parent
            }
            (opened, _) => return Ok((nearest.to_owned(), opened?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_a_directory_with_or_without_a_name() {
        let path = PathBuf::from("/srv/pool");
        assert_eq!(pool("/srv/pool"), Ok((None, path.clone())));
        assert_eq!(pool("fast=/srv/pool"), Ok((Some("fast".parse().expect("a name")), path)));
        for (argument, part) in [
            ("srv/pool", "absolute path"),
            ("fast=", "absolute path"),
            ("/", "and not /"),
            ("Fast=/srv/pool", "not a valid name"),
            ("=/srv/pool", "not a valid name"),
        ] {
            let complaint = pool(argument).unwrap_err();
            assert!(complaint.starts_with("init-pool: ") && complaint.contains(part), "{argument}: {complaint}");
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test's own directory")]
    fn making_a_pool_again_is_no_error_unless_it_has_another_name() {
        let path = std::env::temp_dir().join(format!("bulkhead-setup-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a directory");
        let again = |name: &str| init_pools([format!("{name}{}", path.to_string_lossy())].into_iter());
        let marker = || judge::marker::read(&open_to_write(&path).expect("the directory")).expect("a marker");
        let first = again("fast=");
        let made = marker();
        let outcomes = [first, again("fast="), again("")];
        let other = again("slow=");
        let left = marker();
        std::fs::remove_dir_all(&path).expect("an end");
        assert_eq!(outcomes, [Ok(true), Ok(true), Ok(true)]);
        assert!(other.is_err_and(|complaint| complaint.contains("called \"fast\" and not slow")));
        assert_eq!(left, made, "the pool has another identity");
    }

    #[test]
    fn each_command_has_help() {
        let run = |arguments: &[&str]| run(arguments.iter().map(|&argument| argument.to_owned()));
        for command in ["check", "init-pool", "prepare", "requota", "install-udev-rule", "run-in-domain", "--help"] {
            assert_eq!(run(&[command, "--help"]), Ok(true), "{command}");
        }
    }

    #[test]
    fn the_manual_page_explains_every_flag_of_the_help() {
        let page = include_str!("../../../../deploy/man/bulkhead-setup.8").replace("\\-", "-");
        for flag in HELP.split([' ', '\n', '[', ']', ';', ',', '`']).filter(|word| word.starts_with("--")) {
            assert!(page.contains(&format!("\\fB{flag}\\fR")), "{flag}");
        }
        for section in ["\"EXIT STATUS\"", "ENVIRONMENT", "FILES", "EXAMPLES"] {
            assert!(page.contains(&format!("\n.SH {section}\n")), "{section}");
        }
    }

    #[test]
    fn recipes_use_options_that_there_are() {
        // The script calls other programs before this one.
        let script =
            include_str!("../../../../deploy/prepare/eks-user-data.txt").rsplit("bulkhead-setup prepare").next();
        for recipe in [
            include_str!("../../../../deploy/prepare/ansible.yaml"),
            include_str!("../../../../deploy/prepare/butane.yaml"),
            include_str!("../../../../deploy/prepare/cloud-init.yaml"),
            script.expect("a command"),
        ] {
            // Comments, and what is between the parts of a message.
            let is_told = |line: &&str| !line.starts_with('#') && !line.starts_with("--//");
            let recipe: String = recipe.lines().filter(is_told).collect::<Vec<_>>().join("\n");
            let words = recipe.split([' ', '\n', '[', ']', ',', '=', '\'']);
            let flags: Vec<_> = words.filter(|word| word.starts_with("--")).collect();
            let has_rule = ["--size", "--model"].iter().any(|rule| flags.contains(rule));
            assert!(has_rule && flags.contains(&"--yes"), "{flags:?}");
            for flag in flags {
                assert!(HELP.contains(&format!(" {flag} ")), "{flag}");
            }
        }
    }

    #[test]
    fn what_is_not_a_command_is_refused_with_a_sentence() {
        let run = |arguments: &[&str]| run(arguments.iter().map(|&argument| argument.to_owned())).unwrap_err();
        assert!(run(&[]).contains("a command is missing"));
        assert!(run(&["chek"]).contains("unknown command \"chek\""));
        assert!(run(&["init-pool"]).contains("no directory is given"));
        assert!(run(&["check", "--pool", "x"]).contains("expected NAME=DIR"));
    }
}
