//! A helper that follows a test's script, for behaviour that a real one cannot be made to show.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bulkhead_frontend::csi::Plugin;
use bulkhead_frontend::helper::Helper;
use bulkhead_frontend::inspection::Inspector;
use bulkhead_frontend::kubernetes::View;
use bulkhead_frontend::proto::csi::volume_capability::access_mode::Mode;
use bulkhead_frontend::proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use bulkhead_frontend::proto::csi::{CreateVolumeRequest, NodePublishVolumeRequest, VolumeCapability};
use bulkhead_frontend::volumes::Volumes;
use bulkhead_protocol::*;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_seqpacket::ancillary::AncillaryMessageWriter;
use tokio_seqpacket::{UnixSeqpacket, UnixSeqpacketListener};

/// Only guards against hanging, on however slow a machine.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// What the fake does with a request.
pub enum Act {
    /// Answers it.
    Answer(Response),
    /// Answers it, with descriptors.
    Attach(Response, Vec<OwnedFd>),
    /// Sends these bytes.
    Bytes(Vec<u8>),
    /// Closes the connection.
    Close,
    /// Stays silent for as long as the connection lasts.
    Hang,
    /// Answers when the test lets it.
    Later(Arc<Notify>, Response),
}

type Script = Arc<dyn Fn(&Request) -> Act + Send + Sync>;

/// How the fake answers a hello.
#[derive(Clone)]
pub enum Greeting {
    Welcome(Box<Welcome>),
    Refuse(Error),
    Silence,
}

/// The fake.
pub struct FakeHelper {
    path: PathBuf,
    directory: tempfile::TempDir,
    script: Script,
    greeting: Arc<Mutex<Greeting>>,
    pub seen: Arc<Mutex<Vec<Request>>>,
    pub connections: Arc<AtomicUsize>,
    pub most_connections: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
}

impl FakeHelper {
    /// A running fake, which does with each request what `script` says.
    pub fn start(script: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        let mut fake = Self::stopped(script);
        fake.run();
        fake
    }

