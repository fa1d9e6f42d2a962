//! Programs and machines that go down and come back while pods are running.

use anyhow::{Context, Result, bail, ensure};
use bulkhead_tests::documented::{OPERATE, blocks, run_all, section};
use bulkhead_tests::node::{Machine, eventually};
use serde_json::json;

use crate::deployment::{self, AGENT, Deployment};
use crate::pods::{CLASSES, DIRECTORY};
use crate::story::Story;
use crate::volumes::{POD, check_beat, check_text, container, scale, wait_for_set};
use crate::walls;

/// Prints the mounts of our volumes on the node, one per line.
const MOUNTS: &str = "awk '$5 ~ \"kubernetes.io~csi|volumeDevices\" { print $5 }' /proc/self/mountinfo | sort";

/// Prints the process that a helper began with. The kernel keeps only fifteen bytes of a name.
pub const HELPER: &str = "pgrep --oldest -x bulkhead-privhe";

/// Returns how many times the helper has published a volume since the machine's boot, however it is deployed.
fn published(machine: &Machine) -> Result<u64> {
    let count = machine.run(
        "{ cat /var/log/pods/bulkhead-system_*/privhelper/*.log
           journalctl --unit bulkhead-privhelper --boot --no-pager --output cat; } 2>/dev/null |
         grep -cE 'operation=(bind-mount|make-device) .*outcome=ok' || true",
    )?;
    count.trim().parse().with_context(|| format!("grep counts {count:?}"))
}

/// A new kubelet publishes every volume again, which must change nothing.
pub fn the_kubelet(story: &mut Story<'_>) -> Result<()> {
    let (machine, kubectl) = (&story.node.machine, &story.node.kubectl);
    let (mounts, container_before) = (machine.run(MOUNTS)?, container(kubectl)?);
    ensure!(mounts.lines().count() >= 5, "few volumes are mounted: {mounts}");
    let published_before = published(machine)?;
    machine.run("systemctl restart kubelet")?;
    story.node.wait_ready()?;
    // Three volumes of the writer, and one of each pod of the set.
    let volumes = 3 + u64::from(story.replicas);
    eventually(|| {
        let again = published(machine)?.saturating_sub(published_before);
        ensure!(again >= volumes, "the new kubelet has published {again} times, and there are {volumes} volumes");
        Ok(())
    })?;
    check_beat(kubectl)?;
    check_text(kubectl)?;
    let now = machine.run(MOUNTS)?;
    ensure!(now == mounts, "the mounts were\n{mounts}and are\n{now}");
    ensure!(container(kubectl)? == container_before, "the pod's container was restarted");
    Ok(())
}

/// Pods do not notice when our programs end, and new instances work.
pub fn both_programs_are_killed(story: &mut Story<'_>) -> Result<()> {
    let (machine, kubectl) = (&story.node.machine, &story.node.kubectl);
    let (mounts, container_before) = (machine.run(MOUNTS)?, container(kubectl)?);
    machine.run("pkill -KILL -x bulkhead-fronte && pkill -KILL -x bulkhead-privhe")?;
    check_beat(kubectl)?;
    check_text(kubectl)?;
    eventually(|| machine.run("pgrep -x bulkhead-fronte && pgrep -x bulkhead-privhe").map(drop))?;
    deployment::wait_until_ready(story.node)?;
    // The new instances provision and publish.
    scale(story, story.replicas + 1)?;
    let (machine, kubectl) = (&story.node.machine, &story.node.kubectl);
    check_beat(kubectl)?;
    ensure!(container(kubectl)? == container_before, "the pod's container was restarted");
    let now = machine.run(MOUNTS)?;
    ensure!(mounts.lines().all(|mount| now.lines().any(|other| other == mount)), "mounts were lost: {mounts}, {now}");
    Ok(())
}

/// The helper is stopped for good, started and restarted as the page says, and a program of its image runs meanwhile.
pub fn the_helper_is_stopped(story: &mut Story<'_>) -> Result<()> {
    let (machine, kubectl) = (&story.node.machine, &story.node.kubectl);
    let (mounts, container_before) = (machine.run(MOUNTS)?, container(kubectl)?);
    let page = section(OPERATE, "Stop and start the helper")?;
    let is_in_pod = story.deployment != Deployment::HostService;
    let begins = if is_in_pod { "| containers, otherwise" } else { "| host service" };
    let row = page.lines().find(|line| line.starts_with(begins)).with_context(|| format!("no row {begins}"))?;
    let commands: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
    let [stop, start, restart] = commands[..] else { bail!("not three commands: {row}") };
    let block = blocks(page, "sh").pop().context("no commands for an image")?;
    let [mount, requota, unmount] = block.lines().collect::<Vec<_>>()[..] else { bail!("not three commands: {block}") };
    if is_in_pod {
        let image = machine.run("ctr -n k8s.io images ls -q | grep '^docker.io/library/bulkhead-privhelper:'")?;
        machine.run(&mount.replace("IMAGE", image.lines().next().context("no image")?))?;
    }
    machine.run(stop)?;
    eventually(|| machine.run("! pgrep -a bulkhead-privh").map(drop))?;
    if is_in_pod {
        let said = machine.run(requota)?;
        ensure!(said.contains(", 0 of them not limited"), "{said}");
        machine.run(unmount)?;
    }
    machine.run("! pgrep -a bulkhead-privh").context("something has started the helper")?;
    machine.run(start)?;
    story.node.wait_ready()?;
    eventually(|| machine.run(HELPER).map(drop))?;
    let first = machine.run(HELPER)?;
    machine.run(restart)?;
    eventually(|| {
        let next = machine.run(HELPER)?;
        ensure!(next != first, "the helper is still {next}");
        Ok(())
    })?;
    deployment::wait_until_ready(story.node)?;
    check_beat(kubectl)?;
    ensure!(container(kubectl)? == container_before, "the pod's container was restarted");
    ensure!(machine.run(MOUNTS)? == mounts, "other volumes are mounted than before");
    Ok(())
}

