//! The sockets that this process may make: a family, a type and a protocol, and nothing that is not listed. Landlock does
//! not judge what is sent over UDP, nor which named Unix socket is connected to.

use libc::c_int;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{BackendError, SeccompCondition, SeccompRule};

use super::Needs;

/// The part of a socket's type that is not a flag (SOCK_TYPE_MASK of the kernel).
const TYPES: c_int = 0xf;

/// A family, a type, and the protocols that go with it.
type Allowed = (c_int, c_int, &'static [c_int]);

/// To the helper, and pairs within the process.
const UNIX: [Allowed; 2] = [(libc::AF_UNIX, libc::SOCK_STREAM, &[0]), (libc::AF_UNIX, libc::SOCK_SEQPACKET, &[0])];

/// To the API server.
const TCP: [Allowed; 2] = [
    (libc::AF_INET, libc::SOCK_STREAM, &[0, libc::IPPROTO_TCP]),
    (libc::AF_INET6, libc::SOCK_STREAM, &[0, libc::IPPROTO_TCP]),
];

/// To name servers, and by the C library to compare addresses.
const UDP: [Allowed; 2] = [
    (libc::AF_INET, libc::SOCK_DGRAM, &[0, libc::IPPROTO_UDP]),
    (libc::AF_INET6, libc::SOCK_DGRAM, &[0, libc::IPPROTO_UDP]),
];

/// The port of name servers.
pub const DOMAIN: u16 = 53;

/// The rules by which socket(2) is refused.
pub(super) fn refused(needs: &Needs) -> Result<Vec<SeccompRule>, BackendError> {
    let mut allowed = UNIX.to_vec();
    if needs.ports.as_ref().is_none_or(|ports| !ports.is_empty()) {
        allowed.extend(TCP);
    }
    if needs.ports.as_ref().is_none_or(|ports| ports.contains(&DOMAIN)) {
        allowed.extend(UDP);
    }
    all_but(&allowed)
}

/// The rules by which socketpair(2) is refused.
pub(super) fn refused_pairs() -> Result<Vec<SeccompRule>, BackendError> {
    all_but(&UNIX)
}

/// A filter can only list what it refuses, so this is every type of every family, but for those in `allowed`.
fn all_but(allowed: &[Allowed]) -> Result<Vec<SeccompRule>, BackendError> {
    let families: std::collections::BTreeSet<_> = allowed.iter().map(|(family, ..)| *family).collect();
    let other: Result<Vec<_>, _> = families.iter().map(|family| is_not(0, *family)).collect();
    let mut rules = vec![SeccompRule::new(other?)?];
    for family in families {
        for kind in 0..=TYPES {
            let masked = MaskedEq(u64::from(TYPES.cast_unsigned()));
            let mut conditions = vec![
                SeccompCondition::new(0, Dword, Eq, family.cast_unsigned().into())?,
                SeccompCondition::new(1, Dword, masked, kind.cast_unsigned().into())?,
            ];
            let listed = allowed.iter().find(|(listed, of_kind, _)| (*listed, *of_kind) == (family, kind));
            for protocol in listed.iter().flat_map(|(_, _, protocols)| *protocols) {
                conditions.push(is_not(2, *protocol)?);
            }
            rules.push(SeccompRule::new(conditions)?);
        }
    }
    Ok(rules)
}

fn is_not(argument: u8, value: c_int) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, Dword, Ne, value.cast_unsigned().into())
}
