//! `--check`: what an administrator may ask before the first start.

use std::process::ExitCode;

use crate::capabilities::{EMPTIER, SERVER};
use crate::start::config::Config;
use crate::start::{host, jail};

/// `--check`: one line for each thing that must be right. Changes nothing but a trial mount that is gone at the end.
pub fn check(config: &Config) -> ExitCode {
    let mut good = true;
    let mut say = |what: String, result: Result<(), String>| {
        match &result {
            Ok(()) => println!("ok      {what}"),
            Err(complaint) => println!("FAILED  {what}: {complaint}"),
        }
        good &= result.is_ok();
    };
    say("kernel".to_owned(), host::check_kernel());
    say("capabilities".to_owned(), check_capabilities());
    match host::inspect(config, false) {
        Ok(host) => {
            say("loop devices".to_owned(), Ok(()));
            for (pool, found) in config.pools.iter().zip(&host.pools) {
                say(
                    format!("pool {} in {}", pool.name, pool.directory.display()),
                    found.as_ref().map(|_| ()).map_err(Clone::clone),
                );
                for warning in found.iter().flat_map(|found| &found.warnings) {
                    println!("note    pool {}: {warning}", pool.name);
                }
            }
            let proved = jail::enter(config, &host).and_then(|jail| jail::prove(&host, &jail));
            say("jail, and mounts that reach the host".to_owned(), proved);
        }
        Err(complaint) => say("publish directories and sockets".to_owned(), Err(complaint)),
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check_capabilities() -> Result<(), String> {
    use caps::{CapSet, Capability};
    let permitted = caps::read(None, CapSet::Permitted).map_err(|error| error.to_string())?;
    let needed = SERVER.iter().chain(EMPTIER).chain([&Capability::CAP_SETPCAP, &Capability::CAP_CHOWN]);
    let missing: Vec<_> =
        needed.filter(|capability| !permitted.contains(capability)).map(Capability::to_string).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("{} missing; run it as root with these", missing.join(", "))) }
}
