//! Stand-ins, under the same names, for the images that the suite's pods run: no registry is needed.
//!
//! Each consists of the programs that the pods call: a shell, the usual tools from Debian's packages, and Kubernetes'
//! agnhost.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fs_err as fs;
use jiff::Timestamp;
use serde_json::json;

use crate::archive::Archive;
use crate::image;
use crate::process::{capture, command};
use crate::vm::files_of_host;
use crate::workspace::Architecture;

/// An image of the suite.
struct StandIn {
    /// The last part of its name.
    name: &'static str,
    /// Programs of this host; busybox provides the others.
    programs: &'static [&'static str],
    /// The program that serves as the shell.
    shell: &'static str,
    /// Whether it contains agnhost, and runs it when its pod specifies no command.
    agnhost: bool,
}

const BUSYBOX: StandIn = StandIn { name: "busybox", programs: &["busybox"], shell: "busybox", agnhost: false };

const STAND_INS: [StandIn; 4] = [
    BUSYBOX,
    // Only its shell is used.
    StandIn { name: "nginx", ..BUSYBOX },
    // Its dd must be GNU's; busybox's shell would use its own instead.
    StandIn { name: "glibc-dns-testing", programs: &["busybox", "dash", "dd"], shell: "dash", ..BUSYBOX },
    StandIn { name: "agnhost", agnhost: true, ..BUSYBOX },
];

/// Links of a root filesystem whose programs and libraries are below /usr.
const LINKS: [(&str, &str); 5] =
    [("bin", "usr/bin"), ("sbin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64"), ("usr/sbin", "bin")];

/// Writes an archive for each image into the directory, and returns their paths. The assets contain the suite, which
/// knows the names of its images.
pub fn write(assets: &Path, directory: &Path) -> Result<Vec<PathBuf>> {
    let list = capture(command(assets.join("e2e.test")).arg("--list-images"))?;
    STAND_INS.iter().map(|image| image.write(&list, assets, directory)).collect()
}

impl StandIn {
    fn write(&self, list: &str, assets: &Path, directory: &Path) -> Result<PathBuf> {
        let names = names(list, self.name);
        ensure!(!names.is_empty(), "the suite names no image {}", self.name);
        let agnhost = self.agnhost.then(|| fs::read(assets.join("agnhost"))).transpose()?;
        let path = directory.join(format!("{}.tar", self.name));
        let command = match self.agnhost {
            true => json!({ "Entrypoint": ["/agnhost"], "Cmd": ["pause"] }),
            false => json!({ "Cmd": ["sh"] }),
        };
        let config = json!({ "config": command });
        let archive = image::archive(self.layer(agnhost)?, config, Architecture::host(), &names)
            .with_context(|| format!("make the image {}", self.name))?;
        fs::write(&path, archive)?;
        Ok(path)
    }

    fn layer(&self, agnhost: Option<Vec<u8>>) -> Result<Vec<u8>> {
        let mut layer = Archive::new(Timestamp::UNIX_EPOCH);
        for directory in ["etc", "mnt", "opt", "root", "tmp", "usr/bin", "usr/lib", "usr/lib64", "var"] {
            layer.directory(directory)?;
        }
        for (path, target) in LINKS {
            layer.symlink(path, target)?;
        }
        for file in files_of_host(self.programs)? {
            let content = fs::read(&file.source)?;
            layer.file(&file.path, 0o755, &content)?;
        }
        layer.symlink("usr/bin/sh", self.shell)?;
        for tool in capture(command("busybox").arg("--list"))?.lines() {
            if tool != "sh" && !self.programs.contains(&tool) {
                layer.symlink(&format!("usr/bin/{tool}"), "busybox")?;
            }
        }
        if let Some(agnhost) = agnhost {
            layer.file("agnhost", 0o755, &agnhost)?;
        }
        Ok(layer.finish()?)
    }
}

/// The images on a list whose names end with this, apart from the version.
fn names<'a>(list: &'a str, last: &str) -> Vec<&'a str> {
    let is_wanted = |line: &&str| {
        let name = line.rsplit_once(':').map_or(*line, |(name, _)| name);
        name.strip_suffix(last).is_some_and(|rest| rest.ends_with("/e2e-test-images/"))
    };
    list.lines().map(str::trim).filter(is_wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_in_the_suites_list() {
        let list = "registry.k8s.io/e2e-test-images/agnhost:2.55\nregistry.k8s.io/e2e-test-images/agnhost:2.63.0\n\
                    gcr.io/authenticated/agnhost:2.6\nregistry.k8s.io/e2e-test-images/nonagnhost:1\n";
        let agnhosts =
            ["registry.k8s.io/e2e-test-images/agnhost:2.55", "registry.k8s.io/e2e-test-images/agnhost:2.63.0"];
        assert_eq!(names(list, "agnhost"), agnhosts);
        assert!(names(list, "host").is_empty());
    }
}
