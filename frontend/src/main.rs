//! `bulkhead-frontend`: serves CSI without any privilege, and asks the privileged helper to do what needs privilege.

mod options;

use std::process::ExitCode;
use std::time::Duration;

use bulkhead_frontend::changed_blocks::ChangedBlocks;
use bulkhead_frontend::csi::Plugin;
use bulkhead_frontend::endpoint::EndpointError;
use bulkhead_frontend::helper::{CallError, Helper, Unreachable};
use bulkhead_frontend::inspection::Inspector;
use bulkhead_frontend::kubernetes::{Agent, Intervals, Ledger, View};
use bulkhead_frontend::monitoring::{Monitoring, MonitoringError};
use bulkhead_frontend::readiness::{Part, Readiness};
use bulkhead_frontend::registration::{self, Registrar};
use bulkhead_frontend::sandbox;
use bulkhead_frontend::server::{self, ServeError, Shutdown};
use bulkhead_frontend::telemetry;
use bulkhead_frontend::volumes::{Unseen, Volumes};
use bulkhead_protocol::{Socket, Welcome};
use clap::Parser;
use std::os::unix::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{error, info, warn};

use options::Options;

/// How long calls in progress may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(4);

/// How long to wait before requesting a socket again.
const RETRY: Duration = Duration::from_secs(2);

