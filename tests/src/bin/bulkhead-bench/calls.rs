//! Each call of a volume's life: on a kept connection and on new ones, alone and concurrently with others.

use std::sync::Arc;

use anyhow::Result;
use bulkhead_tests::bench::report::{Baseline, Unit};
use bulkhead_tests::bench::statistics::Summary;

use crate::driver::{Call, Connection, Driver, Kind, Phase, Volume};
use crate::floor::{Floor, Raw};
use crate::options::Amount;
use crate::run::Run;

/// The calls in the order of a volume's life: the call, its name in the report, and whether it changes anything.
pub const LIFE: [(Call, &str, bool); 11] = [
    (Call::Create, "create", true),
    (Call::Publish, "first publish", true),
    (Call::Publish, "publish again", false),
    (Call::Stats, "stats", false),
    (Call::Expand, "expand", true),
    (Call::Unpublish, "unpublish", true),
    (Call::Publish, "later publish", true),
    (Call::Unpublish, "", true),
    (Call::PublishExclusively, "exclusive publish", true),
    (Call::Unpublish, "", true),
    (Call::Delete, "delete", true),
];

const SECTION: &str = "calls";

/// Measures all calls of a driver. `who` is empty for our own driver, and otherwise names the other one.
pub fn measure(run: &mut Run, who: &str, driver: &Driver, floor: &Floor, amount: &Amount) -> Result<()> {
    for connection in Connection::ALL {
        for &in_flight in &amount.in_flight {
            let conditions = Conditions { who, connection, in_flight };
            if run.has_time_for(&format!("calls: {}", conditions.name())) {
                conditions.measure(run, driver, floor, amount.calls.max(in_flight * 2))?;
            }
        }
    }
    Ok(())
}

/// The conditions under which calls are made.
#[derive(Clone, Copy)]
struct Conditions<'a> {
    who: &'a str,
    connection: Connection,
    in_flight: usize,
}

impl Conditions<'_> {
    fn name(self) -> String {
        let who = if self.who.is_empty() { String::new() } else { format!("{}: ", self.who) };
        format!("{who}{} connection, {} in flight", self.connection.name(), self.in_flight)
    }

    fn measure(self, run: &mut Run, driver: &Driver, floor: &Floor, number: usize) -> Result<()> {
        let probes = driver.volumes("probe", Kind::Directory, number, false);
        let phase = driver.phase(self.connection, self.in_flight, &probes, Call::Probe)?;
        let probe = Summary::of_times(&phase.times);
        let round_trip = run.report.find("floor", Raw::RoundTrip.name(), "").map(|own| own.as_baseline("round trip"));
        run.add(SECTION, "Probe", &self.name(), Unit::Microseconds, probe, round_trip);
        for kind in Kind::ALL {
            let volumes = driver.volumes("measured", kind, number, false);
            if let Err(error) = self.live(run, driver, kind, &volumes, floor, &probe) {
                // Another driver may not offer such volumes at all.
                run.leave_out(format!("{} volumes, {}: {error:#}", kind.name(), self.name()));
                driver.remove(&volumes)?;
            }
        }
        Ok(())
    }

    fn live(
        self,
        run: &mut Run,
        driver: &Driver,
        kind: Kind,
        volumes: &Arc<Vec<Volume>>,
        floor: &Floor,
        probe: &Summary,
    ) -> Result<()> {
        for (call, name, changes) in LIFE {
            let phase = match driver.phase(self.connection, self.in_flight, volumes, call) {
                // Another driver may not offer these calls, and nothing that follows needs them.
                Err(error) if matches!(call, Call::Stats | Call::Expand) && !self.who.is_empty() => {
                    run.leave_out(format!("{name} {}, {}: {error:#}", kind.name(), self.name()));
                    continue;
                }
                phase => phase?,
            };
            if name.is_empty() {
                continue;
            }
            let subject = format!("{name} {}", kind.name());
            let baseline = Some(on_top_of(probe, floor.behind(call, kind, changes)));
            let times = Summary::of_times(&phase.times);
            run.add(SECTION, &subject, &self.name(), Unit::Microseconds, times, baseline);
            if self.in_flight > 1 {
                self.add_rate(run, &subject, &phase);
            }
        }
        Ok(())
    }

    /// Adds the number of calls answered per second, relative to that of a client that makes one call at a time.
    fn add_rate(self, run: &mut Run, subject: &str, phase: &Phase) {
        let per_second = phase.times.len() as f64 / phase.took.as_secs_f64().max(1e-9);
        let alone = run.report.find(SECTION, subject, &Self { in_flight: 1, ..self }.name());
        let alone = alone.filter(|own| own.summary.median > 0.0).map(|own| Baseline {
            name: "one at a time".to_owned(),
            median: 1e6 / own.summary.median,
            relative_error: own.summary.relative_error(),
        });
        let condition = format!("{}, rate", self.name());
        run.add(SECTION, subject, &condition, Unit::PerSecond, Summary::of(&[per_second]), alone);
    }
}

/// The baseline of a call: an empty call under the same conditions, plus the system calls behind it.
fn on_top_of(probe: &Summary, raw: Baseline) -> Baseline {
    let median = probe.median + raw.median;
    let error = (probe.median * probe.relative_error()).hypot(raw.median * raw.relative_error);
    let name = if raw.name.is_empty() { "Probe".to_owned() } else { format!("Probe + {}", raw.name) };
    Baseline { name, median, relative_error: if median > 0.0 { error / median } else { 0.0 } }
}