/// A new image of the agent is rolled out.
pub fn the_agent_is_upgraded(story: &mut Story<'_>) -> Result<()> {
    let (machine, kubectl) = (&story.node.machine, &story.node.kubectl);
    let container_before = container(kubectl)?;
    let file = format!("{DIRECTORY}/before-the-upgrade");
    kubectl.exec("set-0", &format!("echo set-0 >{file} && sync"))?;
    let mut containers = vec!["frontend"];
    if story.deployment != Deployment::HostService {
        containers.push("privhelper");
    }
    let images: Vec<_> = containers
        .iter()
        .map(|name| json!({ "name": name, "image": format!("docker.io/library/bulkhead-{name}:next") }))
        .collect();
    for name in &containers {
        let image = format!("docker.io/library/bulkhead-{name}");
        machine.run(&format!(
            "old=$(ctr -n k8s.io images ls -q | grep '^{image}:' | head -n 1) && \
             ctr -n k8s.io images tag --force $old {image}:next"
        ))?;
    }
    let patch = json!({ "spec": { "template": { "spec": { "containers": images } } } }).to_string();
    let [namespace, kind, name] = AGENT;
    kubectl.run(&[namespace, "patch", kind, name, "--patch", &patch])?;
    if story.deployment == Deployment::HostService {
        machine.run("systemctl restart bulkhead-privhelper")?;
    }
    deployment::wait_until_ready(story.node)?;
    check_beat(kubectl)?;
    check_text(kubectl)?;
    // The new agent unpublishes what the old one published, and publishes again.
    kubectl.delete(&["pod", "set-0"])?;
    wait_for_set(kubectl)?;
    let text = kubectl.exec("set-0", &format!("cat {file}"))?;
    ensure!(text.trim() == "set-0", "the volume of set-0 holds {text:?}");
    ensure!(container(kubectl)? == container_before, "the pod's container was restarted");
    Ok(())
}

/// An upgrade whose pods cannot be made fails, and is taken back with the tool that it came with.
pub fn a_failed_upgrade_is_undone(story: &mut Story<'_>) -> Result<()> {
    let (machine, kubectl) = (&story.node.machine, &story.node.kubectl);
    let (mounts, container_before) = (machine.run(MOUNTS)?, container(kubectl)?);
    let [namespace, kind, name] = AGENT;
    let (set, by_helm) = (format!("{kind}/{name}"), story.deployment == Deployment::Chart);
    let upgraded = if by_helm {
        run_all(
            kubectl,
            "helm upgrade bulkhead deploy/helm/bulkhead --namespace bulkhead-system --reuse-values --set priorityClassName=missing --wait --timeout 10s",
        )
    } else {
        let patch = json!({ "spec": { "template": { "spec": { "priorityClassName": "missing" } } } }).to_string();
        kubectl.run(&[namespace, "patch", kind, name, "--patch", &patch])?;
        kubectl.run(&[namespace, "rollout", "status", &set, "--timeout=10s"]).map(drop)
    };
    ensure!(upgraded.is_err(), "pods of a priority that does not exist are running");
    // The agent is away, and pods need none.
    check_beat(kubectl)?;
    check_text(kubectl)?;
    if by_helm {
        run_all(kubectl, "helm rollback bulkhead --namespace bulkhead-system --wait --timeout 180s")?;
    } else {
        kubectl.run(&[namespace, "rollout", "undo", &set])?;
    }
    deployment::wait_until_ready(story.node)?;
    check_beat(kubectl)?;
    ensure!(machine.run(MOUNTS)? == mounts, "other volumes are mounted than before");
    // It unpublishes what the former one published, and publishes again.
    kubectl.delete(&["pod", "set-0"])?;
    wait_for_set(kubectl)?;
    ensure!(container(kubectl)? == container_before, "the pod's container was restarted");
    Ok(())
}

/// An operator reboots the node.
pub fn the_node_is_rebooted(story: &mut Story<'_>) -> Result<()> {
    story.node.machine.reboot()?;
    comes_back(story)
}

/// The node loses power.
pub fn the_node_loses_its_power(story: &mut Story<'_>) -> Result<()> {
    let [files, image] = CLASSES.map(|class| class.directory);
    story.node.kubectl.exec(POD, &format!("echo cut | tee {files}/cut >{image}/cut && sync"))?;
    story.node.machine.power_cut()?;
    comes_back(story)?;
    let text = story.node.kubectl.exec(POD, &format!("cat {files}/cut {image}/cut"))?;
    ensure!(text == "cut\ncut\n", "what was synced is lost: {text:?}");
    Ok(())
}

fn comes_back(story: &Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    story.node.wait_ready()?;
    // The API server may still have the pods' state from before.
    eventually(|| check_text(kubectl))?;
    check_beat(kubectl)?;
    deployment::wait_until_ready(story.node)?;
    wait_for_set(kubectl)?;
    let text = kubectl.exec("set-1", &format!("cat {DIRECTORY}/name"))?;
    ensure!(text.trim() == "set-1", "the volume of set-1 holds {text:?}");
    // In a container's deployment the rule was gone.
    walls::is_left_alone(story.node)
}
