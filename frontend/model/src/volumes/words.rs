//! What the helper reports in facts, in words for people: what is wrong, and what to do.

use std::io;

use bulkhead_protocol::{Condition, PoolName, PublishName, Separation, VolumeId};

use crate::quantity::Quantity;

/// A condition of a pool or of a volume.
pub(super) fn condition(condition: &Condition) -> String {
    match condition {
        Condition::Unconfined => {
            "the helper is not confined: it runs with --seccomp=log, so system calls that are not allowed are only logged; start it without that option".into()
        }
        Condition::ShutDown => {
            "the pool's filesystem has shut down after an error, and nothing in it can be read or written; see dmesg, and docs/operate.md for the way out".into()
        }
        Condition::ReadOnly => {
            "the pool's filesystem has become read-only, perhaps after an error; see dmesg, and docs/operate.md for the way out".into()
        }
        Condition::Unmounted => {
            "the pool is not mounted at its directory on the host any more: its volumes work only until the helper ends; mount it there again, or shut their pods down".into()
        }
        Condition::QuotasOff => {
            "sizes are not enforced any more: quotas were switched off while the pool was served; switch them on again with xfs_quota -x -c 'enable -p' MOUNTPOINT (XFS) or quotaon -P MOUNTPOINT (ext4)".into()
        }
        Condition::DefaultLimits => {
            "the filesystem has default limits for projects, which bind volumes that should have none; set them to 0 with xfs_quota -x -c 'limit -p -d bsoft=0 bhard=0 isoft=0 ihard=0' MOUNTPOINT".into()
        }
        Condition::NoInodes => {
            "the pool's filesystem has no inode left for a new volume; delete volumes, or files that are in none".into()
        }
        Condition::NoExec => {
            format!("the pool is mounted noexec, so no program can be run from its volumes; if that is not intended, mount it without noexec and {RESTART}")
        }
        Condition::NotEnforced => "sizes are not enforced in this pool: it is configured with quota=none".into(),
        Condition::FilesystemShutDown => {
            "the filesystem in the volume's image has shut down after an error, and nothing in it can be read or written; all other volumes go on; see dmesg, and docs/operate.md for the way out".into()
        }
        Condition::NotDirect => {
            "the volume's image is accessed through the page cache, because the pool's filesystem does not support direct I/O with blocks of its size: it is slower, and its content is cached twice".into()
        }
        Condition::NotMountable { errno } => not_mountable(*errno),
        Condition::Other => {
            "something that this release of the frontend does not know: see the helper's log, and upgrade bulkhead-frontend".into()
        }
        Condition::NotAnswering { seconds } => not_answering(*seconds),
        Condition::Apart { directory, cause } => apart(directory, *cause),
        Condition::NotServed { volumes } => not_served(*volumes),
        Condition::Overpromised { promised, limit } => overpromised(*promised, *limit),
        Condition::QuotaEvasion { bytes, inodes, first, more } => evasion(*bytes, *inodes, *first, *more),
        Condition::QuotaFiles { bytes } => quota_files(*bytes),
        Condition::NotReleased { volumes, project } => not_released(*volumes, *project),
        Condition::VolumeLimit { volumes, limit } => volume_limit(*volumes, *limit),
        Condition::NotInspected { errno } => not_inspected(*errno),
        Condition::ImageSize { found, recorded } => image_size(*found, *recorded),
        Condition::Oversized { used } => oversized(*used),
        Condition::OtherLimits { bytes, inodes, soft } => other_limits(*bytes, *inodes, *soft),
    }
}

/// The remedy that depends on the deployment.
const RESTART: &str =
    "restart the helper (systemctl restart bulkhead-privhelper, or in a container: pkill bulkhead-privh on the node)";

/// Returns why a pool does not promise what was requested. How much is missing is said as well: rounded, the two
/// figures may be the same.
pub(super) fn no_room(pool: &PoolName, room: u64, wanted: u64) -> String {
    format!(
        "pool {pool} has room for {}, but {} are requested, inodes included: {} too much; delete volumes or enlarge the pool",
        Quantity::from(room),
        Quantity::from(wanted),
        Quantity::from(wanted.saturating_sub(room))
    )
}

