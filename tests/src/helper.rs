//! A client of the helper's own protocol, which can also misbehave.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bulkhead_protocol::{
    BlockSize, Bytes, DirectoryMode, Error, ErrorKind, HIGHEST_VERSION, Hello, Inodes, MAX_PACKET, Member, MountFlags,
    NameHash, Pace, PoolStatus, Reply, Request, Response, Socket, TargetPath, UpTo, Usage, VolumeId, VolumeKind,
    VolumeSpec, Welcome, decode, encode,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::Uid;

use crate::daemon::FRONTEND_UID;
use crate::ids::own;
use crate::pace::{self, Allowance};
use crate::undo::Pending;

/// A connection to the helper.
#[derive(Debug)]
pub struct HelperClient {
    socket: OwnedFd,
    pending: Pending,
}

/// How long a request that must be granted is asked for again.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connecting takes a change of the effective user id; only one thread at a time may do that.
static IDENTITY: Mutex<()> = Mutex::new(());

impl HelperClient {
    /// Connects as the frontend's user, and sends nothing.
    pub fn connect(path: &Path) -> Result<Self> {
        Self::connect_as(path, FRONTEND_UID)
    }

    /// Connects as another user, and sends nothing.
    pub fn connect_as(path: &Path, uid: u32) -> Result<Self> {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let limit = Some(pace::patience(Duration::from_secs(120)));
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, limit)?;
        let address = SocketAddrUnix::new(path)?;
        let _one_at_a_time =
            IDENTITY.lock().map_err(|_| anyhow!("another thread panicked while it had another user id"))?;
        let root = Uid::from_raw(0);
        rustix::thread::set_thread_res_uid(root, Uid::from_raw(uid), root)?;
        let connected = rustix::net::connect(&socket, &address);
        rustix::thread::set_thread_res_uid(root, root, root)?;
        connected.with_context(|| format!("connect to {}", path.display()))?;
        Ok(Self { socket, pending: Pending::default() })
    }

    /// Connects and says hello with the highest version.
    pub fn welcomed(path: &Path) -> Result<Self> {
        let client = Self::connect(path)?;
        client.hello(HIGHEST_VERSION)?;
        Ok(client)
    }

    /// Records in `pending` what is to be undone of what it asks for.
    pub fn recording(self, pending: &Pending) -> Self {
        Self { pending: pending.clone(), ..self }
    }

    /// Says hello with this version.
    pub fn hello(&self, highest_version: u16) -> Result<Welcome> {
        self.send(&encode(&Hello::new(highest_version))?)?;
        let packet = self.receive()?.context("the helper has closed the connection")?;
        let welcome: Result<Welcome, Error> = decode(&packet).context("decode the welcome")?;
        welcome.map_err(|error| anyhow!("hello is refused: {error}"))
    }

    /// Sends a request and returns the reply or the refusal.
    pub fn request(&self, request: &Request) -> Result<Response> {
        self.send(&encode(request)?)?;
        let packet = self.receive()?.with_context(|| format!("the helper closed the connection on {request:?}"))?;
        let response: Response = decode(&packet)?;
        if response.is_ok() {
            self.pending.granted(request);
        }
        Ok(response)
    }

    /// Sends a request that must be granted.
    ///
    /// What a slow machine makes long is asked for again: after some seconds the helper says that it is busy with it, and
    /// a pool can promise the room of what was deleted only once that is gone.
    pub fn ask(&self, request: &Request) -> Result<Reply> {
        let is_long = matches!(request.row().pace, Pace::Content | Pace::Extents);
        let passes = |kind| matches!(kind, ErrorKind::NoRoom { .. }) || is_long && kind == ErrorKind::Busy;
        self.ask_while(pace::patience(PATIENCE), request, passes)
    }

    /// Sends requests, one after the other, that must all be granted.
    pub fn ask_all(&self, requests: impl IntoIterator<Item = Request>) -> Result<()> {
        requests.into_iter().try_for_each(|request| self.ask(&request).map(drop))
    }

    /// Sends a request until the helper is no longer too busy to grant it: a machine may take long to remove devices.
    pub fn ask_patiently(&self, request: &Request) -> Result<Reply> {
        self.ask_within(pace::patience(PATIENCE), request)
    }

    /// Sends a request until the helper is no longer too busy to grant it, for as long as this at most.
    pub fn ask_within(&self, limit: Duration, request: &Request) -> Result<Reply> {
        self.ask_while(limit, request, |kind| kind == ErrorKind::Busy)
    }

    fn ask_while(&self, limit: Duration, request: &Request, passes: impl Fn(ErrorKind) -> bool) -> Result<Reply> {
        let mut allowance = Allowance::at_this_pace(limit);
        loop {
            match self.request(request)? {
                Err(error) if passes(error.kind) && !allowance.is_spent() => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                response => return response.map_err(|error| anyhow!("{request:?}: {:?}: {error}", error.kind)),
            }
        }
    }

    /// The status of a pool.
    pub fn pool_status(&self, pool: &str) -> Result<PoolStatus> {
        match self.ask(&Request::PoolStatus { pool: pool.parse()? })? {
            Reply::Pool(status) => Ok(status),
            other => bail!("no status of pool {pool}: {other:?}"),
        }
    }

    /// Checks the status of a pool.
    pub fn check_status(&self, pool: &str, is_right: impl Fn(&PoolStatus) -> bool) -> Result<()> {
        let status = self.pool_status(pool)?;
        ensure!(is_right(&status), "{status:?}");
        Ok(())
    }

    /// How a volume is used.
    pub fn usage(&self, id: &str, target: Option<TargetPath>) -> Result<Usage> {
        match self.ask(&Request::Usage { volume: volume(id), target })? {
            Reply::Usage(usage) => Ok(usage),
            other => bail!("no usage of {id}: {other:?}"),
        }
    }

    /// Checks that a pool is served: a volume is made in it, and deleted.
    pub fn check_serves(&self, pool: &str) -> Result<()> {
        let id = own("vol-o");
        self.ask_all([create_in(pool, id, directory_spec(1 << 20)), delete(id)])
    }

    /// The sizes of all volumes, read in pages.
    pub fn sizes(&self) -> Result<BTreeMap<String, u64>> {
        let (mut all, mut after) = (BTreeMap::new(), None);
        loop {
            let Reply::Volumes(page) = self.ask(&Request::List { after, limit: 16 })? else { bail!("no list") };
            let Some(last) = page.as_slice().last() else { return Ok(all) };
            after = Some(last.volume.clone());
            all.extend(page.into_vec().into_iter().map(|one| (one.volume.to_string(), one.size.get())));
        }
    }

    /// The first hundred volumes.
    pub fn volumes(&self) -> Result<Vec<VolumeId>> {
        match self.ask(&Request::List { after: None, limit: 100 })? {
            Reply::Volumes(page) => Ok(page.into_vec().into_iter().map(|listed| listed.volume).collect()),
            other => bail!("no volumes: {other:?}"),
        }
    }

    /// Sends bytes as one packet.
    pub fn send(&self, packet: &[u8]) -> Result<()> {
        let mut nothing = SendAncillaryBuffer::default();
        let sent = rustix::net::sendmsg(&self.socket, &[IoSlice::new(packet)], &mut nothing, SendFlags::NOSIGNAL)?;
        ensure!(sent == packet.len(), "sent {sent} of {} bytes", packet.len());
        Ok(())
    }

    /// Sends bytes as one packet, with an unexpected descriptor.
    pub fn send_with_descriptor(&self, packet: &[u8], descriptor: impl AsFd) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor.as_fd()];
        ensure!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "no room for a descriptor");
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Makes sends and receives fail where they would block.
    pub fn set_nonblocking(&self) -> Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.socket, true)?)
    }

    /// Returns whether an answer is waiting to be received, or arrives within `limit`.
    pub fn is_answered(&self, limit: Duration) -> Result<bool> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        Ok(poll(&mut polled, Some(&Timespec::try_from(limit)?))? > 0)
    }

    /// Receives one packet; `None` when the connection is closed.
    pub fn receive(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.receive_with_descriptor()?.map(|(packet, _)| packet))
    }

    /// Receives one packet and the descriptor that comes with it.
    pub fn receive_with_descriptor(&self) -> Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
        let mut packet = vec![0; MAX_PACKET + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut packet)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        let length = match received {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(errno) => return Err(errno).context("receive from the helper"),
        };
        let mut descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptor = descriptors.next().and_then(|mut descriptors| descriptors.next());
        if length == 0 {
            return Ok(None);
        }
        ensure!(length <= MAX_PACKET, "the helper sent a packet of {length} bytes");
        packet.truncate(length);
        Ok(Some((packet, descriptor)))
    }

    /// Checks that the helper closes the connection without sending anything else.
    pub fn check_closed(&self) -> Result<()> {
        match self.receive()? {
            None => Ok(()),
            Some(packet) => Err(anyhow!("the helper answers instead of closing the connection: {packet:02x?}")),
        }
    }
}

