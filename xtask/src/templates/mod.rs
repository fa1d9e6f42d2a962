//! The filesystems that the helper writes into fresh images: constants, each the beginning of an XFS of one size, which
//! the kernel grows at its first mount.
//!
//! They are made by mkfs.xfs of one version of Debian's package, with every feature named: what Linux 5.14 mounts, and
//! nothing newer. The same command always makes the same bytes.

mod runs;
mod tools;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fs_err::{self as fs, File};

use crate::directory::run_directory;
use crate::process::{command, run_quietly};
use crate::workspace::Workspace;

/// Where they are, for the helper to include.
const DIRECTORY: &str = "privhelper/templates";

/// A filesystem to be made.
struct Template {
    /// Its file.
    name: &'static str,
    /// The size of the smallest image that it fits into, in MiB: four allocation groups.
    mebibytes: u64,
    /// The identity that all filesystems made from it have: they are mounted with `nouuid`.
    uuid: &'static str,
}

/// A larger filesystem has larger groups: growing adds groups, and a mount reads each.
const TEMPLATES: [Template; 3] = [
    Template { name: "xfs-300m", mebibytes: 300, uuid: "b01c4ead-0000-4000-8000-00000000012c" },
    Template { name: "xfs-4g", mebibytes: 4 << 10, uuid: "b01c4ead-0000-4000-8000-000000001000" },
    Template { name: "xfs-64g", mebibytes: 64 << 10, uuid: "b01c4ead-0000-4000-8000-000000010000" },
];

/// The root belongs to root alone: pods get a directory in it.
const ROOT: &str = "/\n0 0\nd--700 0 0\n$\n";

/// The bitmap and the summary of a realtime device, which every XFS has, and its root.
const INODES: [u32; 3] = [128, 129, 130];

/// Makes them anew, and returns the paths of the files.
pub fn write(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let tools = tools::provide(workspace)?;
    let directory = workspace.root.join(DIRECTORY);
    fs::create_dir_all(&directory)?;
    let write = |template: &Template| {
        let path = directory.join(template.name);
        fs::write(&path, template.make(workspace, &tools)?)?;
        Ok(path)
    };
    TEMPLATES.iter().map(write).collect()
}

/// Makes them anew and compares them byte by byte with the files.
pub fn check(workspace: &Workspace) -> Result<String> {
    let tools = tools::provide(workspace)?;
    let mut length = 0;
    for template in &TEMPLATES {
        let kept = read(&workspace.root, template)?;
        let made = template.make(workspace, &tools)?;
        ensure!(kept == made, "{DIRECTORY}/{} is not what mkfs.xfs makes: run `cargo xtask templates`", template.name);
        length += kept.len();
    }
    Ok(format!("{} files of {length} bytes are what mkfs.xfs of xfsprogs {} makes", TEMPLATES.len(), tools::VERSION))
}

/// The files as text for a reviewer, a run a line: its offset in the image, its length, its bytes.
pub fn as_text(workspace: &Workspace) -> Result<String> {
    let mut text = String::new();
    for template in &TEMPLATES {
        text += &format!("{}: {} MiB, {}\n", template.name, template.mebibytes, template.uuid);
        for (offset, bytes) in runs::parse(&read(&workspace.root, template)?)? {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            text += &format!("{offset:#011x} {:>5} {digits}\n", bytes.len());
        }
    }
    Ok(text)
}

fn read(root: &Path, template: &Template) -> Result<Vec<u8>> {
    Ok(fs::read(root.join(DIRECTORY).join(template.name))?)
}

impl Template {
    /// Makes the filesystem and returns its runs.
    fn make(&self, workspace: &Workspace, tools: &Path) -> Result<Vec<u8>> {
        let directory = run_directory(&workspace.runs())?;
        let (image, root) = (directory.path().join("image"), directory.path().join("root"));
        File::create(&image)?.set_len(self.mebibytes << 20)?;
        fs::write(&root, ROOT)?;
        let mut make = command(tools.join("sbin/mkfs.xfs"));
        make.args(["-q", "-K", "-b", "size=4096", "-s", "size=4096"]);
        make.args(["-l", "internal=1,size=64m,version=2,lazy-count=1"]);
        make.args(["-m", &format!("uuid={},crc=1,finobt=1,rmapbt=0,reflink=1,bigtime=1,inobtcount=1", self.uuid)]);
        make.args(["-i", "size=512,maxpct=25,attr=2,projid32bit=1,sparse=1,nrext64=0"]);
        make.args(["-d", &format!("agsize={}m,noalign", self.mebibytes / 4), "-n", "size=4096,version=2,ftype=1"]);
        run_quietly(make.arg("-p").args([&root, &image]))?;
        self.stop_the_clock(tools, &image)?;
        runs::of(&image)
    }

    /// This mkfs.xfs has no option for the time that the first inodes were made: it becomes the earliest there is.
    fn stop_the_clock(&self, tools: &Path, image: &Path) -> Result<()> {
        for inode in INODES {
            let mut edit = command(tools.join("usr/sbin/xfs_db"));
            edit.args(["-x", "-c", &format!("inode {inode}")]);
            for time in ["core.mtime", "core.ctime", "v3.crtime"] {
                edit.args(["-c", &format!("write {time}.sec 0"), "-c", &format!("write {time}.nsec 0")]);
            }
            run_quietly(edit.arg(image)).with_context(|| format!("set the times in {}", self.name))?;
        }
        Ok(())
    }
}
