//! The SnapshotMetadata service: which ranges of a snapshot hold data, or differ from an earlier one.

use std::pin::Pin;

use bulkhead_model::volumes::Fault;
use bulkhead_protocol::{Range, Snapshot};
use futures::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, async_trait};

use super::Plugin;
use super::call::Call;
use super::codes::{Operation, status};
use super::fields::{required, signed};
use crate::proto::csi::snapshot_metadata_server::SnapshotMetadata;
use crate::proto::csi::*;
use crate::volumes::{Wanted, existing};

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
            let wanted = Wanted::new(snapshot, None, request.starting_offset, request.max_results)?;
            let message = |block_metadata, volume_capacity_bytes| GetMetadataAllocatedResponse {
                block_metadata_type: BlockMetadataType::VariableLength.into(),
                volume_capacity_bytes,
                block_metadata,
            };
            Ok(self.messages(wanted, message))
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
            let wanted = Wanted::new(target, Some(base), request.starting_offset, request.max_results)?;
            let message = |block_metadata, volume_capacity_bytes| GetMetadataDeltaResponse {
                block_metadata_type: BlockMetadataType::VariableLength.into(),
                volume_capacity_bytes,
                block_metadata,
            };
            Ok(self.messages(wanted, message))
        })
        .await
    }
}

impl Plugin {
    async fn named(&self, field: &str, id: &str) -> Result<Snapshot, Fault> {
        self.0.volumes.snapshot(&existing(required(field, id)?)?).await
    }

    fn messages<T: 'static>(
        &self,
        wanted: Wanted,
        message: impl Fn(Vec<BlockMetadata>, i64) -> T + Send + 'static,
    ) -> Messages<T> {
        let size = signed(wanted.size());
        let parts = wanted.parts(self.0.volumes.clone());
        Box::pin(parts.map(move |part| match part {
            Ok(ranges) => Ok(message(ranges.iter().map(block).collect(), size)),
            Err(fault) => Err(status(Operation::Inspect, &fault)),
        }))
    }
}

fn block(range: &Range) -> BlockMetadata {
    BlockMetadata { byte_offset: signed(range.offset), size_bytes: signed(range.length) }
}
