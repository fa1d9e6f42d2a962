//! `prepare`: finds empty disks by a rule, and makes each a pool.
//!
//! Nothing is formatted in which anything is found, unless it is what this program has begun: before a disk is formatted,
//! the uuid of its filesystem is chosen at random and noted in fstab. So each step can be the last one of a run.

mod content;
mod devices;
mod fstab;
mod judge;
mod make;
mod options;
mod plan;
mod programs;
mod report;
mod rule;
mod usage;
mod why;

use std::path::Path;

use bulkhead_privhelper::log::shown;

use self::fstab::Fstab;
use self::options::{Options, parse};
use self::plan::{Plan, Stage};

/// Says what becomes of each device, and with `--yes` does it. Returns whether there are pools, and nothing is wrong.
pub fn prepare(arguments: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = parse(arguments).map_err(|complaint| format!("prepare: {complaint}"))?;
    let Some(host) = &options.host else { return of_this_root(&options) };
    let prepared = enter(host).and_then(|()| of_this_root(&options));
    if let Err(complaint) = prepared {
        println!("FAILED  {complaint}");
    }
    Ok(true)
}

/// Makes a directory this program's root: the programs, devices and tables of the host are in it.
fn enter(host: &Path) -> Result<(), String> {
    let entered = rustix::process::chroot(host).and_then(|()| rustix::process::chdir("/"));
    entered.map_err(|errno| format!("cannot enter {}: {errno}", shown(host)))
}

fn of_this_root(options: &Options) -> Result<bool, String> {
    let fstab = Fstab::open(&options.fstab)?;
    let plan = plan::make(options, &fstab)?;
    if !options.json {
        print!("{}", report::table(&plan));
        for fault in &plan.faults {
            println!("FAILED  {fault}");
        }
    }
    let failed = match options.writes && !plan.is_refused {
        true => carry_out(&plan, &fstab, options),
        false => Vec::new(),
    };
    let changed = options.writes && !plan.is_refused && plan.pools.iter().any(|pool| pool.stage != Stage::Ready);
    if options.json {
        print!("{}", report::json(&plan, changed, &failed));
    } else {
        conclude(&plan, options, failed.is_empty());
    }
    Ok(failed.is_empty() && plan.faults.is_empty() && !plan.pools.is_empty())
}

/// Does what is to be done, with a line for each pool unless programs read it; returns what has failed.
fn carry_out(plan: &Plan, fstab: &Fstab, options: &Options) -> Vec<String> {
    let mut failed = Vec::new();
    for pool in &plan.pools {
        let (name, device) = (&pool.note.name, shown(&pool.device.path()).to_string());
        let line = match make::pool(pool, fstab) {
            Ok(()) if pool.stage == Stage::Ready => format!("ok      pool {name} is ready, nothing was changed"),
            Ok(()) => format!("ok      pool {name} on {device} is mounted on {}", shown(&pool.note.directory)),
            Err(complaint) => {
                failed.push(format!("pool {name}: {complaint}"));
                format!("FAILED  pool {name}: {complaint}")
            }
        };
        if !options.json {
            println!("{line}");
        }
    }
    failed
}

/// Says what was done, what is to be done, and what the helper is to be told.
fn conclude(plan: &Plan, options: &Options, is_done: bool) {
    let left = plan.pools.iter().filter(|pool| pool.stage != Stage::Ready).count();
    match (options.writes, plan.is_refused) {
        _ if plan.pools.is_empty() => println!("no disk is taken"),
        (_, true) => println!("nothing was changed, because of what has failed"),
        (false, false) if left > 0 => println!("nothing was changed; --yes does it"),
        (_, false) if left == 0 => println!("nothing is to be done"),
        _ => {}
    }
    if !plan.pools.is_empty() && is_done && !plan.is_refused {
        print!("{}", report::configuration(&plan.pools));
    }
}
