//! `bundle`: what those need to know who are asked for help, in one archive, without what is not for them.

mod agents;
mod archive;
mod interruption;
mod objects;
mod redaction;
mod time;

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use bulkhead_console::report::{self, Report, Table};
use bulkhead_model::api_error::error_text;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::cluster::{Cluster, Failure};
use crate::options::{Bundle, Filter};
use crate::{NAME, doctor, lost, nodes, pods, pools, snapshots, volumes};
use archive::{Archive, Content};
use redaction::Redaction;
use time::Time;

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
    let interruption = interruption::awaited().map_err(failed)?;
    let archive = Archive::create(&file, made, redaction).map_err(failed)?;
    let time = Time::begin(options.within);
    let filled = tokio::select! {
        filled = fill(cluster, archive, options, time) => filled,
        () = interruption => Err(Failure::Interrupted(file.display().to_string())),
    };
    match filled {
        Ok((entries, missing)) => Ok(told(&file, entries, missing, time.is_over())),
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

fn told(file: &Path, entries: usize, missing: usize, is_late: bool) -> Report {
    let file = file.display().to_string();
    let late = if is_late { "; its time was over, and --within gives it more" } else { "" };
    let text = format!(
        "{file}: {entries} entries, {missing} of them missing or not whole (MANIFEST.json in it says why){late}; LEFT-OUT.txt says what it does not have"
    );
    Report::new(json!({ "file": file, "entries": entries, "notWhole": missing }), Table::line(text))
}

async fn fill(
    cluster: &Cluster,
    mut archive: Archive,
    options: &Bundle,
    time: Time,
) -> Result<(usize, usize), Failure> {
    progress("names");
    learn_names(cluster, &mut archive, time).await?;
    commands(cluster, &mut archive, time).await?;
    progress("objects");
    objects::add(cluster, &mut archive, time).await?;
    let kubernetes = time.share(cluster.client.apiserver_version()).await;
    let kubernetes = kubernetes.and_then(|info| Ok(info.map_err(|error| error_text(&error))?.git_version));
    let kernels = time.share(cluster.known_nodes()).await.ok().and_then(Result::ok).unwrap_or_default();
    let releases = agents::add(cluster, &mut archive, options.since.map(|since| since.as_secs()), time).await?;
    let kernels: serde_json::Map<_, _> = kernels.into_iter().map(|(node, known)| (node, known.kernel.into())).collect();
    let versions = json!({ "plugin": env!("CARGO_PKG_VERSION"), "kubernetes": kubernetes.unwrap_or_else(|why| why), "agents": releases,
                           "kernels": kernels });
    archive.add("versions.json", "this plugin, the API server, the agents' metrics", Ok(Content::Json(versions)))?;
    Ok(archive.end()?)
}

/// Learns what tenants have called their objects, so that no text is written with such a name.
async fn learn_names(cluster: &Cluster, archive: &mut Archive, time: Time) -> Result<(), Failure> {
    if archive.redaction.keeps_names() {
        return Ok(());
    }
    // Nothing else is asked for before they are known: this may take all the time that there is.
    let flaws = time.whole(names(cluster, archive)).await.unwrap_or_else(|why| vec![why]);
    if flaws.is_empty() {
        return Ok(());
    }
    let why = format!("some names may not have been replaced: {}", flaws.join("; "));
    Ok(archive.add("pseudonyms", "the API server", Err(why))?)
}

/// Learns the names, and returns why they may not be all.
async fn names(cluster: &Cluster, archive: &mut Archive) -> Vec<String> {
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
    flaws
}

/// Adds what the other commands print.
async fn commands(cluster: &Cluster, archive: &mut Archive, time: Time) -> Result<(), Failure> {
    let all = Filter { node: None, namespace: None, class: None, phase: None };
    let checked = async { doctor::run(cluster).await.map(|(report, _)| report) };
    command(cluster, archive, time, "doctor", checked).await?;
    command(cluster, archive, time, "nodes", nodes::list(cluster, true)).await?;
    command(cluster, archive, time, "pools", pools::list(cluster, true)).await?;
    command(cluster, archive, time, "capacity", pools::capacity(cluster)).await?;
    command(cluster, archive, time, "volumes", volumes::list(cluster, &all, false)).await?;
    command(cluster, archive, time, "snapshots", snapshots::list(cluster)).await?;
    command(cluster, archive, time, "orphans", lost::orphans(cluster)).await
}

async fn command(
    cluster: &Cluster,
    archive: &mut Archive,
    time: Time,
    name: &str,
    run: impl Future<Output = Result<Report, Failure>>,
) -> Result<(), Failure> {
    progress(name);
    // Each may read as much as it may alone.
    cluster.read.set(0);
    let source = format!("{NAME} {name}");
    let report = time.share(run).await.and_then(|report| report.map_err(|failure| failure.to_string()));
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
