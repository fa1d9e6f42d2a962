//! The service's calls: who asks is found out first, then what, and then it is answered here or passed on.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_model::objects::names::{is_object_name, shown};
use bulkhead_model::objects::snapshot_metadata_service::ServiceSpec;
use bulkhead_protocol::Snapshot;
use futures::StreamExt;
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status, async_trait};
use tracing::{debug, info};

use super::asked::{Asked, Question};
use super::clients;
use super::passing::{pass_on, was_passed_on};
use super::places::{Messages, Place, Places, in_time};
use crate::csi::{Operation, status};
use crate::kubernetes::{Callers, Located, Refusal, View};
use crate::proto::snapshotmetadata::snapshot_metadata_server::SnapshotMetadata;
use crate::proto::snapshotmetadata::*;
use crate::volumes::Wanted;

/// How long it may take until an answer begins.
const PATIENCE: Duration = Duration::from_secs(60);

/// The longest token, in bytes. Those of service accounts have about a thousand.
const LONGEST_TOKEN: usize = 16 << 10;

/// The service.
#[derive(Clone)]
pub struct Service(Arc<Parts>);

struct Parts {
    view: View,
    places: Places,
}

#[async_trait]
impl SnapshotMetadata for Service {
    type GetMetadataAllocatedStream = Messages<GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Messages<GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        self.answer(request).await
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        self.answer(request).await
    }
}

impl Service {
    /// For the callers that the agent of `view` knows.
    pub fn new(view: View) -> Self {
        Self(Arc::new(Parts { view, places: Places::default() }))
    }

    async fn answer<A: Asked>(&self, request: Request<A>) -> Result<Response<Messages<A::Answer>>, Status> {
        let call = request.extensions().get::<clients::Place>().map(clients::Place::call);
        let may_pass_on = !was_passed_on(request.metadata());
        let answer = timeout(PATIENCE, self.begin(request.into_inner(), may_pass_on)).await;
        let (messages, place) =
            answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("it took too long: try again")))?;
        Ok(Response::new(in_time(messages, place, call)))
    }

    async fn begin<A: Asked>(&self, asked: A, may_pass_on: bool) -> Result<(Messages<A::Answer>, Place), Status> {
        let (question, callers) = (check(asked.clone().question())?, self.0.view.callers().map_err(refused)?);
        let (service, account, place) = self.admit(&callers, &question).await?;
        let Question { namespace, snapshot, .. } = &question;
        let located = callers.locate(namespace, snapshot).await.map_err(refused)?;
        info!(call = A::NAME, %namespace, %snapshot, %account, "changed blocks are asked for");
        let messages = match located {
            Located::Here(target) => ranges::<A>(&callers, &question, target).await?,
            Located::Elsewhere(node) if may_pass_on => {
                let peers = callers.peers().await.map_err(refused)?;
                let peer = peers.into_iter().find(|peer| peer.node == node);
                let none =
                    || Status::unavailable(format!("node {node}, which has the snapshot, has no agent that serves"));
                pass_on(asked, peer.ok_or_else(none)?.address, &node, &service).await?
            }
            Located::Elsewhere(node) => {
                return Err(Status::unavailable(format!(
                    "the snapshot is on node {node}, and the call was passed on here"
                )));
            }
        };
        Ok((messages, place))
    }

    /// Finds out who asks, and gives the call a place if the caller may know of the snapshots of the namespace.
    async fn admit(&self, callers: &Callers, question: &Question) -> Result<(ServiceSpec, String, Place), Status> {
        let _turn = self.0.places.turn().await?;
        let service = callers.service().await.map_err(refused)?;
        let (token, namespace) = (question.token.clone(), &question.namespace);
        let account = callers.admit(token, &service.audience, namespace).await.map_err(refused)?;
        Ok((service, account, self.0.places.enter(namespace)?))
    }
}

/// The messages about `target`, which is on this node.
async fn ranges<A: Asked>(
    callers: &Callers,
    question: &Question,
    target: Snapshot,
) -> Result<Messages<A::Answer>, Status> {
    let base = match &question.base {
        Some(base) => Some(callers.base(base, &question.namespace, &target).await.map_err(refused)?),
        None => None,
    };
    let inspect = |fault| status(Operation::Inspect, &fault);
    let wanted = Wanted::new(target, base, question.offset, question.most).map_err(inspect)?;
    let size = wanted.size();
    let parts = wanted.parts(callers.volumes().clone());
    Ok(Box::pin(parts.map(move |part| part.map(|ranges| A::answer(&ranges, size)).map_err(inspect))))
}

/// Checks what can be judged without asking anybody.
fn check(question: Question) -> Result<Question, Status> {
    let is_missing = |(field, text): &(&str, Option<&str>)| {
        text.is_some_and(str::is_empty).then(|| Status::invalid_argument(format!("{field} is missing")))
    };
    let fields = [
        ("security_token", Some(question.token.as_str())),
        ("namespace", Some(&question.namespace)),
        ("the name of the snapshot", Some(&question.snapshot)),
        ("base_snapshot_id", question.base.as_deref()),
    ];
    if let Some(missing) = fields.iter().find_map(is_missing) {
        return Err(missing);
    }
    if question.token.len() > LONGEST_TOKEN {
        return Err(refused(Refusal::Unknown));
    }
    if !is_object_name(&question.namespace) {
        return Err(Status::invalid_argument(format!("no namespace can be called {}", shown(&question.namespace))));
    }
    Ok(question)
}

fn refused(refusal: Refusal) -> Status {
    debug!("a call for changed blocks is refused: {refusal}");
    let code = match &refusal {
        Refusal::Unknown => Code::Unauthenticated,
        Refusal::Forbidden { .. } => Code::PermissionDenied,
        Refusal::Missing(_) => Code::NotFound,
        Refusal::Foreign(_) => Code::InvalidArgument,
        Refusal::NotNow(_) => Code::Unavailable,
        Refusal::Volume(fault) => return status(Operation::Inspect, fault),
    };
    Status::new(code, refusal.to_string())
}
