//! `adopt`: brings volumes back whose PersistentVolumes are gone, by what is recorded on each about whose it was.

mod age;
mod apply;
mod decision;
mod read;

use std::collections::BTreeMap;

use bulkhead_console::report::{Report, Table};
use bulkhead_model::exported::Exported;
use bulkhead_model::owner::CLAIM;
use bulkhead_model::quantity::{Quantity, count};
use bulkhead_model::volumes::Place;
use bulkhead_protocol::DriverName;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use self::decision::{Decision, Facts, Plan, Wishes, part};
use crate::agents;
use crate::cluster::{Cluster, Failure};
use crate::options::Adopt;

/// How many reasons are told below the table.
const TOLD: usize = 40;

/// What became of a volume.
struct Outcome {
    node: String,
    volume: Exported,
    state: &'static str,
    claim: String,
    why: String,
}

/// Says what is to be done with each volume, or does it. Returns whether nothing has failed, and no node's volumes are
/// unknown.
pub async fn run(cluster: &Cluster, options: &Adopt) -> Result<(Report, bool), Failure> {
    let driver: DriverName = cluster.driver.parse().map_err(|_| Failure::Driver(cluster.driver.clone()))?;
    let (mut found, mut notes) = read::volumes(cluster, options).await?;
    let is_known = notes.is_empty();
    if let Some(file) = &options.from
        && let Some(why) = age::objection(found.iter().map(|(_, volume)| volume), Timestamp::now())
    {
        let old = Failure::Old { file: file.display().to_string(), why };
        if options.apply && !options.allow_old {
            return Err(old);
        }
        notes.push(old.to_string());
    }
    let facts = read::facts(cluster, &driver).await?;
    let wishes = wishes(cluster, &driver, options, &facts, &mut found, &mut notes).await?;
    let mut decisions: Vec<_> = found.iter().map(|(node, volume)| facts.decide(volume, node, &wishes)).collect();
    part(&mut decisions);
    let (mut outcomes, mut objects, mut to_mark) = (Vec::new(), Vec::new(), BTreeMap::new());
    for ((node, volume), decision) in found.into_iter().zip(decisions) {
        let (state, claim, why) = match decision {
            Decision::There => ("there", String::new(), String::new()),
            Decision::Skip(why) => ("skip", recorded_claim(&volume), why),
            Decision::Conflict(why) => ("conflict", recorded_claim(&volume), why),
            Decision::Mark(claim) => {
                if let Some(found) = facts.claims.get(&claim).filter(|_| options.apply) {
                    to_mark.insert(claim.clone(), (found.object.clone(), node.clone()));
                }
                (if options.apply { "marked" } else { "mark" }, claim, String::new())
            }
            Decision::Adopt(plan) => {
                let (state, why) = carry_out(cluster, &driver, options, &plan, &node, &mut objects).await;
                if state == "adopted" && (plan.has_claim || options.with_claims) {
                    to_mark.insert(plan.claim.clone(), (plan.description.name.clone(), node.clone()));
                }
                (state, plan.claim, why)
            }
        };
        outcomes.push(Outcome { node, volume, state, claim, why });
    }
    let unbound = apply::mark(cluster, to_mark).await?;
    if !unbound.is_empty() {
        let claims = unbound.join(", ");
        notes.push(format!("not bound yet, and cannot be expanded until this is repeated once they are: {claims}"));
    }
    let is_complete = is_known && outcomes.iter().all(|outcome| outcome.state != "failed");
    Ok((report(&outcomes, objects, notes, options.apply), is_complete))
}

