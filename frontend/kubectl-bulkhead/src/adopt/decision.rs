//! What is to be done with a volume that was found on a node. Nothing here asks anybody.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_model::exported::Exported;
use bulkhead_model::objects::persistent_volume::Description;
use bulkhead_model::owner::{ATTRIBUTES, CLAIM, CLASS, FILESYSTEM, MODES, MOUNT_OPTIONS, OBJECT};
use k8s_openapi::api::core::v1::ObjectReference;

use crate::cluster::Volume;

/// A claim, as far as it matters here.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    pub uid: String,
    /// The PersistentVolume that it is bound to, or is to be bound to; empty if it waits for one.
    pub object: String,
    pub is_bound: bool,
    pub is_being_deleted: bool,
    /// Whether it says what lets the agent on its volume's node expand it: that node, and the driver.
    pub expands_on: Option<String>,
}

/// What the cluster has. Claims go by `NAMESPACE/NAME`.
#[derive(Default)]
pub struct Facts {
    /// The nodes, each with what stands for it in labels.
    pub nodes: BTreeMap<String, String>,
    pub objects: Vec<Volume>,
    /// The names of all PersistentVolumes, whosever they are.
    pub names: BTreeSet<String>,
    pub claims: BTreeMap<String, Claim>,
    /// The driver's storage classes.
    pub classes: BTreeSet<String>,
}

/// What the user wants.
#[derive(Default)]
pub struct Wishes {
    /// For this claim, whatever is recorded.
    pub claim: Option<String>,
    pub class: Option<String>,
    pub include_unused: bool,
    /// What stands for the node that the disk was in.
    pub replace_from: Option<String>,
}

/// A PersistentVolume to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    pub description: Description,
    /// `NAMESPACE/NAME`.
    pub claim: String,
    /// Whether the claim exists.
    pub has_claim: bool,
    /// The object that has to go first.
    pub replaces: Option<Volume>,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Decision {
    Adopt(Box<Plan>),
    /// Its object is there.
    There,
    /// Its object is there, but its claim, which has this name, does not say what it takes to be expanded.
    Mark(String),
    /// It is left alone, for this reason.
    Skip(String),
    /// Somebody has to decide first.
    Conflict(String),
}

impl Facts {
    /// Returns what is to be done with `found`, which is on the node called `node`.
    pub fn decide(&self, found: &Exported, node: &str, wishes: &Wishes) -> Decision {
        let Some(place) = self.nodes.get(node) else {
            return Decision::Skip(format!("there is no node {node:?}: say with --node where the volume is"));
        };
        let mut replaces = None;
        let objects: Vec<_> = self.objects.iter().filter(|object| object.handle == found.volume).collect();
        if let Some(object) = objects.iter().find(|object| object.node == *place) {
            return self.mark(object, node);
        }
        if let [object, ..] = objects[..] {
            // Nodes to which a claim was given once and taken again may have empty volumes with the same id.
            let recorded = found.owner.as_ref().and_then(|keys| keys.get(OBJECT));
            if wishes.claim.is_none() && (!found.ever_published || recorded != Some(&object.name)) {
                return Decision::Skip(format!(
                    "it is not known to be that of PersistentVolume {}, which is on node {}: say whose it is with --claim",
                    object.name, object.node
                ));
            }
            if wishes.replace_from.as_ref() != Some(&object.node) {
                return Decision::Conflict(format!(
                    "PersistentVolume {} says that it is on node {}: if its disk is here now, repeat with --node {node} --replace-from {}",
                    object.name, object.node, object.node
                ));
            }
            replaces = Some(object.clone());
        }
        match self.plan(found, wishes, replaces) {
            Ok(plan) => Decision::Adopt(Box::new(plan)),
            Err(decision) => decision,
        }
    }

    fn mark(&self, object: &Volume, node: &str) -> Decision {
        let Some((namespace, name, _)) = &object.claim else { return Decision::There };
        let claim = format!("{namespace}/{name}");
        let is_unmarked =
            |found: &Claim| found.is_bound && found.object == object.name && found.expands_on.as_deref() != Some(node);
        if self.claims.get(&claim).is_some_and(is_unmarked) { Decision::Mark(claim) } else { Decision::There }
    }

