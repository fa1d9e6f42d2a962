//! `volume delete`: never the data of a claim by mistake.

use bulkhead_console::prompt::confirm;
use bulkhead_console::report::{Report, Table};
use bulkhead_frontend::proto::csi::DeleteVolumeRequest;
use bulkhead_frontend::proto::inspection::get_volume_response::Ownership;
use bulkhead_frontend::proto::inspection::{GetVolumeRequest, GetVolumeResponse, Volume};
use bulkhead_model::quantity::Quantity;
use serde_json::json;
use tonic::Code;

use crate::client::Client;
use crate::failure::Failure;

/// Why a volume is not deleted without `--force`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Needed {
    #[error(
        "volume {id} holds the data of claim {namespace}/{claim}: delete that instead (kubectl --namespace {namespace} delete pvc {claim}), or repeat the command with --force"
    )]
    ByClaim { id: String, namespace: String, claim: String },
    #[error(
        "PersistentVolume {object} names volume {id}: delete that instead (kubectl delete pv {object}), or repeat the command with --force"
    )]
    ByPersistentVolume { id: String, object: String },
    #[error(
        "whether a claim needs volume {id} cannot be told: {why}; look for it with `kubectl get pv`, and if none names it, repeat the command with --force"
    )]
    Perhaps { id: String, why: String },
}

pub async fn run(mut client: Client, id: String, yes: bool, force: bool) -> Result<Report, Failure> {
    // To CSI, a volume that does not exist counts as deleted; to a person, the id may be a typo.
    let request = GetVolumeRequest { id: id.clone(), without_owner: false, with_sharing: false };
    let found = match client.inspection.get_volume(request).await {
        Ok(answer) => Some(answer.into_inner()),
        Err(status) if status.code() == Code::NotFound => None,
        // The deletion itself reports what is wrong with the volume.
        Err(status) => {
            let (ownership, reason) = (Ownership::Unknown.into(), status.message().to_owned());
            Some(GetVolumeResponse { ownership, reason, ..GetVolumeResponse::default() })
        }
    };
    if let Some(found) = &found {
        if !force {
            not_needed(&id, found)?;
        }
        confirm(&consequence(&id, found), yes)?;
    }
    client.controller.delete_volume(DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() }).await?;
    let existed = found.is_some();
    let text = if existed { format!("{id} has been deleted") } else { format!("there was no volume {id}") };
    Ok(Report::new(json!({ "id": id, "existed": existed }), Table::line(text)))
}

/// Checks that no object of the API needs the volume, as far as there is somebody to know that.
fn not_needed(id: &str, found: &GetVolumeResponse) -> Result<(), Needed> {
    let id = id.to_owned();
    let volume = found.volume.as_ref();
    if let Some((namespace, claim)) = volume.and_then(|volume| volume.claim.split_once('/')) {
        return Err(Needed::ByClaim { id, namespace: namespace.to_owned(), claim: claim.to_owned() });
    }
    if let Some(volume) = volume.filter(|volume| !volume.persistent_volume.is_empty()) {
        return Err(Needed::ByPersistentVolume { id, object: volume.persistent_volume.clone() });
    }
    match found.ownership() {
        Ownership::Known | Ownership::NoAgent => Ok(()),
        Ownership::Unknown => Err(Needed::Perhaps { id, why: found.reason.clone() }),
        Ownership::Unspecified => {
            let why = "bulkhead-frontend is older than bulkheadctl and does not say".to_owned();
            Err(Needed::Perhaps { id, why })
        }
    }
}

/// Returns what a person should know before answering.
fn consequence(id: &str, found: &GetVolumeResponse) -> String {
    let volume = found.volume.clone().unwrap_or_default();
    let size = match volume.size_bytes {
        0 => String::new(),
        bytes => format!(" ({})", Quantity::from(bytes)),
    };
    let whose = match (found.ownership(), owner(&volume)) {
        (_, Some(owner)) => format!(" It belongs to {owner}."),
        (Ownership::Known, None) => " No PersistentVolume names it.".to_owned(),
        (Ownership::NoAgent, None) => {
            " Whether an orchestrator still needs it is not known here: no storage agent runs on this node.".to_owned()
        }
        (Ownership::Unknown | Ownership::Unspecified, None) => " Whether a claim needs it cannot be told.".to_owned(),
    };
    format!("This deletes volume {id}{size} and all its data.{whose}")
}

/// The objects that a volume belongs to, in words.
fn owner(volume: &Volume) -> Option<String> {
    match (volume.claim.as_str(), volume.persistent_volume.as_str()) {
        ("", "") => None,
        ("", object) => Some(format!("PersistentVolume {object}")),
        (claim, "") => Some(format!("claim {claim}")),
        (claim, object) => Some(format!("claim {claim} (PersistentVolume {object})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(object: &str, claim: &str, ownership: Ownership) -> GetVolumeResponse {
        let (persistent_volume, claim) = (object.to_owned(), claim.to_owned());
        let volume = Some(Volume { persistent_volume, claim, size_bytes: 1 << 30, ..Volume::default() });
        GetVolumeResponse { volume, ownership: ownership.into(), reason: "it is away".to_owned() }
    }

    #[test]
    fn what_a_claim_needs_is_not_deleted() {
        let needed = |object, claim, ownership| not_needed("pvc-1", &found(object, claim, ownership)).unwrap_err();
        let told = needed("pvc-1", "shop/data", Ownership::Known).to_string();
        assert!(told.contains("claim shop/data") && told.contains("--namespace shop delete pvc data"), "{told}");
        assert!(matches!(needed("", "shop/data", Ownership::Known), Needed::ByClaim { .. }), "it waits for the volume");
        let told = needed("by-hand", "", Ownership::Known).to_string();
        assert!(told.contains("kubectl delete pv by-hand"), "{told}");
    }

    #[test]
    fn what_nobody_can_tell_is_said_and_not_guessed() {
        let judged = |ownership| not_needed("pvc-1", &found("", "", ownership));
        assert_eq!(judged(Ownership::Known), Ok(()));
        assert_eq!(judged(Ownership::NoAgent), Ok(()));
        let told = judged(Ownership::Unknown).unwrap_err().to_string();
        assert!(told.contains("it is away") && told.contains("kubectl get pv"), "{told}");
        assert!(judged(Ownership::Unspecified).unwrap_err().to_string().contains("older than bulkheadctl"));
        assert!(not_needed("pvc-1", &GetVolumeResponse::default()).is_err(), "a volume that cannot be measured");
    }

    #[test]
    fn the_question_names_the_claim() {
        let asked = |object, claim, ownership| consequence("pvc-1", &found(object, claim, ownership));
        let told = asked("pv-1", "shop/data", Ownership::Known);
        let expected = "This deletes volume pvc-1 (1 GiB) and all its data. It belongs to claim shop/data (PersistentVolume pv-1).";
        assert_eq!(told, expected);
        assert!(asked("", "", Ownership::Known).ends_with("No PersistentVolume names it."));
        assert!(asked("", "", Ownership::NoAgent).ends_with("no storage agent runs on this node."));
    }
}
