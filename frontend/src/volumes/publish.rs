//! Publishes a volume at a target, and unpublishes it.

use bulkhead_model::volumes::{Access, Fault, FaultKind, Mode, MountOptions, Sharing, no_label};
use bulkhead_protocol::{ErrorKind, Request, SecurityContext, TargetPath, VolumeId};
use tokio::time::Instant;

use super::Volumes;
use super::usage::condition;

impl Volumes {
    /// Publishes `volume` at `path`. A repeated call with the same arguments does nothing.
    ///
    /// # Errors
    /// `AlreadyExists` when it is published there with other settings, `InUse` when another target excludes this one.
    pub async fn publish(&self, volume: VolumeId, path: &str, access: Access) -> Result<(), Fault> {
        let _guard = self.in_flight.enter(&volume).await?;
        let target = self.target(&volume, path).await?;
        match access {
            Access::Directory { sharing, options } => self.bind(volume, target, options, sharing).await,
            Access::Block { sharing, read_only } => self.attach(volume, target, read_only, sharing).await,
        }
    }

    async fn bind(
        &self,
        volume: VolumeId,
        target: TargetPath,
        MountOptions { flags, context }: MountOptions,
        sharing: Sharing,
    ) -> Result<(), Fault> {
        let exclusive = sharing == Sharing::OneTarget;
        let bind = Request::BindMount { volume: volume.clone(), target, flags, exclusive };
        // Also one that is mounted is mounted again: that compares its label with what is wanted.
        match (self.has_filesystem(&volume).await, context) {
            (Ok(true), context) => self.mount_and_bind(volume, context, bind).await,
            (Ok(false), Some(_)) => Err(no_label(&format!("volume {volume}"))),
            (Err(fault), Some(_)) => Err(fault),
            // What cannot be measured may be published all the same.
            (Ok(false) | Err(_), None) => Ok(self.helper.done(bind).await?),
        }
    }

    /// Mounts the filesystem in the volume's image, with this label for all its files if there is one, unless it is mounted so;
    /// and binds its directory to a target.
    async fn mount_and_bind(
        &self,
        volume: VolumeId,
        context: Option<SecurityContext>,
        bind: Request,
    ) -> Result<(), Fault> {
        let mount = match context {
            Some(context) => Request::MountLabelled { volume: volume.clone(), context },
            None => Request::MountFilesystem { volume: volume.clone() },
        };
        match self.helper.done(mount).await.map_err(Fault::from) {
            Err(fault) if fault.is(ErrorKind::WrongKind) => {
                // Somebody else has deleted the volume, and made another one of this name.
                self.kinds.forget(&volume);
                return Err(fault);
            }
            Err(fault) if fault.is_io() => return Err(self.not_mounted(&volume, fault).await),
            outcome => outcome?,
        }
        let Err(failure) = self.helper.done(bind).await else { return Ok(()) };
        if let Err(left) = self.unmount_filesystem(volume.clone()).await {
            tracing::warn!(%volume, "cannot unmount its filesystem after a failed publish: {left}");
        }
        Err(failure.into())
    }

    /// Returns why the filesystem in the volume's image is not mounted, for whoever waits for it. That is a condition
    /// of the volume, too.
    async fn not_mounted(&self, volume: &VolumeId, fault: Fault) -> Fault {
        let Ok(usage) = self.helper.usage(volume, None).await else { return fault };
        let condition = condition(usage.condition);
        self.conditions.record_volume(volume, &usage.pool, &condition);
        if condition.is_abnormal() { Fault::new(fault.kind, format!("{fault}: {}", condition.message)) } else { fault }
    }

    /// Unmounts the filesystem in the volume's image, unless other targets use it.
    async fn unmount_filesystem(&self, volume: VolumeId) -> Result<(), Fault> {
        match self.gone(Request::UnmountFilesystem { volume }).await {
            Err(fault) if fault.is(ErrorKind::InUse) => Ok(()),
            outcome => outcome,
        }
    }

