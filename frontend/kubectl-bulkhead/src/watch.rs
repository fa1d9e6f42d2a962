//! `volumes --watch`: all volumes, and then each that changes or goes.

use std::collections::BTreeMap;
use std::pin::pin;

use bulkhead_console::report::{self, Format, Report, Table};
use bulkhead_model::api_error::error_text;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};

use crate::NAME;
use crate::cluster::{Cluster, Failure, Volume};
use crate::options::Filter;
use crate::volumes::{HEADINGS, NARROW, json, row};

/// What is printed in the place of a volume's phase when it is gone.
const DELETED: &str = "Deleted";

/// Prints all volumes that `filter` admits, and then each that changes or goes, until interrupted.
pub async fn run(cluster: &Cluster, filter: &Filter, format: Format, wide: bool) -> Result<(), Failure> {
    let objects: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let mut events = pin!(watcher(objects, watcher::Config::default()).default_backoff());
    let mut seen = Seen::default();
    let mut printer = Printer { format, columns: if wide { HEADINGS.len() } else { NARROW }, widths: None };
    loop {
        match events.try_next().await {
            Ok(Some(event)) => {
                let news = seen.after(event, &|object| cluster.volume(object), &|volume| filter.admits(volume));
                printer.print(&news)?;
            }
            Ok(None) => return Ok(()),
            // The watcher tries again.
            Err(error) => report::note(NAME, &format!("watching is interrupted: {}", words(&error))),
        }
    }
}

fn words(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => error_text(error),
        watcher::Error::WatchError(status) => format!("{} ({} {})", status.message, status.code, status.reason),
        watcher::Error::NoResourceVersion => error.to_string(),
    }
}

/// The volumes as they were printed last.
#[derive(Default)]
struct Seen {
    printed: BTreeMap<String, Volume>,
    /// What a list that has not ended has shown so far.
    listed: BTreeMap<String, Volume>,
}

impl Seen {
    /// Returns what is to be printed after `event`. Of the first list that is all; of later ones, what has changed
    /// meanwhile.
    fn after(
        &mut self,
        event: Event<PersistentVolume>,
        own: &dyn Fn(&PersistentVolume) -> Option<Volume>,
        admits: &dyn Fn(&Volume) -> bool,
    ) -> Vec<Volume> {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => self.listed.extend(own(&object).map(|volume| (volume.name.clone(), volume))),
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                let gone: Vec<_> = self.printed.keys().filter(|name| !listed.contains_key(*name)).cloned().collect();
                let mut news: Vec<_> = gone.iter().filter_map(|name| self.removed(name)).collect();
                news.extend(listed.into_values().filter_map(|volume| self.changed(volume, admits)));
                news.sort_by(|one, other| (&one.node, &one.name).cmp(&(&other.node, &other.name)));
                return news;
            }
            Event::Apply(object) => {
                return own(&object).and_then(|volume| self.changed(volume, admits)).into_iter().collect();
            }
            Event::Delete(object) => return self.removed(&object.name_any()).into_iter().collect(),
        }
        Vec::new()
    }

    /// `volume`, if anything about it looks different. One that is no longer to be listed is printed once more.
    fn changed(&mut self, volume: Volume, admits: &dyn Fn(&Volume) -> bool) -> Option<Volume> {
        let before = self.printed.remove(&volume.name);
        let is_admitted = admits(&volume);
        let is_news = before.map_or(is_admitted, |before| row(&before) != row(&volume));
        if is_admitted {
            self.printed.insert(volume.name.clone(), volume.clone());
        }
        is_news.then_some(volume)
    }

    fn removed(&mut self, name: &str) -> Option<Volume> {
        self.printed.remove(name).map(|volume| Volume { phase: DELETED.to_owned(), ..volume })
    }
}

struct Printer {
    format: Format,
    columns: usize,
    /// The widths of the columns, once there is a heading.
    widths: Option<Vec<usize>>,
}

impl Printer {
    fn print(&mut self, volumes: &[Volume]) -> Result<(), Failure> {
        if volumes.is_empty() {
            return Ok(());
        }
        if self.format != Format::Text {
            for volume in volumes {
                Report::new(volume.json(), Table::default()).print(self.format)?;
            }
            return Ok(());
        }
        let table = match &self.widths {
            None => Table::headed(HEADINGS, volumes.iter().map(row)).narrowed(self.columns),
            Some(widths) => Table::rows(volumes.iter().map(row)).narrowed(self.columns).below(widths),
        };
        self.widths = Some(table.widths());
        Ok(Report::new(json(volumes), table).print(self.format)?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, phase: &str) -> PersistentVolume {
        serde_json::from_value(json!({ "metadata": { "name": name }, "status": { "phase": phase } })).unwrap()
    }

    fn own(object: &PersistentVolume) -> Option<Volume> {
        let phase = object.status.clone().and_then(|status| status.phase).unwrap_or_default();
        let is_own = !object.name_any().starts_with("foreign");
        is_own.then(|| Volume { name: object.name_any(), phase, ..Volume::default() })
    }

    #[test]
    fn what_looks_the_same_is_not_printed_again() {
        let mut seen = Seen::default();
        let mut after = |event| {
            let news = seen.after(event, &own, &|volume| volume.phase != "Available").into_iter();
            news.map(|volume| format!("{} {}", volume.name, volume.phase)).collect::<Vec<_>>()
        };
        let none = [""; 0];
        assert_eq!(after(Event::Init), none);
        for object in [object("b", "Bound"), object("a", "Bound"), object("foreign", "Bound"), object("c", "Available")]
        {
            assert_eq!(after(Event::InitApply(object)), none);
        }
        assert_eq!(after(Event::InitDone), ["a Bound", "b Bound"]);
        assert_eq!(after(Event::Apply(object("a", "Bound"))), none, "only an annotation has changed");
        assert_eq!(after(Event::Apply(object("a", "Released"))), ["a Released"]);
        assert_eq!(after(Event::Apply(object("a", "Available"))), ["a Available"], "it leaves the list");
        assert_eq!(after(Event::Delete(object("a", "Available"))), none);
        assert_eq!(after(Event::Delete(object("foreign", "Bound"))), none);
        // The connection was lost, and with it what happened meanwhile.
        assert_eq!(after(Event::Init), none);
        assert_eq!(after(Event::InitApply(object("c", "Bound"))), none);
        assert_eq!(after(Event::InitDone), ["b Deleted", "c Bound"]);
    }
}
