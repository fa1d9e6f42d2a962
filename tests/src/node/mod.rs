//! A real Kubernetes node: a machine with a kubelet, and the control plane on this host.

mod gateway;
mod kubectl;
mod machine;
mod registry;
mod specs;

use std::env;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use self::gateway::Gateway;
pub use self::kubectl::Kubectl;
pub use self::machine::Machine;
pub use self::registry::{Registry, Release};
pub use self::specs::{Outcome, Outcomes, Skips, State};
use crate::cluster::control_plane::ControlPlane;
use crate::cluster::snapshots;
use crate::pace::Allowance;

/// The node's name.
pub const NAME: &str = "node-1";

/// The machine's address in its own network.
const ADDRESS: &str = "10.0.2.15";

/// The host's address as seen from the machine.
const HOST: &str = "10.0.2.2";

/// How long the node may take for things that take a few seconds elsewhere: its processor is emulated, and the host is
/// busy.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Waits until `check` succeeds, with the patience that the node needs.
pub fn eventually(mut check: impl FnMut() -> Result<()>) -> Result<()> {
    let (begun, mut allowance) = (Instant::now(), Allowance::new(PATIENCE));
    loop {
        match check() {
            Ok(()) => return Ok(()),
            Err(complaint) if allowance.is_spent() => {
                return Err(complaint).with_context(|| format!("still after {:.0?}", begun.elapsed()));
            }
            // Each check starts programs, so not too often.
            Err(_) => thread::sleep(Duration::from_millis(500)),
        }
    }
}

/// A cluster with one node. It ends when this value is dropped.
#[derive(Debug)]
pub struct Node {
    /// The machine that the kubelet runs on.
    pub machine: Machine,
    /// The cluster's administrator.
    pub kubectl: Kubectl,
    control_plane: ControlPlane,
    _gateway: Gateway,
}

impl Node {
    /// Starts the control plane, then the kubelet, and waits until the node is ready. `relay` is the port here at which
    /// the machine connects to its pods.
    pub fn start(relay: u16) -> Result<Self> {
        let machine = Machine::lent()?;
        let gateway = Gateway::open(relay)?;
        let control_plane = ControlPlane::start_behind(&gateway.socket())?;
        let kubectl = Kubectl {
            program: assets()?.join("kubectl"),
            kubeconfig: control_plane.directory().join("admin.kubeconfig"),
        };
        let node = Self { machine, kubectl, control_plane, _gateway: gateway };
        node.configure()?;
        node.machine.run("systemctl start kubelet")?;
        node.wait_ready()?;
        Ok(node)
    }

    /// Defines the resources of snapshots, and starts a controller of them.
    pub fn offer_snapshots(&mut self) -> Result<()> {
        snapshots::define_resources(&self.kubectl.kubeconfig)?;
        self.control_plane.run_snapshot_controller()
    }

    /// Carries a file of this host into a directory of the machine.
    pub fn carry(&self, file: &Path, directory: &str) -> Result<()> {
        let mut content = fs::File::open(file)?;
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        // It ends with the file. If nobody connects, nobody waits for it.
        thread::spawn(move || io::copy(&mut content, &mut listener.accept()?.0));
        let name = file.file_name().context("a file without a name")?.display();
        let target = format!("{directory}/{name}");
        let size = self.machine.run(&format!(
            "mkdir -p {directory} && bash -c 'cat </dev/tcp/{HOST}/{port} >{target}' && stat --format %s {target}"
        ))?;
        ensure!(size.trim() == file.metadata()?.len().to_string(), "{target} has {} bytes", size.trim());
        Ok(())
    }

