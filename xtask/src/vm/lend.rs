//! Lends a machine to another program on this host, which sends requests over a socket: one line of JSON per request
//! and per answer.
//!
//! A request is `{"run": COMMAND, "seconds": LIMIT}`, `{"reboot": true}` or `{"power_cut": true}`; an answer has the
//! command's `status`, `stdout` and `stderr`, or is `{"error": MESSAGE}`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{Machine, Output};

impl Machine {
    /// Handles the borrower's requests until it closes its end.
    pub fn lend(&mut self, borrower: UnixStream) -> Result<()> {
        let mut answers = borrower.try_clone().context("share the borrower's socket")?;
        for line in BufReader::new(borrower).lines() {
            let answer = match self.answer(&line.context("read what the borrower asks")?) {
                Ok(answer) => answer,
                Err(error) => json!({ "error": format!("{error:#}") }),
            };
            writeln!(answers, "{answer}").context("answer the borrower")?;
        }
        Ok(())
    }

    fn answer(&mut self, line: &str) -> Result<Value> {
        let request: Value = serde_json::from_str(line).context("the request is no JSON")?;
        if let Some(command) = request["run"].as_str() {
            let limit = Duration::from_secs(request["seconds"].as_u64().context("the command has no limit")?);
            let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
            let status = self.run_with(command, limit, &mut |output, bytes| match output {
                Output::Stdout => stdout.extend_from_slice(bytes),
                Output::Stderr => stderr.extend_from_slice(bytes),
            })?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            return Ok(json!({ "status": status.into_raw(), "stdout": text(&stdout), "stderr": text(&stderr) }));
        }
        match request {
            _ if request["reboot"] == true => self.reboot()?,
            _ if request["power_cut"] == true => self.power_cut()?,
            _ => bail!("nothing is known about the request {request}"),
        }
        Ok(json!({ "status": 0 }))
    }
}
