//! A Kubernetes node running Bulkhead: tests that run pods there, or a shell with access to it.

mod copies;
mod cut_off;
mod deployment;
mod disks;
mod documented;
mod health;
mod hostile;
mod labels;
mod local_path;
mod operator;
mod pods;
mod quick_starts;
mod restarts;
mod selinux;
mod shell;
mod storage_suite;
mod story;
mod tenants;
mod traces;
mod volumes;
mod walls;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use bulkhead_tests::node::Node;
use bulkhead_tests::pace::Pace;
use clap::{Parser, Subcommand};

use self::deployment::Deployment;
use self::story::{Check, Extent, Outcome, Story};

/// Brings up a control plane, and a node on the machine that is lent on standard input.
#[derive(Debug, Parser)]
struct Options {
    /// The directory with the manifests and units
    #[arg(long)]
    deploy: PathBuf,
    /// The port here at which the machine connects to its pods
    #[arg(long)]
    relay_port: u16,
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run the tests: all of them in one deployment, and in another one those whose outcome may differ
    Test {
        /// Run all of them in both deployments, and those whose outcome may differ as the chart installs the first, too
        #[arg(long)]
        everything: bool,
        /// Only checks whose name contains this, and those that make the volumes and delete them
        filter: Option<String>,
    },
    /// Run those that show what SELinux denies, on a node where it enforces
    Selinux {
        /// Only checks whose name contains this, and those that make the volumes and delete them
        filter: Option<String>,
    },
    /// Run Kubernetes' own tests of storage drivers
    StorageSuite {
        /// The directory with the driver's definitions and the lists of tests that are skipped
        definitions: PathBuf,
        /// Only tests whose name matches this regular expression; of one class alone as CLASS: EXPRESSION
        filter: Option<String>,
    },
    /// Run a shell command that finds the cluster with kubectl
    Shell {
        /// The command; without one, a shell on the terminal
        command: Option<String>,
    },
}

/// The checks that make the volumes, which all others need, and the one that deletes them.
const CLAIMS: &str = "claims of each kind are written and read";
const SET: &str = "a stateful set";
const END: &str = "nothing is left of deleted claims";

/// The story. Later checks build on the volumes and pods of earlier ones.
const CHECKS: [Check; 28] = [
    in_each("the node is registered and reports its room", deployment::is_installed),
    in_each(CLAIMS, volumes::claims_are_bound_and_written),
    in_each("udev leaves pods' devices alone", walls::udev_leaves_devices_alone),
    in_each("the doctors find nothing wrong", operator::doctors_find_nothing_wrong),
    in_each("kubectl bulkhead reads the pool from the agent", operator::the_pool_is_listed),
    in_one("what the shell says to try", shell::what_it_says_to_try_works),
    in_everything("the first claim of the documentation", documented::the_first_claim_works),
    in_one("the quota is felt inside the pod", volumes::the_quota_is_felt),
    in_one("root in a pod exceeds no limit", hostile::limits_hold_for_root),
    in_one("a pod that is not root, with a group, parts and programs", tenants::a_pod_that_is_not_root),
    in_one(
        "volumes are mapped for pods whose root is none on the node",
        tenants::volumes_are_mapped_for_user_namespaces,
    ),
    in_one("read-only volumes", volumes::read_only_is_read_only),
    in_one("a pod is deleted and created again", volumes::a_new_pod_has_the_data),
    in_one("expansion is seen inside the running pod", volumes::expansion_is_seen_in_the_pod),
    in_one("attributes are seen inside the running pod", volumes::attributes_are_seen_in_the_pod),
    in_one("a claim is restored from a snapshot", copies::a_restored_claim_is_used),
    in_one("the kubelet measures the volumes", tenants::the_kubelet_measures),
    in_one("health is shown in the pod and on the node", health::conditions_are_shown),
    in_one("a label for a mount is refused", tenants::a_label_for_a_mount_is_refused),
    in_one(SET, volumes::a_stateful_set),
    in_one("the kubelet is restarted", restarts::the_kubelet),
    in_each("both programs are killed", restarts::both_programs_are_killed),
    in_one("the helper is stopped for maintenance", restarts::the_helper_is_stopped),
    in_one("a failed upgrade is undone", restarts::a_failed_upgrade_is_undone),
    in_one("the agent is upgraded in place", restarts::the_agent_is_upgraded),
    in_one("the node is rebooted", restarts::the_node_is_rebooted),
    in_everything("the node loses its power", restarts::the_node_loses_its_power),
    in_each(END, traces::nothing_is_left),
];