/// A volume id written out in a test.
pub fn volume(id: &str) -> VolumeId {
    id.parse().unwrap_or_else(|_| panic!("{id:?} is not a volume id"))
}

/// A target below the publish directory with that name.
pub fn target(directory: &str, path: &str) -> TargetPath {
    TargetPath { directory: directory.parse().expect("publish directory"), path: path.parse().expect("relative path") }
}

/// A size written out in a test.
pub fn bytes(bytes: u64) -> Bytes {
    Bytes::try_from(bytes).unwrap_or_else(|_| panic!("{bytes} is not a size"))
}

/// A directory volume of this size with 4,096 inodes.
pub fn directory_spec(size: u64) -> VolumeSpec {
    directory_spec_with(size, 4096)
}

/// A directory volume of this size with so many inodes.
pub fn directory_spec_with(size: u64, inodes: u64) -> VolumeSpec {
    let inodes = Inodes::try_from(inodes).expect("inodes");
    let mode = DirectoryMode::try_from(0o755).expect("mode");
    VolumeSpec { size: bytes(size), kind: VolumeKind::Directory { inodes, mode }, name_hash: NameHash([7; 32]) }
}

/// A preallocated image of this size.
pub fn image_spec(size: u64) -> VolumeSpec {
    let kind = VolumeKind::Image { sparse: false, block_size: BlockSize::B512 };
    VolumeSpec { size: bytes(size), kind, name_hash: NameHash([7; 32]) }
}

