//! Which releases of Kubernetes the tests use: only the Go modules that list their programs say so.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::workspace::Workspace;

/// The directory of the repository that contains the modules.
const MODULES: &str = "tests/control-plane";

/// The directories of the modules for older releases.
const OLDER: [&str; 2] = ["1.34", "1.32"];

/// A release that the tests use.
pub struct Release {
    /// The Go module that pins it.
    pub module: PathBuf,
    /// As shown by `kubectl version`: `v1.36.3`.
    pub version: String,
    /// The release's own toolchain: a later one breaks its API descriptions.
    pub toolchain: String,
}

impl Release {
    /// The release that everything is tested with.
    pub fn pinned(workspace: &Workspace) -> Result<Self> {
        Self::of(workspace.root.join(MODULES))
    }

    /// Older releases that are also supported, whose API servers do not set the labels that a newer one's does.
    pub fn older(workspace: &Workspace) -> Result<Vec<Self>> {
        OLDER.iter().map(|directory| Self::of(workspace.root.join(MODULES).join(directory))).collect()
    }

    fn of(module: PathBuf) -> Result<Self> {
        let file = module.join("go.mod");
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let version = version(&text).with_context(|| format!("{} requires no k8s.io/kubernetes", file.display()))?;
        let toolchain = text.lines().find_map(|line| line.strip_prefix("toolchain "));
        let toolchain = toolchain.with_context(|| format!("{} names no toolchain", file.display()))?;
        Ok(Release { version: version.to_owned(), toolchain: toolchain.to_owned(), module })
    }

    /// The version for the linker to write into the programs, which would otherwise call themselves v0.0.0.
    pub fn linker_flags(&self) -> String {
        let mut numbers = self.version.trim_start_matches('v').split('.');
        let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        let version = &self.version;
        let mut flags = "-s -w".to_owned();
        for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
            flags += &format!(
                " -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
            );
        }
        flags
    }
}

fn version(module: &str) -> Option<&str> {
    module.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "require").collect();
        match words[..] {
            ["k8s.io/kubernetes", version, ..] => Some(version),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn a_module_tells_its_version() {
        assert_eq!(version("go 1.26\n\nrequire k8s.io/kubernetes v1.2.3\n"), Some("v1.2.3"));
        assert_eq!(
            version("tool (\n\tk8s.io/kubernetes/cmd/kubectl\n)\nrequire (\n\tk8s.io/kubernetes v1.2.4 // x\n)\n"),
            Some("v1.2.4")
        );
        assert_eq!(version("require k8s.io/kubernetes/other v1.2.3"), None);
    }
}
