//! Attacks on targets: directories on the path that somebody else owns, or that are moved, exchanged or replaced.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, ensure};
use bulkhead_protocol::{ErrorKind, MountFlags, Reply, Request, TargetPath};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::rig::Rig;
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{Mode, OFlags, RenameFlags, renameat_with};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

cases! {
    a_way_that_is_not_roots_alone_is_refused,
    the_owner_of_a_directory_on_the_way_exchanges_targets,
    the_owner_of_a_directory_on_the_way_exchanges_targets_for_long: Long,
    a_moved_directory_with_an_empty_one_in_its_place,
    a_moved_directory_with_nothing_in_its_place,
    a_target_moved_in_another_namespace,
    what_the_host_has_unmounted_is_not_published,
    an_unknown_volume_at_the_target_of_another,
    empty_targets_of_others,
    what_a_crash_has_left_at_a_target_is_removed,
}

const SIZE: u64 = 16 << 20;
const ATTACKER: u32 = 901;

/// The requests at a target for a directory volume or a block volume: publish, then unpublish.
fn at(id: &str, target: &TargetPath) -> [Request; 2] {
    let (volume, target) = (volume(id), target.clone());
    let flags = MountFlags::default();
    if id == "vol-b" {
        let publish = Request::MakeDevice { volume: volume.clone(), target: target.clone(), exclusive: false };
        [publish, Request::RemoveDevice { volume, target }]
    } else {
        let publish = Request::BindMount { volume: volume.clone(), target: target.clone(), flags, exclusive: false };
        [publish, Request::Unmount { volume, target }]
    }
}

/// Two directory volumes, `vol-a` and `vol-c`, and a block volume `vol-b` that is attached.
fn volumes(rig: &Rig) -> Result<HelperClient> {
    let helper = rig.helper()?;
    for (id, spec) in [("vol-a", directory_spec(SIZE)), ("vol-b", image_spec(SIZE)), ("vol-c", directory_spec(SIZE))] {
        helper.ask(&create(id, spec))?;
    }
    helper.ask(&attach("vol-b"))?;
    Ok(helper)
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

fn a_way_that_is_not_roots_alone_is_refused(rig: &mut Rig) -> Result<()> {
    let helper = &volumes(rig)?;
    let publish = rig.publish_directory();
    fs::create_dir_all(publish.join("way/parent"))?;
    let usage = |id, target: &TargetPath| Request::Usage { volume: volume(id), target: Some(target.clone()) };
    for id in ["vol-a", "vol-b"] {
        let (target, path) = (target("work", "way/parent/t"), publish.join("way/parent/t"));
        let [bind, unbind] = at(id, &target);
        for directory in [publish.join("way/parent"), publish.join("way"), publish.clone()] {
            let shown = directory.display().to_string();
            for (owner, mode) in [(ATTACKER, 0o755), (0, 0o777), (0, 0o775), (0, 0o757)] {
                let case = || format!("{id}: {shown} of {owner}, mode {mode:o}");
                let spoil = || chown(&directory, Some(owner), None).map_err(Into::into).and(set_mode(&directory, mode));
                let mend = || chown(&directory, Some(0), None).map_err(Into::into).and(set_mode(&directory, 0o755));
                spoil()?;
                denied(helper.request(&bind)?, ErrorKind::Refused, &shown).with_context(case)?;
                ensure!(fs::symlink_metadata(&path).is_err(), "{}: a target was made", case());
                mend()?;
                helper.ask(&bind)?;
                spoil()?;
                denied(helper.request(&bind)?, ErrorKind::Refused, &shown).with_context(case)?;
                denied(helper.request(&unbind)?, ErrorKind::Refused, &shown).with_context(case)?;
                denied(helper.request(&usage(id, &target))?, ErrorKind::NotFound, id).with_context(case)?;
                denied(helper.request(&delete(id))?, ErrorKind::InUse, id).with_context(case)?;
                ensure!(mounts::at(&path)?.len() == 1, "{}: it was unmounted", case());
                mend()?;
                helper.ask(&usage(id, &target))?;
                helper.ask(&unbind)?;
            }
        }
    }
    Ok(fs::remove_dir_all(publish.join("way"))?)
}

/// A user who keeps exchanging two names, in a mount namespace of its own, where nothing is mounted on them.
struct Exchanger {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU32>,
    thread: JoinHandle<Result<()>>,
}

impl Exchanger {
    fn start(directory: &Path, names: [&'static str; 2]) -> Result<Self> {
        let held = open(directory)?;
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (ended, count) = (Arc::clone(&stop), Arc::clone(&done));
        let thread = in_another_namespace(ATTACKER, move || {
            while !ended.load(Ordering::Relaxed) {
                if renameat_with(&held, names[0], &held, names[1], RenameFlags::EXCHANGE).is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        });
        Ok(Self { stop, done, thread })
    }

    /// Stops it, and returns how many times it has exchanged the names.
    fn stop(self) -> Result<u32> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the attacker panicked"))??;
        Ok(self.done.load(Ordering::Relaxed))
    }
}

/// Runs something as a user in a separate mount namespace, which does not see mounts made from now on.
fn in_another_namespace(user: u32, act: impl FnOnce() -> Result<()> + Send + 'static) -> JoinHandle<Result<()>> {
    thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        let user = Uid::from_raw(user);
        set_thread_res_uid(user, user, user)?;
        act()
    })
}

