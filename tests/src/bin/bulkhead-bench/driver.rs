//! A CSI driver to be measured: ours, or another one. Both get the same calls from the same client.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::controller_client::ControllerClient;
use bulkhead_tests::csi::v1::identity_client::IdentityClient;
use bulkhead_tests::csi::v1::node_client::NodeClient;
use bulkhead_tests::csi::v1::volume_capability::access_mode::Mode;
use bulkhead_tests::csi::v1::*;
use bulkhead_tests::kubelet::Kubelet;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// The time after which a call is given up.
const LIMIT: Duration = Duration::from_secs(60);

/// How long a refused call is retried: other programs open every loop device there is, and then a device is busy for a
/// moment.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pod that uses all volumes.
const POD: &str = "5d0a2b9e-6d3e-4b8f-9f2a-1c7e5a4d3b21";

/// The size at which volumes are created, and by how much they grow.
const SIZE: i64 = MIB;
const GROWTH: i64 = MIB;

/// The pool that may have filesystems in images.
pub const POOL_OF_IMAGES: &str = "images";

/// The kinds of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory,
    Block,
    /// A filesystem in an image, in the pool that is configured for it.
    Image,
}

impl Kind {
    /// Those that every pool can have.
    pub const ALL: [Self; 2] = [Self::Directory, Self::Block];

    pub fn name(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Block => "block",
            Self::Image => "image",
        }
    }

    fn capability(self) -> VolumeCapability {
        self.capability_in(Mode::SingleNodeMultiWriter)
    }

    fn capability_in(self, mode: Mode) -> VolumeCapability {
        match self {
            Self::Directory | Self::Image => mount_in(mode),
            Self::Block => block_in(mode),
        }
    }
}

/// How a client reaches a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// One connection for all calls.
    Kept,
    /// A new connection for each call, as a kubelet makes.
    New,
}

impl Connection {
    pub const ALL: [Self; 2] = [Self::Kept, Self::New];

    pub fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::New => "new",
        }
    }
}

/// The calls of a volume's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Probe,
    Create,
    Publish,
    /// As the only one that uses it, which is how most orchestrators ask.
    PublishExclusively,
    Stats,
    Expand,
    Unpublish,
    Delete,
}

/// A volume that was created or will be.
#[derive(Debug)]
pub struct Volume {
    name: String,
    pub kind: Kind,
    pub target: PathBuf,
    /// Where the driver stages it, if it stages volumes. Staging counts as part of publishing.
    staging: Option<PathBuf>,
    sparse: bool,
    size: i64,
    made: OnceLock<(String, BTreeMap<String, String>)>,
}

/// The times of many calls.
#[derive(Debug)]
pub struct Phase {
    pub times: Vec<Duration>,
    /// From the first call to the last reply.
    pub took: Duration,
}

/// Where a driver publishes.
#[derive(Debug)]
pub enum Targets {
    /// Where the kubelet has its targets, with its records next to them.
    Kubelet(Kubelet),
    /// In a directory.
    Below(PathBuf),
}

/// A driver.
#[derive(Debug)]
pub struct Driver {
    endpoint: Endpoint,
    kept: Channel,
    runtime: Runtime,
    targets: Targets,
    stages: bool,
}