/// A sparse image of this size.
pub fn sparse_spec(size: u64) -> VolumeSpec {
    VolumeSpec { kind: VolumeKind::Image { sparse: true, block_size: BlockSize::B512 }, ..image_spec(size) }
}

/// A sparse image of this size with a filesystem.
pub fn filesystem_spec(size: u64) -> VolumeSpec {
    let mode = DirectoryMode::try_from(0o755).expect("mode");
    VolumeSpec { kind: VolumeKind::Filesystem { sparse: true, mode }, ..image_spec(size) }
}

/// A preallocated image of this size with a filesystem.
pub fn preallocated_filesystem_spec(size: u64) -> VolumeSpec {
    let mode = DirectoryMode::try_from(0o755).expect("mode");
    VolumeSpec { kind: VolumeKind::Filesystem { sparse: false, mode }, ..image_spec(size) }
}

/// The request to create a volume in the pool called default.
pub fn create(id: &str, spec: VolumeSpec) -> Request {
    create_in("default", id, spec)
}

/// The request to create a volume in a pool.
pub fn create_in(pool: &str, id: &str, spec: VolumeSpec) -> Request {
    Request::Create { volume: volume(id), pool: pool.parse().expect("pool"), spec }
}

/// The request to bind a volume read-write below the publish directory called work.
pub fn bind(id: &str, path: &str) -> Request {
    let flags = MountFlags::default();
    Request::BindMount { volume: volume(id), target: target("work", path), flags, exclusive: false }
}

