//! The two kinds of calls: for what one snapshot holds, and for how two differ. Only their messages tell them apart.

use bulkhead_protocol::Range;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use crate::csi::signed;
use crate::proto::snapshotmetadata::snapshot_metadata_client::SnapshotMetadataClient;
use crate::proto::snapshotmetadata::*;

/// A call's message.
pub trait Asked: Clone + Send + 'static {
    /// A message of the answer.
    type Answer: Send + 'static;

    /// The call's name.
    const NAME: &'static str;

    /// What the caller wants to know. The token is taken out of it.
    fn question(self) -> Question;

    /// A message with these ranges, of a volume of this size.
    fn answer(ranges: &[Range], size: u64) -> Self::Answer;

    /// Makes the same call elsewhere.
    fn pass_on(
        client: SnapshotMetadataClient<Channel>,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Streaming<Self::Answer>>, Status>> + Send;
}

/// What a caller wants to know, and who it says that it is.
pub struct Question {
    /// A token of its account.
    pub token: String,
    /// The namespace of the VolumeSnapshot.
    pub namespace: String,
    /// Its name.
    pub snapshot: String,
    /// The driver's name for an earlier one, if the two are to be compared.
    pub base: Option<String>,
    /// Where to begin.
    pub offset: i64,
    /// The most ranges in a message.
    pub most: i32,
}

impl Asked for GetMetadataAllocatedRequest {
    type Answer = GetMetadataAllocatedResponse;

    const NAME: &'static str = "GetMetadataAllocated";

    fn question(self) -> Question {
        let Self {
            security_token: token,
            namespace,
            snapshot_name: snapshot,
            starting_offset: offset,
            max_results: most,
        } = self;
        Question { token, namespace, snapshot, base: None, offset, most }
    }

    fn answer(ranges: &[Range], size: u64) -> Self::Answer {
        GetMetadataAllocatedResponse {
            block_metadata_type: BlockMetadataType::VariableLength.into(),
            volume_capacity_bytes: signed(size),
            block_metadata: ranges.iter().map(block).collect(),
        }
    }

    async fn pass_on(
        mut client: SnapshotMetadataClient<Channel>,
        request: Request<Self>,
    ) -> Result<Response<Streaming<Self::Answer>>, Status> {
        client.get_metadata_allocated(request).await
    }
}

impl Asked for GetMetadataDeltaRequest {
    type Answer = GetMetadataDeltaResponse;

    const NAME: &'static str = "GetMetadataDelta";

    fn question(self) -> Question {
        Question {
            token: self.security_token,
            namespace: self.namespace,
            snapshot: self.target_snapshot_name,
            base: Some(self.base_snapshot_id),
            offset: self.starting_offset,
            most: self.max_results,
        }
    }

    fn answer(ranges: &[Range], size: u64) -> Self::Answer {
        GetMetadataDeltaResponse {
            block_metadata_type: BlockMetadataType::VariableLength.into(),
            volume_capacity_bytes: signed(size),
            block_metadata: ranges.iter().map(block).collect(),
        }
    }

    async fn pass_on(
        mut client: SnapshotMetadataClient<Channel>,
        request: Request<Self>,
    ) -> Result<Response<Streaming<Self::Answer>>, Status> {
        client.get_metadata_delta(request).await
    }
}

fn block(range: &Range) -> BlockMetadata {
    BlockMetadata { byte_offset: signed(range.offset), size_bytes: signed(range.length) }
}
