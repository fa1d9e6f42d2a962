//! kubectl, as an operator uses it.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::pace::{self, Allowance};

/// How long a kubelet may be unreachable, or the API server too busy to answer.
const UNREACHED: Duration = Duration::from_secs(60);
/// What kubectl says when a command was not run.
const NOT_RUN: [&str; 2] = ["error dialing backend", "TLS handshake timeout"];
/// What it says when nobody knows whether the command was run, and those that may be run twice.
const UNKNOWN: [&str; 2] = ["etcdserver: request timed out", "unable to return a response in the time allotted"];
const REPEATABLE: [&str; 2] = ["apply", "get"];

/// kubectl with an administrator's credentials.
#[derive(Clone, Debug)]
pub struct Kubectl {
    /// The program.
    pub program: PathBuf,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
}

impl Kubectl {
    /// A kubectl command.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments);
        command
    }

    /// Runs it and returns what it writes to its standard output.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with(arguments, "")
    }

    /// Runs it again for a while if the machine is so busy that nobody answers in time.
    fn run_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        let is_repeatable = arguments.iter().any(|argument| REPEATABLE.contains(argument));
        let unknown: &[&str] = if is_repeatable { &UNKNOWN } else { &[] };
        let passes = |error: &str| NOT_RUN.iter().chain(unknown).any(|part| error.contains(part));
        let mut allowance = Allowance::new(UNREACHED);
        loop {
            match self.run_once(arguments, input) {
                Err(error) if passes(&error.to_string()) && !allowance.is_spent() => {
                    println!("repeated: {error:#}");
                    std::thread::sleep(Duration::from_secs(1));
                }
                done => return done,
            }
        }
    }

    fn run_once(&self, arguments: &[&str], input: &str) -> Result<String> {
        let patient: Vec<String> = arguments.iter().map(|argument| with_patience(argument)).collect();
        let mut command = self.command(&patient.iter().map(String::as_str).collect::<Vec<_>>());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("start {}", self.program.display()))?;
        child.stdin.take().context("kubectl's standard input")?.write_all(input.as_bytes())?;
        let Output { status, stdout, stderr } = child.wait_with_output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ensure!(
            status.success(),
            "kubectl {}: {status}\n{}{}",
            arguments.join(" "),
            text(&stdout),
            text(&stderr).trim_end()
        );
        Ok(text(&stdout))
    }

    /// Creates or changes what the manifest describes.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        self.run_with(&["apply", "--server-side", "--force-conflicts", "-f", "-"], manifest).map(drop)
    }

    /// An object, or a list of objects, as JSON.
    pub fn get(&self, what: &[&str]) -> Result<Value> {
        let arguments: Vec<&str> = ["get", "-o", "json"].iter().chain(what).copied().collect();
        serde_json::from_str(&self.run(&arguments)?).context("read kubectl's JSON")
    }

    /// Checks that there is no such object. No other error is taken for its absence.
    pub fn gone(&self, what: &[&str]) -> Result<()> {
        let arguments: Vec<&str> = ["get", "--ignore-not-found", "-o", "name"].iter().chain(what).copied().collect();
        let found = self.run(&arguments)?;
        ensure!(found.trim().is_empty(), "still there: {}", found.trim());
        Ok(())
    }

    /// Deletes an object and waits until it is gone.
    pub fn delete(&self, what: &[&str]) -> Result<()> {
        let arguments: Vec<&str> = ["delete", "--timeout=180s"].iter().chain(what).copied().collect();
        self.run(&arguments).map(drop)
    }

    /// Runs a shell command in a pod's container.
    pub fn exec(&self, pod: &str, command: &str) -> Result<String> {
        self.run(&["exec", pod, "--", "sh", "-c", command])
    }

    /// Waits until every named pod is ready.
    pub fn wait_ready(&self, pods: &[&str]) -> Result<()> {
        for pod in pods {
            self.run(&["wait", "--for=condition=Ready", "--timeout=240s", "pod", pod])
                .with_context(|| self.describe("pod", pod))?;
        }
        Ok(())
    }

    /// The description that an operator would look at.
    pub fn describe(&self, kind: &str, name: &str) -> String {
        self.run(&["describe", kind, name]).unwrap_or_else(|error| format!("{error:#}"))
    }
}

/// How long kubectl itself waits is longer, too, where everything takes longer.
fn with_patience(argument: &str) -> String {
    let seconds = argument.strip_prefix("--timeout=").and_then(|rest| rest.strip_suffix('s')?.parse().ok());
    let patient = |seconds| format!("--timeout={}s", pace::patience(Duration::from_secs(seconds)).as_secs());
    seconds.map_or_else(|| argument.to_owned(), patient)
}
