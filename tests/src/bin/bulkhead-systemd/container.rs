//! A runc container, as small as one can be: the host's programs, one volume, no capabilities.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use bulkhead_tests::pool::output;
use serde_json::{Value, json};

/// The container's user and group.
pub const USER: u32 = 1000;

/// Runs a command in a container that has `volume` at `/data`, and returns its output. A profile is applied the way
/// container runtimes apply a pod's: the file's content becomes the seccomp part of the container's specification.
pub fn run(bundle: &Path, volume: &Path, command: &[&str], profile: Option<&str>) -> Result<String> {
    let root = bundle.join("root");
    for directory in ["usr", "proc", "dev", "data"] {
        fs::create_dir_all(root.join(directory))?;
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), root.join(name))?;
    }
    let profile: Option<Value> = profile.map(serde_json::from_str).transpose().context("the profile is no JSON")?;
    let specification = json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": USER, "gid": USER}, "args": command, "env": ["PATH=/usr/bin"], "cwd": "/",
            "capabilities": {}, "noNewPrivileges": true,
        },
        "root": {"path": "root"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/usr", "type": "none", "source": "/usr", "options": ["rbind", "ro"]},
            {"destination": "/data", "type": "none", "source": volume, "options": ["rbind", "rw"]},
        ],
        "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "ipc"}], "seccomp": profile},
    });
    fs::write(bundle.join("config.json"), specification.to_string())?;
    let name = format!("bulkhead-{}", bundle.file_name().unwrap_or_default().to_string_lossy());
    output(Command::new("runc").args(["run", "--bundle"]).arg(bundle).arg(name))
}
