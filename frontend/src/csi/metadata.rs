//! The SnapshotMetadata service: which ranges of a snapshot hold data, or differ from an earlier one.

use std::pin::Pin;

use bulkhead_model::quantity::Quantity;
use bulkhead_model::volumes::{Fault, FaultKind};
use bulkhead_protocol::{Range, Snapshot, VolumeId};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use tonic::{Request, Response, Status, async_trait};

use super::Plugin;
use super::call::Call;
use super::codes::{Operation, status};
use super::fields::{required, signed};
use crate::proto::csi::snapshot_metadata_server::SnapshotMetadata;
use crate::proto::csi::*;
use crate::volumes::{Volumes, existing};

/// Messages of a stream, one for each reply of the helper or for a part of one.
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[async_trait]
impl SnapshotMetadata for Plugin {
    type GetMetadataAllocatedStream = Messages<GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Messages<GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let request = request.into_inner();
        let call = Call::on("GetMetadataAllocated", Operation::Inspect, &request.snapshot_id);
        call.answer(async {
            let snapshot = self.named("snapshot_id", &request.snapshot_id).await?;
            let asked = Asked::new(snapshot, None, request.starting_offset, request.max_results)?;
            let message = |block_metadata, volume_capacity_bytes| GetMetadataAllocatedResponse {
                block_metadata_type: BlockMetadataType::VariableLength.into(),
                volume_capacity_bytes,
                block_metadata,
            };
            Ok(asked.messages(self.0.volumes.clone(), message))
        })
        .await
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let request = request.into_inner();
        let call = Call::on("GetMetadataDelta", Operation::Inspect, &request.target_snapshot_id);
        call.answer(async {
            let base = self.named("base_snapshot_id", &request.base_snapshot_id).await?;
            let target = self.named("target_snapshot_id", &request.target_snapshot_id).await?;
            let asked = Asked::new(target, Some(base), request.starting_offset, request.max_results)?;
            let message = |block_metadata, volume_capacity_bytes| GetMetadataDeltaResponse {
                block_metadata_type: BlockMetadataType::VariableLength.into(),
                volume_capacity_bytes,
                block_metadata,
            };
            Ok(asked.messages(self.0.volumes.clone(), message))
        })
        .await
    }
}

impl Plugin {
    async fn named(&self, field: &str, id: &str) -> Result<Snapshot, Fault> {
        self.0.volumes.snapshot(&existing(required(field, id)?)?).await
    }
}

/// What a stream is asked for.
struct Asked {
    snapshot: VolumeId,
    base: Option<VolumeId>,
    size: u64,
    from: u64,
    /// The most ranges in a message.
    most: usize,
}

impl Asked {
    fn new(snapshot: Snapshot, base: Option<Snapshot>, offset: i64, most: i32) -> Result<Self, Fault> {
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

    /// The messages of the stream. Each asks the helper once it is wanted; the first is there even if it has no range, for
    /// what else it says.
    fn messages<T: Send + 'static>(
        self,
        volumes: Volumes,
        message: impl Fn(Vec<BlockMetadata>, i64) -> T + Send + Sync + 'static,
    ) -> Messages<T> {
        let (most, size, begin) = (self.most, signed(self.size), Some(self.from));
        let replies = stream::try_unfold((self, volumes, begin), |(asked, volumes, from)| async move {
            let Some(from) = from else { return Ok(None) };
            let reply = volumes.delta(&asked.snapshot, asked.base.as_ref(), from).await?;
            Ok::<_, Fault>(Some((reply.ranges, (asked, volumes, reply.next))))
        });
        let parts = replies.enumerate().map(move |(number, reply)| reply.map(|ranges| (number, ranges)));
        let parts = parts.map_ok(move |(number, ranges)| {
            let mut parts: Vec<_> = ranges.chunks(most).map(blocks).collect();
            if parts.is_empty() && number == 0 {
                parts.push(Vec::new());
            }
            stream::iter(parts.into_iter().map(Ok))
        });
        let messages = parts.try_flatten().map_ok(move |blocks| message(blocks, size));
        Box::pin(messages.map_err(|fault| status(Operation::Inspect, &fault)))
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

fn blocks(ranges: &[Range]) -> Vec<BlockMetadata> {
    let block = |range: &Range| BlockMetadata { byte_offset: signed(range.offset), size_bytes: signed(range.length) };
    ranges.iter().map(block).collect()
}
