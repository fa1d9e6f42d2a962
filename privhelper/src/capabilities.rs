//! Which capabilities each process keeps, and which of them each request may raise. Nothing else can raise one: see
//! [`crate::sys::capability::raise`]. SECURITY.md has the same table, with the reasons, and a test compares the two.

use bulkhead_protocol::{Privilege, Request};
use caps::Capability::{self, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_LINUX_IMMUTABLE, CAP_MKNOD, CAP_SYS_ADMIN};

/// What the serving process keeps: to mount, to set quotas and trusted attributes; to make device nodes.
pub const SERVER: &[Capability] = &[CAP_SYS_ADMIN, CAP_MKNOD];

/// What the emptier keeps: to enter directories closed to root, to unlink what others own, to clear immutable flags.
pub const EMPTIER: &[Capability] = &[CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_LINUX_IMMUTABLE];

/// What a mounter keeps: to mount.
pub const MOUNTER: &[Capability] = &[CAP_SYS_ADMIN];

/// What the child keeps that looks at a pool before it is served: to change an attribute of the marker; to reach it.
pub const POOL_CHILD: &[Capability] = &[CAP_SYS_ADMIN, CAP_DAC_OVERRIDE];

/// What the child keeps that waits for a pool which another helper serves: to reach it.
pub const WAITING_CHILD: &[Capability] = &[CAP_DAC_OVERRIDE];

/// What the child keeps that asks loop devices what they are bound to: to make their nodes.
pub const DEVICE_CHILD: &[Capability] = &[CAP_MKNOD];

/// What the background release of deleted volumes' quotas may raise.
pub const RELEASE: &[Capability] = &[CAP_SYS_ADMIN];

/// Returns what carrying out a request may raise, by its row in the table of requests.
pub fn of(request: &Request) -> &'static [Capability] {
    match request.row().privileges {
        [] => &[],
        [Privilege::SysAdmin] => &[CAP_SYS_ADMIN],
        _ => SERVER,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::dispatch::tests::requests;

    /// The table of operations in SECURITY.md: the requests in the first column, and the
    /// capabilities in the second.
    fn documented() -> BTreeMap<String, Vec<String>> {
        let text = include_str!("../../SECURITY.md");
        let table = text.split("| request | capabilities |").nth(1).expect("the table of operations");
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        rows.flat_map(|row| {
            let mut columns = row.trim_matches('|').split('|').map(str::trim);
            let (names, listed) = (columns.next().expect("names"), columns.next().expect("capabilities"));
            let listed = listed.split(", ").filter(|capability| *capability != "none");
            let listed: Vec<_> = listed.map(|capability| capability.replace('`', "")).collect();
            names.split(", ").map(move |name| (name.replace('`', ""), listed.clone()))
        })
        .collect()
    }

    fn names(capabilities: &[Capability]) -> Vec<String> {
        capabilities.iter().map(Capability::to_string).collect()
    }

    #[test]
    fn the_table_in_security_md_is_the_one_in_code() {
        let mut documented = documented();
        let background = |what: &str| format!("in the background: {what}");
        assert_eq!(documented.remove(&background("empty a deleted volume")), Some(names(EMPTIER)));
        assert_eq!(documented.remove(&background("release its quota")), Some(names(RELEASE)));
        for row in Request::ROWS {
            let in_code = row.privileges.iter().map(|privilege| match privilege {
                Privilege::SysAdmin => CAP_SYS_ADMIN,
                Privilege::Mknod => CAP_MKNOD,
            });
            assert_eq!(documented.remove(row.variant), Some(names(&in_code.collect::<Vec<_>>())), "{}", row.variant);
        }
        assert!(documented.is_empty(), "{documented:?}");
    }

    #[test]
    fn a_request_may_raise_what_its_row_says() {
        for request in requests() {
            let number = of(&request).len();
            assert_eq!(number, request.row().privileges.len(), "{}", request.name());
            assert!(of(&request).iter().all(|capability| SERVER.contains(capability)), "{}", request.name());
        }
        assert!(RELEASE.iter().all(|capability| SERVER.contains(capability)));
        for child in [POOL_CHILD, WAITING_CHILD, DEVICE_CHILD] {
            assert!(
                child.iter().all(|one| SERVER.contains(one) || EMPTIER.contains(one)),
                "none has what no process keeps"
            );
        }
        assert!(!EMPTIER.iter().any(|capability| SERVER.contains(capability)), "the two processes share nothing");
    }
}