    /// A fake that is not running yet.
    pub fn stopped(script: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            path: directory.path().join("helper.sock"),
            directory,
            script: Arc::new(script),
            greeting: Arc::new(Mutex::new(Greeting::Welcome(Box::new(welcome(&["default"]))))),
            seen: Arc::default(),
            connections: Arc::default(),
            most_connections: Arc::default(),
            tasks: JoinSet::new(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory for the test's own files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn greet_with(&self, greeting: Greeting) {
        *self.greeting.lock().unwrap() = greeting;
    }

    pub fn run(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let mut listener = UnixSeqpacketListener::bind(&self.path).unwrap();
        let (script, greeting, seen) = (Arc::clone(&self.script), Arc::clone(&self.greeting), Arc::clone(&self.seen));
        let (count, most) = (Arc::clone(&self.connections), Arc::clone(&self.most_connections));
        self.tasks.spawn(async move {
            // Dropped with this task, which closes the connections.
            let mut connections = JoinSet::new();
            loop {
                let socket = listener.accept().await.unwrap();
                let (script, greeting, seen) =
                    (Arc::clone(&script), greeting.lock().unwrap().clone(), Arc::clone(&seen));
                let open = Open::new(&count, &most);
                connections.spawn(async move {
                    let _open = open;
                    serve(socket, script, greeting, seen).await;
                });
            }
        });
    }

    /// Kills it as SIGKILL would: the socket's name stays behind.
    pub async fn kill(&mut self) {
        self.tasks.shutdown().await;
    }

    /// The names of the requests received, except probes.
    pub fn names(&self) -> Vec<String> {
        let name = |request: &Request| format!("{request:?}").split([' ', '{']).next().unwrap_or("").to_owned();
        self.seen.lock().unwrap().iter().map(name).filter(|name| name != "List").collect()
    }

    /// Bulkhead's own service in front of it.
    pub fn inspector(&self) -> Inspector {
        let helper = Helper::new(self.path());
        Inspector {
            helper: helper.clone(),
            volumes: Volumes::new(helper),
            agent: View::without_agent(),
            readiness: None,
        }
    }

    /// The plugin in front of it.
    pub fn plugin(&self) -> Plugin {
        Plugin::new("bulkhead.csi.local".parse().unwrap(), "node-1".to_owned(), Volumes::new(Helper::new(self.path())))
    }
}

struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: &Arc<AtomicUsize>, most: &AtomicUsize) -> Self {
        let now = count.fetch_add(1, Ordering::SeqCst) + 1;
        most.fetch_max(now, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve(socket: UnixSeqpacket, script: Script, greeting: Greeting, seen: Arc<Mutex<Vec<Request>>>) {
    let mut buffer = [0; MAX_PACKET];
    let length = socket.recv(&mut buffer).await.unwrap().bytes_read();
    let hello: Hello = decode(&buffer[..length]).unwrap();
    negotiate(hello).unwrap();
    let answer: Result<Welcome, Error> = match greeting {
        Greeting::Welcome(welcome) => Ok(*welcome),
        Greeting::Refuse(error) => Err(error),
        Greeting::Silence => std::future::pending().await,
    };
    socket.send(&encode(&answer).unwrap()).await.unwrap();
    loop {
        let Ok(info) = socket.recv(&mut buffer).await else { return };
        if info.bytes_read() == 0 {
            return;
        }
        let (request, _) = decode_request(&buffer[..info.bytes_read()], HIGHEST_VERSION).unwrap();
        seen.lock().unwrap().push(request.clone());
        let sent = match script(&request) {
            Act::Answer(response) => socket.send(&encode(&response).unwrap()).await,
            Act::Attach(response, descriptors) => {
                let mut ancillary = [0; 256];
                let mut writer = AncillaryMessageWriter::new(&mut ancillary);
                writer.add_fds(descriptors.iter().map(|descriptor| descriptor.as_fd())).unwrap();
                let packet = encode(&response).unwrap();
                socket.send_vectored_with_ancillary(&[IoSlice::new(&packet)], &mut writer).await
            }
            Act::Bytes(bytes) => socket.send(&bytes).await,
            Act::Close => return,
            Act::Hang => std::future::pending().await,
            Act::Later(now, response) => {
                now.notified().await;
                socket.send(&encode(&response).unwrap()).await
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

pub fn welcome(pools: &[&str]) -> Welcome {
    let pool =
        |name: &&str| Pool { name: name.parse().unwrap(), quota: QuotaMode::Enforced, filesystem: Text::new("xfs") };
    let directory = PublishDirectory { name: "kubelet".parse().unwrap(), host_path: Text::new("/var/lib/kubelet") };
    Welcome {
        version: 1,
        release: Text::new("0.0.0"),
        driver: "bulkhead.csi.local".parse().unwrap(),
        csi_socket: Text::new("/var/lib/kubelet/plugins/bulkhead.csi.local/csi.sock"),
        registers: true,
        publish_directories: vec![directory].try_into().unwrap(),
        pools: pools.iter().map(pool).collect::<Vec<_>>().try_into().unwrap(),
    }
}

pub fn failure(kind: ErrorKind) -> Act {
    Act::Answer(Err(Error::new(kind, "scripted")))
}

pub fn done() -> Act {
    Act::Answer(Ok(Reply::Done))
}

pub fn size(bytes: u64) -> Act {
    Act::Answer(Ok(Reply::Size(Bytes::try_from(bytes).unwrap())))
}

pub fn no_volumes() -> Act {
    Act::Answer(Ok(Reply::Volumes(UpTo::default())))
}

/// No volume began as a copy, and there are no snapshots. `None` if that is not what is asked.
pub fn no_copies(request: &Request) -> Option<Act> {
    match request {
        Request::Sharing { .. } => Some(Act::Answer(Ok(Reply::Sharing { allocated: 1 << 20, shared: 0, next: None }))),
        Request::Origin { .. } => Some(Act::Answer(Ok(Reply::Origin(None)))),
        Request::ListSnapshots { .. } => Some(Act::Answer(Ok(Reply::Snapshots(UpTo::default())))),
        _ => None,
    }
}

/// The status of a pool with plenty of room.
pub fn roomy() -> Act {
    Act::Answer(Ok(Reply::Pool(status(1 << 40))))
}

/// Returns how many filesystems in images a pool may have, and has; and how many inodes, and how many of them are free.
pub fn counts(filesystem_limit: u32, filesystems: u32, (inodes, free_inodes): (u64, u64)) -> Act {
    Act::Answer(Ok(Reply::Counts {
        filesystem_limit,
        filesystems,
        inodes,
        free_inodes,
        snapshots: 0,
        extent_limit: 0,
        snapshot_bytes: 0,
    }))
}

/// The status of an empty pool with this much room, in which inodes take nothing.
pub fn status(room: u64) -> PoolStatus {
    PoolStatus {
        quota: QuotaMode::Enforced,
        total: room,
        available: room,
        largest_volume: room,
        promised: 0,
        inode_size: 0,
        volumes: 0,
        emptying: 0,
        conditions: UpTo::default(),
    }
}

pub fn capability(block: bool) -> VolumeCapability {
    let access_type = if block { AccessType::Block(BlockVolume {}) } else { AccessType::Mount(MountVolume::default()) };
    let mode = Mode::SingleNodeMultiWriter.into();
    VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode }) }
}

pub fn creation(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![capability(false)],
        parameters: BTreeMap::new(),
        ..CreateVolumeRequest::default()
    }
}

pub fn publication(block: bool, target: &str) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: "pvc-1".to_owned(),
        target_path: target.to_owned(),
        volume_capability: Some(capability(block)),
        ..NodePublishVolumeRequest::default()
    }
}