/// The request to bind a volume read-only below the publish directory called work.
pub fn bind_read_only(id: &str, path: &str) -> Request {
    let flags = MountFlags { read_only: true, ..MountFlags::default() };
    Request::BindMount { volume: volume(id), target: target("work", path), flags, exclusive: false }
}

/// The request to bind a volume read-write below the publish directory called work, and nowhere else.
pub fn bind_exclusively(id: &str, path: &str) -> Request {
    let flags = MountFlags::default();
    Request::BindMount { volume: volume(id), target: target("work", path), flags, exclusive: true }
}

/// The request to undo [`bind`].
pub fn unbind(id: &str, path: &str) -> Request {
    Request::Unmount { volume: volume(id), target: target("work", path) }
}

/// The request to delete a volume.
pub fn delete(id: &str) -> Request {
    Request::Delete { volume: volume(id) }
}

/// The request to delete a volume that was never published.
pub fn discard(id: &str) -> Request {
    Request::DeleteUnused { volume: volume(id) }
}

/// The request to mount the filesystem of a volume.
pub fn mount_filesystem(id: &str) -> Request {
    Request::MountFilesystem { volume: volume(id) }
}

/// The request to mount the filesystem of a volume with a label for all its files, at this level.
pub fn mount_labelled(id: &str, level: &str) -> Request {
    let context = format!("system_u:object_r:container_file_t:{level}").parse().expect("a context");
    Request::MountLabelled { volume: volume(id), context }
}

/// The request to undo [`mount_filesystem`].
pub fn unmount_filesystem(id: &str) -> Request {
    Request::UnmountFilesystem { volume: volume(id) }
}

/// The request to grow the filesystem of a volume.
pub fn grow_filesystem(id: &str, size: u64) -> Request {
    Request::GrowFilesystem { volume: volume(id), size: bytes(size) }
}

/// The request to take a snapshot of a volume.
pub fn create_snapshot(of: &str, id: &str) -> Request {
    Request::CreateSnapshot { volume: volume(of), snapshot: volume(id), name_hash: NameHash([5; 32]) }
}

/// The request to take snapshots of several volumes at one moment; each is called after its volume, and this.
pub fn create_group(of: &[&str], name: &str) -> Request {
    let member = |id: &&str| Member { volume: volume(id), snapshot: volume(&format!("{id}-{name}")) };
    let members = UpTo::try_from(of.iter().map(member).collect::<Vec<_>>()).expect("as many as are allowed");
    Request::CreateGroup { members, name_hash: NameHash([6; 32]) }
}

/// The request to create a volume in the pool called default as a copy.
pub fn create_from(id: &str, spec: VolumeSpec, source: &str) -> Request {
    let pool = "default".parse().expect("pool");
    Request::CreateFrom { volume: volume(id), pool, spec, source: volume(source) }
}

/// The request to delete a snapshot.
pub fn delete_snapshot(id: &str) -> Request {
    Request::DeleteSnapshot { snapshot: volume(id) }
}

/// The request to attach a block volume read-write.
pub fn attach(id: &str) -> Request {
    Request::LoopAttach { volume: volume(id), read_only: false }
}

/// The request to publish an attached block volume below the publish directory called work.
pub fn make_device(id: &str, path: &str) -> Request {
    Request::MakeDevice { volume: volume(id), target: target("work", path), exclusive: false }
}

/// The request to undo [`make_device`].
pub fn remove_device(id: &str, path: &str) -> Request {
    Request::RemoveDevice { volume: volume(id), target: target("work", path) }
}

/// The request to undo [`attach`].
pub fn detach(id: &str) -> Request {
    Request::LoopDetach { volume: volume(id) }
}

/// Asks for a listening socket, as a frontend does.
pub fn listen(helper: &HelperClient, socket: Socket) -> Result<OwnedFd> {
    helper.send(&encode(&Request::Listen { socket })?)?;
    let (packet, descriptor) = helper.receive_with_descriptor()?.context("the connection is closed")?;
    let response: Response = decode(&packet)?;
    ensure!(response == Ok(Reply::Listening), "{response:?}");
    descriptor.context("no socket comes with the answer")
}