fn open(directory: &Path) -> Result<OwnedFd> {
    Ok(rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn the_owner_of_a_directory_on_the_way_exchanges_targets(rig: &mut Rig) -> Result<()> {
    exchange(rig, 500)
}

fn the_owner_of_a_directory_on_the_way_exchanges_targets_for_long(rig: &mut Rig) -> Result<()> {
    exchange(rig, 10_000)
}

/// Publishes and unpublishes two volumes side by side: `rounds` times while the names of their targets are exchanged,
/// and as many times while those of the parent directories are. Whenever the helper says done, it must be done.
fn exchange(rig: &mut Rig, rounds: u32) -> Result<()> {
    let helper = &volumes(rig)?;
    let shared = rig.target("shared");
    for (paths, names) in [(["shared/a", "shared/c"], ["a", "c"]), (["shared/1/a", "shared/2/c"], ["1", "2"])] {
        fs::create_dir(&shared)?;
        for name in names {
            fs::create_dir(shared.join(name))?;
        }
        chown(&shared, Some(ATTACKER), Some(ATTACKER))?;
        set_mode(&shared, 0o777)?;
        let attacker = Exchanger::start(&shared, names)?;
        let result = (0..rounds).try_for_each(|round| {
            publish_two(rig, helper, paths).with_context(|| format!("round {round} at {paths:?}"))
        });
        let exchanged = attacker.stop()?;
        result?;
        ensure!(exchanged > rounds, "the names were exchanged {exchanged} times only");
        fs::remove_dir_all(&shared)?;
    }
    Ok(())
}

fn publish_two(rig: &Rig, helper: &HelperClient, paths: [&str; 2]) -> Result<()> {
    let volumes = ["vol-a", "vol-c"];
    let published = |id: &str| -> Result<usize> {
        let root = Path::new("/").join(id).join("data");
        let below = mounts::below(&rig.publish_directory())?;
        Ok(below.iter().filter(|mount| mount.root == root).count())
    };
    let requests = [at(volumes[0], &target("work", paths[0])), at(volumes[1], &target("work", paths[1]))];
    for index in [0, 1] {
        let answer = helper.request(&requests[index][0])?;
        ensure!(answer.is_err() || published(volumes[index])? == 1, "{} is said to be published", volumes[index]);
    }
    for (index, other) in [(0, 1), (1, 0)] {
        let (own, others) = (volumes[index], volumes[other]);
        let before = published(others)?;
        let answer = helper.request(&requests[index][1])?;
        ensure!(published(others)? == before, "unpublishing {own} took {others} away: {answer:?}");
        ensure!(answer.is_err() || published(own)? == 0, "{own} is said to be unpublished and is not");
    }
    Ok(())
}

/// A place where a volume is published, with a directory on the path to it that is moved.
struct Place {
    volume: &'static str,
    target: TargetPath,
    path: PathBuf,
    moved: PathBuf,
}

impl Place {
    /// Places below every publish directory.
    fn all(rig: &Rig) -> Result<Vec<Self>> {
        let pods = rig.kubelet.root().join("pods");
        let devices = rig.kubelet.root().join("plugins/kubernetes.io/csi");
        let pod = rig.kubelet.prepare("vol-a", "pv-a", "pod-1")?;
        let device = rig.kubelet.prepare_block("vol-b", "pv-b", "pod-1")?;
        fs::create_dir_all(rig.target("way/parent"))?;
        let (work, own) = (rig.publish_directory(), rig.target("way/parent/t"));
        [
            ("vol-a", "work", &work, &own, rig.target("way")),
            ("vol-b", "work", &work, &own, rig.target("way")),
            ("vol-a", "work", &work, &own, rig.target("way/parent")),
            ("vol-a", "kubelet-pods", &pods, &pod, pods.join("pod-1")),
            ("vol-b", "kubelet-csi", &devices, &device, devices.join("volumeDevices/publish")),
        ]
        .into_iter()
        .map(|(volume, name, directory, path, moved)| {
            let below = path.strip_prefix(directory)?.to_str().context("a path in UTF-8")?;
            Ok(Self { volume, target: target(name, below), path: path.clone(), moved })
        })
        .collect()
    }

    /// Returns where the directory is moved to.
    fn away(&self) -> PathBuf {
        self.moved.with_extension("away")
    }

    /// Makes an empty target where the volume's was.
    fn make_empty(&self) -> Result<()> {
        fs::create_dir_all(self.path.parent().context("a parent")?)?;
        if self.volume == "vol-b" {
            fs::File::create(&self.path)?;
        } else {
            fs::create_dir(&self.path)?;
        }
        Ok(())
    }
}

/// Publishes a volume, hides its mount, and checks that until the mount is brought back, the volume is neither deleted
/// nor reported as unpublished.
fn hide(rig: &mut Rig, hide: impl Fn(&Place) -> Result<()>, bring_back: impl Fn(&Place) -> Result<()>) -> Result<()> {
    let helper = &volumes(rig)?;
    for place in Place::all(rig)? {
        let (id, path) = (place.volume, &place.path);
        let case = || format!("{id} at {}, {} moved", place.target, place.moved.display());
        let [publish, unpublish] = at(id, &place.target);
        helper.ask(&publish)?;
        let precious = rig.pool().volume(id).join(if id == "vol-b" { "image" } else { "data/precious" });
        if id == "vol-a" {
            fs::write(path.join("precious"), "content")?;
        }
        hide(&place).with_context(case)?;
        for _ in 0..2 {
            denied(helper.request(&delete(id))?, ErrorKind::InUse, id).with_context(case)?;
            denied(helper.request(&unpublish)?, ErrorKind::InUse, "moved").with_context(case)?;
        }
        if id == "vol-b" {
            denied(helper.request(&detach(id))?, ErrorKind::InUse, id).with_context(case)?;
        } else {
            denied(helper.request(&bind_exclusively(id, "elsewhere"))?, ErrorKind::InUse, id).with_context(case)?;
        }
        ensure!(precious.exists(), "{}: the content is gone", case());
        bring_back(&place).with_context(case)?;
        ensure!(mounts::at(path)?.len() == 1, "{}: it is mounted no more", case());
        helper.ask(&unpublish)?;
        ensure!(!path.exists(), "{}: the target is left", case());
    }
    Ok(fs::remove_dir_all(rig.target("way"))?)
}

fn a_moved_directory_with_an_empty_one_in_its_place(rig: &mut Rig) -> Result<()> {
    let move_away = |place: &Place| {
        fs::rename(&place.moved, place.away())?;
        place.make_empty()
    };
    hide(rig, move_away, |place| {
        fs::remove_dir_all(&place.moved)?;
        Ok(fs::rename(place.away(), &place.moved)?)
    })
}

fn a_moved_directory_with_nothing_in_its_place(rig: &mut Rig) -> Result<()> {
    hide(rig, |place| Ok(fs::rename(&place.moved, place.away())?), |place| Ok(fs::rename(place.away(), &place.moved)?))
}

/// Where the mount is not visible, the target itself can be renamed. On a kernel with unique mount ids not even root
/// can deceive the helper.
fn a_target_moved_in_another_namespace(rig: &mut Rig) -> Result<()> {
    let rename = |from: PathBuf, to: PathBuf| {
        let renamed = in_another_namespace(0, move || {
            unmount(&from, UnmountFlags::NOFOLLOW)?;
            Ok(fs::rename(from, to)?)
        });
        renamed.join().map_err(|_| anyhow!("the thread panicked"))?
    };
    let beside = |place: &Place| place.path.with_extension("away");
    let move_away = |place: &Place| {
        rename(place.path.clone(), beside(place))?;
        place.make_empty()
    };
    hide(rig, move_away, |place| {
        if place.path.is_dir() {
            fs::remove_dir(&place.path)?
        } else {
            fs::remove_file(&place.path)?
        }
        rename(beside(place), place.path.clone())
    })
}

fn what_the_host_has_unmounted_is_not_published(rig: &mut Rig) -> Result<()> {
    let helper = &volumes(rig)?;
    let (one, two) = (rig.target("one"), rig.target("two"));
    helper.ask(&bind_exclusively("vol-a", "one"))?;
    denied(helper.request(&bind_exclusively("vol-a", "two"))?, ErrorKind::InUse, "work:one")?;
    unmount(&one, UnmountFlags::NOFOLLOW)?;
    helper.ask(&bind_exclusively("vol-a", "two"))?;
    denied(helper.request(&bind_exclusively("vol-a", "one"))?, ErrorKind::InUse, "work:two")?;
    // The target that was unmounted by hand still belongs to the helper.
    helper.ask(&unbind("vol-a", "one"))?;
    ensure!(!one.exists() && mounts::at(&two)?.len() == 1);
    // The mount disappears with its directory: removing the directory where the mount is not visible unmounts it
    // everywhere.
    let path = two.clone();
    let removed = in_another_namespace(0, move || {
        unmount(&path, UnmountFlags::NOFOLLOW)?;
        Ok(fs::remove_dir(&path)?)
    });
    removed.join().map_err(|_| anyhow!("the thread panicked"))??;
    ensure!(mounts::at(&two)?.is_empty());
    helper.ask(&bind_exclusively("vol-a", "one"))?;
    Ok(())
}

fn an_unknown_volume_at_the_target_of_another(rig: &mut Rig) -> Result<()> {
    let helper = &volumes(rig)?;
    for (id, path) in [("vol-a", "a"), ("vol-b", "b")] {
        let target = target("work", path);
        let [publish, unpublish] = at(id, &target);
        helper.ask(&publish)?;
        let unmount = |id| Request::Unmount { volume: volume(id), target: target.clone() };
        let remove = |id| Request::RemoveDevice { volume: volume(id), target: target.clone() };
        for request in [unmount("vol-z"), remove("vol-z"), unmount("vol-c")] {
            denied(helper.request(&request)?, ErrorKind::InUse, id)?;
        }
        denied(helper.request(&remove("vol-c"))?, ErrorKind::WrongKind, "vol-c")?;
        ensure!(mounts::at(&rig.target(path))?.len() == 1);
        helper.ask(&unpublish)?;
    }
    Ok(())
}

/// Empty directories and files that another driver has made for its own volumes are kept, no matter who asks for their
/// removal.
fn empty_targets_of_others(rig: &mut Rig) -> Result<()> {
    let helper = &volumes(rig)?;
    let pod = rig.kubelet.root().join("pods/pod-1/volumes/kubernetes.io~csi/pv-other");
    fs::create_dir_all(pod.join("mount"))?;
    rig.kubelet.record(&pod.join("mount"), "other.example", "vol-a")?;
    let devices = rig.kubelet.root().join("plugins/kubernetes.io/csi/volumeDevices/publish/pv-other");
    fs::create_dir_all(&devices)?;
    rig.kubelet.block_record("pv-other", "other.example", "vol-b")?;
    for (path, mode) in [(devices.join("pod-1"), 0o600), (devices.join("pod-2"), 0o660), (rig.target("file"), 0o644)] {
        fs::File::create(&path)?;
        set_mode(&path, mode)?;
    }
    fs::create_dir(rig.target("directory"))?;
    set_mode(&rig.target("directory"), 0o750)?;
    for (id, name, path) in [
        ("vol-a", "kubelet-pods", "pod-1/volumes/kubernetes.io~csi/pv-other/mount"),
        ("vol-b", "kubelet-csi", "volumeDevices/publish/pv-other/pod-1"),
        ("vol-b", "kubelet-csi", "volumeDevices/publish/pv-other/pod-2"),
        ("vol-a", "work", "directory"),
        ("vol-a", "work", "file"),
        ("vol-b", "work", "directory"),
        ("vol-b", "work", "file"),
    ] {
        let [_, unpublish] = at(id, &target(name, path));
        ensure!(helper.ask(&unpublish)? == Reply::Done);
    }
    for path in [pod.join("mount"), devices.join("pod-1"), devices.join("pod-2")] {
        ensure!(path.exists(), "{} was removed", path.display());
    }
    fs::remove_dir(rig.target("directory")).context("the empty directory")?;
    fs::remove_file(rig.target("file")).context("the empty file")?;
    Ok(())
}

/// The helper may be killed after it has made a target, or before it has removed one.
fn what_a_crash_has_left_at_a_target_is_removed(rig: &mut Rig) -> Result<()> {
    let helper = &volumes(rig)?;
    for (id, path) in [("vol-a", "a"), ("vol-b", "b")] {
        let [publish, unpublish] = at(id, &target("work", path));
        helper.ask(&publish)?;
        unmount(rig.target(path), UnmountFlags::NOFOLLOW)?;
        // Only what it looks like tells the next helper whose it was.
        let left = fs::metadata(rig.target(path))?;
        helper.ask(&unpublish)?;
        ensure!(!rig.target(path).exists());
        if left.is_dir() {
            fs::create_dir(rig.target(path))?
        } else {
            drop(fs::File::create(rig.target(path))?)
        }
        set_mode(&rig.target(path), left.mode() & 0o7777)?;
        helper.ask(&unpublish)?;
        ensure!(!rig.target(path).exists(), "{path} is left");
    }
    Ok(())
}
