//! An agent: the real helper and the real frontend of one node, with access to the API server.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::access::Access;
use super::{manifests, node};
use crate::monitoring;
use crate::rig::Rig;
use crate::run_options::RunOptions;

const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);

/// A node's agent.
#[derive(Debug)]
pub struct Agent {
    /// The name of its node.
    pub node: String,
    /// The uid of its node.
    pub uid: String,
    /// Its processes and its pools.
    pub rig: Rig,
}

impl Agent {
    /// Creates a node and the files that its agent needs, without starting anything.
    pub fn lay_out(
        access: &Access,
        run_options: &RunOptions,
        work: &Path,
        templates: &Path,
        name: &str,
    ) -> Result<Self> {
        let uid = node::make(access, name, &[])?;
        let mut rig = Rig::new(run_options, work, templates)?;
        rig.node = name.to_owned();
        rig.waits_for_devices = true;
        let directory = work.join("run");
        node::write_kubeconfig(access, &directory, &node::token(access, name, &uid, TOKEN_LIFETIME)?)?;
        rig.frontend_flags = vec!["--kubeconfig".into(), directory.join("kubeconfig").into()];
        rig.frontend_flags.extend(["--namespace", manifests::NAMESPACE].map(Into::into));
        rig.frontend_flags.extend(monitoring::FLAGS.map(Into::into));
        rig.frontend_flags.push(monitoring::WITH_OWNERS.into());
        Ok(Self { node: name.to_owned(), uid, rig })
    }

    /// Replaces its token with a new one.
    pub fn renew_token(&self, access: &Access, lifetime: Duration) -> Result<()> {
        let token = node::token(access, &self.node, &self.uid, lifetime)?;
        node::write_token(&self.rig.work().join("run"), &token)
    }

    /// The names of the volumes in its pools.
    pub fn volumes(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for pool in &self.rig.pools {
            names.extend(pool.entries()?.into_iter().filter(|name| !name.starts_with('.')));
        }
        Ok(names)
    }

    /// Returns what the frontend has logged.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.rig.logs().join("frontend.log"))?)
    }

    /// Checks that the frontend has logged this, or logs it soon.
    pub fn has_logged(&self, part: &str) -> Result<()> {
        crate::wait::until(crate::pace::patience(Duration::from_secs(10)), || {
            ensure!(self.log()?.contains(part), "the log of the frontend on {} does not say {part:?}", self.node);
            Ok(())
        })
    }
}
