//! Requests with a token, as a thief would make them.

use anyhow::{Context, Result, bail, ensure};
use bulkhead_tests::cluster::access::{Access, connect};
use bulkhead_tests::cluster::manifests::{NAMESPACE, SERVICE_ACCOUNT};
use bulkhead_tests::cluster::node::write_kubeconfig;
use kube::Client;
use serde_json::Value;
use tempfile::TempDir;
use tonic::codegen::http::Request;

/// The type of a body that is not a patch.
const JSON: (&str, &str) = ("Content-Type", "application/json");

/// The holder of a token.
pub struct Holder<'a> {
    access: &'a Access,
    client: Client,
    /// Contains the token, which is read each time it is needed.
    _directory: Option<TempDir>,
}

/// How a patch is to be interpreted.
#[derive(Clone, Copy)]
pub enum Patch {
    /// Field by field; null removes a field.
    Merge,
    /// With lists merged by their keys.
    Strategic,
    /// As the complete set of fields that this writer sets.
    Apply,
}

/// The server's answer.
#[must_use]
pub struct Answer {
    request: String,
    result: kube::Result<Value>,
}

impl<'a> Holder<'a> {
    /// The administrator.
    pub fn administrator(access: &'a Access) -> Self {
        Self { access, client: access.client(), _directory: None }
    }

    /// The holder of this token.
    pub fn of_token(access: &'a Access, token: &str) -> Result<Self> {
        let directory = TempDir::new_in(access.directory())?;
        write_kubeconfig(access, directory.path(), token)?;
        let client = access.run(connect(&directory.path().join("kubeconfig")))?;
        Ok(Self { access, client, _directory: Some(directory) })
    }

    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[JSON], None)
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.request("DELETE", path, &[JSON], None)
    }

    pub fn create(&self, path: &str, object: &Value) -> Answer {
        self.request("POST", path, &[JSON], Some(object))
    }

    /// Asks whether an object could be created, without creating it.
    pub fn try_create(&self, path: &str, object: &Value) -> Answer {
        self.create(&format!("{path}?dryRun=All"), object)
    }

    /// Creates an object by impersonating the agent of `node`, without its token.
    pub fn create_as_agent_of(&self, node: &str, path: &str, object: &Value) -> Answer {
        let node = ("Impersonate-Extra-authentication.kubernetes.io%2Fnode-name", node);
        self.create_as_agent(&[node], path, object)
    }

    /// Creates an object by impersonating an agent of which nothing but its account is known.
    pub fn create_as_some_agent(&self, path: &str, object: &Value) -> Answer {
        self.create_as_agent(&[], path, object)
    }

    fn create_as_agent(&self, extra: &[(&str, &str)], path: &str, object: &Value) -> Answer {
        let user = format!("system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}");
        let headers = [&[JSON, ("Impersonate-User", user.as_str())], extra].concat();
        self.request("POST", path, &headers, Some(object))
    }

    pub fn replace(&self, path: &str, object: &Value) -> Answer {
        self.request("PUT", path, &[JSON], Some(object))
    }

    pub fn patch(&self, path: &str, how: Patch, patch: &Value) -> Answer {
        let content = match how {
            Patch::Merge => "application/merge-patch+json",
            Patch::Strategic => "application/strategic-merge-patch+json",
            Patch::Apply => "application/apply-patch+yaml",
        };
        let query = if let Patch::Apply = how { "?fieldManager=test&force=true" } else { "" };
        self.request("PATCH", &format!("{path}{query}"), &[("Content-Type", content)], Some(patch))
    }

    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> Answer {
        let text = format!("{method} {path} {}", body.map(Value::to_string).unwrap_or_default());
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let built = request.body(body).map_err(kube::Error::HttpError);
        let result = built.and_then(|built| self.access.run(self.client.request(built)));
        Answer { request: text, result }
    }
}

impl Answer {
    /// Checks that it was granted, and returns the object.
    pub fn granted(self) -> Result<Value> {
        self.result.with_context(|| format!("not granted: {}", self.request))
    }

    /// The object, if it was granted.
    pub fn object(&self) -> Option<&Value> {
        self.result.as_ref().ok()
    }

    /// Checks that it was refused by the expression of a policy whose message is `message`.
    pub fn refused_by(self, policy: &str, message: &str) -> Result<()> {
        self.refused(&format!("ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {message}"))
    }

    /// Checks that it was refused because no role grants it.
    pub fn refused_by_role(self) -> Result<()> {
        self.refused("cannot")
    }

    fn refused(self, by: &str) -> Result<()> {
        match self.result {
            Ok(object) => bail!("granted: {}: {object}", self.request),
            Err(kube::Error::Api(status)) => {
                let as_expected = status.code == 403 && status.message.contains(by);
                ensure!(
                    as_expected,
                    "{} was refused for another reason: {}: {}",
                    self.request,
                    status.code,
                    status.message
                );
                Ok(())
            }
            Err(error) => Err(error).with_context(|| format!("neither granted nor refused: {}", self.request)),
        }
    }
}
