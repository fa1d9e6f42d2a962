//! The steps of `cargo xtask test`.

use clap::ValueEnum;

/// A part of the test that can be run on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Step {
    /// The rules for the code that runs with privilege.
    Policy,
    /// Unit and property tests of every crate.
    Unit,
    /// The suite on this host.
    Host,
    /// Storage agents on a real control plane, on this host.
    Kubernetes,
    /// Storage agents on older control planes; only with `--all` or by name.
    OlderKubernetes,
    /// The suite in the machine, with its pool on XFS.
    Xfs,
    /// The suite in the machine, with its pool on ext4.
    Ext4,
    /// csi-sanity in the machine.
    Sanity,
    /// The tests that a reboot of the machine interrupts.
    Reboot,
    /// The same tests, interrupted by a power cut.
    PowerCut,
    /// Both programs as services, in a machine with systemd.
    Systemd,
    /// Pods on a Kubernetes node in a machine, with its control plane on this host.
    Node,
    /// Pods on such a node where SELinux enforces; only with `--all` or by name.
    Selinux,
    /// Kubernetes' own tests of storage drivers on such a node; only with `--all` or by name.
    StorageE2e,
    /// A release, built twice, and its images in a machine of the other architecture; only with `--all` or by name.
    Release,
}

impl Step {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        self.name_and_title().0
    }

    /// Returns what it tests, as shown in the summary.
    pub fn title(self) -> &'static str {
        self.name_and_title().1
    }

    fn name_and_title(self) -> (&'static str, &'static str) {
        match self {
            Step::Policy => ("policy", "rules for privileged code"),
            Step::Unit => ("unit", "unit and property tests"),
            Step::Host => ("host", "suite on this host"),
            Step::Kubernetes => ("kubernetes", "agents on a real control plane"),
            Step::OlderKubernetes => ("older-kubernetes", "agents on older control planes"),
            Step::Xfs => ("xfs", "suite in the machine on XFS"),
            Step::Ext4 => ("ext4", "suite in the machine on ext4"),
            Step::Sanity => ("sanity", "csi-sanity in the machine"),
            Step::Reboot => ("reboot", "across a reboot of the machine"),
            Step::PowerCut => ("power-cut", "across a power cut of the machine"),
            Step::Systemd => ("systemd", "services in a machine with systemd"),
            Step::Node => ("node", "pods on a Kubernetes node"),
            Step::Selinux => ("selinux", "pods on a node where SELinux enforces"),
            Step::StorageE2e => ("storage-e2e", "Kubernetes' own tests of storage drivers"),
            Step::Release => ("release", "release, built twice"),
        }
    }

    /// Returns whether it takes part when tests are selected by name, and no step is. The node takes too long to start
    /// for that.
    pub fn takes_filter(self) -> bool {
        self.needs_root() || matches!(self, Step::Xfs | Step::Ext4 | Step::Systemd | Step::StorageE2e)
    }

    /// The command that runs one of its tests.
    pub fn again(self, test: &str) -> String {
        let name = self.name();
        match self {
            Step::Unit => format!("cargo test --workspace '{test}'"),
            // A check is named after its deployment.
            Step::Node | Step::Selinux => {
                format!("cargo xtask test --step {name} '{}'", test.split_once(": ").map_or(test, |(_, check)| check))
            }
            // It counts no tests by name.
            Step::Sanity | Step::Reboot | Step::PowerCut => format!("cargo xtask test --step {name}"),
            _ => format!("cargo xtask test --step {name} '{test}'"),
        }
    }

    /// Returns whether it takes so long that it runs only with `--all` or if it is named on the command line.
    pub fn is_long(self) -> bool {
        matches!(self, Step::OlderKubernetes | Step::Selinux | Step::StorageE2e | Step::Release)
    }

    /// Returns whether it boots a machine.
    pub fn needs_machine(self) -> bool {
        !matches!(self, Step::Policy | Step::Unit) && !self.needs_root()
    }

    /// Returns whether its machine is user-mode Linux, where that exists: not if it is about another architecture.
    pub fn runs_in_user_mode(self) -> bool {
        self.needs_machine() && self != Step::Release
    }

    /// Returns whether it makes mounts and loop devices on this host, or starts programs as another user, which
    /// requires root.
    pub fn needs_root(self) -> bool {
        matches!(self, Step::Host | Step::Kubernetes | Step::OlderKubernetes)
    }

    /// The step whose machine this one takes over when both run in the same lane: volumes then outlive a reboot or a
    /// power cut of a machine that has already been busy.
    pub fn continues(self) -> Option<Step> {
        match self {
            Step::Sanity | Step::Reboot => Some(Step::Xfs),
            Step::PowerCut => Some(Step::Ext4),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_the_command_line_takes() {
        for step in Step::value_variants() {
            assert_eq!(Step::from_str(step.name(), false), Ok(*step));
        }
    }
}
