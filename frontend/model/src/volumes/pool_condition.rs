//! The kinds of conditions: few, so that they can be labels of a metric.

use std::fmt;

use bulkhead_protocol::{Condition, ErrorKind, PoolStatus, PublishName};

use super::words;
use super::{Fault, FaultKind};

/// How bad a condition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The volumes of the pool do not work.
    Failure,
    /// It needs attention.
    Warning,
    /// It is intended.
    Notice,
}

/// What has a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A pool, and its volumes with it if the condition is a failure.
    Pool,
    /// A single volume.
    Volume,
}

/// What is known of a condition whatever its figures are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConditionKind {
    /// Its name in metrics and in the log.
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What has it.
    pub subject: Subject,
    /// What is wrong, for people; "it" is the subject.
    pub meaning: &'static str,
}

/// A condition of a pool: reported by the helper, or found by the frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolCondition {
    /// The helper reports it.
    Reported(Condition),
    /// The helper does not serve the pool, in the helper's words.
    NotServed(String),
    /// The helper does not serve the pool, in the helper's words, and the node may lack it.
    Absent(String),
    /// The pool answers with errors, the last of them in the helper's words.
    Errors(String),
}

/// What a condition is recognized by: it remains the same one while its figures change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    kind: &'static ConditionKind,
    directory: Option<PublishName>,
}

/// Generates the table of kinds, and the kind of each condition: `conditions => "name" severity subject "meaning";`.
macro_rules! kinds {
    ($($conditions:pat => $name:literal $severity:ident $subject:ident $meaning:literal;)*) => {
        impl ConditionKind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(kinds!(@row $name $severity $subject $meaning)),*];
        }

        impl PoolCondition {
            /// Its kind.
            pub fn kind(&self) -> &'static ConditionKind {
                match self {
                    $($conditions => const { &kinds!(@row $name $severity $subject $meaning) },)*
                }
            }
        }
    };
    (@row $name:literal $severity:ident $subject:ident $meaning:literal) => {
        ConditionKind {
            name: $name,
            severity: Severity::$severity,
            subject: Subject::$subject,
            meaning: $meaning,
        }
    };
}

kinds! {
    Self::Reported(Condition::ShutDown) => "shut_down" Failure Pool
        "its filesystem has shut down after an error";
    Self::Reported(Condition::ReadOnly) => "read_only" Failure Pool
        "its filesystem has become read-only";
    Self::Reported(Condition::NotAnswering { .. }) => "not_answering" Failure Pool
        "its filesystem does not answer";
    Self::NotServed(_) => "not_served" Failure Pool
        "the helper does not serve it";
    Self::Absent(_) => "absent" Notice Pool
        "it is not there, as it may be on this node";
    Self::Errors(_) => "errors" Failure Pool
        "it returns errors";
    Self::Reported(Condition::Apart { .. }) => "apart" Failure Pool
        "what is mounted below a publish directory does not reach the host";
    Self::Reported(Condition::Unconfined) => "unconfined" Warning Pool
        "the helper only logs system calls that are not allowed";
    Self::Reported(Condition::NotServed { .. }) => "volumes_not_served" Warning Pool
        "some of its volumes are not served";
    Self::Reported(Condition::Overpromised { .. }) => "overpromised" Warning Pool
        "more is promised to its volumes than there is";
    Self::Reported(Condition::Unmounted) => "unmounted" Warning Pool
        "it is not mounted on the host any more";
    Self::Reported(Condition::QuotasOff) => "quotas_off" Warning Pool
        "quotas were switched off, so sizes are not enforced any more";
    Self::Reported(Condition::DefaultLimits) => "default_limits" Warning Pool
        "its filesystem limits volumes that should have no limit";
    Self::Reported(Condition::QuotaEvasion { .. }) => "quota_evasion" Warning Pool
        "something is charged to projects that no volume has";
    Self::Reported(Condition::QuotaFiles { .. }) => "quota_files" Warning Pool
        "the files that hold its quotas have grown beyond a hundredth of it";
    Self::Reported(Condition::NoInodes) => "no_inodes" Warning Pool
        "no inode is left for a new volume";
    Self::Reported(Condition::NotReleased { .. }) => "not_released" Warning Pool
        "deleted volumes keep space that cannot be released";
    Self::Reported(Condition::VolumeLimit { .. }) => "volume_limit" Warning Pool
        "there are as many volumes as are allowed";
    Self::Reported(Condition::NotInspected { .. }) => "not_inspected" Warning Pool
        "it cannot be seen whether quotas are evaded";
    Self::Reported(Condition::NoExec) => "no_exec" Notice Pool
        "it is mounted noexec: no program can be run from its volumes";
    Self::Reported(Condition::NotEnforced) => "not_enforced" Notice Pool
        "sizes are not enforced: it is configured that way";
    Self::Reported(Condition::Other) => "other" Warning Pool
        "it has another condition";
    Self::Reported(Condition::ImageSize { .. }) => "image_size" Warning Volume
        "its image has another length than is recorded";
    Self::Reported(Condition::Oversized { .. }) => "oversized" Warning Volume
        "more of it is used than its size";
    Self::Reported(Condition::OtherLimits { .. }) => "other_limits" Warning Volume
        "the filesystem has other limits for it than it should have";
    Self::Reported(Condition::FilesystemShutDown) => "filesystem_shut_down" Failure Volume
        "the filesystem in its image has shut down after an error";
    Self::Reported(Condition::NotMountable { .. }) => "not_mountable" Failure Volume
        "the filesystem in its image could not be mounted";
    Self::Reported(Condition::NotDirect) => "not_direct" Notice Volume
        "its image is accessed through the page cache";
}