impl Driver {
    /// The driver that listens at `uri` and can publish to `targets`.
    pub fn connect(uri: &str, targets: Targets) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let endpoint = Endpoint::from_shared(uri.to_owned())?;
        let kept = runtime
            .block_on(async { tokio::time::timeout(LIMIT, endpoint.connect()).await })?
            .with_context(|| format!("connect to {uri}"))?;
        let mut node = NodeClient::new(kept.clone());
        let capabilities = runtime.block_on(node.node_get_capabilities(NodeGetCapabilitiesRequest {}))?.into_inner();
        let stages = capabilities.capabilities.iter().any(is_stage);
        Ok(Self { endpoint, kept, runtime, targets, stages })
    }

    /// Its own name and version.
    pub fn name(&self) -> Result<String> {
        let mut client = IdentityClient::new(self.kept.clone());
        let info = self.runtime.block_on(client.get_plugin_info(GetPluginInfoRequest {}))?.into_inner();
        Ok(format!("{} {}", info.name, info.vendor_version))
    }

    /// Volumes with these names. Nothing is created yet.
    pub fn volumes(&self, prefix: &str, kind: Kind, number: usize, sparse: bool) -> Arc<Vec<Volume>> {
        self.volumes_of(prefix, kind, number, sparse, SIZE)
    }

    /// Volumes of this size, with these names. Nothing is created yet.
    pub fn volumes_of(&self, prefix: &str, kind: Kind, number: usize, sparse: bool, size: i64) -> Arc<Vec<Volume>> {
        let volume = |index| {
            let name = format!("{prefix}-{}-{index}", kind.name());
            let target = self.targets.path(kind, &name);
            let staging = self.stages.then(|| target.with_file_name(format!("{name}-staging")));
            Volume { target, staging, name, kind, sparse, size, made: OnceLock::new() }
        };
        Arc::new((0..number).map(volume).collect())
    }

    /// Makes the same call for each volume, this many at a time.
    pub fn phase(
        &self,
        connection: Connection,
        in_flight: usize,
        volumes: &Arc<Vec<Volume>>,
        call: Call,
    ) -> Result<Phase> {
        if matches!(call, Call::Publish | Call::PublishExclusively) {
            volumes.iter().try_for_each(|volume| self.targets.prepare(volume))?;
        }
        let next = Arc::new(AtomicUsize::new(0));
        let start = Instant::now();
        let times = self.runtime.block_on(async {
            let mut workers = JoinSet::new();
            for _ in 0..in_flight {
                let client = Client { endpoint: self.endpoint.clone(), kept: self.kept.clone(), connection };
                workers.spawn(work(client, Arc::clone(&next), Arc::clone(volumes), call));
            }
            let mut times = Vec::new();
            while let Some(done) = workers.join_next().await {
                times.extend(done??);
            }
            anyhow::Ok(times)
        })?;
        Ok(Phase { times, took: start.elapsed() })
    }

    /// Unpublishes and deletes these volumes, whether or not they exist.
    pub fn remove(&self, volumes: &Arc<Vec<Volume>>) -> Result<()> {
        self.phase(Connection::Kept, 8, volumes, Call::Unpublish)?;
        self.phase(Connection::Kept, 8, volumes, Call::Delete).map(drop)
    }
}

impl Targets {
    fn path(&self, kind: Kind, name: &str) -> PathBuf {
        match (self, kind) {
            (Self::Kubelet(kubelet), Kind::Directory | Kind::Image) => kubelet.pod_target_path(name, POD),
            (Self::Kubelet(kubelet), Kind::Block) => kubelet.block_target_path(name, POD),
            (Self::Below(directory), _) => directory.join(name),
        }
    }

    /// Makes what a kubelet makes before it has a volume published.
    fn prepare(&self, volume: &Volume) -> Result<()> {
        let (Self::Kubelet(kubelet), Some((id, _))) = (self, volume.made.get()) else { return Ok(()) };
        if volume.target.parent().is_some_and(Path::exists) {
            return Ok(());
        }
        match volume.kind {
            Kind::Directory | Kind::Image => kubelet.prepare(id, &volume.name, POD),
            Kind::Block => kubelet.prepare_block(id, &volume.name, POD),
        }
        .map(drop)
    }
}