/// Returns why a volume is not copied. How long writers wait is what the kernel takes for each extent.
pub(super) fn too_fragmented(source: &VolumeId, extents: u64, limit: u64) -> String {
    format!(
        "volume {source} is too fragmented: its image has {extents} extents, and the limit of its pool is {limit}; a copy would keep its writers waiting for about a second for each 40000; copy its content into a new volume, or raise the limit (the option extents=N of the helper's --pool)"
    )
}

fn not_answering(seconds: u64) -> String {
    format!(
        "the pool's filesystem does not answer: an operation has waited for {seconds} seconds; see whether it is frozen (fsfreeze --unfreeze thaws it) or its disk hangs (dmesg)"
    )
}

fn apart(directory: &PublishName, cause: Separation) -> String {
    let (why, remedy) = match cause {
        Separation::Unmounted => ("the mount that it was on is gone", "mount it again, shared"),
        Separation::NotShared => ("its mount is not shared any more", "run mount --make-shared on its mount"),
        Separation::Covered => ("another mount hides it", "unmount that one, or make it shared"),
        Separation::Moved => ("it was renamed or replaced by another directory", "put it back, or restart the helper"),
    };
    format!(
        "what is mounted below publish directory {directory} no longer reaches the host, because {why}; publishing there is refused: {remedy}; the helper starts anew by itself as soon as the directory is shared again"
    )
}

fn not_served(volumes: u32) -> String {
    format!("volumes of the pool that are not served: {volumes}; the helper's log says why, for each of them")
}

fn overpromised(promised: u64, limit: u64) -> String {
    format!(
        "{} are promised to volumes, and the pool may promise {}: volumes may find the pool full before they have reached their sizes; delete volumes, enlarge the pool, or remove what else takes space on its filesystem",
        Quantity::from(promised),
        Quantity::from(limit)
    )
}

/// `first` is 0 if none was seen, because there are too many to look at.
fn evasion(bytes: u64, inodes: u64, first: u32, more: bool) -> String {
    let unseen = more.then(|| "there are too many projects to look at all of them".to_owned());
    let seen = (first != 0).then(|| {
        format!(
            "{} and {inodes} inodes are charged to projects that no volume has (the first is {first})",
            Quantity::from(bytes)
        )
    });
    let facts: Vec<_> = unseen.into_iter().chain(seen).collect();
    format!("{}: a pod may be evading its quota; see SECURITY.md, Quotas", facts.join(", and "))
}

fn quota_files(bytes: u64) -> String {
    format!(
        "the files in which the filesystem keeps quotas have grown to {}, more than a hundredth of it: somebody has used very many project ids, as a tenant can that is not fenced in; see SECURITY.md, Quotas",
        Quantity::from(bytes)
    )
}

fn not_released(volumes: u32, project: u32) -> String {
    format!(
        "deleted volumes whose space cannot be released yet: {volumes}; something is still charged to their projects (the first is {project}): an open file, or one that was moved into the project; see docs/operate.md, Stuck volumes"
    )
}

fn volume_limit(volumes: u32, limit: u32) -> String {
    format!(
        "there are {volumes} volumes, including deleted ones that are not yet empty, and --max-volumes allows {limit}; delete volumes, or raise the limit"
    )
}

fn not_mountable(errno: i32) -> String {
    format!(
        "the filesystem in the volume's image could not be mounted: {}; nothing was changed; see dmesg, and docs/operate.md for the way out",
        io::Error::from_raw_os_error(errno)
    )
}

fn not_inspected(errno: i32) -> String {
    format!(
        "projects cannot be looked at, so it is not known whether pods evade their quotas: {}; see dmesg",
        io::Error::from_raw_os_error(errno)
    )
}

/// The difference may be too small to be seen in the sizes.
fn image_size(found: u64, recorded: u64) -> String {
    let (difference, recorded_size) = (Quantity::from(found.abs_diff(recorded)), Quantity::from(recorded));
    if found > recorded {
        format!(
            "the volume's image is {difference} longer than its record says ({recorded_size}); {RESTART}, which corrects the record"
        )
    } else {
        format!(
            "the volume's image is {difference} shorter than its record says ({recorded_size}): something has cut it off; restore the volume from a backup"
        )
    }
}