impl ConditionKind {
    /// The kind with this name. Another release may have kinds that this one does not know.
    pub fn named(name: &str) -> &'static Self {
        let known = Self::ALL.iter().find(|kind| kind.name == name);
        known.unwrap_or_else(|| PoolCondition::Reported(Condition::Other).kind())
    }
}

impl PoolCondition {
    /// Those that the helper reports about a pool.
    pub fn all_of(status: &PoolStatus) -> impl Iterator<Item = Self> {
        status.conditions.as_slice().iter().cloned().map(Self::Reported)
    }

    /// Returns what it means for a pool that the helper answers a question about it with `fault`; `None` if the fault
    /// is not about the pool.
    pub fn of_fault(fault: &Fault) -> Option<Self> {
        match fault.kind {
            FaultKind::Typed(ErrorKind::PoolBroken) => Some(Self::NotServed(fault.to_string())),
            FaultKind::Typed(ErrorKind::Io(_)) => Some(Self::Errors(fault.to_string())),
            _ => None,
        }
    }

    /// The condition as it is judged for a pool that the node may lack: that it is not there is no failure.
    #[must_use]
    pub fn of_optional(self) -> Self {
        match self {
            Self::NotServed(text) => Self::Absent(text),
            other => other,
        }
    }

    /// Returns whether nothing can be done with the pool's volumes.
    pub fn is_unserved(&self) -> bool {
        self.kind().severity == Severity::Failure || matches!(self, Self::Absent(_))
    }

    /// Returns what it is recognized by.
    pub fn identity(&self) -> Identity {
        let directory = match self {
            Self::Reported(Condition::Apart { directory, .. }) => Some(directory.clone()),
            _ => None,
        };
        Identity { kind: self.kind(), directory }
    }
}

impl Identity {
    /// Its kind.
    pub fn kind(&self) -> &'static ConditionKind {
        self.kind
    }

    /// It in one word, from which [`Self::parse`] makes it again, in another process too.
    pub fn word(&self) -> String {
        match &self.directory {
            Some(directory) => format!("{}/{directory}", self.kind.name),
            None => self.kind.name.to_owned(),
        }
    }

    /// The identity of that word.
    pub fn parse(word: &str) -> Self {
        let (kind, directory) = word.split_once('/').unwrap_or((word, ""));
        Self { kind: ConditionKind::named(kind), directory: directory.parse().ok() }
    }
}

/// What is wrong, and what to do.
impl fmt::Display for PoolCondition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(condition) => out.write_str(&words::condition(condition)),
            Self::NotServed(text) | Self::Errors(text) => out.write_str(text),
            Self::Absent(text) => write!(out, "absent, as it may be on this node: {text}"),
        }
    }
}

/// What is wrong, without figures.
impl fmt::Display for Identity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.directory {
            Some(directory) => write!(out, "{} ({directory})", self.kind.meaning),
            None => out.write_str(self.kind.meaning),
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::Separation;

    use super::*;

    fn same(one: Condition, other: Condition) -> bool {
        PoolCondition::Reported(one).identity() == PoolCondition::Reported(other).identity()
    }

    #[test]
    fn figures_do_not_make_another_condition() {
        let waiting = |seconds| Condition::NotAnswering { seconds };
        assert!(same(waiting(5), waiting(6)));
        assert!(!same(waiting(5), Condition::ShutDown));
        let apart = |name: &str, cause| Condition::Apart { directory: name.parse().unwrap(), cause };
        assert!(same(apart("kubelet", Separation::NotShared), apart("kubelet", Separation::Covered)));
        assert!(!same(apart("kubelet", Separation::NotShared), apart("local", Separation::NotShared)));
        let identity = PoolCondition::Reported(apart("local", Separation::Moved)).identity();
        assert!(identity.to_string().ends_with("does not reach the host (local)"));
        assert_eq!(Identity::parse(&identity.word()), identity);
        let failed = PoolCondition::Errors("text".to_owned()).identity();
        assert_eq!((failed.word().as_str(), Identity::parse("errors")), ("errors", failed));
    }

    #[test]
    fn a_kind_has_one_name() {
        for kind in ConditionKind::ALL {
            assert_eq!(ConditionKind::named(kind.name), kind);
        }
        assert_eq!(ConditionKind::named("worn").name, "other");
    }

    #[test]
    fn a_pool_that_is_not_served_is_not_one_with_volumes_that_are_not() {
        let fault = Fault::new(FaultKind::Typed(ErrorKind::PoolBroken), "pool a is not served");
        let of_pool = PoolCondition::of_fault(&fault).unwrap();
        let of_volumes = PoolCondition::Reported(Condition::NotServed { volumes: 1 });
        assert_eq!((of_pool.kind().name, of_pool.kind().severity), ("not_served", Severity::Failure));
        assert_eq!((of_volumes.kind().name, of_volumes.kind().severity), ("volumes_not_served", Severity::Warning));
        assert_eq!(of_pool.to_string(), "pool a is not served");
        let absent = of_pool.of_optional();
        assert_eq!((absent.kind().name, absent.kind().severity), ("absent", Severity::Notice));
        assert!(absent.to_string().ends_with("on this node: pool a is not served"), "{absent}");
    }

    #[test]
    fn a_fault_of_the_caller_is_no_condition_of_the_pool() {
        let fault = |kind| Fault::new(FaultKind::Typed(kind), "text");
        assert_eq!(PoolCondition::of_fault(&fault(ErrorKind::Io(5))), Some(PoolCondition::Errors("text".to_owned())));
        for kind in [ErrorKind::NotFound, ErrorKind::Busy] {
            assert_eq!(PoolCondition::of_fault(&fault(kind)), None);
        }
        assert_eq!(PoolCondition::of_fault(&Fault::new(FaultKind::Away, "away")), None);
    }
}
