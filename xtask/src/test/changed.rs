//! `--changed`: which steps a change can affect.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::step::Step::{
    self, Ext4, Host, Kubernetes, Node, OlderKubernetes, Policy, PowerCut, Reboot, Sanity, Selinux, StorageE2e,
    Systemd, Unit, Xfs,
};
use crate::process::capture;
use crate::workspace::Workspace;

type Names = &'static [&'static str];

/// Files, and the first places where a fault in them would show.
struct Rule {
    /// The beginnings of their paths.
    prefixes: Names,
    /// The packages whose unit tests are run; all packages if the list is empty.
    units: Names,
    /// The steps.
    steps: &'static [Step],
}

const fn rule(prefixes: Names, units: Names, steps: &'static [Step]) -> Rule {
    Rule { prefixes, units, steps }
}

const ALL: &[&str] = &[];
// xtask's tests look in the sources for what the documentation quotes.
const HELPER: &[&str] = &["bulkhead-fuzz", "bulkhead-privhelper", "bulkhead-protocol", "xtask"];
const API: &[&str] = &["bulkhead-api", "bulkhead-frontend", "bulkheadctl", "kubectl-bulkhead", "xtask"];
const CONSOLE: &[&str] = &["bulkhead-console", "bulkheadctl", "kubectl-bulkhead", "xtask"];
const FRONTEND: &[&str] = &["bulkhead-frontend", "bulkheadctl", "xtask"];
const MODEL: &[&str] = &[
    "bulkhead-api", "bulkhead-console", "bulkhead-frontend", "bulkhead-fuzz", "bulkhead-model", "bulkheadctl",
    "kubectl-bulkhead", "xtask",
];
const XTASK: &[&str] = &["xtask", "bulkhead-vm-agent"];

