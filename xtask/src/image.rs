//! Container images: static programs and nothing else, as archives that `ctr images import`, `podman load` and `docker
//! load` read. The same program always yields the same bytes.

mod layout;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fs_err as fs;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use self::layout::Manifest;
pub use self::layout::read as read_released;
use crate::archive::Archive;
use crate::release::{Contents, Origin, VERSION};
use crate::workspace::Architecture;

/// What an image contains and how it is started.
struct Image {
    name: &'static str,
    tag: &'static str,
    /// The path of the program that a container runs.
    program: &'static str,
    /// Other programs, for people to run inside a container.
    beside: &'static [&'static str],
    /// Names under which the program is found besides, and does something else.
    aliases: &'static [&'static str],
    arguments: &'static [&'static str],
    user: &'static str,
    stop_signal: &'static str,
}

/// The images, named after their programs.
const IMAGES: [Image; 2] = [
    // The user that the helper's deployments allow.
    Image {
        user: "10001:10001",
        stop_signal: "SIGTERM",
        beside: &["bulkheadctl"],
        ..Image::of_program("bulkhead-frontend")
    },
    Image { beside: &["bulkhead-setup"], ..Image::of_program("bulkhead-privhelper") },
];

/// A shell for the pods of tests; without a command it only keeps a pod's namespaces alive.
const SHELL: Image = Image {
    tag: "test",
    program: "bin/sh",
    arguments: &["-c", "trap exit TERM; while :; do sleep 86400 & wait; done"],
    ..Image::of_program("bulkhead-shell")
};

/// The shell under the name that the first claim in docs/kubernetes.md uses, with the programs that people call by name.
const BUSYBOX: Image = Image {
    name: "busybox",
    tag: "1",
    aliases: &[
        "cat", "chroot", "date", "dd", "df", "du", "echo", "ls", "mkdir", "mount", "ps", "rm", "sleep", "vi", "wget",
    ],
    ..SHELL
};

/// Writes an archive for each image into the directory, and returns their paths. `built` maps a program's name to its
/// path.
pub fn write(built: impl Fn(&str) -> PathBuf, architecture: Architecture, directory: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(directory)?;
    IMAGES.iter().map(|image| image.write(&built, architecture, directory)).collect()
}

/// A released image.
pub struct Pinned {
    /// Its name.
    pub name: &'static str,
    /// The repository that it is pulled from.
    pub repository: String,
    /// The digest of its index.
    pub digest: String,
}

/// Writes an archive for each image, with an index over all architectures, and returns what the archives contain.
/// `built` maps a program's name to its path.
pub fn write_released(
    built: impl Fn(&str, Architecture) -> PathBuf,
    contents: &Contents<'_>,
    directory: &Path,
) -> Result<Vec<Pinned>> {
    let Contents { origin: Origin { revision, date }, architectures, registry } = contents;
    let write = |image: &Image| {
        let config = image.config(*date, &[("revision", revision), ("created", &date.to_string())]);
        let for_one = |architecture: &Architecture| {
            let layer = image.layer(&|program| built(program, *architecture))?;
            Manifest::new(layer, true, config.clone(), *architecture)
                .with_context(|| format!("make the image {} for {}", image.name, architecture.name()))
        };
        let images = architectures.iter().map(for_one).collect::<Result<Vec<_>>>()?;
        let repository =
            registry.map_or_else(|| image.name.to_owned(), |registry| format!("{registry}/{}", image.name));
        let index = layout::index(&images);
        let archive = layout::multiple(&index, &images, &format!("{repository}:{}", image.tag))
            .context("write an image's archive")?;
        fs::write(directory.join(format!("{}-{}.oci.tar", image.name, image.tag)), archive)?;
        Ok(Pinned { name: image.name, repository, digest: index.digest })
    };
    IMAGES.iter().map(write).collect()
}

/// Writes the archives of the images that pods on a node without a registry use, and returns their paths.
pub fn write_shells(directory: &Path) -> Result<Vec<PathBuf>> {
    let busybox = |_: &str| PathBuf::from("/bin/busybox");
    [SHELL, BUSYBOX].iter().map(|image| image.write(&busybox, Architecture::host(), directory)).collect()
}

/// Writes the archive of an image, with the tag `test`, of a static program that is not ours, and returns its path.
pub fn write_other(name: &'static str, program: &Path, directory: &Path) -> Result<PathBuf> {
    Image { tag: "test", ..Image::of_program(name) }.write(&|_| program.to_owned(), Architecture::host(), directory)
}

