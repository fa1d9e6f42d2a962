//! The quick starts of docs/kubernetes.md whose volumes are filesystems in images, on a node like theirs: the pool is a
//! directory of the root filesystem, an ext4 without quotas.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::documented::{KUBERNETES, REPOSITORY, blocks, first_claim, run_all, section, subsection};
use bulkhead_tests::node::{Node, eventually};

use crate::documented;

/// The section whose beginning the other one shares.
const K3S: &str = "k3s, without a disk or quotas";
const KIND: &str = "kind";

/// A quick start.
type QuickStart = fn(&Node) -> Result<()>;

/// Each with what it shows.
pub const ALL: [(&str, QuickStart); 2] =
    [("the quick start of k3s on a root without quotas", k3s), ("the quick start of kind, likewise on its root", kind)];

/// What a node of kind is reached by, on the node itself.
const DOCKER: &str = "docker() { case $1 in exec) shift 2; \"$@\";; cp) cp \"$2\" \"${3#*:}\";; esac; }
sudo() { \"$@\"; }";

/// The commands of a quick start.
struct Commands {
    /// Those that prepare the node.
    node: String,
    /// Those of whoever installs.
    operator: String,
}

impl Commands {
    fn of(heading: &str) -> Result<Self> {
        let text = subsection(section(KUBERNETES, "Quick starts")?, heading)?;
        let [block] = blocks(text, "sh").try_into().ok().context("not one block of commands")?;
        let lines: Vec<&str> = block.lines().filter(|line| !line.starts_with("export KUBECONFIG=")).collect();
        ensure!(lines.len() <= 10, "{heading} has more than ten lines");
        let begins = lines.iter().position(|line| line.starts_with("cat >") || line.starts_with("sed "));
        let (node, operator) = lines.split_at(begins.context("nothing is written for helm")?);
        Ok(Self { node: node.join("\n"), operator: operator.join("\n") })
    }
}

/// k3s on a node as it is.
fn k3s(node: &Node) -> Result<()> {
    let Commands { node: prepare, operator } = Commands::of(K3S)?;
    // What is below the usual pool is a directory of the root filesystem.
    node.machine.run("umount /srv/bulkhead/default")?;
    let done = try_out(node, "/srv/bulkhead/default", &prepare, &operator);
    node.machine.run("rm -rf /srv/bulkhead/default/* /srv/bulkhead/default/.b* && mount /srv/bulkhead/default")?;
    done
}

/// kind, whose differences from k3s are on the page.
fn kind(node: &Node) -> Result<()> {
    let Commands { node: prepare, operator } = Commands::of(KIND)?;
    let values = Commands::of(K3S)?.operator;
    let (values, _) = values.split_once("\nhelm ").context("no values before helm")?;
    let done =
        try_out(node, "/var/bulkhead/default", &format!("{DOCKER}\n{prepare}"), &format!("{values}\n{operator}"));
    node.machine.run("rm -rf /var/bulkhead /usr/local/bin/bulkhead-setup")?;
    done
}

fn try_out(node: &Node, pool: &str, prepare: &str, operator: &str) -> Result<()> {
    // The programs of a release are in `bin`.
    node.machine.run(&format!("set -e\ncd /opt/bulkhead\n{prepare}"))?;
    let below = node.machine.run(&format!("findmnt --noheadings --output FSTYPE,OPTIONS --target {pool}"))?;
    ensure!(below.starts_with("ext4") && !below.contains("quota"), "the pool is on {below}");
    let directory = tempfile::tempdir()?;
    // This root filesystem has less room than what is left of a real one.
    let commands = operator
        .replace("reserve: 5Gi", "reserve: 64Mi")
        .replace("bulkhead-VERSION.tgz", &format!("{REPOSITORY}/deploy/helm/bulkhead"));
    let (install, doctor) = commands.rsplit_once('\n').context("one command")?;
    run_all(&node.kubectl, &format!("cd '{}'\n{install}", directory.path().display()))?;
    let tried = eventually(|| run_all(&node.kubectl, doctor)).and_then(|()| first(node));
    tried.and(documented::helm_uninstall(node))
}

/// The first claim of the page, as a filesystem in an image.
fn first(node: &Node) -> Result<()> {
    let kubectl = &node.kubectl;
    let claim = first_claim()?.replace("storageClassName: bulkhead\n", "storageClassName: bulkhead-image\n");
    ensure!(claim.contains("bulkhead-image"), "{claim}");
    kubectl.apply(&claim)?;
    kubectl.wait_ready(&["first"])?;
    let told =
        kubectl.exec("first", "dd if=/dev/zero of=/data/full bs=1M count=400 2>&1; rm /data/full; df -k /data")?;
    ensure!(told.contains("No space left on device") && told.contains(&(236 << 10).to_string()), "{told}");
    let section = section(KUBERNETES, "First claim in five minutes")?;
    run_all(kubectl, &blocks(section, "sh").pop().context("no commands")?)?;
    eventually(|| kubectl.gone(&["pv"]))
}
