//! The kernel of user-mode Linux, built once from the source of Debian's kernel: Debian's own package of it is older than
//! what the programs are tested with.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, ensure};

use super::apt::Apt;
use super::kernel::Kernel;
use crate::checksum::sha256;
use crate::directory;
use crate::packages;
use crate::process::{capture, command, run_quietly};
use crate::progress::timed;

/// The package with the source, and the directory in it.
const SOURCE: &str = "linux-source-6.12";

/// What a build needs.
const BUILD_TOOLS: [&str; 10] =
    ["bc", "binutils", "bison", "flex", "gcc", "libc6-dev", "libelf-dev", "make", "perl-base", "xz-utils"];

/// What is built in, on top of a kernel in which nothing is.
const CONFIGURATION: &str = include_str!("guest/user-mode.config");

/// What is different from Debian's source: files, what they contain, and what they have to contain instead.
const CHANGES: [(&str, &str, &str); 4] = [
    // How many bytes there are for a process's registers: too few on a processor with AMX, where nothing would start.
    ("arch/x86/um/user-offsets.c", "HOST_FP_SIZE, 2696", "HOST_FP_SIZE, 11264"),
    // A process that is killed while it forks leaves a copy of its address space in which the first part that was not
    // copied is marked by a zero entry. What ends that copy would take the mark for an address, and panic.
    (
        "arch/um/kernel/tlb.c",
        "for_each_vma(vmi, vma)\n",
        "for_each_vma(vmi, vma)\n\t\tif (xa_is_zero(vma))\n\t\t\tbreak;\n\t\telse\n",
    ),
    // /proc/PID/syscall, by which cases find the thread that waits for a request.
    ("fs/proc/base.c", "#ifdef CONFIG_HAVE_ARCH_TRACEHOOK", "#ifdef CONFIG_UML"),
    ("lib/Makefile", "obj-$(CONFIG_HAVE_ARCH_TRACEHOOK) += syscall.o", "obj-$(CONFIG_UML) += syscall.o"),
];

/// Takes the kernel from the cache, or builds it. A changed configuration needs another kernel; a newer package does
/// not: asking for one would make every boot depend on a mirror.
pub fn provide(cache: &Path, apt: &Apt) -> Result<Kernel> {
    let key = sha256(format!("{CHANGES:?}{CONFIGURATION}").as_bytes());
    let directory = cache.join(format!("user-mode-{SOURCE}-{}", &key[..12]));
    if !directory.exists() {
        build_once(cache, &directory, apt)?;
    }
    let image = directory.join("linux");
    let release = capture(command(&image.to_string_lossy()).arg("--version"))?.trim().to_owned();
    Ok(Kernel { image, release, modules: Vec::new(), library: None })
}

/// Builds the kernel, unless another xtask does so meanwhile.
fn build_once(cache: &Path, directory: &Path, apt: &Apt) -> Result<()> {
    let _lock = directory::lock(cache, "user-mode")?;
    if directory.exists() {
        return Ok(());
    }
    packages::require(&BUILD_TOOLS)?;
    timed("building the kernel of user-mode Linux, once, for some minutes", || build(directory, apt))
}

fn build(directory: &Path, apt: &Apt) -> Result<()> {
    let partial = directory.with_file_name("user-mode.partial");
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial)?;
    let tree = timed(format_args!("downloading and unpacking {SOURCE}"), || unpack(&partial, apt))?;
    change(&tree)?;
    configure(&tree)?;
    let processors = thread::available_parallelism().context("count the processors")?;
    run_quietly(make(&tree).arg(format!("--jobs={processors}")).arg("linux"))?;
    run_quietly(command("strip").arg("-o").arg(partial.join("linux")).arg(tree.join("linux")))?;
    fs::remove_dir_all(&tree)?;
    fs::rename(&partial, directory).with_context(|| format!("rename {} into place", partial.display()))
}

/// Downloads the source and unpacks it, and returns where it is.
fn unpack(partial: &Path, apt: &Apt) -> Result<PathBuf> {
    let archive = apt.download(SOURCE, partial)?;
    let package = partial.join("package");
    run_quietly(command("dpkg").arg("--extract").args([&archive, &package]))?;
    let source = package.join(format!("usr/src/{SOURCE}.tar.xz"));
    run_quietly(command("tar").arg("-xf").arg(source).arg("-C").arg(partial))?;
    fs::remove_file(&archive)?;
    fs::remove_dir_all(&package)?;
    Ok(partial.join(SOURCE))
}

fn change(tree: &Path) -> Result<()> {
    for (path, is, has_to_be) in CHANGES {
        let path = tree.join(path);
        let content = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        ensure!(content.contains(is), "{} lacks {is:?}: bring xtask's changes of it up to date", path.display());
        fs::write(&path, content.replace(is, has_to_be)).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Configures the build, and checks that nothing of the configuration was ignored: the kernel drops what it does not
/// know, and what depends on something else that is missing.
fn configure(tree: &Path) -> Result<()> {
    let wanted = tree.join("user-mode.config");
    fs::write(&wanted, CONFIGURATION).with_context(|| format!("write {}", wanted.display()))?;
    run_quietly(make(tree).arg(format!("KCONFIG_ALLCONFIG={}", wanted.display())).arg("allnoconfig"))?;
    let configuration = fs::read_to_string(tree.join(".config")).context("read the kernel's configuration")?;
    let is_set = |line: &&str| configuration.lines().any(|set| set == *line);
    let lines = CONFIGURATION.lines().filter(|line| line.starts_with("CONFIG_"));
    let ignored: Vec<&str> = lines.filter(|line| !is_set(line)).collect();
    ensure!(ignored.is_empty(), "the kernel ignores of its configuration: {}", ignored.join(", "));
    Ok(())
}

/// `make` in the source. Whoever builds goes on with something else meanwhile.
fn make(tree: &Path) -> std::process::Command {
    let mut make = command("nice");
    make.args(["make", "ARCH=um", "-C"]).arg(tree);
    make
}
