//! `bundle`: what those need to know who are asked for help, in one archive, without what is not for them.

mod agents;
mod archive;
mod objects;
mod redaction;

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_console::report::{self, Report, Table};
use bulkhead_model::api_error::error_text;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::time::timeout;

use crate::cluster::{Cluster, Failure};
use crate::options::{Bundle, Filter};
use crate::{NAME, doctor, lost, nodes, pods, pools, snapshots, volumes};
use archive::{Archive, Content};
use redaction::Redaction;

/// How long one of the other commands may take.
const COMMAND: Duration = Duration::from_secs(300);

/// `bundle`.
pub async fn run(cluster: &Cluster, options: &Bundle) -> Result<Report, Failure> {
    let now = Timestamp::now();
    let file = options
        .file
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("bulkhead-bundle-{}.tar.gz", now.strftime("%Y%m%dT%H%M%SZ"))));
    let failed = |error: io::Error| Failure::Bundle(file.display().to_string(), error);
    let redaction = Redaction::new(&cluster.driver, &cluster.namespace, options.names);
    let redaction = redaction.map_err(|error| failed(io::Error::other(error)))?;
    let made = u64::try_from(now.as_second()).unwrap_or_default();
    let archive = Archive::create(&file, made, redaction).map_err(failed)?;
    match fill(cluster, archive, options).await {
        Ok((entries, missing)) => Ok(told(&file, entries, missing)),
        Err(failure) => {
            // Half of an archive helps nobody, and the command may be repeated.
            let _ = fs::remove_file(&file);
            Err(match failure {
                Failure::Output(error) => failed(error),
                failure => failure,
            })
        }
    }
}

fn told(file: &Path, entries: usize, missing: usize) -> Report {
    let file = file.display().to_string();
    let text = format!(
        "{file}: {entries} entries, {missing} of them missing or not whole (MANIFEST.json in it says why); LEFT-OUT.txt says what it does not have"
    );
    Report::new(json!({ "file": file, "entries": entries, "notWhole": missing }), Table::line(text))
}

async fn fill(cluster: &Cluster, mut archive: Archive, options: &Bundle) -> Result<(usize, usize), Failure> {
    progress("names");
    learn_names(cluster, &mut archive).await?;
    commands(cluster, &mut archive).await?;
    progress("objects");
    objects::add(cluster, &mut archive).await?;
    let releases = agents::add(cluster, &mut archive, options.since.map(|since| since.as_secs())).await?;
    let kubernetes = cluster.client.apiserver_version().await;
    let kubernetes = kubernetes.map(|info| info.git_version).unwrap_or_else(|error| error_text(&error));
    let kernels = cluster.known_nodes().await.unwrap_or_default();
    let kernels: serde_json::Map<_, _> = kernels.into_iter().map(|(node, known)| (node, known.kernel.into())).collect();
    let versions = json!({ "plugin": env!("CARGO_PKG_VERSION"), "kubernetes": kubernetes, "agents": releases,
                           "kernels": kernels });
    archive.add("versions.json", "this plugin, the API server, the agents' metrics", Ok(Content::Json(versions)))?;
    Ok(archive.end()?)
}

/// Learns what tenants have called their objects, so that no text is written with such a name.
async fn learn_names(cluster: &Cluster, archive: &mut Archive) -> Result<(), Failure> {
    if archive.redaction.keeps_names() {
        return Ok(());
    }
    let mut flaws = Vec::new();
    let mut learn = |kind: &'static str, namespace: &str, name: &str| {
        archive.redaction.learn("namespace", namespace);
        archive.redaction.learn(kind, name);
    };
    match cluster.volumes().await {
        Ok(volumes) => volumes.iter().flat_map(|it| &it.claim).for_each(|claim| learn("claim", &claim.0, &claim.1)),
        Err(failure) => flaws.push(failure.to_string()),
    }
    match cluster.unbound_claims().await {
        Ok(claims) => claims.iter().map(|claim| &claim.metadata).for_each(|claim| {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            learn("claim", &text(&claim.namespace), &text(&claim.name));
        }),
        Err(failure) => flaws.push(failure.to_string()),
    }
    match snapshots::all(cluster).await {
        Ok(all) => all.iter().flatten().for_each(|snapshot| learn("snapshot", &snapshot.of.0, &snapshot.of.1)),
        Err(failure) => flaws.push(failure.to_string()),
    }
    match pods::by_claim(cluster, None).await {
        Ok(Some(by_claim)) => by_claim.iter().for_each(|((namespace, claim), pods)| {
            learn("claim", namespace, claim);
            pods.iter().for_each(|pod| learn("pod", namespace, pod));
        }),
        Ok(None) => flaws.push("pods of other namespaces may not be listed".to_owned()),
        Err(failure) => flaws.push(failure.to_string()),
    }
    if flaws.is_empty() {
        return Ok(());
    }
    let why = format!("some names may not have been replaced: {}", flaws.join("; "));
    Ok(archive.add("pseudonyms", "the API server", Err(why))?)
}

/// Adds what the other commands print.
async fn commands(cluster: &Cluster, archive: &mut Archive) -> Result<(), Failure> {
    let all = Filter { node: None, namespace: None, class: None, phase: None };
    let checked = async { doctor::run(cluster).await.map(|(report, _)| report) };
    command(cluster, archive, "doctor", checked).await?;
    command(cluster, archive, "nodes", nodes::list(cluster, true)).await?;
    command(cluster, archive, "pools", pools::list(cluster, true)).await?;
    command(cluster, archive, "capacity", pools::capacity(cluster)).await?;
    command(cluster, archive, "volumes", volumes::list(cluster, &all, false)).await?;
    command(cluster, archive, "snapshots", snapshots::list(cluster)).await?;
    command(cluster, archive, "orphans", lost::orphans(cluster)).await
}

async fn command(
    cluster: &Cluster,
    archive: &mut Archive,
    name: &str,
    run: impl Future<Output = Result<Report, Failure>>,
) -> Result<(), Failure> {
    progress(name);
    // Each may read as much as it may alone.
    cluster.read.set(0);
    let source = format!("{NAME} {name}");
    let report = match timeout(COMMAND, run).await {
        Ok(report) => report.map_err(|failure| failure.to_string()),
        Err(_) => Err(format!("it did not end within {} seconds", COMMAND.as_secs())),
    };
    let (text, json) = match report {
        Ok(report) => (Ok(Content::Text(report.text())), Ok(Content::Json(report.visible()))),
        Err(why) => (Err(why.clone()), Err(why)),
    };
    archive.add(&format!("{name}.txt"), &source, text)?;
    Ok(archive.add(&format!("{name}.json"), &format!("{source} -o json"), json)?)
}

/// Says what is being read, to a person who waits.
fn progress(what: &str) {
    if io::stderr().is_terminal() {
        report::note(NAME, &format!("bundle: {what}"));
    }
}
