//! Why the helper does not start, or does not serve a pool or a volume.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is wrong, as far as it makes a difference to what an administrator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// A system call failed, or anything else that none of the others is about.
    Call,
    /// The configuration, or what the service manager passes, is not enough or too much.
    Configuration,
    /// The kernel is too old, or has a setting that is not supported.
    Kernel,
    /// The process is not as confined as it must be.
    NotConfined,
    /// Another helper has it.
    InUse,
    /// It was moved or unmounted while the helper started.
    Moved,
    /// Users other than root can change it.
    OpenToOthers,
    /// Two directories that must be apart are not.
    Overlap,
    /// What is mounted there would not be seen by the host.
    NotPropagated,
    /// It has no copy in the jail.
    Unbindable,
    /// A trial mount is in the way.
    TrialMount,
    /// Its disk is not mounted.
    NotMounted,
    /// It holds something, and is not a pool.
    NotEmpty,
    /// It is another pool.
    OtherName,
    /// It has the layout of another release.
    OtherLayout,
    /// Its marker or record is missing, or says nothing.
    Damaged,
    /// There are two of it, and nobody can tell which one is meant.
    Ambiguous,
    /// Its filesystem does not answer.
    Unanswering,
    /// Its filesystem is mounted read-only.
    ReadOnly,
    /// Its filesystem is of another type than a pool's must be.
    WrongFilesystem,
    /// Its filesystem does not enforce project quotas.
    NoQuotas,
    /// It is in a project that it must not be in, or in none.
    InProject,
    /// Its image is of another kind than its record.
    WrongKind,
}

/// What is wrong, and a sentence that names it and says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What is wrong.
    pub why: Why,
    message: String,
}

impl Why {
    /// A refusal with this message.
    pub fn because(self, message: impl Into<String>) -> Refusal {
        Refusal { why: self, message: message.into() }
    }
}

/// What the parts say that serve as well: a call failed.
impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Why::Call.because(message)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}
