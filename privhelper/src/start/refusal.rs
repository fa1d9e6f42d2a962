//! Why the helper does not start, or does not serve a pool or a volume.

use std::fmt;

use bulkhead_protocol::UpTo;
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

/// The longest message in bytes. What is to be done comes last in it, after paths as long as an administrator likes; and a
/// child of the start says it in one packet.
const LONGEST: usize = 3_800;

/// What is wrong, and a sentence that names it and says what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What is wrong.
    pub why: Why,
    message: UpTo<u8, LONGEST>,
}

impl Why {
    /// A refusal with this message.
    pub fn because(self, message: impl Into<String>) -> Refusal {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(LONGEST));
        Refusal { why: self, message: message.into_bytes().try_into().unwrap_or_default() }
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
        out.write_str(&String::from_utf8_lossy(self.message.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::{decode, encode};

    use super::*;
    use crate::start::judge::Said;

    #[test]
    fn what_a_child_refuses_keeps_its_remedy_whatever_the_length_of_the_path() {
        let path = "/a directory".repeat(130);
        let refusal =
            Why::InProject.because(format!("{path} is in project 7; run: chattr -P -p 0 {path}; then restart"));
        let packet = encode(&Said::Sound(Err(refusal.clone()))).expect("it fits into a packet");
        let Ok(Said::Sound(Err(said))) = decode(&packet) else { panic!("it is heard as it was said") };
        assert_eq!(said, refusal);
        assert!(said.to_string().ends_with("; then restart"));
        let longest = encode(&Said::Sound(Err(Why::Call.because("\u{e9}".repeat(9_000))))).expect("it is cut");
        let Ok(Said::Sound(Err(said))) = decode(&longest) else { panic!("it is heard") };
        assert_eq!(said.to_string(), "\u{e9}".repeat(LONGEST / 2));
    }
}
