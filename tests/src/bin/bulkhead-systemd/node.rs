//! A node on which everything is installed as an administrator would: programs, units, user, rule and configuration.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::HIGHEST_VERSION;
use bulkhead_tests::case::Case;
use bulkhead_tests::csi::CsiClient;
use bulkhead_tests::fixture::Fixture;
use bulkhead_tests::helper::HelperClient;
use bulkhead_tests::kubelet::Kubelet;
use bulkhead_tests::leaks;
use bulkhead_tests::pace;
use bulkhead_tests::pool::{Pool, output, run};
use bulkhead_tests::run_options::{Phase, Place, RunOptions, program};
use bulkhead_tests::wait;

use crate::unit::{FRONTEND, HELPER, SOCKET, Unit, systemctl};

/// The frontend's user, as in `bulkhead.sysusers`.
pub const FRONTEND_USER: u32 = 10001;
/// The helper's configuration.
pub const CONFIGURATION: &str = "/etc/bulkhead/privhelper.conf";
/// The helper's socket.
pub const HELPER_SOCKET: &str = "/run/bulkhead/privhelper.sock";

const KUBELET: &str = "/var/lib/kubelet";
const POOL: &str = "/srv/bulkhead/default";

/// A file of `deploy/`.
macro_rules! deployed {
    ($path:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/", $path))
    };
}

/// Every file, and where it goes.
const FILES: [(&str, &str); 7] = [
    ("/etc/systemd/system/bulkhead-privhelper.service", deployed!("systemd/bulkhead-privhelper.service")),
    ("/etc/systemd/system/bulkhead-privhelper.socket", deployed!("systemd/bulkhead-privhelper.socket")),
    ("/etc/systemd/system/bulkhead-frontend.service", deployed!("systemd/bulkhead-frontend.service")),
    ("/etc/sysusers.d/bulkhead.conf", deployed!("systemd/bulkhead.sysusers")),
    ("/etc/tmpfiles.d/bulkhead.conf", deployed!("systemd/bulkhead.tmpfiles")),
    ("/etc/udev/rules.d/59-bulkhead.rules", deployed!("udev/59-bulkhead.rules")),
    (CONFIGURATION, deployed!("systemd/privhelper.conf")),
];

/// What makes the frontend the node's storage agent in addition.
pub const AGENT_FILES: [(&str, &str); 2] = [
    ("/etc/systemd/system/bulkhead-frontend.service.d/kubernetes.conf", deployed!("systemd/kubernetes.conf")),
    ("/etc/bulkhead/kubeconfig", deployed!("systemd/kubeconfig")),
];

/// Mounts the machine's disk where the configuration expects the pool.
const POOL_MOUNT: (&str, &str) = (
    "/etc/systemd/system/srv-bulkhead-default.mount",
    "[Mount]\nWhat=/dev/disk/by-label/xfs\nWhere=/srv/bulkhead/default\nType=xfs\nOptions=prjquota\n\n[Install]\nWantedBy=local-fs.target\n",
);

/// The seccomp profile for tenants.
pub const TENANT_PROFILE: &str = deployed!("seccomp/bulkhead-tenant.json");

/// The node that both services run on.
#[derive(Debug)]
pub struct Node {
    /// The options of the run.
    pub run_options: RunOptions,
    /// The kubelet's directory.
    pub kubelet: Kubelet,
    /// Scratch directory of the test.
    pub work: PathBuf,
    /// The only pool.
    pub pool: Pool,
    ends_clean: bool,
}

impl Node {
    /// A generous timeout, as long as it must be on this machine.
    pub fn patience(&self, on_host: Duration) -> Duration {
        pace::patience(on_host)
    }

    /// Starts the units that are not running, and waits until the frontend is ready.
    pub fn start(&self) -> Result<()> {
        Unit::start_all(&[SOCKET, FRONTEND, HELPER])?;
        self.wait()
    }

    /// Waits until the frontend is ready.
    pub fn wait(&self) -> Result<()> {
        let ready = wait::until(self.patience(Duration::from_secs(5)), || self.csi()?.check_ready());
        ready.with_context(|| format!("{}\n{}", FRONTEND.log(), HELPER.log()))
    }

    /// A client of the frontend.
    pub fn csi(&self) -> Result<CsiClient> {
        CsiClient::connect(&self.kubelet.csi_socket())
    }

    /// A client of the helper, as the frontend's user.
    pub fn helper(&self) -> Result<HelperClient> {
        let client = HelperClient::connect_as(Path::new(HELPER_SOCKET), FRONTEND_USER)?;
        client.hello(HIGHEST_VERSION)?;
        Ok(client)
    }

    /// Leaves everything as it is at the end of the test, for the checks after a reboot.
    pub fn leave_as_it_is(&mut self) {
        self.ends_clean = false;
    }
}

impl Fixture for Node {
    type Shared = ();

    const LIMIT: Duration = Duration::from_secs(90);

    fn share(run_options: &mut RunOptions, _: usize) -> Result<()> {
        ensure!(
            run_options.place == Place::Vm,
            "this installs services on the machine it runs on: run it with --place vm, in a virtual machine"
        );
        if run_options.phase == Some(Phase::AfterReboot) {
            // Whatever is needed must come up on its own.
            return Ok(());
        }
        install()
    }

    fn end((): (), _: bool) -> Result<()> {
        Ok(())
    }

    fn set(case: &Case<Self>, run_options: &RunOptions, work: &Path, _: &Path) -> Result<Self> {
        let kubelet = Kubelet::make(Path::new(KUBELET))?;
        let pool = Pool::existing(Path::new(POOL), "default");
        let node = Self { run_options: run_options.clone(), kubelet, work: work.to_owned(), pool, ends_clean: true };
        if case.starts() {
            node.start()?;
        }
        Ok(node)
    }

    fn leave(self) -> Result<()> {
        if !self.ends_clean {
            return Ok(());
        }
        self.start()?;
        leaks::check_node(&self.run_options, &self.kubelet, std::slice::from_ref(&self.pool))?;
        let failed = output(Command::new("systemctl").args(["list-units", "--failed", "--plain", "--no-legend"]))?;
        ensure!(failed.is_empty(), "units have failed: {failed}");
        Ok(())
    }
}

/// Writes files where they belong.
pub fn install_files<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<()> {
    for (path, content) in files {
        fs::create_dir_all(Path::new(path).parent().context("a path without a directory")?)?;
        fs::write(path, content).with_context(|| format!("install {path}"))?;
    }
    Ok(())
}

/// Sets the owners and modes of the configuration files.
pub fn set_modes() -> Result<()> {
    run(Command::new("systemd-tmpfiles").args(["--create", "/etc/tmpfiles.d/bulkhead.conf"]))
}

fn install() -> Result<()> {
    for name in ["bulkhead-privhelper", "bulkhead-frontend"] {
        let installed = Path::new("/usr/local/bin").join(name);
        if installed.exists() {
            continue;
        }
        fs::copy(program(name)?, &installed).with_context(|| format!("install {name}"))?;
        fs::set_permissions(&installed, PermissionsExt::from_mode(0o755))?;
    }
    install_files(FILES.into_iter().chain([POOL_MOUNT]))?;
    run(&mut Command::new("systemd-sysusers"))?;
    set_modes()?;
    run(Command::new("udevadm").args(["control", "--reload"]))?;
    fs::create_dir_all(KUBELET)?;
    systemctl(&["daemon-reload"])?;
    systemctl(&["enable", "--now", "srv-bulkhead-default.mount"])?;
    systemctl(&["enable", "--now", SOCKET.name(), HELPER.name(), FRONTEND.name()])
}
