//! Which capabilities each process keeps, and which of them each request may raise. Nothing else can raise one: see
//! [`crate::sys::capability::raise`]. SECURITY.md has the same table, with the reasons, and a test compares the two.

use bulkhead_protocol::Request;
use caps::Capability::{self, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_LINUX_IMMUTABLE, CAP_MKNOD, CAP_SYS_ADMIN};

/// What the serving process keeps: to mount, to set quotas and trusted attributes; to make device nodes.
pub const SERVER: &[Capability] = &[CAP_SYS_ADMIN, CAP_MKNOD];

/// What the emptier keeps: to enter what root may not, to unlink what others own, to take immutable flags off.
pub const EMPTIER: &[Capability] = &[CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_LINUX_IMMUTABLE];

/// What releasing the quotas of deleted volumes raises, in the background.
pub const RELEASE: &[Capability] = &[CAP_SYS_ADMIN];

/// What carrying out a request may raise.
pub const fn of(request: &Request) -> &'static [Capability] {
    match request {
        Request::Create { .. }
        | Request::SetQuota { .. }
        | Request::GrowImage { .. }
        | Request::BindMount { .. }
        | Request::Unmount { .. }
        | Request::RemoveDevice { .. }
        | Request::PoolStatus { .. } => &[CAP_SYS_ADMIN],
        Request::LoopDetach { .. }
        | Request::LoopResize { .. }
        | Request::Delete { .. }
        | Request::DeleteUnused { .. } => &[CAP_MKNOD],
        Request::LoopAttach { .. } | Request::MakeDevice { .. } | Request::Usage { .. } => &[CAP_SYS_ADMIN, CAP_MKNOD],
        Request::List { .. } | Request::Listen { .. } => &[],
    }
}
