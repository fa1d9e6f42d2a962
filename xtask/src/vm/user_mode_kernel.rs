//! The kernel of user-mode Linux, built once from the source of Debian's kernel: Debian's own package of it is older than
//! what the programs are tested with.

use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use super::apt::{Apt, unpack};
use super::kernel::Kernel;
use crate::cache;
use crate::checksum::sha256;
use crate::packages;
use crate::process::{capture, command, run_quietly};
use crate::progress::{say, timed};
use crate::workspace::Architecture;

/// A package with the source of a kernel, and what it needs to be built from it.
#[derive(Debug)]
struct Source {
    /// The package, and the directory in it.
    package: &'static str,
    /// The suite of Debian's archive that has it, if it is none of those that this host is set up for.
    suite: Option<&'static str>,
    /// What this source needs in addition to [`CONFIGURATION`].
    configuration: &'static str,
    /// What is different from Debian's source: files, what they contain, and what they have to contain instead.
    changes: &'static [(&'static str, &'static str, &'static str)],
}

/// From the first of these that can be had. Since Linux 6.16 a program of the guest hands over its system calls by a
/// filter of its own instead of being traced, which takes three quarters of the time.
const SOURCES: [Source; 2] = [
    Source {
        package: "linux-source-7.2",
        suite: Some("trixie-backports"),
        configuration: "",
        changes: &[KILLED_FORK, SYSCALL_FILE, SYSCALL_FILE_NEEDS],
    },
    Source {
        package: "linux-source-6.12",
        suite: None,
        configuration: "CONFIG_UML_NET=y\n",
        changes: &[
            // How many bytes there are for a process's registers: too few on a processor with AMX, where nothing would
            // start.
            ("arch/x86/um/user-offsets.c", "HOST_FP_SIZE, 2696", "HOST_FP_SIZE, 11264"),
            KILLED_FORK,
            SYSCALL_FILE,
            SYSCALL_FILE_NEEDS,
        ],
    },
];

/// A process that is killed while it forks leaves a copy of its address space in which the first part that was not copied
/// is marked by a zero entry. What ends that copy would take the mark for an address, and panic.
const KILLED_FORK: (&str, &str, &str) = (
    "arch/um/kernel/tlb.c",
    "for_each_vma(vmi, vma)\n",
    "for_each_vma(vmi, vma)\n\t\tif (xa_is_zero(vma))\n\t\t\tbreak;\n\t\telse\n",
);

/// /proc/PID/syscall, by which cases find the thread that waits for a request.
const SYSCALL_FILE: (&str, &str, &str) = ("fs/proc/base.c", "#ifdef CONFIG_HAVE_ARCH_TRACEHOOK", "#ifdef CONFIG_UML");

/// What that file is made with.
const SYSCALL_FILE_NEEDS: (&str, &str, &str) =
    ("lib/Makefile", "obj-$(CONFIG_HAVE_ARCH_TRACEHOOK) += syscall.o", "obj-$(CONFIG_UML) += syscall.o");

/// What a build needs.
const BUILD_TOOLS: [&str; 10] =
    ["bc", "binutils", "bison", "flex", "gcc", "libc6-dev", "libelf-dev", "make", "perl-base", "xz-utils"];

/// What is built in, on top of a kernel in which nothing is.
const CONFIGURATION: &str = include_str!("guest/user-mode.config");

/// Takes the kernel from the cache, or builds it. A changed configuration needs another kernel; a newer package does
/// not: asking for one would make every boot depend on a mirror.
pub fn provide(cache: &Path, architecture: Architecture) -> Result<Kernel> {
    let cached = SOURCES.iter().map(|source| source.directory(cache)).find(|directory| directory.exists());
    let directory = cached.map_or_else(|| build_first(cache, architecture), Ok)?;
    let image = directory.join("linux");
    let release = capture(command(&image).arg("--version"))?.trim().to_owned();
    Ok(Kernel { image, release, modules: Vec::new(), library: None })
}