/// Makes one call after another until every volume has had its call. A call that had to be repeated is not counted.
async fn work(client: Client, next: Arc<AtomicUsize>, volumes: Arc<Vec<Volume>>, call: Call) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    while let Some(volume) = volumes.get(next.fetch_add(1, Ordering::Relaxed)) {
        let begun = Instant::now();
        let mut repeated = false;
        loop {
            let start = Instant::now();
            match client.call(call, volume).await {
                Ok(()) if repeated => break,
                Ok(()) => {
                    times.push(start.elapsed());
                    break;
                }
                Err(status) if begun.elapsed() > PATIENCE || is_final(&status) => {
                    return Err(anyhow!("{call:?} {}: {:?}: {}", volume.name, status.code(), status.message()));
                }
                Err(_) => repeated = true,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    Ok(times)
}

fn is_stage(capability: &NodeServiceCapability) -> bool {
    use node_service_capability::{Rpc, Type, rpc};
    let Some(Type::Rpc(Rpc { r#type })) = &capability.r#type else { return false };
    *r#type == rpc::Type::StageUnstageVolume as i32
}

fn is_final(status: &Status) -> bool {
    use tonic::Code::{DeadlineExceeded, InvalidArgument, OutOfRange, ResourceExhausted, Unimplemented};
    matches!(status.code(), DeadlineExceeded | InvalidArgument | OutOfRange | ResourceExhausted | Unimplemented)
}

struct Client {
    endpoint: Endpoint,
    kept: Channel,
    connection: Connection,
}

impl Client {
    async fn call(&self, call: Call, volume: &Volume) -> Result<(), Status> {
        let answer = tokio::time::timeout(LIMIT, self.call_without_limit(call, volume)).await;
        answer.unwrap_or_else(|_| Err(Status::deadline_exceeded(format!("no answer within {} s", LIMIT.as_secs()))))
    }

    async fn call_without_limit(&self, call: Call, volume: &Volume) -> Result<(), Status> {
        let channel = match self.connection {
            Connection::Kept => self.kept.clone(),
            Connection::New => self.endpoint.connect().await.map_err(|error| Status::unavailable(error.to_string()))?,
        };
        let mut controller = ControllerClient::new(channel.clone());
        let mut node = NodeClient::new(channel.clone());
        let Volume { name, kind, target, staging, sparse, size, made } = volume;
        // A volume that was never created has only its name: removing it must do no harm.
        let (id, context) = made.get().cloned().unwrap_or_else(|| (name.clone(), BTreeMap::new()));
        match call {
            Call::Probe => IdentityClient::new(channel).probe(ProbeRequest {}).await.map(drop)?,
            Call::Create => {
                let mut request = create(name, *size, kind.capability());
                if *sparse {
                    request.parameters.extend(parameters(&[("sparse", "true")]));
                }
                if *kind == Kind::Image {
                    request.parameters.extend(parameters(&[("backing", "image"), ("pool", POOL_OF_IMAGES)]));
                }
                let answer = controller.create_volume(request).await?.into_inner();
                let volume = answer.volume.ok_or_else(|| Status::internal("the answer holds no volume"))?;
                // An earlier attempt of the call may have set it.
                let _ = made.set((volume.volume_id, volume.volume_context.into_iter().collect()));
            }
            Call::Publish | Call::PublishExclusively => {
                let is_exclusive = call == Call::PublishExclusively;
                let mode = if is_exclusive { Mode::SingleNodeWriter } else { Mode::SingleNodeMultiWriter };
                let mut request = publish(&id, target, kind.capability_in(mode));
                request.volume_context.extend(context.clone());
                if let Some(staging) = staging {
                    std::fs::create_dir_all(staging)?;
                    request.staging_target_path = staging.display().to_string();
                    let stage = NodeStageVolumeRequest {
                        volume_id: id.clone(),
                        staging_target_path: request.staging_target_path.clone(),
                        volume_capability: Some(kind.capability()),
                        volume_context: context.into_iter().collect(),
                        ..NodeStageVolumeRequest::default()
                    };
                    node.node_stage_volume(stage).await?;
                }
                node.node_publish_volume(request).await.map(drop)?;
            }
            Call::Stats => node.node_get_volume_stats(stats(&id, target)).await.map(drop)?,
            Call::Expand => {
                let answer =
                    controller.controller_expand_volume(controller_expand(&id, *size + GROWTH)).await?.into_inner();
                if answer.node_expansion_required {
                    node.node_expand_volume(node_expand(&id, target, *size + GROWTH)).await.map(drop)?;
                }
            }
            Call::Unpublish => {
                node.node_unpublish_volume(unpublish(&id, target)).await?;
                if let Some(staging) = staging {
                    let staging_target_path = staging.display().to_string();
                    let unstage = NodeUnstageVolumeRequest { volume_id: id, staging_target_path };
                    node.node_unstage_volume(unstage).await.map(drop)?;
                }
            }
            Call::Delete => controller.delete_volume(delete(&id)).await.map(drop)?,
        }
        Ok(())
    }
}
