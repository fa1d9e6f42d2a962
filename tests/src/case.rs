//! A test and what it needs.

use std::time::Duration;

use anyhow::Result;

use crate::fixture::Fixture;
use crate::rig::Rig;
use crate::run_options::{Phase, Place, PoolFilesystem, RunOptions};

/// One test and the fixture it runs on: a rig, unless it involves more than a node.
#[derive(Debug)]
pub struct Case<S = Rig> {
    /// `theme::what_must_hold`.
    pub name: &'static str,
    /// What it needs apart from a fixture with everything started.
    pub needs: &'static [Need],
    /// The test.
    pub body: fn(&mut S) -> Result<()>,
}

// Not derived: that would require `Clone` of the fixture too.
impl<S> Clone for Case<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Case<S> {}

/// One thing that a test needs. By default, both processes are running and serve one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A fixture where nothing has been created or started yet.
    Bare,
    /// A kernel that enforces sizes: it runs only in the virtual machine.
    Quota,
    /// A second kernel, because the outcome depends on it: it runs in one machine as well as on the host. In a long run,
    /// most others do too.
    Kernel,
    /// Every filesystem, because the outcome may depend on it: it runs on the host and in the machine with the other one.
    /// In a long run, it runs in every machine.
    Filesystem,
    /// XFS, because what it provokes exists only there: it runs on no other filesystem.
    Xfs,
    /// Programs or kernel modules that the machine does not have: it runs only on the host.
    Host,
    /// A pool that no other test uses, because it fills it up or takes it apart. A test that needs a bare fixture always
    /// has a pool of its own.
    OwnPool,
    /// An API server of Kubernetes 1.36 or later: one that labels claims and volumes, and knows all fields.
    Recent,
    /// Much time: it is part of long runs only, and then runs in a machine only if it is marked for that.
    Long,
    /// Ten seconds or more, at least in one place: it starts before the others, so that none of them waits for it at the
    /// end.
    Slow,
    /// No other test running at the same time, for this reason; where tests share a control plane, none on the same one. It
    /// matters only where tests run in parallel.
    Alone(&'static str),
    /// A machine that is rebooted between this half of the test and the other.
    Reboot(Phase),
}

/// Why a case is not part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// It needs a kernel that enforces sizes.
    NeedsQuota,
    /// It runs only in a long run.
    NeedsTime,
    /// It belongs to the other phase, or to no phase at all.
    NeedsReboot,
    /// It needs a recent API server.
    NeedsRecent,
    /// It is about another filesystem.
    NeedsXfs,
    /// It runs on the host, and in another machine if it depends on the kernel; or the machine lacks a program or a
    /// kernel module.
    RunsOnHost,
}

/// The filesystem of the pools on the host.
const HOSTS: PoolFilesystem = PoolFilesystem::Xfs;

/// The machine for the cases that need a second kernel, by the filesystem of its pools.
const KERNELS_MACHINE: PoolFilesystem = PoolFilesystem::Xfs;

impl<S: Fixture> Case<S> {
    /// Returns whether it needs this.
    pub fn needs(&self, need: Need) -> bool {
        self.needs.contains(&need)
    }

    /// Returns where the case runs instead, if not in this run.
    pub fn elsewhere(&self, run_options: &RunOptions) -> Option<Elsewhere> {
        let phase = self.needs.iter().find_map(|need| match need {
            Need::Reboot(phase) => Some(*phase),
            _ => None,
        });
        let in_every_machine = !S::RUNS_ON_HOST || self.needs(Need::Quota);
        let in_this_machine = in_every_machine
            || self.needs(Need::Filesystem) && run_options.pool_fs != HOSTS
            || self.needs(Need::Kernel) && run_options.pool_fs == KERNELS_MACHINE;
        // What takes minutes on the host takes hours in an emulated machine.
        let takes_hours = self.needs(Need::Long) && !self.needs(Need::Filesystem);
        match run_options.place {
            _ if phase != run_options.phase => Some(Elsewhere::NeedsReboot),
            _ if phase.is_some() => None,
            _ if self.needs(Need::Long) && !run_options.long => Some(Elsewhere::NeedsTime),
            _ if self.needs(Need::Recent) && run_options.older_kubernetes => Some(Elsewhere::NeedsRecent),
            _ if self.needs(Need::Xfs) && run_options.pool_fs != PoolFilesystem::Xfs => Some(Elsewhere::NeedsXfs),
            Place::Host if self.needs(Need::Quota) => Some(Elsewhere::NeedsQuota),
            Place::Vm if self.needs(Need::Host) => Some(Elsewhere::RunsOnHost),
            Place::Vm if !in_this_machine && (!run_options.everything || takes_hours) => Some(Elsewhere::RunsOnHost),
            _ => None,
        }
    }

    /// Returns whether the test starts with everything running.
    pub fn starts(&self) -> bool {
        !self.needs(Need::Bare) && !self.needs.iter().any(|need| matches!(need, Need::Reboot(_)))
    }

    /// Returns when it starts: what is slow first, and what has to be alone last, so that no other waits for it.
    pub fn turn(&self) -> u8 {
        match self {
            _ if self.is_alone() => 2,
            _ if self.needs(Need::Slow) => 0,
            _ => 1,
        }
    }

    /// Returns whether no other test may run at the same time.
    pub fn is_alone(&self) -> bool {
        self.needs.iter().any(|need| matches!(need, Need::Alone(_)))
    }

    /// Returns how long it may take on a host that has nothing else to do.
    pub fn limit(&self) -> Duration {
        if self.needs(Need::Long) { Duration::from_secs(600) } else { S::LIMIT }
    }
}

/// The tests of a module: `cases! { name, name: Quota, name: Bare + Alone("reason"), … }` makes the function `cases`,
/// and `cases! { on Fixture; name, … }` makes it for a fixture other than a rig.
#[macro_export]
macro_rules! cases {
    (on $fixture:ty; $($name:ident $(: $need:ident $(($of:tt))? $(+ $more:ident $(($more_of:tt))?)*)?),+ $(,)?) => {
        /// The tests of this module.
        pub fn cases() -> Vec<$crate::case::Case<$fixture>> {
            #[allow(unused_imports, reason = "a module may have ordinary tests only")]
            use $crate::case::Need::*;
            vec![$($crate::case::Case {
                name: concat!(module_path!(), "::", stringify!($name)),
                needs: &[$($need $(($of))?, $($more $(($more_of))?),*)?],
                body: $name,
            }),+]
        }
    };
    ($($name:ident $(: $need:ident $(($of:tt))? $(+ $more:ident $(($more_of:tt))?)*)?),+ $(,)?) => {
        $crate::cases! {
            on $crate::rig::Rig;
            $($name $(: $need $(($of))? $(+ $more $(($more_of))?)*)?),+
        }
    };
}