/// Follows a page, and undoes it.
type Installation = fn(&Node) -> Result<()>;

/// What installs a release, on a node that has nothing of it.
const FROM_A_RELEASE: [(&str, Installation); 2] =
    [(quick_starts::NAME, quick_starts::without_a_disk), (cut_off::NAME, cut_off::without_a_way_out)];

/// A check whose outcome may depend on the deployment.
const fn in_each(name: &'static str, run: fn(&mut Story<'_>) -> Result<()>) -> Check {
    Check { name, extent: Extent::EachDeployment, run }
}

/// A check whose outcome is the same in every deployment.
const fn in_one(name: &'static str, run: fn(&mut Story<'_>) -> Result<()>) -> Check {
    Check { name, extent: Extent::OneDeployment, run }
}

/// A check that takes too long for every run.
const fn in_everything(name: &'static str, run: fn(&mut Story<'_>) -> Result<()>) -> Check {
    Check { name, extent: Extent::Everything, run }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    // When the program that lends the machine is gone, there is nothing left to test.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    Pace::follow()?;
    let start = Instant::now();
    let mut node = Node::start(options.relay_port)?;
    println!("the node is ready ({:.1} s)", start.elapsed().as_secs_f64());
    match &options.task {
        Task::Test { everything, filter } => {
            node.offer_snapshots()?;
            test(&node, &options.deploy, *everything, filter.as_deref())
        }
        Task::Selinux { filter } => {
            node.offer_snapshots()?;
            selinux::test(&node, &options.deploy, filter.as_deref())
        }
        Task::StorageSuite { definitions, filter } => {
            node.offer_snapshots()?;
            Deployment::Container.install(&node, &options.deploy)?;
            storage_suite::run(&node, definitions, filter.as_deref())
        }
        Task::Shell { command } => {
            Deployment::Container.install(&node, &options.deploy)?;
            shell::run(&node, command.as_deref())
        }
    }
}

/// The whole story in the first deployment, and in the second whatever may differ there, or everything. The chart comes
/// first: it does not adopt objects created by kubectl.
fn test(node: &Node, deploy: &Path, everything: bool, filter: Option<&str>) -> Result<ExitCode> {
    let mut outcome = Outcome::default();
    let mut deployments = vec![Deployment::Container, Deployment::HostService];
    let named = |name: &str| filter.is_none_or(|filter| name.contains(filter));
    if everything {
        for (name, run) in FROM_A_RELEASE.into_iter().filter(|(name, _)| named(name)) {
            outcome.run(node, Deployment::Chart, name, || run(node));
        }
        if named(disks::NAME) {
            outcome.run(node, Deployment::Chart, disks::NAME, || disks::are_prepared(node));
        }
        deployments.insert(0, Deployment::Chart);
    }
    for deployment in deployments {
        let wanted = |check: &Check| match (check.extent, deployment) {
            (Extent::EachDeployment, _) => true,
            (_, Deployment::Chart) => false,
            (Extent::OneDeployment, Deployment::Container) => true,
            (Extent::OneDeployment, Deployment::HostService) | (Extent::Everything, _) => everything,
        };
        let needed = |check: &Check| named(check.name) || [CLAIMS, SET, END].contains(&check.name);
        let checks: Vec<Check> = CHECKS.into_iter().filter(wanted).filter(needed).collect();
        if !checks.iter().any(|check| named(check.name)) {
            continue;
        }
        let installed = outcome.run(node, deployment, "install", || deployment.install(node, deploy));
        // After a deployment that failed, the next one would find the node in an unknown state.
        if !installed {
            break;
        }
        let still_runs = Story::new(node, deployment)?.tell(&checks, &mut outcome);
        if !still_runs || !outcome.run(node, deployment, "remove", || deployment.remove(node)) {
            break;
        }
    }
    Ok(outcome.finish())
}
