//! The environment in which the tests of a program start.

use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::case::{Case, Need};
use crate::keeper::leave_the_hosts_mounts;
use crate::pool::{Pool, SharedPools};
use crate::rig::Rig;
use crate::run_options::{Place, RunOptions};

/// The environment of one test, prepared before it and checked after it.
pub trait Fixture: Debug + Sized + 'static {
    /// What all tests of a run share. It is made once, in the process that runs the tests.
    type Shared;

    /// How long an ordinary test may take on the build machine, including everything it waits for.
    const LIMIT: Duration;

    /// Whether its tests also run on the host: then a machine runs only those whose outcome may differ there.
    const RUNS_ON_HOST: bool = false;

    /// How many tests run in parallel, unless `--test-threads` says otherwise.
    fn side_by_side(_: &RunOptions) -> usize {
        1
    }

    /// Prepares what is shared by so many tests at a time, and passes it to them in the options.
    fn share(run_options: &mut RunOptions, side_by_side: usize) -> Result<Self::Shared>;

    /// Prepares the same once more for the tests that have to be alone, if that is all that they must not share with
    /// others: they then run beside those.
    fn share_apart(_: &mut RunOptions) -> Result<Option<Self::Shared>> {
        Ok(None)
    }

    /// Remakes what the tests in one slot share, after one that failed and may have left something in it.
    fn renew(_: &RunOptions) -> Result<()> {
        Ok(())
    }

    /// Shuts down what was shared.
    fn end(shared: Self::Shared, all_passed: bool) -> Result<()>;

    /// Sets the fixture up below `work`, in the test's own process.
    fn set(case: &Case<Self>, run_options: &RunOptions, work: &Path, templates: &Path) -> Result<Self>;

    /// Checks that the test has left nothing behind, and takes the fixture down.
    fn leave(self) -> Result<()>;
}

impl Fixture for Rig {
    type Shared = Option<SharedPools>;

    const LIMIT: Duration = Duration::from_secs(90);
    const RUNS_ON_HOST: bool = true;

    // Most tests wait much of the time. A machine has one processor, and others run beside it.
    fn side_by_side(run_options: &RunOptions) -> usize {
        match run_options.place {
            Place::Host => 4,
            Place::Vm => 1,
        }
    }

    fn share(run_options: &mut RunOptions, side_by_side: usize) -> Result<Option<SharedPools>> {
        if run_options.phase.is_some() {
            // These tests have pools that outlive a reboot.
            return Ok(None);
        }
        if run_options.place == Place::Host {
            leave_the_hosts_mounts()?;
        }
        let pools = SharedPools::make(run_options, side_by_side)?;
        run_options.shared_pools = pools.directories().to_owned();
        Ok(Some(pools))
    }

    fn renew(run_options: &RunOptions) -> Result<()> {
        run_options.shared_pool.iter().try_for_each(|directory| SharedPools::renew(run_options, directory))
    }

    fn end(pools: Option<SharedPools>, _: bool) -> Result<()> {
        pools.map_or(Ok(()), SharedPools::remove)
    }

    fn set(case: &Case, run_options: &RunOptions, work: &Path, templates: &Path) -> Result<Self> {
        let mut rig = Rig::new(run_options, work, templates)?;
        if case.starts() {
            if let Some(directory) = &run_options.shared_pool
                && !case.needs(Need::OwnPool)
            {
                rig.pools.push(Pool::mounted(run_options, directory, "default"));
            }
            rig.start()?;
        }
        Ok(rig)
    }

    fn leave(self) -> Result<()> {
        self.finish()
    }
}
