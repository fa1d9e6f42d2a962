//! The page for people who would rather look.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::commands::{Printed, kubectl_bulkhead};
use serde_json::Value;

use super::plugin::tell_of_a_volume;

cases! {
    on Cluster;
    the_page_shows_the_cluster_to_whoever_knows_its_address: Bare,
    a_browser_shows_the_page: Bare + Long,
}

/// The plugin, which serves the page until this value is dropped.
struct Page {
    plugin: Child,
    url: String,
}

impl Page {
    fn open(cluster: &Cluster) -> Result<Self> {
        let mut plugin = kubectl_bulkhead(&cluster.access.kubeconfig())?;
        let mut plugin = plugin.args(["ui", "--output", "wide"]).stdout(Stdio::piped()).spawn()?;
        let mut url = String::new();
        BufReader::new(plugin.stdout.take().context("its output")?).read_line(&mut url)?;
        Ok(Self { plugin, url: url.trim().to_owned() })
    }

    /// The address, and the path with the key.
    fn parts(&self) -> Result<(SocketAddr, &str)> {
        let rest = self.url.strip_prefix("http://").with_context(|| format!("no address: {}", self.url))?;
        let (address, path) = rest.split_at(rest.find('/').context("no path")?);
        Ok((address.parse()?, path))
    }

    /// The answer to a request as it is.
    fn ask(&self, path: &str, host: &str) -> Result<String> {
        let mut connection = TcpStream::connect(self.parts()?.0)?;
        write!(connection, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.plugin.kill();
        let _ = self.plugin.wait();
    }
}

/// The page of a cluster with a claim called data.
fn opened(cluster: &mut Cluster) -> Result<Page> {
    tell_of_a_volume(cluster)?;
    Page::open(cluster)
}

fn the_page_shows_the_cluster_to_whoever_knows_its_address(cluster: &mut Cluster) -> Result<()> {
    let page = opened(cluster)?;
    let (address, path) = page.parts()?;
    ensure!(address.ip().is_loopback(), "it listens on {address}");
    let answer = page.ask(&format!("{path}state.json"), &address.to_string())?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    let state: Value = serde_json::from_str(body).with_context(|| answer.clone())?;
    let node = cluster.node();
    let named = |part: &str, key: &str, wanted: &str| -> Result<Value> {
        let found = state[part]["value"].as_array().with_context(|| format!("{part}: {}", state[part]))?;
        found.iter().find(|one| one[key] == wanted).cloned().with_context(|| format!("no {wanted} in {found:?}"))
    };
    ensure!(named("nodes", "name", &node)?["volumes"].as_u64().is_some_and(|volumes| volumes > 0));
    ensure!(named("pools", "node", &node)?["totalBytes"].as_u64().is_some_and(|bytes| bytes > 0));
    let volume = named("volumes", "claim", &format!("{}/data", cluster.namespace))?;
    ensure!(volume["bytes"] == 8 << 20 && volume["condition"]["state"] == "ok", "{volume}");
    ensure!(state["doctor"]["value"]["checks"].as_array().is_some_and(|checks| !checks.is_empty()), "{state}");
    let shown = page.ask(path, &address.to_string())?;
    ensure!(shown.starts_with("HTTP/1.1 200") && shown.contains("page.js"), "{shown}");
    // Neither another user of this machine, nor a page whose name leads here.
    for (path, host) in
        [("/", address.to_string()), ("/state.json", address.to_string()), (path, "page.example".to_owned())]
    {
        let refused = page.ask(path, &host)?;
        ensure!(refused.starts_with("HTTP/1.1 404") && !refused.contains(&node), "{path} of {host}: {refused}");
    }
    Ok(())
}

fn a_browser_shows_the_page(cluster: &mut Cluster) -> Result<()> {
    let page = opened(cluster)?;
    let profile = tempfile::tempdir()?;
    let mut browser = Command::new("chromium");
    browser.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    browser.args(["--virtual-time-budget=10000", "--dump-dom"]);
    browser.arg(format!("--user-data-dir={}", profile.path().display())).arg(&page.url);
    let shown = Printed::by(&mut browser)?.succeeded()?;
    let claim = format!("<td>{}/data</td>", cluster.namespace);
    let bar = "<div class=\"used\" style=\"width:";
    for wanted in [&claim, bar, "8.0 MiB", &format!("<h3>{}", cluster.node()), " volume"] {
        ensure!(shown.contains(wanted), "no {wanted} in {shown}");
    }
    Ok(())
}