    /// Leaves the node nothing but its own network, in which there is only this host, until the guard is dropped.
    pub fn cut_off(&self) -> Result<CutOff<'_>> {
        self.machine.run("ip route del default")?;
        let cut_off = CutOff { machine: &self.machine };
        ensure!(self.machine.run("ip route get 192.0.2.1").is_err(), "the node has another way out");
        Ok(cut_off)
    }

    /// Waits until the kubelet has reported in since the machine's last boot.
    pub fn wait_ready(&self) -> Result<()> {
        let ready = eventually(|| {
            let node = self.kubectl.get(&["node", NAME])?;
            let conditions = node["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition["type"] == "Ready").context("not reported in")?;
            ensure!(ready["status"] == "True", "the node is not ready: {}", ready["message"]);
            // Until the API server hears of a reboot, it believes what it was told before.
            let boot = self.machine.run("cat /proc/sys/kernel/random/boot_id")?;
            ensure!(node["status"]["nodeInfo"]["bootID"] == boot.trim(), "the node has not reported since its boot");
            Ok(())
        });
        ready.with_context(|| {
            let log = self.machine.run("journalctl --unit kubelet --boot --no-pager --lines 40 --output cat");
            format!("the kubelet wrote {}", log.unwrap_or_else(|error| format!("{error:#}")))
        })
    }

    /// Prints what an operator would look at if something went wrong.
    pub fn print_logs(&self) {
        let ours = "--namespace=bulkhead-system";
        for arguments in [
            &["get", "pods,pvc,pv,csistoragecapacities", "--all-namespaces", "--output=wide"][..],
            &["events", "--all-namespaces", "--types=Warning"],
            &[ours, "describe", "pods"],
            &[ours, "logs", "daemonset/bulkhead", "--all-containers", "--prefix", "--tail=30"],
        ] {
            self.print(&format!("kubectl {}", arguments.join(" ")), self.kubectl.run(arguments));
        }
        for command in ["journalctl --boot --no-pager --lines 40 --output cat", "losetup --list"] {
            self.print(command, self.machine.run(command));
        }
    }

    fn print(&self, what: &str, result: Result<String>) {
        let text = result.unwrap_or_else(|error| format!("{error:#}"));
        let lines: Vec<&str> = text.lines().collect();
        println!("--- {what}\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
    }

    /// Gives the kubelet what it needs to find the API server and to authenticate to it.
    fn configure(&self) -> Result<()> {
        let text = self.control_plane.kubeconfig(&format!("system:node:{NAME}"), Some("system:nodes"))?;
        let given: Value = serde_json::from_str(&text).context("read the kubelet's kubeconfig")?;
        let (cluster, user) = (&given["clusters"][0]["cluster"], &given["users"][0]["user"]);
        let server = cluster["server"].as_str().unwrap_or_default();
        let (_, port) = server.rsplit_once(':').context("the API server has no port")?;
        let mut kubeconfig = given.clone();
        kubeconfig["clusters"][0]["cluster"]["server"] = json!(format!("https://{HOST}:{port}"));
        for (pointer, source) in [
            ("/clusters/0/cluster/certificate-authority", &cluster["certificate-authority"]),
            ("/users/0/user/client-certificate", &user["client-certificate"]),
            ("/users/0/user/client-key", &user["client-key"]),
        ] {
            let source = source.as_str().with_context(|| format!("the kubeconfig lacks {pointer}"))?;
            let (_, name) = pointer.rsplit_once('/').context("a pointer to a field")?;
            let target = format!("/etc/kubernetes/{name}.pem");
            self.machine.write(&target, &fs::read_to_string(source)?)?;
            *kubeconfig.pointer_mut(pointer).context("the field was there")? = json!(target);
        }
        self.machine.write("/etc/kubernetes/kubelet.conf", &kubeconfig.to_string())?;
        self.machine.write("/etc/kubernetes/node.env", &format!("NODE_NAME={NAME}\nAPI_SERVER={HOST}:{port}"))
    }
}

/// A node without a way out.
#[derive(Debug)]
pub struct CutOff<'a> {
    machine: &'a Machine,
}

impl Drop for CutOff<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.machine.run(&format!("ip route add default via {HOST}")) {
            println!("the node stays without a way out: {error:#}");
        }
    }
}

/// The directory that contains the programs of Kubernetes.
fn assets() -> Result<PathBuf> {
    env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from).context("KUBEBUILDER_ASSETS names no directory")
}