    fn plan(&self, found: &Exported, wishes: &Wishes, replaces: Option<Volume>) -> Result<Plan, Decision> {
        let skip = |why: String| Decision::Skip(why);
        let keys = found.owner.clone().unwrap_or_default();
        let recorded = |key: &str| keys.get(key).filter(|value| !value.is_empty()).cloned();
        if !found.ever_published && !wishes.include_unused && replaces.is_none() {
            return Err(skip(
                "it was never published, so it holds no data: include it with --include-unused".to_owned(),
            ));
        }
        let owned = replaces.as_ref().and_then(|object| object.claim.as_ref());
        let owned = owned.map(|(namespace, name, _)| format!("{namespace}/{name}"));
        let claim = wishes.claim.clone().or(owned).or_else(|| recorded(CLAIM)).ok_or_else(|| {
            let why = if found.problem.is_empty() { "nothing is noted on it" } else { &found.problem };
            skip(format!("nobody knows whose it is ({why}): say so with --claim NAMESPACE/NAME {}", found.volume))
        })?;
        let Some((namespace, name)) = claim.split_once('/') else {
            return Err(skip(format!("{claim:?}, which is noted on it, is no claim: say whose it is with --claim")));
        };
        let class = wishes.class.clone().or_else(|| recorded(CLASS));
        let class = class.ok_or_else(|| skip("its storage class is not noted: name one with --class".to_owned()))?;
        if !self.classes.contains(&class) {
            return Err(skip(format!(
                "the driver has no storage class {class}: make it, or name another with --class"
            )));
        }
        let object = replaces.as_ref().map(|object| object.name.clone()).or_else(|| recorded(OBJECT));
        let mut object = object.unwrap_or_else(|| found.volume.clone());
        let existing = self.claims.get(&claim);
        // A claim that never had a volume is bound to one with such a name only on the node that is selected for it.
        if existing.is_some_and(|waiting| {
            waiting.object.is_empty()
                && object.starts_with(&format!("{}.", found.volume))
                && found.volume.ends_with(&waiting.uid)
        }) {
            object.clone_from(&found.volume);
        }
        if replaces.is_none() && self.names.contains(&object) {
            return Err(Decision::Conflict(format!(
                "PersistentVolume {object} is another volume: delete it if nobody needs it"
            )));
        }
        if let Some(existing) = existing {
            if existing.is_being_deleted {
                return Err(Decision::Conflict(format!("claim {claim} is being deleted: repeat this once it is gone")));
            }
            if !existing.object.is_empty() && existing.object != object {
                return Err(Decision::Conflict(format!(
                    "claim {claim} has another volume, {}: delete the claim if the volume found here is to take its place",
                    existing.object
                )));
            }
        }
        // A claim that has lost its object takes one with its own uid only; one that waits takes one without any, and so
        // does one that is made later.
        let uid = existing.filter(|existing| !existing.object.is_empty()).map(|existing| existing.uid.clone());
        let list = |key: &str| recorded(key).map(|list| list.split(',').map(str::to_owned).collect::<Vec<_>>());
        let description = Description {
            name: object,
            handle: found.volume.clone(),
            bytes: found.bytes,
            block: found.block,
            modes: list(MODES).or_else(|| Some(vec!["ReadWriteOnce".to_owned()])),
            claim: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                namespace: Some(namespace.to_owned()),
                name: Some(name.to_owned()),
                uid,
                ..ObjectReference::default()
            },
            class: Some(class),
            filesystem: recorded(FILESYSTEM),
            mount_options: list(MOUNT_OPTIONS),
            // Whoever finds out that this was a mistake still has the data.
            policy: "Retain".to_owned(),
            attributes: recorded(ATTRIBUTES),
        };
        Ok(Plan { description, claim: claim.clone(), has_claim: existing.is_some(), replaces })
    }
}

