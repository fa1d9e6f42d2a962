//! Which capabilities each process keeps. Nothing else can raise one: see [`crate::sys::capability::with`]. SECURITY.md has
//! the same table, and a test compares the two.

use caps::Capability::{self, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_LINUX_IMMUTABLE, CAP_MKNOD, CAP_SYS_ADMIN};

/// What the keeper keeps.
pub const KEEPER: &[Capability] = &[];

/// What the placer keeps: to mount and to set quotas; to make device nodes.
pub const PLACER: &[Capability] = &[CAP_SYS_ADMIN, CAP_MKNOD];

/// What the emptier keeps: to enter directories closed to root, to unlink what others own, to clear immutable flags.
pub const EMPTIER: &[Capability] = &[CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_LINUX_IMMUTABLE];

/// What a mounter keeps: to mount.
pub const MOUNTER: &[Capability] = &[CAP_SYS_ADMIN];

/// What a child keeps that looks at a pool before it is served, until it has opened it, or waits for one which another helper
/// serves: to reach it.
pub const CHILD: &[Capability] = &[CAP_DAC_OVERRIDE];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The table of processes in SECURITY.md: the names in bold, and the capabilities in the third column.
    fn documented() -> BTreeMap<String, Vec<String>> {
        let text = include_str!("../../SECURITY.md");
        let table = text.split("| process | user | capabilities |").nth(1).expect("the table of processes");
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        rows.filter_map(|row| {
            let columns: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let name = columns[0].split("**").nth(1)?.to_owned();
            let listed = columns[2].split(", ").filter(|capability| !capability.starts_with("none"));
            Some((name, listed.map(|capability| capability.replace('`', "")).collect()))
        })
        .collect()
    }

    #[test]
    fn the_table_in_security_md_is_the_one_in_code() {
        let named = |capabilities: &[Capability]| capabilities.iter().map(Capability::to_string).collect::<Vec<_>>();
        let in_code = [("keeper", KEEPER), ("placer", PLACER), ("emptier", EMPTIER), ("mounter", MOUNTER)];
        let in_code: BTreeMap<_, _> = in_code.map(|(name, kept)| (name.to_owned(), named(kept))).into();
        assert_eq!(documented(), in_code);
    }

    #[test]
    fn who_walks_what_pods_wrote_shares_nothing_with_who_mounts() {
        assert!(!EMPTIER.iter().any(|capability| PLACER.contains(capability)));
        assert!(CHILD.iter().all(|one| EMPTIER.contains(one)), "no child has what no process keeps");
    }
}
