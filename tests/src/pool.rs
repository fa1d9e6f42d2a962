//! Pools: an image file with a filesystem, mounted on a loop device.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::ids::Decoys;
use crate::observe::loops::{self, Loop};
use crate::observe::mounts;
use crate::pace;
use crate::run_options::{PoolFilesystem, RunOptions, program};
use crate::wait;

/// The name of the record on a volume's directory.
pub const RECORD: &str = "trusted.bulkhead";

/// A pool that a rig has made.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The name that requests use for it.
    pub name: String,
    /// Where it is mounted.
    pub directory: PathBuf,
    /// What follows the directory in `--pool`, including the comma.
    pub options: String,
}

impl Pool {
    /// Makes a filesystem of the type that the run is about, mounts it at `directory` and marks it as a pool.
    pub fn make(run_options: &RunOptions, templates: &Path, directory: &Path, name: &str) -> Result<Self> {
        let pool = Self::make_unmarked(run_options, templates, directory, name)?;
        run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(directory))?;
        Ok(pool)
    }

    /// Makes and mounts a filesystem that is not marked as a pool.
    pub fn make_unmarked(run_options: &RunOptions, templates: &Path, directory: &Path, name: &str) -> Result<Self> {
        let image = directory.with_extension("disk");
        format_image(run_options, templates, &image)?;
        fs::create_dir_all(directory)?;
        mount_image(run_options, &image, directory)?;
        Ok(Self::mounted(run_options, directory, name))
    }

    /// A pool whose files cannot share blocks: ext4 has none that can, and XFS can be made so.
    pub fn make_without_shared_blocks(
        run_options: &RunOptions,
        templates: &Path,
        directory: &Path,
        name: &str,
    ) -> Result<Self> {
        if run_options.pool_fs == PoolFilesystem::Ext4 {
            return Self::make(run_options, templates, directory, name);
        }
        let image = directory.with_extension("disk");
        fs::create_dir_all(directory)?;
        File::create_new(&image)?.set_len(run_options.pool_mebibytes << 20)?;
        run(Command::new("mkfs.xfs").args(["-q", "-m", "reflink=0"]).arg(&image))?;
        mount_image(run_options, &image, directory)?;
        run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(directory))?;
        Ok(Self::mounted(run_options, directory, name))
    }

    /// A pool on a filesystem of this run that is already mounted.
    pub fn mounted(run_options: &RunOptions, directory: &Path, name: &str) -> Self {
        let options = if run_options.enforces_sizes() { String::new() } else { ",quota=none".to_owned() };
        Self { name: name.to_owned(), directory: directory.to_owned(), options }
    }

    /// Marks a directory on any filesystem as a pool in which sizes are not enforced.
    pub fn plain(directory: &Path, name: &str) -> Result<Self> {
        fs::create_dir_all(directory)?;
        run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(directory))?;
        let options = ",quota=none".to_owned();
        Ok(Self { name: name.to_owned(), directory: directory.to_owned(), options })
    }

    /// A pool that is already mounted.
    pub fn existing(directory: &Path, name: &str) -> Self {
        Self { name: name.to_owned(), directory: directory.to_owned(), options: String::new() }
    }

    /// The value of `--pool`.
    pub fn flag(&self) -> String {
        format!("{}={}{}", self.name, self.directory.display(), self.options)
    }

    /// `major:minor` of its filesystem.
    pub fn device(&self) -> Result<String> {
        let device = fs::metadata(&self.directory)?.dev();
        Ok(format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
    }

    /// Names in the pool, except for the pool's own files and what mkfs creates.
    pub fn entries(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).with_context(|| format!("read pool {}", self.name))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if ![".bulkhead", "lost+found"].contains(&name.as_str()) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Checks that it holds just these entries.
    pub fn holds(&self, wanted: &[&str]) -> Result<()> {
        let found = self.entries()?;
        ensure!(found == wanted, "pool {} holds {found:?}, not {wanted:?}", self.name);
        Ok(())
    }

    /// The only loop device of its volumes.
    pub fn only_device(&self) -> Result<Loop> {
        let mut found = loops::backed_by(&self.device()?)?;
        ensure!(found.len() == 1, "{} loop devices: {found:?}", found.len());
        found.pop().context("no loop device")
    }

    /// Writes everything to its disk. Unlike `sync`, this does not wait for the pools of other tests, which may be frozen.
    pub fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.directory)?)?)
    }

    /// The directory of a volume.
    pub fn volume(&self, id: &str) -> PathBuf {
        self.directory.join(id)
    }

    /// The open directory of a volume, and the record on it.
    pub fn record(&self, id: &str) -> Result<(File, Vec<u8>)> {
        let directory = File::open(self.volume(id))?;
        let mut record = vec![0; 256];
        let length = rustix::fs::fgetxattr(&directory, RECORD, &mut record[..])?;
        record.truncate(length);
        Ok((directory, record))
    }

    /// The image of a volume or snapshot.
    pub fn image(&self, id: &str) -> PathBuf {
        self.volume(id).join("image")
    }
}

/// One pool for each slot, which the tests that run there use in turn. Each must leave it empty, which is checked.
#[derive(Debug)]
pub struct SharedPools {
    // First, so that they are detached before their file is removed.
    decoys: Option<Decoys>,
    scratch: TempDir,
    directories: Vec<PathBuf>,
}

