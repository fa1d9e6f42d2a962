//! How fast this machine is just now. Deadlines that only guard against hanging are longer where everything takes longer:
//! a slow machine gets a slow run, not a failed one.

use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How many times longer than usual everything takes: at least once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pace {
    percent: u32,
}

/// How long the piece of work takes on a host with two processors that has nothing else to do.
const USUALLY: Duration = Duration::from_millis(25);
/// Some tests wait for as long as a deadline, so a run with longer ones would hardly come to an end.
const SLOWEST: u32 = 800;
/// An odd number, of which the median is taken.
const SAMPLES: usize = 5;
/// How often the pace of a run is measured again: others may begin to use the machine, and end.
const INTERVAL: Duration = Duration::from_secs(10);

/// The pace that this process has measured.
static KNOWN: OnceLock<Pace> = OnceLock::new();
/// Where the pace can be read, as long as the process lives that measures it.
static TOLD: OnceLock<PathBuf> = OnceLock::new();

/// A deadline for this machine, where a host that has nothing else to do would get this one.
pub fn patience(on_host: Duration) -> Duration {
    on_host * Pace::current().percent / 100
}

impl Pace {
    /// The pace as another process tells it, or as this one has measured it.
    pub fn current() -> Self {
        if let Some(told) = TOLD.get().and_then(|path| fs::read_to_string(path).ok()?.trim().parse().ok()) {
            return told;
        }
        // Where nothing can be measured, the usual deadlines are the best that there is.
        *KNOWN.get_or_init(|| Self::measure().unwrap_or(Self { percent: 100 }))
    }

    /// Has this process go by what is told at `path`.
    pub fn is_told_at(path: PathBuf) {
        let _ = TOLD.set(path);
    }

    /// Where this process is told it, for its children.
    pub fn told_at() -> Option<PathBuf> {
        TOLD.get().cloned()
    }

    /// Measures the pace of this machine.
    pub fn measure() -> Result<Self> {
        let samples = (0..SAMPLES).map(|_| sample()).collect::<Result<Vec<_>>>()?;
        Ok(Self::median(&samples))
    }

    /// Keeps the pace up to date for as long as this process runs, for all others that are told where.
    pub fn follow() -> Result<()> {
        let told = tempfile::tempfile().context("make a file for the pace")?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), told.as_raw_fd());
        let tell = move |pace: Self| told.write_all_at(format!("{:>8}", pace.to_string()).as_bytes(), 0);
        let begun = Self::current();
        tell(begun)?;
        Self::is_told_at(path.into());
        std::thread::spawn(move || {
            let mut samples = vec![USUALLY * begun.percent / 100; SAMPLES];
            for oldest in (0..SAMPLES).cycle() {
                std::thread::sleep(INTERVAL);
                if let Ok(sample) = sample() {
                    samples[oldest] = sample;
                    // What was told before holds until it can be told again.
                    let _ = tell(Self::median(&samples));
                }
            }
        });
        Ok(())
    }

    fn median(samples: &[Duration]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        let percent = median.as_micros() * 100 / USUALLY.as_micros();
        Self { percent: u32::try_from(percent).unwrap_or(SLOWEST).clamp(100, SLOWEST) }
    }
}

/// A time that is given to something for as long as it takes, however the pace changes meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// What is left of it, on a host that has nothing else to do.
    left: Duration,
    /// Since when it is being used up.
    counted: Instant,
}

impl Allowance {
    /// One that begins now, of so much time on a host that has nothing else to do.
    pub fn new(on_host: Duration) -> Self {
        Self { left: on_host, counted: Instant::now() }
    }

    /// One that begins now, of so much time at the pace that there is now.
    pub fn at_this_pace(limit: Duration) -> Self {
        Self::new(limit * 100 / Pace::current().percent)
    }

    /// Returns whether it is used up.
    pub fn is_spent(&mut self) -> bool {
        let now = Instant::now();
        self.spend(now.duration_since(self.counted), Pace::current());
        self.counted = now;
        self.left.is_zero()
    }

    fn spend(&mut self, passed: Duration, pace: Pace) {
        self.left = self.left.saturating_sub(passed * 100 / pace.percent);
    }
}

/// How long a fixed piece of work takes now: starting processes, which is most of what tests do, and calculating for longer
/// than the kernel lets a process run before others get their turn. The kernel calculates, so it does not matter how this
/// program was compiled.
fn sample() -> Result<Duration> {
    const PROCESSES: usize = 8;
    const BLOCKS: usize = 64;
    let begun = Instant::now();
    for _ in 0..PROCESSES {
        Command::new("true").stdin(Stdio::null()).status().context("run true(1)")?;
    }
    let (mut random, mut block) = (File::open("/dev/urandom")?, [0; 1 << 16]);
    for _ in 0..BLOCKS {
        random.read_exact(&mut block)?;
    }
    Ok(begun.elapsed())
}

/// As it is passed to another process.
impl Display for Pace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{:02}", self.percent / 100, self.percent % 100)
    }
}

impl FromStr for Pace {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (whole, rest) = text.split_once('.').context("a pace is a number like 1.50")?;
        Ok(Self { percent: whole.parse::<u32>()? * 100 + rest.parse::<u32>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_passes_slowly_is_spent_slowly() {
        let mut allowance = Allowance::new(Duration::from_secs(90));
        for (percent, seconds, left) in [(100, 30, 60), (400, 160, 20), (100, 19, 1), (200, 2, 0), (100, 1, 0)] {
            allowance.spend(Duration::from_secs(seconds), Pace { percent });
            assert_eq!(allowance.left, Duration::from_secs(left));
        }
        assert!(allowance.is_spent());
    }

    #[test]
    fn a_pace_is_read_as_it_is_written() {
        for percent in [100, 101, 150, SLOWEST] {
            let pace = Pace { percent };
            assert_eq!(pace.to_string().parse::<Pace>().expect("a pace"), pace);
        }
    }

    #[test]
    fn one_slow_sample_makes_no_slow_machine() {
        let slow = Duration::from_secs(1);
        assert_eq!(Pace::median(&[USUALLY, slow, USUALLY]), Pace { percent: 100 });
        assert_eq!(Pace::median(&[USUALLY, slow, USUALLY * 2]), Pace { percent: 200 });
        assert_eq!(Pace::median(&[slow * 100]), Pace { percent: SLOWEST });
        assert_eq!(Pace::median(&[Duration::ZERO]), Pace { percent: 100 });
    }
}