/// The rule with the longest matching prefix applies to a file. A file that no other rule names affects everything.
const RULES: &[Rule] = &[
    rule(&[""], ALL, &[Policy, Unit, Host, Kubernetes, Xfs, Ext4, Sanity, Reboot, PowerCut, Systemd, Node, StorageE2e]),
    // Read by people only; `cargo xtask lint` reads deny.toml.
    rule(&[".ci/", ".editorconfig", ".gitignore", "LICENSE", "deny.toml", "rustfmt.toml"], ALL, &[]),
    // Unit tests compare them with the code, or with the targets of their links.
    rule(&[".github/", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"], XTASK, &[Unit]),
    rule(&["docs/"], XTASK, &[Policy, Unit]),
    rule(&["SECURITY.md"], ALL, &[Policy, Unit]),
    rule(&["clippy.toml"], ALL, &[Policy]),
    // What is shipped. `--all` checks the chart.
    rule(&["deploy/images/"], XTASK, &[Unit, Node]),
    rule(&["deploy/helm/"], XTASK, &[Unit, Kubernetes]),
    // Where deploy/kubernetes leads.
    rule(&["deploy/helm/bulkhead/files/"], XTASK, &[Unit, Kubernetes, Node]),
    rule(&["deploy/helm/bulkhead/files/monitoring/", "deploy/monitoring/"], FRONTEND, &[Unit, Kubernetes]),
    rule(&["deploy/prepare/"], HELPER, &[Unit, Host]),
    rule(&["deploy/seccomp/"], ALL, &[Systemd]),
    rule(
        &["deploy/selinux/", "tests/src/bin/bulkhead-node/selinux.rs", "xtask/src/vm/guest/enforcing/"],
        ALL,
        &[Selinux],
    ),
    rule(&["deploy/systemd/", "deploy/udev/"], ALL, &[Systemd, Node]),
    rule(&["frontend/"], FRONTEND, &[Unit, Host, Kubernetes]),
    rule(&["frontend/api/"], API, &[Unit, Kubernetes]),
    rule(&["frontend/bulkheadctl/"], &["bulkheadctl", "xtask"], &[Unit, Host]),
    rule(&["frontend/console/"], CONSOLE, &[Unit, Host, Kubernetes]),
    rule(&["frontend/kubectl-bulkhead/"], &["kubectl-bulkhead", "xtask"], &[Unit, Kubernetes]),
    rule(&["frontend/model/"], MODEL, &[Unit, Host, Kubernetes, Sanity]),
    rule(&["frontend/src/csi/"], FRONTEND, &[Unit, Host, Sanity, StorageE2e]),
    rule(&["frontend/src/kubernetes/"], FRONTEND, &[Unit, Kubernetes, StorageE2e]),
    rule(&["frontend/src/main.rs", "frontend/src/options.rs"], FRONTEND, &[Unit, Host, Kubernetes, Systemd, Node]),
    rule(&["frontend/src/registration"], FRONTEND, &[Unit, Host, Node]),
    rule(&["frontend/src/volumes/"], FRONTEND, &[Unit, Host, Kubernetes, Sanity]),
    rule(&["frontend/tests/"], FRONTEND, &[Unit]),
    rule(&["privhelper/"], HELPER, &[Policy, Unit, Host]),
    rule(&["privhelper/src/emptier", "privhelper/src/state/"], HELPER, &[Policy, Unit, Host, Xfs]),
    rule(&["privhelper/src/start/"], HELPER, &[Policy, Unit, Host, Xfs, Reboot, Systemd]),
    rule(&["privhelper/src/start/config"], HELPER, &[Policy, Unit, Host, Systemd, Node]),
    rule(&["privhelper/src/sys/"], HELPER, &[Policy, Unit, Host, Xfs, Ext4, Systemd]),
    rule(&["proto/"], FRONTEND, &[Unit, Host, Sanity]),
    rule(&["protocol/"], ALL, &[Policy, Unit, Host, Kubernetes]),
    rule(&["protocol/tests/"], HELPER, &[Unit]),
    // The tests themselves.
    rule(&["tests/control-plane/"], ALL, &[Kubernetes, Node, StorageE2e]),
    rule(&["tests/control-plane/1."], ALL, &[OlderKubernetes]),
    rule(&["tests/fuzz/"], &["bulkhead-fuzz", "xtask"], &[Unit]),
    rule(&["tests/helm/", "tests/prometheus/", "tests/snapshot-metadata/", "tests/src/cluster/"], ALL, &[Kubernetes]),
    rule(&["tests/local-path/", "tests/registry/", "tests/src/node/"], ALL, &[Node]),
    rule(&["tests/protocol/"], XTASK, &[Unit, Host]),
    rule(&["tests/sanity/", "tests/src/bin/bulkhead-sanity"], ALL, &[Sanity]),
    rule(&["tests/storage-e2e/"], ALL, &[StorageE2e]),
    rule(&["tests/src/bench/"], &["bulkhead-tests"], &[Unit]),
    // Benches, and the demonstration.
    rule(&["tests/external-provisioner/", "tests/src/bin/bulkhead-bench"], ALL, &[]),
    rule(&["tests/src/bin/bulkhead-cluster-bench", "tests/src/bin/bulkhead-demo"], ALL, &[]),
    rule(&["tests/src/bin/bulkhead-cluster/"], XTASK, &[Unit, Kubernetes]),
    rule(&["tests/src/bin/bulkhead-node"], XTASK, &[Unit, Node]),
    rule(&["tests/src/bin/bulkhead-suite"], XTASK, &[Unit, Host, Xfs, Ext4, Reboot, PowerCut]),
    rule(&["tests/src/bin/bulkhead-systemd"], XTASK, &[Unit, Systemd]),
    rule(&["xtask/"], XTASK, &[Policy, Unit]),
    rule(&["xtask/agent/", "xtask/src/vm/"], XTASK, &[Unit, Xfs, Sanity, Reboot, PowerCut, Systemd, Node]),
    rule(&["xtask/src/go_tool.rs"], XTASK, &[Unit, Kubernetes, Sanity]),
    rule(&["xtask/src/image", "xtask/src/node.rs"], XTASK, &[Unit, Node]),
    rule(&["xtask/src/kubernetes/"], XTASK, &[Unit, Kubernetes, Node]),
    rule(&["xtask/src/storage_images.rs"], XTASK, &[Unit, StorageE2e]),
    rule(&["xtask/src/test/"], XTASK, &[Policy, Unit, Host, Xfs]),
];

/// What a change affects.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// The steps.
    pub steps: BTreeSet<Step>,
    /// The packages whose unit tests are run; `None` for all of them.
    pub units: Option<BTreeSet<&'static str>>,
}

impl Touched {
    /// Returns what is affected by the files that differ from the last commit shared with the main branch, committed or
    /// not.
    pub fn since_main(workspace: &Workspace) -> Result<Self> {
        let git = |arguments: &[&str]| capture(&mut workspace.git(arguments));
        let base = git(&["merge-base", "HEAD", "origin/main"])
            .or_else(|_| git(&["merge-base", "HEAD", "main"]))
            .context("find the last commit that is shared with the main branch")?;
        let changed = git(&["diff", "--name-only", "--no-renames", base.trim()])?;
        let new = git(&["ls-files", "--others", "--exclude-standard"])?;
        Ok(Touched::by(changed.lines().chain(new.lines())))
    }

    fn by<'a>(files: impl Iterator<Item = &'a str>) -> Self {
        let mut steps = BTreeSet::new();
        let mut units = Some(BTreeSet::new());
        for file in files {
            let prefixes = RULES.iter().flat_map(|rule| rule.prefixes.iter().map(move |prefix| (prefix, rule)));
            let matching = prefixes.filter(|(prefix, _)| file.starts_with(**prefix));
            let Some((_, rule)) = matching.max_by_key(|(prefix, _)| prefix.len()) else { continue };
            steps.extend(rule.steps);
            match &mut units {
                _ if !rule.steps.contains(&Unit) => {}
                _ if rule.units.is_empty() => units = None,
                Some(units) => units.extend(rule.units),
                None => {}
            }
        }
        Touched { steps, units }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_rule_names_what_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
        for prefix in RULES.iter().flat_map(|rule| rule.prefixes) {
            // A prefix may end in the middle of a name.
            let (directory, name) = prefix.rsplit_once('/').unwrap_or(("", prefix));
            let mut names = root.join(directory).read_dir().expect(prefix).map(|entry| entry.expect("an entry"));
            assert!(names.any(|entry| entry.file_name().to_string_lossy().starts_with(name)), "{prefix}");
        }
    }

    #[test]
    fn the_longest_prefix_counts() {
        let touched = Touched::by(["privhelper/src/ops/publish.rs", "LICENSE"].into_iter());
        assert_eq!(touched.steps, BTreeSet::from([Policy, Unit, Host]));
        assert_eq!(touched.units, Some(BTreeSet::from_iter(HELPER.iter().copied())));
        let touched = Touched::by(["privhelper/src/ops/publish.rs", "Cargo.lock"].into_iter());
        assert_eq!(touched.steps.len(), 12);
        assert_eq!(touched.units, None);
        assert_eq!(Touched::by(["LICENSE"].into_iter()).steps, BTreeSet::new());
    }
}
