//! Container images: static programs on nothing, as archives that `ctr images import`, `podman load` and
//! `docker load` read. The same program makes the same bytes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};

use crate::workspace::Architecture;

/// What an image holds and how it is started.
struct Image {
    name: &'static str,
    tag: &'static str,
    /// Where the program is that a container runs.
    program: &'static str,
    /// Other programs, for people to run in a container.
    beside: &'static [&'static str],
    arguments: &'static [&'static str],
    user: &'static str,
    stop_signal: &'static str,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The images, called after their programs.
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

/// A shell for the pods of tests; without a command it does what keeps a pod's namespaces alive.
const SHELL: Image = Image {
    tag: "test",
    program: "bin/sh",
    arguments: &["-c", "trap exit TERM; while :; do sleep 86400 & wait; done"],
    ..Image::of_program("bulkhead-shell")
};

/// Writes an archive for each image into the directory, and returns where they are. `built` says where a program is.
pub fn write(built: impl Fn(&str) -> PathBuf, architecture: Architecture, directory: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    IMAGES.iter().map(|image| image.write(&built, architecture, directory)).collect()
}

/// Writes the archive of a shell with busybox's tools into the directory, and returns where it is.
pub fn write_shell(architecture: Architecture, directory: &Path) -> Result<PathBuf> {
    SHELL.write(&|_| PathBuf::from("/bin/busybox"), architecture, directory)
}

impl Image {
    /// An image that is called after its program. That has nothing to do at its end, and the first process of a
    /// container ignores what it does not handle.
    const fn of_program(name: &'static str) -> Self {
        Image { name, tag: VERSION, program: name, beside: &[], arguments: &[], user: "0:0", stop_signal: "SIGKILL" }
    }

    fn write(&self, built: &dyn Fn(&str) -> PathBuf, architecture: Architecture, directory: &Path) -> Result<PathBuf> {
        let mut programs = Vec::new();
        for program in [self.program].iter().chain(self.beside) {
            let path = built(program);
            programs.push((*program, fs::read(&path).with_context(|| format!("read {}", path.display()))?));
        }
        let name = format!("{}:{}", self.name, self.tag);
        let archive = self.archive(&name, &programs, architecture).context("write an image's archive")?;
        let path = directory.join(format!("{}-{}.tar", name.replace(':', "-"), architecture.debian()));
        // A runtime that reads it meanwhile gets the old one or the new one, never a part.
        let unfinished = path.with_extension("unfinished");
        fs::write(&unfinished, archive).with_context(|| format!("write {}", unfinished.display()))?;
        fs::rename(&unfinished, &path).with_context(|| format!("put {} in place", path.display()))?;
        Ok(path)
    }

    /// The archive: an OCI image layout, and the list by which `docker load` finds the same blobs.
    fn archive(&self, name: &str, programs: &[(&str, Vec<u8>)], architecture: Architecture) -> io::Result<Vec<u8>> {
        let mut layer = Archive::new();
        if let Some((directory, _)) = self.program.rsplit_once('/') {
            layer.directory(directory)?;
        }
        for (path, content) in programs {
            layer.file(path, 0o755, content)?;
        }
        let layer = Blob::new("application/vnd.oci.image.layer.v1.tar", layer.finish()?);
        let program = format!("/{}", self.program);
        let entrypoint: Vec<&str> = [program.as_str()].iter().chain(self.arguments).copied().collect();
        let config = Blob::json(
            "application/vnd.oci.image.config.v1+json",
            &json!({
                "architecture": architecture.debian(),
                "os": "linux",
                "created": "1970-01-01T00:00:00Z",
                "config": {
                    "User": self.user,
                    "Entrypoint": entrypoint,
                    "StopSignal": self.stop_signal,
                    "Labels": {
                        "org.opencontainers.image.title": self.name,
                        "org.opencontainers.image.version": VERSION,
                        "org.opencontainers.image.licenses": "Apache-2.0",
                    },
                },
                "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
            }),
        );
        let manifest = Blob::json(
            "application/vnd.oci.image.manifest.v1+json",
            &json!({
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": config.descriptor(),
                "layers": [layer.descriptor()],
            }),
        );
        let mut entry = manifest.descriptor();
        entry["platform"] = json!({ "architecture": architecture.debian(), "os": "linux" });
        // What a container runtime makes of the bare name in a pod.
        let reference = format!("docker.io/library/{name}");
        entry["annotations"] =
            json!({ "io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference });
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [entry],
        });
        let docker = json!([{ "Config": config.path(), "RepoTags": [name], "Layers": [layer.path()] }]);

        let mut archive = Archive::new();
        archive.file("oci-layout", 0o644, json!({ "imageLayoutVersion": "1.0.0" }).to_string().as_bytes())?;
        archive.file("index.json", 0o644, index.to_string().as_bytes())?;
        archive.file("manifest.json", 0o644, docker.to_string().as_bytes())?;
        archive.directory("blobs")?;
        archive.directory("blobs/sha256")?;
        for blob in [&config, &manifest, &layer] {
            archive.file(&blob.path(), 0o644, &blob.content)?;
        }
        archive.finish()
    }
}

/// A tar archive whose bytes depend on names and contents only: everything belongs to root and is as old as the epoch.
pub struct Archive {
    builder: tar::Builder<Vec<u8>>,
}

impl Archive {
    /// An empty archive.
    pub fn new() -> Self {
        Archive { builder: tar::Builder::new(Vec::new()) }
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        self.add(EntryType::Directory, path, 0o755, b"")
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.add(EntryType::Regular, path, mode, content)
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Symlink);
        header.set_link_name(target)?;
        self.append(header, path, 0o777, b"")
    }

    fn add(&mut self, kind: EntryType, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        self.append(header, path, mode, content)
    }

    fn append(&mut self, mut header: Header, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        header.set_path(path)?;
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        self.builder.append(&header, content)
    }

    /// Its bytes.
    pub fn finish(self) -> io::Result<Vec<u8>> {
        self.builder.into_inner()
    }
}

/// A part of an image, called by its digest.
struct Blob {
    media_type: &'static str,
    digest: String,
    content: Vec<u8>,
}

impl Blob {
    fn new(media_type: &'static str, content: Vec<u8>) -> Self {
        let hexadecimal: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        Blob { media_type, digest: format!("sha256:{hexadecimal}"), content }
    }

    fn json(media_type: &'static str, value: &Value) -> Self {
        Blob::new(media_type, value.to_string().into_bytes())
    }

    fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.content.len() })
    }

    fn path(&self) -> String {
        format!("blobs/{}", self.digest.replace(':', "/"))
    }
}

#[cfg(test)]
mod tests {
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
}