/// Makes conflicts of all plans that would have the same claim, or the same object, as another.
pub fn part(decisions: &mut [Decision]) {
    let mut wanted = BTreeMap::<String, usize>::new();
    let keys = |plan: &Plan| [format!("claim {}", plan.claim), format!("PersistentVolume {}", plan.description.name)];
    for decision in decisions.iter() {
        if let Decision::Adopt(plan) = decision {
            keys(plan).into_iter().for_each(|key| *wanted.entry(key).or_default() += 1);
        }
    }
    for decision in decisions {
        let Decision::Adopt(plan) = &*decision else { continue };
        if let Some(key) = keys(plan).into_iter().find(|key| wanted.get(key).is_some_and(|number| *number > 1)) {
            *decision =
                Decision::Conflict(format!("several volumes are noted as those of {key}: choose one with --claim"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Exported {
        let keys = [
            (CLAIM, "shop/data"),
            (OBJECT, "pvc-1.a"),
            (CLASS, "fast"),
            (MODES, "ReadWriteOnce,ReadOnlyMany"),
            (MOUNT_OPTIONS, "noatime"),
        ];
        let keys = keys.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let (volume, pool) = ("pvc-1".to_owned(), "default".to_owned());
        Exported { volume, pool, bytes: 8 << 20, ever_published: true, owner: Some(keys.into()), ..Exported::default() }
    }

    fn facts() -> Facts {
        let nodes = [("a", "a"), ("b", "b")].map(|(node, place)| (node.to_owned(), place.to_owned()));
        Facts { nodes: nodes.into(), classes: ["fast".to_owned()].into(), ..Facts::default() }
    }

    fn object(node: &str) -> Volume {
        let claim = Some(("shop".to_owned(), "data".to_owned(), "u".to_owned()));
        let (name, handle, node) = ("pvc-1.a".to_owned(), "pvc-1".to_owned(), node.to_owned());
        Volume { name, handle, node, claim, ..Volume::default() }
    }

    fn claim(object: &str) -> Claim {
        Claim { uid: "u".to_owned(), object: object.to_owned(), ..Claim::default() }
    }

    fn why(decision: Decision) -> String {
        match decision {
            Decision::Skip(why) | Decision::Conflict(why) => why,
            other => format!("{other:?}"),
        }
    }

    fn planned(decision: Decision) -> Plan {
        match decision {
            Decision::Adopt(plan) => *plan,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_volume_comes_back_as_it_was_noted() {
        let plan = planned(facts().decide(&found(), "a", &Wishes::default()));
        assert_eq!((plan.claim.as_str(), plan.has_claim), ("shop/data", false));
        let Description { name, handle, modes, claim, policy, mount_options, .. } = plan.description;
        assert_eq!((name.as_str(), handle.as_str(), policy.as_str()), ("pvc-1.a", "pvc-1", "Retain"));
        assert_eq!((claim.uid, modes.unwrap().len(), mount_options.unwrap()), (None, 2, vec!["noatime".to_owned()]));
    }

    #[test]
    fn a_volume_that_was_given_to_another_claim_comes_back_to_that() {
        let mut found = found();
        found.volume = "pvc-0".to_owned();
        found.owner.as_mut().unwrap().insert("claim-uid".to_owned(), "1".to_owned());
        let plan = planned(facts().decide(&found, "a", &Wishes::default()));
        assert_eq!((plan.claim.as_str(), plan.description.handle.as_str()), ("shop/data", "pvc-0"));
    }

    #[test]
    fn only_a_claim_that_has_lost_this_object_is_named_with_its_uid() {
        let mut facts = facts();
        facts.claims.insert("shop/data".to_owned(), claim("pvc-1.a"));
        let plan = planned(facts.decide(&found(), "a", &Wishes::default()));
        assert_eq!((plan.description.claim.uid.as_deref(), plan.has_claim), (Some("u"), true));
        facts.claims.insert("shop/data".to_owned(), claim(""));
        assert_eq!(planned(facts.decide(&found(), "a", &Wishes::default())).description.claim.uid, None);
        facts.claims.insert("shop/data".to_owned(), claim("pvc-2"));
        assert!(why(facts.decide(&found(), "a", &Wishes::default())).contains("has another volume, pvc-2"));
        facts.claims.insert("shop/data".to_owned(), Claim { is_being_deleted: true, ..claim("") });
        assert!(why(facts.decide(&found(), "a", &Wishes::default())).contains("is being deleted"));
    }

    #[test]
    fn what_is_there_stays_and_only_its_claim_is_marked() {
        let mut facts = facts();
        facts.objects.push(object("a"));
        assert!(matches!(facts.decide(&found(), "a", &Wishes::default()), Decision::There));
        let bound = Claim { is_bound: true, ..claim("pvc-1.a") };
        facts.claims.insert("shop/data".to_owned(), bound.clone());
        assert!(
            matches!(facts.decide(&found(), "a", &Wishes::default()), Decision::Mark(claim) if claim == "shop/data")
        );
        facts.claims.insert("shop/data".to_owned(), Claim { expands_on: Some("a".to_owned()), ..bound });
        assert!(matches!(facts.decide(&found(), "a", &Wishes::default()), Decision::There));
    }

    #[test]
    fn an_object_on_another_node_goes_only_if_that_is_wanted() {
        let mut facts = facts();
        facts.objects.push(object("a"));
        facts.names.insert("pvc-1.a".to_owned());
        facts.claims.insert("shop/data".to_owned(), claim("pvc-1.a"));
        assert!(why(facts.decide(&found(), "b", &Wishes::default())).contains("--replace-from a"));
        let wishes = Wishes { replace_from: Some("a".to_owned()), ..Wishes::default() };
        let unused = Exported { ever_published: false, ..found() };
        assert!(why(facts.decide(&unused, "b", &wishes)).contains("not known to be that of"));
        let plan = planned(facts.decide(&found(), "b", &wishes));
        assert_eq!((plan.description.claim.uid.as_deref(), plan.replaces.unwrap().node.as_str()), (Some("u"), "a"));
    }

    #[test]
    fn what_nobody_can_vouch_for_is_left_alone() {
        let decide = |found: &Exported, wishes: &Wishes| why(facts().decide(found, "a", wishes));
        let none = Wishes::default();
        assert!(why(facts().decide(&found(), "c", &none)).contains("no node \"c\""));
        assert!(decide(&Exported { ever_published: false, ..found() }, &none).contains("--include-unused"));
        let garbage = Exported { owner: None, problem: "its first line is wrong".to_owned(), ..found() };
        assert!(decide(&garbage, &none).contains("its first line is wrong"));
        let mut odd = found();
        odd.owner.as_mut().unwrap().insert(CLASS.to_owned(), "gone".to_owned());
        assert!(decide(&odd, &none).contains("no storage class gone"));
        odd.owner.as_mut().unwrap().insert(CLAIM.to_owned(), "nowhere".to_owned());
        assert!(decide(&odd, &Wishes { class: Some("fast".to_owned()), ..Wishes::default() }).contains("is no claim"));
        let (claim, class) = (Some("shop/other".to_owned()), Some("fast".to_owned()));
        let plan = planned(facts().decide(&garbage, "a", &Wishes { claim, class, ..Wishes::default() }));
        assert_eq!((plan.claim.as_str(), plan.description.name.as_str()), ("shop/other", "pvc-1"));
        let mut facts = facts();
        facts.names.insert("pvc-1.a".to_owned());
        assert!(why(facts.decide(&found(), "a", &none)).contains("is another volume"));
    }

    #[test]
    fn of_two_that_want_the_same_claim_neither_gets_it() {
        let other = Exported { volume: "pvc-2".to_owned(), ..found() };
        let mut decisions = [&found(), &other].map(|found| facts().decide(found, "a", &Wishes::default()));
        part(&mut decisions);
        assert!(decisions.into_iter().all(|decision| why(decision).contains("several volumes")));
    }
}
