//! A test and what it needs.

use std::time::Duration;

use anyhow::Result;

use crate::scene::Scene;
use crate::setting::{Phase, Setting};
use crate::stand::Stand;

/// One test, on a scene: a stand, unless it is about more than a node.
#[derive(Debug)]
pub struct Case<S = Stand> {
    /// `theme::what_must_hold`.
    pub name: &'static str,
    /// What it needs.
    pub needs: Needs,
    /// The test.
    pub body: fn(&mut S) -> Result<()>,
}

// Not derived: that would ask the same of the scene.
impl<S> Clone for Case<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Case<S> {}

/// What a test needs beyond a stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: it finds both processes serving one pool.
    Started,
    /// A stand on which nothing is made or started yet.
    Bare,
    /// A kernel that enforces sizes, and both processes.
    Quota,
    /// A kernel that enforces sizes, and a bare stand.
    BareQuota,
    /// Much time, and both processes.
    Long,
    /// A machine that is rebooted between this half and the other.
    Reboot(Phase),
}

/// Why a case is not part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// It needs a kernel that enforces sizes.
    NeedsQuota,
    /// It is part of a long run.
    NeedsTime,
    /// It belongs to the other phase, or to one at all.
    NeedsReboot,
}

impl<S: Scene> Case<S> {
    /// Where the case runs instead, if not in this setting.
    pub fn elsewhere(&self, setting: &Setting) -> Option<Elsewhere> {
        match (self.needs, setting.phase) {
            (Needs::Reboot(phase), given) if Some(phase) != given => Some(Elsewhere::NeedsReboot),
            (Needs::Reboot(_), _) => None,
            (_, Some(_)) => Some(Elsewhere::NeedsReboot),
            (Needs::Quota | Needs::BareQuota, None) if !setting.enforces_sizes() => Some(Elsewhere::NeedsQuota),
            (Needs::Long, None) if !setting.long => Some(Elsewhere::NeedsTime),
            _ => None,
        }
    }

    /// Whether the test finds both processes running.
    pub fn starts(&self) -> bool {
        matches!(self.needs, Needs::Started | Needs::Quota | Needs::Long)
    }

    /// How long it may take.
    pub fn limit(&self, setting: &Setting) -> Duration {
        let on_host = match self.needs {
            Needs::Long => Duration::from_secs(600),
            _ => S::LIMIT,
        };
        setting.place.patience(on_host)
    }
}

/// The tests of a module: `cases! { name, name: Quota, … }` makes the function `cases`, and
/// `cases! { on Scene; name, … }` makes it for another scene than a stand.
#[macro_export]
macro_rules! cases {
    (on $scene:ty; $($name:ident $(: $needs:expr)?),+ $(,)?) => {
        $crate::cases!(@cases $scene, $($name $(: $needs)?),+);
    };
    (@needs) => { Started };
    (@needs $needs:expr) => { $needs };
    (@cases $scene:ty, $($name:ident $(: $needs:expr)?),+ $(,)?) => {
        /// The tests of this module.
        pub fn cases() -> Vec<$crate::case::Case<$scene>> {
            #[allow(unused_imports, reason = "a module may have ordinary tests only")]
            use $crate::case::Needs::*;
            vec![$($crate::case::Case {
        name: concat!(module_path!(), "::", stringify!($name)),
                needs: $crate::cases!(@needs $($needs)?),
                body: $name,
            }),+]
        }
    };
    ($($name:ident $(: $needs:expr)?),+ $(,)?) => {
        $crate::cases!(@cases $crate::stand::Stand, $($name $(: $needs)?),+);
    };
}
