//! Checks everything that the node's volumes depend on, and says how to fix what does not work.

use bulkhead_model::check::Check;
use bulkhead_model::quantity::{Quantity, count};
use bulkhead_model::volumes::{InodeCount, Severity};
use bulkhead_protocol::kernel::{SHARED_BLOCKS, changes_shared_blocks};
use bulkhead_protocol::{Pool, VolumeId, Welcome};

use super::Inspector;
use crate::kubernetes::Connection;
use crate::readiness::{Part, Readiness};
use crate::volumes::{Abnormal, Health, PoolState};

/// How many volumes that need attention are named.
const NAMED: usize = 10;

/// All checks, each after those that it depends on.
pub(super) async fn checks(inspector: &Inspector) -> Vec<Check> {
    let mut checks = Vec::new();
    match inspector.helper.welcome().await {
        Ok(welcome) => {
            checks.push(helper(&welcome));
            checks.extend(inspector.readiness.as_ref().map(kubelet));
            checks.extend(kernel(welcome.pools.as_slice(), &rustix::system::uname().release().to_string_lossy()));
            match inspector.volumes.pools().await {
                Ok(pools) => {
                    checks.extend(pools.iter().map(pool));
                    let health = inspector.volumes.health();
                    checks.extend(volumes(&health.borrow()));
                    checks.extend(abnormal(&health.borrow()));
                }
                Err(fault) => checks.push(Check::failed("pools", fault.to_string())),
            }
        }
        Err(why) => checks.push(Check::failed("helper", why.to_string())),
    }
    checks.extend(api_server(&inspector.agent.connection().await));
    checks.extend(inspector.readiness.as_ref().and_then(changed_blocks));
    checks
}

fn helper(welcome: &Welcome) -> Check {
    let (release, own) = (welcome.release.as_str(), env!("CARGO_PKG_VERSION"));
    let message = format!("answers; release {release}, protocol version {}", welcome.version);
    if release == own {
        Check::ok("helper", message)
    } else {
        Check::note("helper", format!("{message}; the frontend is release {own}: upgrade the older of the two"))
    }
}

/// Returns what is to be known of the kernel, which is of this release, where there are these pools.
fn kernel(pools: &[Pool], release: &str) -> Option<Check> {
    let has_xfs = pools.iter().any(|pool| pool.filesystem.as_str() == "xfs");
    let message = || Check::note("kernel", format!("Linux {release}: in pools on XFS, {SHARED_BLOCKS}"));
    (has_xfs && changes_shared_blocks(release)).then(message)
}

fn kubelet(readiness: &Readiness) -> Check {
    match readiness.state(Part::Registration) {
        None => Check::note("kubelet", "no registration: this frontend only serves CSI"),
        Some(Ok(())) => Check::ok("kubelet", "has registered the driver"),
        Some(Err(why)) => Check::failed(
            "kubelet",
            format!("{why}; is the kubelet running, and does it use the directory of --kubelet-dir?"),
        ),
    }
}

fn pool(state: &PoolState) -> Check {
    let name = format!("pool {}", state.name);
    let room = state.status.as_ref().ok().map(|status| {
        let (available, total) = (Quantity::from(status.available), Quantity::from(status.total));
        format!("{available} of {total} available, {}", count(status.volumes, "volume"))
    });
    let conditions = &state.conditions;
    let counts = &state.counts;
    let filesystems = (counts.filesystem_limit > 0).then(|| {
        let filesystems = count(counts.filesystems, "volume");
        format!("{filesystems} of at most {} with a filesystem in an image", counts.filesystem_limit)
    });
    let shortage = counts.inodes.and_then(InodeCount::shortage);
    let (is_known, is_short) = (state.status.is_ok(), shortage.is_some());
    let facts = room.into_iter().chain(filesystems).chain(shortage).chain(state.told());
    let message = facts.collect::<Vec<_>>().join("; ");
    match conditions.iter().all(|condition| condition.kind().severity == Severity::Notice) {
        true if conditions.is_empty() && is_known && !is_short => Check::ok(&name, message),
        true if !conditions.is_empty() || is_known => Check::note(&name, message),
        _ => Check::failed(&name, message),
    }
}