impl SharedPools {
    /// Makes and mounts so many.
    pub fn make(run_options: &RunOptions, number: usize) -> Result<Self> {
        loops::provide()?;
        let scratch = run_options.place.make_scratch()?;
        let directories: Vec<_> = (0..number).map(|slot| scratch.path().join(format!("pool-{slot}"))).collect();
        let decoys = (number > 1).then(|| Decoys::make(scratch.path())).transpose()?;
        let pools = Self { decoys, scratch, directories };
        for directory in &pools.directories {
            Pool::make(run_options, pools.scratch.path(), directory, "default")?;
        }
        Ok(pools)
    }

    /// Returns where they are mounted.
    pub fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// Makes one of them anew, whatever it contains.
    pub fn renew(run_options: &RunOptions, directory: &Path) -> Result<()> {
        let templates = directory.parent().context("a pool without a directory around it")?;
        mounts::unmount_all(directory)?;
        fs::remove_file(directory.with_extension("disk")).context("remove the disk of the shared pool")?;
        Pool::make(run_options, templates, directory, "default").map(drop)
    }

    /// Unmounts them and removes their files.
    pub fn remove(self) -> Result<()> {
        let Self { decoys, scratch, .. } = self;
        drop(decoys);
        mounts::unmount_all(scratch.path())?;
        scratch.close().context("remove the shared pools")
    }
}

/// Mounts an image as a pool of this run is mounted.
pub fn mount_image(run_options: &RunOptions, image: &Path, directory: &Path) -> Result<()> {
    mount(run_options, "loop", image, directory)
}

/// Mounts a pool of this run anew whose helper has been killed, as is needed once its filesystem has shut down.
pub fn mount_anew(run_options: &RunOptions, directory: &Path) -> Result<()> {
    wait::until(pace::patience(Duration::from_secs(15)), || {
        // As long as the helper's processes end, it is the old one. Even then ext4 opens directories, but no files.
        mounts::unmount_all(directory)?;
        mount_image(run_options, &directory.with_extension("disk"), directory)?;
        File::open(directory.join(".bulkhead")).map(drop).context("the filesystem that was mounted anew")
    })
}

/// Mounts a disk as a pool of this run is mounted.
pub fn mount_disk(run_options: &RunOptions, disk: &Path, directory: &Path) -> Result<()> {
    mount(run_options, "rw", disk, directory)
}

fn mount(run_options: &RunOptions, option: &str, source: &Path, directory: &Path) -> Result<()> {
    // Copies of one template share a UUID, and XFS refuses to mount a second one without `nouuid`.
    let options = match (run_options.pool_fs, run_options.enforces_sizes()) {
        (PoolFilesystem::Xfs, true) => ",nouuid,prjquota",
        (PoolFilesystem::Xfs, false) => ",nouuid",
        (PoolFilesystem::Ext4, true) => ",prjquota",
        (PoolFilesystem::Ext4, false) => "",
    };
    let options = format!("{option}{options}");
    run(Command::new("mount").args(["-t", run_options.pool_fs.name(), "-o", &options]).args([source, directory]))
}

/// Makes an image with a fresh filesystem of the type that the run is about.
pub fn format_image(run_options: &RunOptions, templates: &Path, image: &Path) -> Result<()> {
    copy_sparse(&template(run_options, templates)?, image)
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    let text = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "{command:?}: {}: {}", output.status, String::from_utf8_lossy(&text));
    Ok(())
}

/// The output of a command that must succeed.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}: {complaint}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// An image with a fresh filesystem, made once per run.
fn template(run_options: &RunOptions, directory: &Path) -> Result<PathBuf> {
    let filesystem = run_options.pool_fs.name();
    let template = directory.join(format!("{filesystem}.{}.template", run_options.pool_mebibytes));
    if template.exists() {
        return Ok(template);
    }
    // Tests that run in parallel may each make it; the last rename wins, and any of them will do.
    let unfinished = directory.join(format!("{filesystem}.{}.unfinished", std::process::id()));
    File::create(&unfinished)?.set_len(run_options.pool_mebibytes << 20)?;
    let mut mkfs = Command::new(format!("mkfs.{filesystem}"));
    mkfs.arg("-q");
    if run_options.pool_fs == PoolFilesystem::Ext4 && run_options.enforces_sizes() {
        mkfs.args(["-O", "quota,project", "-E", "quotatype=prjquota"]);
    }
    run(mkfs.arg(&unfinished))?;
    fs::rename(&unfinished, &template)?;
    Ok(template)
}

/// Copies only the blocks that contain data.
fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    const BLOCK: usize = 1 << 16;
    let mut source = File::open(from)?;
    let mut copy = File::create_new(to)?;
    let length = source.metadata()?.len();
    copy.set_len(length)?;
    let mut buffer = vec![0; BLOCK];
    let mut offset = 0;
    while offset < length {
        // A filesystem that cannot distinguish holes from data reports everything as data.
        offset = match rustix::fs::seek(&source, rustix::fs::SeekFrom::Data(offset)).map_err(std::io::Error::from) {
            Ok(data) => data,
            Err(error) if error.kind() == ErrorKind::NotSeekable || error.raw_os_error() == Some(6) => break,
            Err(error) => return Err(error.into()),
        };
        let read = source.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        if buffer[..read].iter().any(|byte| *byte != 0) {
            copy.seek(SeekFrom::Start(offset))?;
            copy.write_all(&buffer[..read])?;
        }
        offset += read as u64;
    }
    Ok(())
}
