//! A node on which SELinux enforces: its policy module is needed, and with it nothing is denied.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::documented::{PLATFORMS, REPOSITORY, blocks, section};
use bulkhead_tests::node::{Node, eventually};

use crate::deployment::{self, AGENT, Deployment};
use crate::story::{Check, Outcome, Story};
use crate::volumes::{self, POD};
use crate::{copies, documented, in_each, labels, operator, restarts, traces};

/// A life of each kind of volume. Each new pod has other categories, which its volumes are labelled with.
const CHECKS: [Check; 16] = [
    in_each("the node is registered and reports its room", deployment::is_installed),
    in_each("claims of each kind are written and read", volumes::claims_are_bound_and_written),
    in_each("the kubelet is asked to mount volumes with labels", labels::the_kubelet_is_asked_for_labels),
    in_each("each process is in its own domain", domains),
    in_each("the doctors find nothing wrong", operator::doctors_find_nothing_wrong),
    in_each("the quota is felt inside the pod", volumes::the_quota_is_felt),
    in_each("a pod with other categories has the data", another_pod_has_the_data),
    in_each("expansion is seen inside the running pod", volumes::expansion_is_seen_in_the_pod),
    in_each("attributes are seen inside the running pod", volumes::attributes_are_seen_in_the_pod),
    in_each("a claim is restored from a snapshot", copies::a_restored_claim_is_used),
    in_each("a volume is mounted with the label of its pod", labels::a_volume_has_the_label_of_its_pod),
    in_each("a pod with another label waits for a volume", labels::a_pod_with_another_label_waits),
    in_each("both programs are killed", restarts::both_programs_are_killed),
    in_each("nothing is left of deleted claims", traces::nothing_is_left),
    in_each("nothing was denied", nothing_was_denied),
    in_each("pods with other categories are denied a volume", labels::other_categories_are_denied),
];

/// Prints what the kernel has logged of denials that were enforced, and that containers or our programs have to do with.
const DENIALS: &str =
    "dmesg | grep 'avc:  denied' | grep 'permissive=0' | grep -E 'container_t|spc_t|bulkhead_' || true";

/// Prints the context of a pod.
const CONTEXT: &str = "cat /proc/self/attr/current";

/// As the page says: the module, then the chart. Without the types that it has, the agent does not come up.
pub fn test(node: &Node, deploy: &Path, filter: Option<&str>) -> Result<ExitCode> {
    let mut outcome = Outcome::default();
    let deployment = Deployment::Chart;
    let page = section(PLATFORMS, "Where SELinux enforces")?;
    let [module, agents] = blocks(page, "sh").try_into().ok().context("not two blocks of commands")?;
    let named = |check: &Check| filter.is_none_or(|filter| check.name.contains(filter));
    let installed = outcome.run(node, deployment, "the module is installed", || install_module(node, &module))
        && outcome.run(node, deployment, "install", || install(node, &agents));
    if installed {
        let needed =
            |check: &Check| named(check) || [CHECKS[1].name, CHECKS[2].name, CHECKS[13].name].contains(&check.name);
        let checks: Vec<Check> = CHECKS.into_iter().filter(needed).collect();
        let still_runs = Story::new(node, deployment)?.tell(&checks, &mut outcome);
        if still_runs && outcome.run(node, deployment, "remove", || deployment.remove(node)) {
            let without = Deployment::Container;
            outcome.run(node, without, "without the domains, the frontend has no socket", || withheld(node, deploy));
        }
    }
    Ok(outcome.finish())
}

fn install_module(node: &Node, commands: &str) -> Result<()> {
    let enforces = node.machine.run("cat /sys/fs/selinux/enforce")?;
    ensure!(enforces == "1", "SELinux does not enforce: {enforces}");
    node.carry(&Path::new(REPOSITORY).join("deploy/selinux/bulkhead.cil"), "/root")?;
    node.machine.run(&format!("cd /root && set -e\n{commands}")).map(drop)
}

fn install(node: &Node, commands: &str) -> Result<()> {
    let (_, flag) = commands.split_once("--set selinux").context("the page sets no value of the chart's")?;
    let flag = flag.split_whitespace().next().unwrap_or_default();
    documented::helm_install(node, &format!("--set selinux{flag}"))?;
    deployment::wait_until_ready(node)
}

/// The helper's processes, the frontend and a pod.
fn domains(story: &mut Story<'_>) -> Result<()> {
    let of = |program: &str| -> Result<Vec<String>> {
        let printed = story.node.machine.run(&format!(
            "for process in $(pgrep -x {program}); do tr -d '\\0' </proc/$process/attr/current; echo; done"
        ))?;
        Ok(printed.lines().map(str::to_owned).collect())
    };
    let (helper, frontend) = (of("bulkhead-privhe")?, of("bulkhead-fronte")?);
    let all_in = |contexts: &[String], domain: &str| {
        !contexts.is_empty()
            && contexts.iter().all(|context| context.starts_with(&format!("system_u:system_r:{domain}:")))
    };
    ensure!(all_in(&helper, "bulkhead_helper_t") && helper.len() > 2, "the helper runs as {helper:?}");
    ensure!(all_in(&frontend, "bulkhead_frontend_t"), "the frontend runs as {frontend:?}");
    let pod = story.node.kubectl.exec(POD, CONTEXT)?;
    ensure!(pod.starts_with("system_u:system_r:container_t:s0:c"), "the pod runs as {pod:?}");
    Ok(())
}

fn another_pod_has_the_data(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    let before = kubectl.exec(POD, CONTEXT)?;
    kubectl.delete(&["pod", POD])?;
    volumes::a_new_pod_has_the_data(story)?;
    let now = kubectl.exec(POD, CONTEXT)?;
    ensure!(now != before, "both pods run as {now}");
    Ok(())
}

fn nothing_was_denied(story: &mut Story<'_>) -> Result<()> {
    let denied = story.node.machine.run(DENIALS)?;
    ensure!(denied.is_empty(), "SELinux has denied\n{denied}");
    Ok(())
}

/// In the domains that container runtimes choose, the frontend is an ordinary container, to which the helper's sockets are not
/// handed over. It says so.
fn withheld(node: &Node, deploy: &Path) -> Result<()> {
    Deployment::Container.apply(node, deploy)?;
    let [namespace, kind, name] = AGENT;
    let agent = format!("{kind}/{name}");
    eventually(|| {
        let said = node.kubectl.run(&[namespace, "logs", &agent, "--container=frontend"])?;
        ensure!(said.contains("where SELinux enforces, each program needs a domain of its own"), "it said: {said}");
        Ok(())
    })?;
    Deployment::Container.remove(node)
}