/// Returns what only a storage agent can find: it knows which volumes are needed.
fn volumes(health: &Health) -> Vec<Check> {
    let (missing, orphans) = (health.missing() as u64, health.orphans.len() as u64);
    let mut checks = Vec::new();
    if missing > 0 {
        let message = format!(
            "PersistentVolumes name {} that no pool contains: the events of the claims say what to do",
            count(missing, "volume")
        );
        checks.push(Check::failed("volumes", message));
    }
    if health.unserved() > 0 {
        let message = format!(
            "PersistentVolumes name {} that no pool serves: the events of the claims, and the helper's log, say why",
            count(health.unserved() as u64, "volume")
        );
        checks.push(Check::failed("volumes", message));
    }
    if orphans > 0 {
        let message = format!(
            "no PersistentVolume names {}, as `bulkheadctl volume orphans` lists: `kubectl bulkhead orphans` says which belong to another node, whose disk may have moved here; see what the others hold before you delete them",
            count(orphans, "volume")
        );
        checks.push(Check::note("volumes", message));
    }
    checks
}

/// Returns what is wrong with single volumes, as far as they were looked at.
fn abnormal(health: &Health) -> Vec<Check> {
    let check = |(volume, abnormal): (&VolumeId, &Abnormal)| {
        Check::failed(format!("volume {volume}"), abnormal.message.clone())
    };
    let mut checks: Vec<_> = health.by_themselves().take(NAMED).map(check).collect();
    let others = health.by_themselves().skip(NAMED).count() as u64;
    if others > 0 {
        let message =
            format!("in need of attention beside these: {}; the log says which, and why", count(others, "volume"));
        checks.push(Check::failed("volumes", message));
    }
    checks
}

/// Returns whether backup programs are served, where that is wanted.
fn changed_blocks(readiness: &Readiness) -> Option<Check> {
    let name = "changed blocks";
    readiness.state(Part::ChangedBlocks).map(|state| match state {
        Ok(()) => Check::ok(name, "served to backup programs"),
        Err(why) => Check::failed(name, why),
    })
}

fn api_server(connection: &Connection) -> Vec<Check> {
    let (server, policies) = ("API server", "policies");
    match connection {
        Connection::None => vec![Check::note(
            server,
            "not used: this frontend is not a storage agent; start it with --kubeconfig or --in-cluster to make it one"
                .to_owned(),
        )],
        Connection::Unknown => {
            vec![Check::note(
                server,
                "not known here: see `kubectl bulkhead doctor`, or run this on the node".to_owned(),
            )]
        }
        Connection::Starting(why) => vec![Check::failed(server, format!("the storage agent does not work yet: {why}"))],
        Connection::Unreachable(why) => {
            vec![Check::failed(server, format!("{why}; check the network and the API server from this node"))]
        }
        Connection::Unconfined(flaw) => {
            vec![Check::ok(server, "answers".to_owned()), Check::failed(policies, flaw.clone())]
        }
        Connection::Listing => vec![
            Check::failed(
                server,
                "answers, but the storage agent has not received all objects yet; try again".to_owned(),
            ),
            Check::ok(policies, "in force".to_owned()),
        ],
        Connection::Working(account) => {
            vec![Check::ok(server, "answers".to_owned()), Check::ok(policies, format!("in force for {account}"))]
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::{QuotaMode, Text};

    use super::*;

    #[test]
    fn a_flaw_of_the_kernel_is_told_where_a_pool_is_on_xfs() {
        let on = |filesystem: &str| {
            let filesystem = Text::new(filesystem);
            Pool { name: "default".parse().unwrap(), quota: QuotaMode::Enforced, filesystem }
        };
        let told = |filesystems: &[&str], release| {
            kernel(&filesystems.iter().map(|filesystem| on(filesystem)).collect::<Vec<_>>(), release)
        };
        assert!(told(&["ext4", "xfs"], "6.12.48-amd64").is_some_and(|check| check.message.contains("6.12.105")));
        assert!(told(&["ext4"], "6.12.48-amd64").is_none() && told(&[], "6.12.48-amd64").is_none());
        assert!(told(&["xfs"], "6.12.105").is_none());
    }
}
