//! How fast this machine is just now. Deadlines that only guard against hanging are longer where everything takes longer:
//! a slow machine gets a slow run, not a failed one.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
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
const INTERVAL: Duration = Duration::from_secs(5);

/// The pace of this process, in percent.
static KNOWN: OnceLock<AtomicU32> = OnceLock::new();

/// A deadline for this machine, where a host that has nothing else to do would get this one.
pub fn patience(on_host: Duration) -> Duration {
    on_host * Pace::current().percent / 100
}

impl Pace {
    /// The pace that this process has been told, or has measured.
    pub fn current() -> Self {
        // Where nothing can be measured, the usual deadlines are the best that there is.
        let known = KNOWN.get_or_init(|| AtomicU32::new(Self::measure().map_or(100, |pace| pace.percent)));
        Self { percent: known.load(Ordering::Relaxed) }
    }

    /// Makes it the pace of this process.
    pub fn adopt(self) {
        KNOWN.get_or_init(AtomicU32::default).store(self.percent, Ordering::Relaxed);
    }

    /// Measures the pace of this machine.
    pub fn measure() -> Result<Self> {
        let samples = (0..SAMPLES).map(|_| sample()).collect::<Result<Vec<_>>>()?;
        Ok(Self::median(&samples))
    }

    /// Keeps the pace of this process up to date for as long as it runs.
    pub fn follow() {
        std::thread::spawn(|| {
            let mut samples = vec![USUALLY * Self::current().percent / 100; SAMPLES];
            for oldest in (0..SAMPLES).cycle() {
                std::thread::sleep(INTERVAL);
                if let Ok(sample) = sample() {
                    samples[oldest] = sample;
                    Self::median(&samples).adopt();
                }
            }
        });
    }

    fn median(samples: &[Duration]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        let percent = median.as_micros() * 100 / USUALLY.as_micros();
        Self { percent: u32::try_from(percent).unwrap_or(SLOWEST).clamp(100, SLOWEST) }
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