    /// Unmounts it after a target is gone, if the volume has one.
    async fn release_filesystem(&self, volume: &VolumeId) -> Result<(), Fault> {
        match self.has_filesystem(volume).await {
            Ok(false) => return Ok(()),
            Err(fault) if fault.is(ErrorKind::NotFound) => return Ok(()),
            // Even if it cannot be measured, it can be unmounted.
            Ok(true) | Err(_) => {}
        }
        match self.unmount_filesystem(volume.clone()).await {
            // It has none after all, the helper is too old to know of any, or it does not know the volume: whatever is
            // mounted of a pool that is not served is found once it is.
            Err(fault) => match fault.kind {
                FaultKind::Typed(ErrorKind::WrongKind | ErrorKind::Unsupported | ErrorKind::PoolBroken) => Ok(()),
                _ => Err(fault),
            },
            Ok(()) => Ok(()),
        }
    }

    async fn attach(
        &self,
        volume: VolumeId,
        target: TargetPath,
        read_only: bool,
        sharing: Sharing,
    ) -> Result<(), Fault> {
        self.helper.done(Request::LoopAttach { volume: volume.clone(), read_only }).await?;
        let exclusive = sharing == Sharing::OneTarget;
        let make = Request::MakeDevice { volume: volume.clone(), target, exclusive };
        let Err(failure) = self.helper.done(make).await else { return Ok(()) };
        if let Err(left) = self.detach(volume.clone()).await {
            tracing::warn!(%volume, "cannot detach the loop device after a failed publish: {left}");
        }
        Err(failure.into())
    }

    /// Unpublishes `volume` from `path`. Succeeds if it is not published there, even if the volume is unknown.
    ///
    /// # Errors
    /// `Busy` when it is still open, `Invalid` when the volume is known and the path is not below a publish directory.
    pub async fn unpublish(&self, volume: VolumeId, path: &str) -> Result<(), Fault> {
        let _guard = self.in_flight.enter(&volume).await?;
        let target = match self.target(&volume, path).await {
            Err(fault) if fault.is(ErrorKind::NotFound) => return Ok(()),
            target => target?,
        };
        let mode = self.mode_at(&volume, &target).await;
        let outcome = match self.unpublish_as(mode, &volume, &target).await {
            Err(fault) if fault.is(ErrorKind::WrongKind) => {
                let other = if mode == Mode::Block { Mode::Directory } else { Mode::Block };
                self.unpublish_as(other, &volume, &target).await
            }
            outcome => outcome,
        };
        self.stuck.record(&volume, &outcome, Instant::now());
        if outcome.is_ok() {
            // If it is in use elsewhere, the kubelet measures it again within a minute.
            self.measurements.forget(&volume);
            self.conditions.forget_volume(&volume);
        }
        outcome
    }

    /// The mode in which `volume` is probably published at `target`. The call to unpublish does not say, and the volume
    /// may be unknown. The helper refuses a wrong guess.
    async fn mode_at(&self, volume: &VolumeId, target: &TargetPath) -> Mode {
        if let Some(mode) = kubelets_mode(target) {
            return mode;
        }
        self.helper.usage(volume, None).await.map_or(Mode::Directory, |usage| Mode::of(&usage.spec.kind))
    }

    async fn unpublish_as(&self, mode: Mode, volume: &VolumeId, target: &TargetPath) -> Result<(), Fault> {
        let (volume, target) = (volume.clone(), target.clone());
        match mode {
            Mode::Directory => {
                self.gone(Request::Unmount { volume: volume.clone(), target }).await?;
                self.release_filesystem(&volume).await
            }
            Mode::Block => {
                self.gone(Request::RemoveDevice { volume: volume.clone(), target }).await?;
                self.detach(volume).await
            }
        }
    }

    /// Detaches the loop device unless other targets use it.
    async fn detach(&self, volume: VolumeId) -> Result<(), Fault> {
        match self.gone(Request::LoopDetach { volume }).await {
            Err(fault) if fault.is(ErrorKind::InUse) => Ok(()),
            outcome => outcome,
        }
    }

    /// Sends a request to remove something that need not exist.
    async fn gone(&self, request: Request) -> Result<(), Fault> {
        match self.helper.done(request).await.map_err(Fault::from) {
            Err(fault) if fault.is(ErrorKind::NotFound) => Ok(()),
            outcome => outcome,
        }
    }
}

/// The mode that the path of one of the kubelet's own targets implies.
fn kubelets_mode(target: &TargetPath) -> Option<Mode> {
    target.path.components().find_map(|part| match part {
        "kubernetes.io~csi" => Some(Mode::Directory),
        "volumeDevices" => Some(Mode::Block),
        _ => None,
    })
}