fn oversized(used: u64) -> String {
    format!(
        "{} of the volume are used, more than its size: its limit does not bind who writes to it; on ext4, that is a process with CAP_SYS_RESOURCE: take it from the pod",
        Quantity::from(used)
    )
}

fn other_limits(bytes: u64, inodes: u64, soft: bool) -> String {
    let bytes = if bytes == 0 { "any number of bytes".to_owned() } else { Quantity::from(bytes).to_string() };
    let inodes = if inodes == 0 { "any number of inodes".to_owned() } else { format!("{inodes} inodes") };
    let soft = if soft { ", and has soft limits besides" } else { "" };
    format!(
        "somebody has changed the volume's quota: the filesystem allows it {bytes} and {inodes}{soft}; {RESTART}, which sets its limits again"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn says(reported: &Condition, parts: &[&str]) {
        let text = condition(reported);
        for part in parts {
            assert!(text.contains(part), "{part:?}: {text}");
        }
    }

    #[test]
    fn sizes_are_for_people() {
        let (promised, limit) = (958_246_912, 512 << 20);
        says(&Condition::Overpromised { promised, limit }, &["913.9 MiB are promised", "may promise 512 MiB:"]);
        says(&Condition::QuotaFiles { bytes: 3 << 29 }, &["grown to 1.5 GiB,"]);
        says(&Condition::Oversized { used: 3 << 30 }, &["3 GiB of the volume are used"]);
        let limits = |bytes, soft| Condition::OtherLimits { bytes, inodes: 0, soft };
        says(
            &limits(3 << 30, false),
            &["allows it 3 GiB and any number of inodes; restart the helper (systemctl restart bulkhead-privhelper,"],
        );
        says(&limits(0, true), &["any number of bytes and", "soft limits besides"]);
        says(&Condition::ImageSize { found: (1 << 30) + 4096, recorded: 1 << 30 }, &["4 KiB longer", "(1 GiB)"]);
        says(&Condition::ImageSize { found: 0, recorded: 1 << 30 }, &["1 GiB shorter", "(1 GiB)", "backup"]);
    }

    #[test]
    fn evasion_is_told_by_what_was_seen_and_by_what_was_not_looked_at() {
        let evasion = |first, more| Condition::QuotaEvasion { bytes: 4096, inodes: 9, first, more };
        let seen = "4 KiB and 9 inodes are charged to projects that no volume has (the first is 4711)";
        says(&evasion(4711, false), &[&format!("{seen}: a pod may be evading its quota")]);
        says(&evasion(4711, true), &["look at all of them, and 4 KiB and 9 inodes"]);
        says(&evasion(0, true), &["there are too many projects to look at all of them: a pod"]);
        assert!(!condition(&evasion(0, true)).contains("charged"));
    }

    #[test]
    fn a_directory_that_is_apart_is_named_with_the_cause_and_the_remedy() {
        let directory: PublishName = "kubelet".parse().unwrap();
        for (cause, why, remedy) in [
            (Separation::Unmounted, "is gone", "mount it again"),
            (Separation::NotShared, "not shared any more", "--make-shared"),
            (Separation::Covered, "hides it", "unmount that one"),
            (Separation::Moved, "renamed or replaced", "put it back"),
        ] {
            let parts =
                ["publish directory kubelet", "publishing there is refused", "starts anew by itself", why, remedy];
            says(&Condition::Apart { directory: directory.clone(), cause }, &parts);
        }
    }

    #[test]
    fn errors_of_the_system_are_in_words() {
        let error = io::Error::from_raw_os_error(5).to_string();
        says(&Condition::NotInspected { errno: 5 }, &[&error, "cannot be looked at"]);
    }

    #[test]
    fn a_pool_without_room_is_named_and_what_is_missing_is_told() {
        let pool = "fast".parse().unwrap();
        let text = no_room(&pool, 958_246_912, 1 << 30);
        assert!(text.starts_with("pool fast has room for 913.9 MiB, but 1 GiB are requested,"), "{text}");
        assert!(no_room(&pool, (1 << 30) - 4096, 1 << 30).contains(": 4 KiB too much;"));
    }
}