impl Image {
    /// An image named after its program. It is stopped with SIGKILL: the program has nothing to do at its end, and the
    /// first process of a container ignores signals that it does not handle.
    const fn of_program(name: &'static str) -> Self {
        Image {
            name,
            tag: VERSION,
            program: name,
            beside: &[],
            aliases: &[],
            arguments: &[],
            user: "0:0",
            stop_signal: "SIGKILL",
        }
    }

    fn write(&self, built: &dyn Fn(&str) -> PathBuf, architecture: Architecture, directory: &Path) -> Result<PathBuf> {
        let name = format!("{}:{}", self.name, self.tag);
        let archive = archive(self.layer(built)?, self.config(Timestamp::UNIX_EPOCH, &[]), architecture, &[&name])
            .context("write an image's archive")?;
        let path = directory.join(format!("{}-{}.tar", name.replace(':', "-"), architecture.debian()));
        // A runtime that reads the file in the meantime gets the old one or the new one, never a part.
        let unfinished = path.with_extension("unfinished");
        fs::write(&unfinished, archive)?;
        fs::rename(&unfinished, &path)?;
        Ok(path)
    }

    /// The image's files.
    fn layer(&self, built: &dyn Fn(&str) -> PathBuf) -> Result<Vec<u8>> {
        let mut layer = Archive::new(Timestamp::UNIX_EPOCH);
        for program in [self.program].iter().chain(self.beside) {
            layer.file(program, 0o755, &fs::read(built(program))?)?;
        }
        for alias in self.aliases {
            layer.symlink(&format!("bin/{alias}"), &format!("/{}", self.program))?;
        }
        Ok(layer.finish()?)
    }

    /// How a container is started, and the labels of the image.
    fn config(&self, created: Timestamp, more: &[(&str, &str)]) -> Value {
        let program = format!("/{}", self.program);
        let entrypoint: Vec<&str> = [program.as_str()].iter().chain(self.arguments).copied().collect();
        let labels = [("title", self.name), ("version", VERSION), ("licenses", "Apache-2.0")];
        let labels: Map<String, Value> = labels
            .iter()
            .chain(more)
            .map(|(key, value)| (format!("org.opencontainers.image.{key}"), (*value).into()))
            .collect();
        json!({
            "created": created.to_string(),
            "config": {
                "User": self.user,
                "Entrypoint": entrypoint,
                "StopSignal": self.stop_signal,
                "Labels": labels,
            },
        })
    }
}

/// An archive with an image for one architecture: its only layer, what its configuration says besides, and its names.
pub fn archive(layer: Vec<u8>, config: Value, architecture: Architecture, names: &[&str]) -> io::Result<Vec<u8>> {
    layout::single(&Manifest::new(layer, false, config, architecture)?, names)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn the_same_program_makes_the_same_archive() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        fs::write(&program, "a program").unwrap();
        let archives = |name: &str| -> Vec<Vec<u8>> {
            let paths = write(|_| program.clone(), Architecture::Arm64, &directory.path().join(name)).unwrap();
            paths.iter().map(|path| fs::read(path).unwrap()).collect()
        };
        let first = archives("first");
        assert_eq!(first.len(), IMAGES.len());
        assert_ne!(first[0], first[1]);
        assert_eq!(first, archives("second"));
    }

    #[test]
    fn a_released_image_is_an_index_over_all_architectures() {
        let directory = tempfile::tempdir().unwrap();
        let built = |program: &str, architecture: Architecture| {
            let path = directory.path().join(format!("{program}-{}", architecture.debian()));
            fs::write(&path, path.to_string_lossy().as_bytes()).unwrap();
            path
        };
        let origin = &Origin { revision: "c0ffee".to_owned(), date: Timestamp::UNIX_EPOCH };
        let registry = Some("registry.example.com/storage");
        let contents = Contents { origin, architectures: &Architecture::ALL, registry };
        let pinned = write_released(built, &contents, directory.path()).unwrap();
        assert_eq!(pinned[0].repository, "registry.example.com/storage/bulkhead-frontend");
        let archive = directory.path().join(format!("bulkhead-frontend-{VERSION}.oci.tar"));
        for architecture in Architecture::ALL {
            let (layer, config) = read_released(&archive, architecture).unwrap();
            assert_eq!(config["architecture"], architecture.debian());
            assert_eq!(config["config"]["Labels"]["org.opencontainers.image.revision"], "c0ffee");
            let mut layer = tar::Archive::new(GzDecoder::new(layer.as_slice()));
            let mut program = layer.entries().unwrap().next().unwrap().unwrap();
            let mut content = String::new();
            program.read_to_string(&mut content).unwrap();
            assert!(content.ends_with(architecture.debian()), "{content}");
        }
    }
}