/// Builds the kernel from the first source that can be had, unless another xtask does so meanwhile.
fn build_first(cache: &Path, architecture: Architecture) -> Result<PathBuf> {
    packages::require(&BUILD_TOOLS)?;
    let mut failure = None;
    for source in &SOURCES {
        let built = cache::make_once(source.directory(cache), |directory| {
            timed(
                format_args!("building the kernel of user-mode Linux from {}, once, for some minutes", source.package),
                || source.build(directory, cache, architecture),
            )
        });
        match built {
            Ok(directory) => return Ok(directory),
            Err(error) => {
                say(format_args!("no kernel from {}: {error:#}", source.package));
                failure = Some(error);
            }
        }
    }
    Err(failure.context("there is no source of a kernel")?)
}

impl Source {
    /// Where the kernel that is built from it is kept.
    fn directory(&self, cache: &Path) -> PathBuf {
        let key = sha256(format!("{self:?}{CONFIGURATION}").as_bytes());
        cache.join(format!("user-mode-{}-{}", self.package, &key[..12]))
    }

    fn build(&self, directory: &Path, cache: &Path, architecture: Architecture) -> Result<()> {
        fs::create_dir_all(directory)?;
        let apt = Apt::new(cache, architecture, self.suite);
        let tree = timed(format_args!("downloading and unpacking {}", self.package), || self.unpack(directory, &apt))?;
        self.change(&tree)?;
        self.configure(&tree)?;
        let processors = thread::available_parallelism().context("count the processors")?;
        run_quietly(make(&tree).arg(format!("--jobs={processors}")).arg("linux"))?;
        run_quietly(command("strip").arg("-o").arg(directory.join("linux")).arg(tree.join("linux")))?;
        Ok(fs::remove_dir_all(&tree)?)
    }

    /// Downloads the source and unpacks it, and returns where it is.
    fn unpack(&self, directory: &Path, apt: &Apt) -> Result<PathBuf> {
        let package = directory.join("package");
        unpack(&apt.download(self.package, directory)?, &package)?;
        let source = package.join(format!("usr/src/{}.tar.xz", self.package));
        run_quietly(command("tar").arg("-xf").arg(source).arg("-C").arg(directory))?;
        fs::remove_dir_all(&package)?;
        Ok(directory.join(self.package))
    }

    fn change(&self, tree: &Path) -> Result<()> {
        for (path, is, has_to_be) in self.changes {
            let path = tree.join(path);
            let content = fs::read_to_string(&path)?;
            ensure!(content.contains(is), "{} lacks {is:?}: bring xtask's changes of it up to date", path.display());
            fs::write(&path, content.replace(is, has_to_be))?;
        }
        Ok(())
    }

    /// Configures the build, and checks that nothing of the configuration was ignored: the kernel drops what it does not
    /// know, and what depends on something else that is missing.
    fn configure(&self, tree: &Path) -> Result<()> {
        let wanted = tree.join("user-mode.config");
        let content = format!("{CONFIGURATION}{}", self.configuration);
        fs::write(&wanted, &content)?;
        run_quietly(make(tree).arg(format!("KCONFIG_ALLCONFIG={}", wanted.display())).arg("allnoconfig"))?;
        let configuration = fs::read_to_string(tree.join(".config")).context("read the kernel's configuration")?;
        let is_set = |line: &&str| configuration.lines().any(|set| set == *line);
        let lines = content.lines().filter(|line| line.starts_with("CONFIG_"));
        let ignored: Vec<&str> = lines.filter(|line| !is_set(line)).collect();
        ensure!(ignored.is_empty(), "the kernel ignores of its configuration: {}", ignored.join(", "));
        Ok(())
    }
}

/// `make` in the source. Whoever builds goes on with something else meanwhile.
fn make(tree: &Path) -> std::process::Command {
    let mut make = command("nice");
    make.args(["make", "ARCH=um", "-C"]).arg(tree);
    make
}
