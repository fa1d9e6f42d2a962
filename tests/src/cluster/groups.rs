//! Groups of snapshots of several volumes, as users ask for them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::fixture::{Cluster, PATIENCE};
use crate::kubelet::DRIVER;

/// Their API group.
pub const OF_GROUPS: &str = "groupsnapshot.storage.k8s.io";

/// The path of all objects of groups.
pub const GROUP_CONTENTS: &str = "/apis/groupsnapshot.storage.k8s.io/v1/volumegroupsnapshotcontents";

/// The annotation of an object whose group is being taken.
pub const GROUP_BEING_CREATED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created";

/// The finalizer that keeps an object until its group is deleted.
pub const GROUP_FINALIZER: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection";

/// The object of a group of two snapshots as a snapshot controller makes it, in the test's namespace.
pub fn group_content(namespace: &str, name: &str) -> Value {
    let volumes = ["data", "log"].map(|volume| format!("pvc-{namespace}-{volume}"));
    json!({
        "apiVersion": format!("{OF_GROUPS}/v1"),
        "kind": "VolumeGroupSnapshotContent",
        "metadata": { "name": format!("{namespace}-{name}"), "finalizers": [GROUP_FINALIZER] },
        "spec": {
            "driver": DRIVER,
            "deletionPolicy": "Delete",
            "source": { "volumeHandles": volumes },
            "volumeGroupSnapshotRef": { "namespace": namespace, "name": name, "uid": "1" },
        },
    })
}

impl Cluster {
    /// Creates a class of groups of snapshots like those of the agents' driver, changed by `edit`, and returns its name. It stays
    /// until the end of the run.
    pub fn add_group_class(&self, suffix: &str, edit: impl FnOnce(&mut Value)) -> Result<String> {
        let name = format!("{}-{suffix}", self.namespace);
        let mut class = json!({
            "apiVersion": format!("{OF_GROUPS}/v1"), "kind": "VolumeGroupSnapshotClass", "metadata": { "name": name },
            "driver": DRIVER, "deletionPolicy": "Delete",
        });
        edit(&mut class);
        self.ask("POST", &format!("/apis/{OF_GROUPS}/v1/volumegroupsnapshotclasses"), Some(&class))?;
        Ok(name)
    }

    /// The path of the test's VolumeGroupSnapshots.
    pub fn groups(&self) -> String {
        format!("/apis/{OF_GROUPS}/v1/namespaces/{}/volumegroupsnapshots", self.namespace)
    }

    /// Creates a VolumeGroupSnapshot of the claims with this value of the label `app`, as a user would.
    pub fn group(&self, name: &str, app: &str, class: &str) -> Result<()> {
        let source = json!({ "selector": { "matchLabels": { "app": app } } });
        self.group_of(name, &json!({ "volumeGroupSnapshotClassName": class, "source": source }))
    }

    /// Creates a VolumeGroupSnapshot with this specification.
    pub fn group_of(&self, name: &str, spec: &Value) -> Result<()> {
        let group = json!({
            "apiVersion": format!("{OF_GROUPS}/v1"), "kind": "VolumeGroupSnapshot", "metadata": { "name": name },
            "spec": spec,
        });
        self.ask("POST", &self.groups(), Some(&group)).map(drop)
    }

    /// Waits until a VolumeGroupSnapshot is ready, and returns its content.
    pub fn group_ready(&self, name: &str) -> Result<Value> {
        let content = self.ready(&format!("{}/{name}", self.groups()), "boundVolumeGroupSnapshotContentName")?;
        self.ask("GET", &format!("{GROUP_CONTENTS}/{content}"), None)
    }

    /// Waits until there are this many VolumeSnapshots that belong to a VolumeGroupSnapshot, and all can be used. Returns
    /// them by the names of their claims.
    pub fn members_ready(&self, group: &str, number: usize) -> Result<BTreeMap<String, String>> {
        self.access.wait(PATIENCE, &format!("the snapshots of {group} to be ready"), || {
            let all = self.ask("GET", &self.snapshots(), None)?;
            let all = all["items"].as_array().context("no list")?;
            let is_member = |snapshot: &&Value| snapshot["metadata"]["ownerReferences"][0]["name"] == group;
            let members: Vec<&Value> = all.iter().filter(is_member).collect();
            let are_ready = members.iter().all(|member| member["status"]["readyToUse"] == true);
            ensure!(members.len() == number && are_ready, "they are {members:?}");
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let named = |member: &&Value| {
                let claim = &member["spec"]["source"]["persistentVolumeClaimName"];
                (text(claim), text(&member["metadata"]["name"]))
            };
            Ok(members.iter().map(named).collect())
        })
    }

    /// Waits until a VolumeGroupSnapshot says that it has failed, for a reason that contains `part`.
    pub fn group_failed(&self, name: &str, part: &str) -> Result<()> {
        self.failed(&format!("{}/{name}", self.groups()), part)
    }

    /// Deletes a VolumeGroupSnapshot, and waits until it and its VolumeSnapshots are gone.
    pub fn delete_group(&self, name: &str) -> Result<()> {
        let path = format!("{}/{name}", self.groups());
        self.ask("DELETE", &path, None)?;
        self.is_gone(&path)?;
        self.access.wait(PATIENCE, &format!("the snapshots of {name} to be gone"), || {
            let all = self.ask("GET", &self.snapshots(), None)?;
            let left = |snapshot: &&Value| snapshot["metadata"]["ownerReferences"][0]["name"] == name;
            let left: Vec<&Value> = all["items"].as_array().into_iter().flatten().filter(left).collect();
            ensure!(left.is_empty(), "there are {left:?}");
            Ok(())
        })
    }
}
