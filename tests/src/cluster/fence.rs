//! Refusing the agents' PersistentVolumes for a while, so that creating one fails exactly when a test wants it to.

use anyhow::{Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{from_value, json};

use super::fixture::{Cluster, PATIENCE};
use super::objects;

impl Cluster {
    /// Makes the API server refuse PersistentVolumes for this test's claims until [`Self::unfence_volumes`].
    pub fn fence_volumes(&self) -> Result<()> {
        let name = &self.namespace;
        let rule = json!({
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["persistentvolumes"],
        });
        let expression = format!("object.spec.?claimRef.?namespace.orValue('') != '{name}'");
        let policy = json!({
            "metadata": { "name": name },
            "spec": {
                "matchConstraints": { "resourceRules": [rule] },
                "validations": [{ "expression": expression, "message": "fenced by a test" }],
            },
        });
        let binding = json!({
            "metadata": { "name": name },
            "spec": { "policyName": name, "validationActions": ["Deny"] },
        });
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.access.client());
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.access.client());
        self.access.run(policies.create(&PostParams::default(), &from_value(policy)?))?;
        self.access.run(bindings.create(&PostParams::default(), &from_value(binding)?))?;
        self.access.wait(PATIENCE, "a policy to come into force", || {
            ensure!(self.is_fenced()?, "volumes can still be created");
            Ok(())
        })
    }

    /// Allows PersistentVolumes again.
    pub fn unfence_volumes(&self) -> Result<()> {
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.access.client());
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.access.client());
        self.access.run(bindings.delete(&self.namespace, &DeleteParams::default()))?;
        self.access.run(policies.delete(&self.namespace, &DeleteParams::default()))?;
        self.access.wait(PATIENCE, "a policy to be no longer in force", || {
            ensure!(!self.is_fenced()?, "volumes still cannot be created");
            Ok(())
        })
    }

    fn is_fenced(&self) -> Result<bool> {
        let name = format!("{}-fence", self.namespace);
        let mut volume = objects::volume(&name, &name, &self.class, "1Mi", "none");
        volume["spec"]["claimRef"] = json!({ "namespace": self.namespace, "name": "none" });
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        match self.access.run(self.volumes().create(&dry_run, &from_value(volume)?)) {
            Ok(_) => Ok(false),
            Err(kube::Error::Api(status)) if status.message.contains("fenced") => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}
