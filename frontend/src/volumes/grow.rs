//! Grows a volume completely in one call; nothing is left for later.

use bulkhead_model::volumes::{Fault, FaultKind, Mode, SizeRange, default_inodes};
use bulkhead_protocol::{Bytes, ErrorKind, Inodes, Request, Usage, VolumeId, VolumeKind};

use super::Volumes;
use super::fault::of_promise;

impl Volumes {
    /// Grows `volume` to a size in `range` and returns its size. A volume that is large enough already is left alone.
    ///
    /// If given, `path` is where the volume must be published, and `mode` is the mode it must have.
    ///
    /// # Errors
    /// `NoRoom` when the pool cannot promise it, `OutOfRange` when no size is in the range.
    pub async fn grow(
        &self,
        volume: VolumeId,
        range: SizeRange,
        path: Option<&str>,
        mode: Option<Mode>,
    ) -> Result<Bytes, Fault> {
        let _guard = self.in_flight.enter(&volume).await?;
        let target = match path {
            Some(path) => Some(self.published_at(path).await?),
            None => None,
        };
        let Usage { pool, spec, .. } = self.helper.usage(&volume, target).await?;
        let is = Mode::of(&spec.kind);
        if mode.is_some_and(|asked| asked != is) {
            return Err(Fault::invalid(format!("volume {volume} is a {} volume", is.as_str())));
        }
        let wanted = range.grow(spec.size)?;
        let promised = async |request| self.helper.size(request).await.map_err(|error| of_promise(error, &pool));
        match spec.kind {
            VolumeKind::Directory { .. } if wanted == spec.size => Ok(wanted),
            VolumeKind::Directory { inodes, .. } => {
                let inodes = grown_inodes(inodes, spec.size, wanted);
                promised(Request::SetQuota { volume, size: wanted, inodes }).await
            }
            VolumeKind::Image { .. } => {
                let size = if wanted == spec.size {
                    wanted
                } else {
                    promised(Request::GrowImage { volume: volume.clone(), size: wanted }).await?
                };
                // Even if the image has that size already: an earlier call may have been interrupted before this step.
                self.helper.done(Request::LoopResize { volume }).await?;
                Ok(size)
            }
            // Even if the image has that size already, as above.
            VolumeKind::Filesystem { .. } => promised(Request::GrowFilesystem { volume, size: wanted }).await,
            VolumeKind::Snapshot { .. } => {
                let message =
                    format!("{volume} is a snapshot, which never grows: grow the volume that is made from it");
                Err(Fault::new(FaultKind::Typed(ErrorKind::WrongKind), message))
            }
        }
    }
}

/// A requested number of inodes stays; one that was derived from the size follows the size.
pub(super) fn grown_inodes(inodes: Inodes, size: Bytes, grown: Bytes) -> Inodes {
    if inodes == default_inodes(size) { default_inodes(grown) } else { inodes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_default_inodes_follow_the_size() {
        let bytes = |size| Bytes::try_from(size).unwrap();
        let inodes = |number| Inodes::try_from(number).unwrap();
        let (one, two) = (bytes(1 << 30), bytes(2 << 30));
        assert_eq!(grown_inodes(inodes(65536), one, two), inodes(131_072));
        assert_eq!(grown_inodes(inodes(5000), one, two), inodes(5000));
    }
}
