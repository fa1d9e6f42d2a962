//! Which capabilities each process keeps, and which of them each request may raise. Nothing else can raise one: see
//! [`crate::sys::capability::raise`]. SECURITY.md has the same table, with the reasons, and a test compares the two.

use bulkhead_protocol::Request;
use caps::Capability::{self, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_LINUX_IMMUTABLE, CAP_MKNOD, CAP_SYS_ADMIN};

/// What the serving process keeps: to mount, to set quotas and trusted attributes; to make device nodes.
pub const SERVER: &[Capability] = &[CAP_SYS_ADMIN, CAP_MKNOD];

/// What the emptier keeps: to enter directories closed to root, to unlink what others own, to clear immutable flags.
pub const EMPTIER: &[Capability] = &[CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_LINUX_IMMUTABLE];

/// What the background release of deleted volumes' quotas may raise.
pub const RELEASE: &[Capability] = &[CAP_SYS_ADMIN];

/// What carrying out a request may raise.
pub const fn of(request: &Request) -> &'static [Capability] {
    match request {
        Request::Create { .. }
        | Request::SetQuota { .. }
        | Request::GrowImage { .. }
        | Request::BindMount { .. }
        | Request::Unmount { .. }
        | Request::LoopDetach { .. }
        | Request::LoopResize { .. }
        | Request::MakeDevice { .. }
        | Request::RemoveDevice { .. }
        | Request::Usage { .. }
        | Request::Delete { .. }
        | Request::DeleteUnused { .. }
        | Request::PoolStatus { .. } => &[CAP_SYS_ADMIN],
        Request::LoopAttach { .. } => &[CAP_SYS_ADMIN, CAP_MKNOD],
        Request::List { .. } | Request::Listen { .. } => &[],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::dispatch::tests::requests;

    /// The table of operations in SECURITY.md: the first column, and the capabilities in the second.
    fn documented() -> BTreeMap<String, Vec<String>> {
        let text = include_str!("../../SECURITY.md");
        let table = text.split("| request | capabilities |").nth(1).expect("the table of operations");
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        rows.map(|row| {
            let mut columns = row.trim_matches('|').split('|').map(str::trim);
            let (name, listed) = (columns.next().expect("a name"), columns.next().expect("capabilities"));
            let listed = listed.split(", ").filter(|capability| *capability != "none");
            (name.replace('`', ""), listed.map(|capability| capability.replace('`', "")).collect())
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
        let mut seen = BTreeSet::new();
        for request in requests() {
            let variant = format!("{request:?}").split(' ').next().expect("a name").to_owned();
            assert_eq!(documented.get(&variant), Some(&names(of(&request))), "{variant}");
            seen.insert(variant);
        }
        assert_eq!(seen, documented.into_keys().collect(), "every request of the protocol, and nothing else");
        assert_eq!(seen.len(), 16);
    }

    #[test]
    fn no_request_may_raise_what_the_server_does_not_keep() {
        for request in requests() {
            assert!(of(&request).iter().all(|capability| SERVER.contains(capability)), "{}", request.name());
        }
        assert!(RELEASE.iter().all(|capability| SERVER.contains(capability)));
        assert!(!EMPTIER.iter().any(|capability| SERVER.contains(capability)), "the two processes share nothing");
    }
}
