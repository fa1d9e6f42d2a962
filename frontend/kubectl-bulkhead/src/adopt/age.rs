//! How old it is what a file says of volumes: one that was deleted since would be brought back without its data.

use bulkhead_model::exported::Exported;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// How old it may be.
const FRESH: SignedDuration = SignedDuration::from_hours(1);

/// Returns why a file with these volumes is not to be taken at its word at the time `now`, as what comes behind its
/// name.
pub fn objection<'v>(volumes: impl IntoIterator<Item = &'v Exported>, now: Timestamp) -> Option<String> {
    let times = volumes.into_iter().map(|volume| volume.exported_at.parse::<Timestamp>().ok());
    // Of several files in one, the oldest counts; one without a time may be older than all.
    let oldest = times.min()?;
    let Some(oldest) = oldest else { return Some("does not say when it was written".to_owned()) };
    let age = now.duration_since(oldest);
    if age > FRESH {
        Some(format!("is of {oldest:.0}, {} ago", told(age)))
    } else if -age > FRESH {
        Some(format!("is of {oldest:.0}, which is to come: compare the clocks of the node and of this machine"))
    } else {
        None
    }
}

fn told(age: SignedDuration) -> String {
    let hours = age.as_hours();
    if hours < 48 { format!("{hours} h") } else { format!("{} days", hours / 24) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_taken_at_its_word_for_an_hour() {
        let now: Timestamp = "2026-11-24T12:00:00Z".parse().unwrap();
        let of = |times: &[&str]| {
            let volume = |time: &&str| Exported { exported_at: (*time).to_owned(), ..Exported::default() };
            objection(&times.iter().map(volume).collect::<Vec<_>>(), now)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["2026-11-24T11:00:00Z", "2026-11-24T12:10:00.5Z"]), None);
        let told = of(&["2026-11-24T11:59:00Z", "2026-11-24T10:30:00.25Z"]).unwrap();
        assert_eq!(told, "is of 2026-11-24T10:30:00Z, 1 h ago");
        assert!(of(&["2026-11-04T11:59:00Z"]).unwrap().ends_with("20 days ago"));
        assert!(of(&["2026-11-24T13:30:00Z"]).unwrap().contains("clocks"));
        for unknown in [&["2026-11-24T11:59:00Z", ""][..], &["yesterday"]] {
            assert_eq!(of(unknown).unwrap(), "does not say when it was written");
        }
    }
}
