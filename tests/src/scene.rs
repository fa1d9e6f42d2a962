//! What the tests of a program find when they begin.

use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::case::Case;
use crate::setting::Setting;
use crate::stand::Stand;

/// The environment of one test, prepared before it and checked after it.
pub trait Scene: Debug + Sized + 'static {
    /// What all tests of a run share. It is made once, in the process that runs them.
    type Shared;

    /// How long an ordinary test may take on the build machine, all it waits for included.
    const LIMIT: Duration;

    /// How many tests run at the same time, unless `--test-threads` says otherwise.
    const SIDE_BY_SIDE: usize = 1;

    /// Whether its tests run on the host, too: then a machine runs only those that may end otherwise there.
    const RUNS_ON_HOST: bool = false;

    /// Prepares what is shared, and passes it to the tests in the setting.
    ///
    /// # Errors
    /// When it cannot be made.
    fn share(setting: &mut Setting) -> Result<Self::Shared>;

    /// Ends what was shared.
    ///
    /// # Errors
    /// When it does not end as it should.
    fn end(shared: Self::Shared, all_passed: bool) -> Result<()>;

    /// Sets the scene below `work`, in the test's own process.
    ///
    /// # Errors
    /// When something of it does not get ready.
    fn set(case: &Case<Self>, setting: &Setting, work: &Path, templates: &Path) -> Result<Self>;

    /// Checks that nothing is left of what the test did, and ends it.
    ///
    /// # Errors
    /// What is left over.
    fn leave(self) -> Result<()>;
}

impl Scene for Stand {
    type Shared = ();

    const LIMIT: Duration = Duration::from_secs(90);
    const RUNS_ON_HOST: bool = true;

    fn share(_: &mut Setting) -> Result<()> {
        Ok(())
    }

    fn end((): (), _: bool) -> Result<()> {
        Ok(())
    }

    fn set(case: &Case, setting: &Setting, work: &Path, templates: &Path) -> Result<Self> {
        let mut stand = Stand::new(setting, work, templates)?;
        if case.starts() {
            stand.start()?;
        }
        Ok(stand)
    }

    fn leave(self) -> Result<()> {
        self.finish()
    }
}
