//! The ranges of a snapshot that hold data, or differ from those of an earlier one, in parts of the size that a caller
//! wants.

use bulkhead_model::quantity::Quantity;
use bulkhead_model::volumes::{Fault, FaultKind};
use bulkhead_protocol::{Range, Snapshot, VolumeId};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};

use super::Volumes;

/// What somebody wants to know of a snapshot.
pub struct Wanted {
    snapshot: VolumeId,
    base: Option<VolumeId>,
    size: u64,
    from: u64,
    /// The most ranges in a part.
    most: usize,
}

impl Wanted {
    /// The ranges of `snapshot` from `offset` on, at most `most` in a part, or any number if that is 0: those that may
    /// differ from `base` or, without one, those that hold data.
    ///
    /// # Errors
    /// When the snapshot is shorter, or the two cannot be compared.
    pub fn new(snapshot: Snapshot, base: Option<Snapshot>, offset: i64, most: i32) -> Result<Self, Fault> {
        let out_of_range = |_| Fault::new(FaultKind::OutOfRange, format!("starting_offset {offset} is negative"));
        let from = u64::try_from(offset).map_err(out_of_range)?;
        let most = match usize::try_from(most).map_err(|_| Fault::invalid("max_results is negative"))? {
            0 => usize::MAX,
            most => most,
        };
        let size = snapshot.size.get();
        if from > size {
            let size = Quantity::from(size);
            let message = format!("starting_offset {from} is beyond the end of the snapshot, which has {size}");
            return Err(Fault::new(FaultKind::OutOfRange, message));
        }
        if let Some(base) = &base {
            check_family(&snapshot, base)?;
        }
        Ok(Self { snapshot: snapshot.snapshot, base: base.map(|base| base.snapshot), size, from, most })
    }

    /// The size of the snapshot.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The ranges, in parts. Each asks the helper once it is wanted; the first is there even if it has no range, for what
    /// else its message says.
    pub fn parts(self, volumes: Volumes) -> impl Stream<Item = Result<Vec<Range>, Fault>> + Send {
        let (most, begin) = (self.most, Some(self.from));
        let replies = stream::try_unfold((self, volumes, begin), |(wanted, volumes, from)| async move {
            let Some(from) = from else { return Ok(None) };
            let reply = volumes.delta(&wanted.snapshot, wanted.base.as_ref(), from).await?;
            Ok::<_, Fault>(Some((reply.ranges, (wanted, volumes, reply.next))))
        });
        let parts = replies.enumerate().map(move |(number, reply)| reply.map(|ranges| (number, ranges)));
        let parts = parts.map_ok(move |(number, ranges)| {
            let mut parts: Vec<_> = ranges.chunks(most).map(<[Range]>::to_vec).collect();
            if parts.is_empty() && number == 0 {
                parts.push(Vec::new());
            }
            stream::iter(parts.into_iter().map(Ok))
        });
        parts.try_flatten()
    }
}

/// Checks that two snapshots can be compared: blocks that are the same have the same content only among copies.
fn check_family(snapshot: &Snapshot, base: &Snapshot) -> Result<(), Fault> {
    if snapshot.origin.family == base.origin.family && snapshot.pool == base.pool {
        return Ok(());
    }
    Err(Fault::invalid(format!(
        "snapshots {} and {} have nothing in common: they are not of one volume, nor of copies of one",
        base.snapshot, snapshot.snapshot
    )))
}