/// Returns what the user wants. Leaves only the volume that --claim names, if it names one.
async fn wishes(
    cluster: &Cluster,
    driver: &DriverName,
    options: &Adopt,
    facts: &Facts,
    found: &mut Vec<(String, Exported)>,
    notes: &mut Vec<String>,
) -> Result<Wishes, Failure> {
    let mut wishes =
        Wishes { class: options.class.clone(), include_unused: options.include_unused, ..Wishes::default() };
    if let Some([claim, volume]) = options.claim.as_deref() {
        if !claim.split_once('/').is_some_and(|(namespace, name)| !namespace.is_empty() && !name.is_empty()) {
            return Err(Failure::ClaimName(claim.clone()));
        }
        found.retain(|(_, found)| found.volume == *volume);
        if found.is_empty() {
            notes.push(format!("no node has a volume {volume}"));
        }
        wishes.claim = Some(claim.clone());
    }
    if let Some(former) = &options.replace_from {
        // A node that still has the volumes still serves them.
        if facts.nodes.contains_key(former) {
            let pods = agents::pods(cluster).await?.into_iter().filter(|(node, _)| node == former);
            let left = match agents::exported(cluster, pods).await.remove(former) {
                Some(left) => left.map_err(|why| why.to_string()),
                None => Err("no agent's pod is there".to_owned()),
            };
            match left {
                Ok(left) => found.retain(|(_, found)| left.iter().all(|left| left.volume != found.volume)),
                Err(why) => {
                    found.clear();
                    notes.push(format!(
                        "nothing is replaced: node {former} exists, and whether it still has the volumes is unknown: {why}; if it is gone for good, delete its Node object"
                    ));
                }
            }
        }
        wishes.replace_from = Some(Place::new(driver, former).value().to_owned());
    }
    Ok(wishes)
}

async fn carry_out(
    cluster: &Cluster,
    driver: &DriverName,
    options: &Adopt,
    plan: &Plan,
    node: &str,
    objects: &mut Vec<Value>,
) -> (&'static str, String) {
    let object = plan.description.clone().at(driver, &Place::new(driver, node));
    let claim = (options.with_claims && !plan.has_claim).then(|| apply::claim(plan, node, &cluster.driver));
    objects.extend(serde_json::to_value(&object));
    objects.extend(claim.clone());
    if !options.apply {
        return ("adopt", String::new());
    }
    match apply::adopt(cluster, plan, &object, claim.as_ref()).await {
        Ok(()) => ("adopted", String::new()),
        Err(failure) => ("failed", failure.to_string()),
    }
}

fn recorded_claim(volume: &Exported) -> String {
    let claim = volume.owner.as_ref().and_then(|keys| keys.get(CLAIM));
    claim.cloned().unwrap_or_default()
}

fn report(outcomes: &[Outcome], objects: Vec<Value>, notes: Vec<String>, is_applied: bool) -> Report {
    let row = |outcome: &Outcome| {
        let claim = if outcome.claim.is_empty() { "-".to_owned() } else { outcome.claim.clone() };
        let size = Quantity::from(outcome.volume.bytes).to_string();
        [outcome.state.to_owned(), outcome.node.clone(), outcome.volume.volume.clone(), claim, size]
    };
    let number = |states: &[&str]| outcomes.iter().filter(|outcome| states.contains(&outcome.state)).count() as u64;
    let (adopted, failed) = (number(&["adopt", "adopted"]), number(&["failed"]));
    let (there, left) = (number(&["there", "mark", "marked"]), number(&["skip", "conflict"]));
    let verb = if is_applied { "brought back" } else { "can be brought back" };
    let mut summary =
        vec![format!("{} {verb}, {there} already there, {left} left alone, {failed} failed", count(adopted, "volume"))];
    if adopted > 0 && is_applied {
        summary.push(
            "the new objects have the policy Retain: once the data is seen to be right, set what the class says with kubectl patch pv NAME -p '{\"spec\":{\"persistentVolumeReclaimPolicy\":\"Delete\"}}'".to_owned(),
        );
    } else if adopted > 0 {
        summary.push("nothing has been changed: repeat with --apply".to_owned());
    }
    let mut reasons: Vec<_> = outcomes
        .iter()
        .filter(|outcome| !outcome.why.is_empty())
        .map(|outcome| format!("{}: {}", outcome.volume.volume, outcome.why))
        .collect();
    if reasons.len() > TOLD {
        let more = reasons.len() - TOLD;
        reasons.truncate(TOLD);
        reasons.push(format!("{more} more have a reason: -o json tells it"));
    }
    let table = Table::headed(["state", "node", "volume", "claim", "size"], outcomes.iter().map(row));
    let table = table.noting(reasons).noting(notes.iter().cloned()).noting(summary);
    let described = |outcome: &Outcome| {
        json!({
            "state": outcome.state, "node": outcome.node, "volume": outcome.volume.volume, "claim": outcome.claim,
            "bytes": outcome.volume.bytes, "reason": outcome.why,
        })
    };
    let json = json!({
        "apiVersion": "v1", "kind": "List", "items": objects,
        "volumes": outcomes.iter().map(described).collect::<Vec<_>>(), "notes": notes,
    });
    Report::new(json, table)
}