/// How long a new CSI socket must have served before it may be replaced as well. Two frontends on a node take each
/// other's: that has to end, and somebody has to be told.
const CONTESTED: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(
        "the privileged helper has no CSI socket configured: start it with --csi-socket, or this process with --csi-endpoint"
    )]
    NoCsiSocket,
    #[error("cannot get the CSI socket from the privileged helper: {0}")]
    Listen(CallError),
    #[error(transparent)]
    NoHelper(#[from] Unreachable),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("cannot serve CSI: {0}")]
    Serve(#[from] ServeError),
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
}

/// What listens by TCP.
struct Servers {
    monitoring: Option<Monitoring>,
    changed_blocks: Option<ChangedBlocks>,
}

impl Servers {
    fn open(options: &Options) -> Result<Self, MonitoringError> {
        if options.probe {
            return Ok(Self { monitoring: None, changed_blocks: None });
        }
        Ok(Self {
            monitoring: options.metrics_address.map(Monitoring::open).transpose()?,
            changed_blocks: options.changed_blocks().map(|(at, directory)| ChangedBlocks::open(at, directory)),
        })
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    // Before entering the sandbox, which forbids listening.
    let servers = match Servers::open(&options) {
        Ok(servers) => servers,
        Err(error) => {
            eprintln!("bulkhead-frontend: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Before there is a second thread, which the log starts.
    let confined = match sandbox::enter(options.sandbox, &options.needs()) {
        Ok(confined) => confined,
        Err(error) => {
            eprintln!("bulkhead-frontend: {error}");
            return ExitCode::FAILURE;
        }
    };
    let log = match telemetry::begin(options.log_format, &options.log_level) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("bulkhead-frontend: {error}");
            return ExitCode::FAILURE;
        }
    };
    if !options.probe {
        confined.report();
    }
    let probes = options.probe;
    let exit = live(options, servers);
    if !probes {
        info!("the frontend has ended");
    }
    log.flush();
    exit
}

fn live(options: Options, servers: Servers) -> ExitCode {
    warn_of_privilege();
    // One thread: the work is mostly waiting, and a call that never changes threads is answered fastest.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            error!("cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(options, servers)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options, servers: Servers) -> Result<(), StartError> {
    let helper = Helper::new(&options.helper_socket);
    if options.probe {
        helper.welcome().await?;
        return Ok(());
    }
    let readiness = Readiness::default();
    // An agent finds out once it knows the cluster's objects. Without one, nobody does.
    let unseen = if options.access().is_some() { Unseen::NotKnownYet } else { Unseen::NotNeeded };
    let volumes = Volumes::new(helper.clone()).with_optional_pools(options.optional_pools.iter().cloned(), unseen);
    if let Some(monitoring) = servers.monitoring {
        tokio::spawn(monitoring.serve(helper.clone(), readiness.clone(), volumes.clone(), options.share_owners));
    }
    let mut terminate = signal(SignalKind::terminate()).map_err(StartError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(StartError::Signals)?;
    let shutdown = Shutdown::default();
    let serving = serve(options, helper, volumes, readiness, servers.changed_blocks, shutdown.clone());
    tokio::pin!(serving);
    tokio::select! {
        ended = &mut serving => return ended,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    info!("asked to stop: waiting for calls in progress");
    shutdown.begin();
    match timeout(GRACE, serving).await {
        Ok(ended) => ended,
        Err(_) => {
            warn!("some calls did not end in time and are abandoned; their callers will retry");
            Ok(())
        }
    }
}

async fn serve(
    options: Options,
    helper: Helper,
    volumes: Volumes,
    readiness: Readiness,
    changed_blocks: Option<ChangedBlocks>,
    shutdown: Shutdown,
) -> Result<(), StartError> {
    let access = options.access();
    let aside = changed_blocks.iter().map(|_| Part::ChangedBlocks);
    for part in access.iter().flat_map(|_| Part::OF_AGENT).chain(aside) {
        readiness.not_ready(part, "it waits for the privileged helper");
    }
    let (release, socket) = (env!("CARGO_PKG_VERSION"), options.helper_socket.display());
    info!(release, node = options.node_id, %socket, "the frontend starts: connecting to the privileged helper");
    let welcome = tokio::select! {
        welcome = helper.wait() => welcome,
        () = shutdown.begun() => return Ok(()),
    };
    let listener = match &options.csi_endpoint {
        Some(endpoint) => endpoint.bind()?,
        None => csi_socket(&helper, &welcome).await?,
    };
    readiness.ready(Part::Helper);
    let view = if access.is_some() { View::of_agent() } else { View::without_agent() };
    if let Some(changed_blocks) = changed_blocks {
        tokio::spawn(changed_blocks.serve(view.clone(), readiness.clone(), shutdown.clone()));
    }
    let inspector = Inspector {
        helper: helper.clone(),
        volumes: volumes.clone(),
        agent: view.clone(),
        readiness: Some(readiness.clone()),
    };
    let watched = volumes.clone();
    tokio::spawn(async move { watched.watch_health().await });
    let registers = welcome.registers && options.csi_endpoint.is_none();
    if registers {
        readiness.not_ready(Part::Registration, "the kubelet has not registered the driver yet");
    }
    // Without the API server, nothing tells whether the kubelet has registered a driver whose socket it already knows.
    let is_registered_by_serving = access.is_none();
    let agent = access.map(|access| {
        let (driver, node) = (welcome.driver.clone(), options.node_id.clone());
        let (namespace, readiness) = (options.namespace.clone(), readiness.clone());
        if options.divide_intervals > 1 {
            warn!(
                "--divide-intervals is for tests: the API server gets {} times the requests",
                options.divide_intervals
            );
        }
        let intervals = Intervals::divided_by(options.divide_intervals);
        let (volumes, ledger) = (volumes.clone(), Ledger::new(options.limits()));
        let agent = Agent { access, namespace, driver, node, volumes, ledger, view, readiness, intervals };
        tokio::spawn(agent.run(shutdown.clone()))
    });
    let plugin = Plugin::new(welcome.driver.clone(), options.node_id, volumes);
    let pools: Vec<_> = welcome.pools.as_slice().iter().map(|pool| pool.name.as_str()).collect();
    info!(driver = %welcome.driver, ?pools, helper = welcome.release.as_str(), "serving CSI");
    // From here on the CSI socket is served, so the kubelet may learn of it.
    readiness.ready(Part::Csi);
    if registers {
        let registrar = Registrar::new(welcome.driver.clone(), welcome.csi_socket.clone(), readiness.clone());
        let readiness = readiness.clone();
        tokio::spawn(register(helper.clone(), registrar, readiness, is_registered_by_serving, shutdown.clone()));
    }
    let routes = || plugin.routes().add_service(inspector.clone().service());
    let (mut listener, mut since) = (listener, Instant::now());
    let served = loop {
        match server::serve(listener, routes(), &shutdown).await {
            // The helper shuts it down when its name is removed, too.
            Err(error @ ServeError::Dead(_)) if options.csi_endpoint.is_none() && since.elapsed() > CONTESTED => {
                warn!("{error}; requesting another");
                readiness.not_ready(Part::Csi, &error);
                listener = csi_socket(&helper, &welcome).await?;
                since = Instant::now();
                readiness.ready(Part::Csi);
            }
            served => break served,
        }
    };
    if let Err(error) = served {
        // Whoever serves the node's volumes now, this process does not.
        readiness.not_ready(Part::Csi, &error);
        shutdown.begin();
        let _ = timeout(GRACE, finish(agent, &plugin)).await;
        return Err(error.into());
    }
    finish(agent, &plugin).await;
    if let Some(endpoint) = &options.csi_endpoint {
        endpoint.remove();
    }
    Ok(())
}

/// Waits until no work is in progress.
async fn finish(agent: Option<JoinHandle<()>>, plugin: &Plugin) {
    if let Some(agent) = agent
        && let Err(error) = agent.await
    {
        error!("the storage agent failed: {error}");
    }
    plugin.idle().await;
}

async fn csi_socket(helper: &Helper, welcome: &Welcome) -> Result<UnixListener, StartError> {
    if welcome.csi_socket.as_str().is_empty() {
        return Err(StartError::NoCsiSocket);
    }
    loop {
        match helper.listen(Socket::Csi).await {
            Ok(listener) => return Ok(listener),
            Err(CallError::Away(why)) => warn!("waiting for the CSI socket: {why}"),
            Err(error) => return Err(StartError::Listen(error)),
        }
        sleep(RETRY).await;
    }
}

/// Serves the registration socket. A failure here must not interrupt service to volumes in use.
async fn register(
    helper: Helper,
    registrar: Registrar,
    readiness: Readiness,
    is_registered_by_serving: bool,
    shutdown: Shutdown,
) {
    loop {
        let failure = match registration::socket(&helper).await {
            Ok(listener) => {
                if is_registered_by_serving {
                    readiness.ready(Part::Registration);
                }
                match server::serve(listener, registrar.clone().routes(), &shutdown).await {
                    Ok(()) => return,
                    Err(error) => error.to_string(),
                }
            }
            Err(error) => error.to_string(),
        };
        error!("cannot register with the kubelet yet: {failure}; retrying");
        readiness.not_ready(Part::Registration, failure);
        tokio::select! {
            () = sleep(RETRY) => {}
            () = shutdown.begun() => return,
        }
    }
}

/// Nothing here needs a capability; any that is present would only help an attacker who compromises this process.
fn warn_of_privilege() {
    match rustix::thread::capabilities(None) {
        Ok(sets) if sets.permitted.is_empty() => {}
        Ok(sets) => {
            warn!(permitted = ?sets.permitted, "running with capabilities, none of which are needed: run as another user, or drop them")
        }
        Err(error) => warn!("cannot read the process's capabilities: {error}"),
    }
}
