//! Requests with a token of one's own choice, as somebody makes them who has stolen it.

use anyhow::{Context, Result, bail, ensure};
use bulkhead_tests::cluster::access::{Access, connect};
use bulkhead_tests::cluster::node::write_kubeconfig;
use kube::Client;
use serde_json::Value;
use tempfile::TempDir;
use tonic::codegen::http::Request;

/// Who holds a token.
pub struct Holder<'a> {
    access: &'a Access,
    client: Client,
    /// The token is read from its file whenever it is needed.
    _directory: Option<TempDir>,
}

/// How a patch is to be read.
#[derive(Clone, Copy)]
pub enum Patch {
    /// As it stands; null takes a field away.
    Merge,
    /// With lists merged by their keys.
    Strategic,
    /// As the whole of what this writer wants.
    Apply,
}

/// What the server answered.
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

    /// Who holds this token.
    pub fn of_token(access: &'a Access, token: &str) -> Result<Self> {
        let directory = TempDir::new()?;
        write_kubeconfig(access, directory.path(), token)?;
        let client = access.run(connect(&directory.path().join("kubeconfig")))?;
        Ok(Self { access, client, _directory: Some(directory) })
    }

    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, "application/json", None)
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.request("DELETE", path, "application/json", None)
    }

    pub fn create(&self, path: &str, object: &Value) -> Answer {
        self.request("POST", path, "application/json", Some(object))
    }

    /// The same, with nothing made.
    pub fn try_create(&self, path: &str, object: &Value) -> Answer {
        self.create(&format!("{path}?dryRun=All"), object)
    }

    pub fn replace(&self, path: &str, object: &Value) -> Answer {
        self.request("PUT", path, "application/json", Some(object))
    }

    pub fn patch(&self, path: &str, how: Patch, patch: &Value) -> Answer {
        let content = match how {
            Patch::Merge => "application/merge-patch+json",
            Patch::Strategic => "application/strategic-merge-patch+json",
            Patch::Apply => "application/apply-patch+yaml",
        };
        let query = if let Patch::Apply = how { "?fieldManager=test&force=true" } else { "" };
        self.request("PATCH", &format!("{path}{query}"), content, Some(patch))
    }

    fn request(&self, method: &str, path: &str, content: &str, body: Option<&Value>) -> Answer {
        let request = format!("{method} {path} {}", body.map(Value::to_string).unwrap_or_default());
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let built = Request::builder().method(method).uri(path).header("Content-Type", content).body(body);
        let result =
            built.map_err(kube::Error::HttpError).and_then(|built| self.access.run(self.client.request(built)));
        Answer { request, result }
    }
}

impl Answer {
    /// Complains unless it was granted, and gives the object.
    pub fn granted(self) -> Result<Value> {
        self.result.with_context(|| format!("not granted: {}", self.request))
    }

    /// Complains unless a policy refused it, whose name is given.
    pub fn refused_by(self, policy: &str) -> Result<()> {
        self.refused(&format!("ValidatingAdmissionPolicy '{policy}'"))
    }

    /// Complains unless it was refused because nobody granted it.
    pub fn refused_by_role(self) -> Result<()> {
        self.refused("cannot")
    }

    fn refused(self, by: &str) -> Result<()> {
        match self.result {
            Ok(object) => bail!("granted: {}: {object}", self.request),
            Err(kube::Error::Api(status)) => {
                let told = status.code == 403 && status.message.contains(by);
                ensure!(told, "{} is refused otherwise: {}: {}", self.request, status.code, status.message);
                Ok(())
            }
            Err(error) => Err(error).with_context(|| format!("not even refused: {}", self.request)),
        }
    }
}
