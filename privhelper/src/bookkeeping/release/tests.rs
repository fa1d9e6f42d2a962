use bulkhead_protocol::{CallId, Text};

use super::*;
use crate::state::{Deleted, FoundVolumes, testing::pool};
use crate::sys::packet;

fn volumes(names: &[&str]) -> Arc<Volumes> {
    let mut found = FoundVolumes::default();
    for name in names {
        let (pool, progress, call) = (pool("fast"), Progress::default(), CallId(7));
        found.add_deleted(name, Deleted { pool, share: Share::default(), progress, call });
    }
    Arc::new(found.all_known())
}

fn fast() -> PoolName {
    "fast".parse().expect("a name")
}

fn emptied(since: Instant, next: Instant) -> Progress {
    Progress::Emptied(Emptied { since, next })
}

fn report(outcome: Outcome) -> Report {
    Report { name: Text::new(".deleted.1.a"), outcome }
}

#[test]
fn a_report_says_how_far_a_deletion_has_progressed() {
    let now = Instant::now();
    for (outcome, expected) in [
        (Outcome::Begun, Progress::Emptying(now)),
        (Outcome::Emptied, emptied(now, now)),
        (Outcome::Unfinished, Progress::Waiting),
        (Outcome::Failed(5), Progress::Waiting),
    ] {
        assert_eq!(progress(&report(outcome), now), expected);
    }
}

#[test]
fn a_project_that_stays_charged_is_looked_at_less_and_less_often() {
    let (volumes, start) = (volumes(&["a"]), Instant::now());
    volumes.progress(&fast(), "a", emptied(start, start));
    let mut looks = Vec::new();
    for tenths in 0..=1200 {
        let now = start + Duration::from_millis(100) * tenths;
        assert!(!wait(&volumes, &fast(), now).is_zero());
        for (name, _, emptied) in due(&volumes, &fast(), now) {
            looks.push(tenths);
            volumes.progress(&fast(), &name, Progress::Emptied(emptied.again(now)));
        }
        assert!(due(&volumes, &fast(), now).is_empty());
    }
    assert_eq!(looks, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 812, 1112]);
}

#[test]
fn only_what_is_emptied_is_due() {
    let (volumes, now) = (volumes(&["a", "b", "c"]), Instant::now());
    volumes.progress(&fast(), "b", emptied(now, now));
    volumes.progress(&fast(), "c", Progress::Emptying(now));
    let names: Vec<_> = due(&volumes, &fast(), now).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["b"]);
    assert_eq!(wait(&volumes, &fast(), now), Duration::from_millis(1));
    volumes.forget(&fast(), &testing::released("b"));
    assert_eq!(wait(&volumes, &fast(), now), REPORT_INTERVAL);
    volumes.progress(&fast(), "unknown", emptied(now, now));
    assert!(due(&volumes, &fast(), now).is_empty(), "a report about nothing changes nothing");
}

#[test]
fn a_volume_whose_report_was_missed_is_found_to_be_gone() {
    let (volumes, now) = (volumes(&["a", "b"]), Instant::now());
    find_gone(&volumes, &fast(), now, |name| name == "b");
    let names: Vec<_> = due(&volumes, &fast(), now).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["b"]);
}

#[test]
fn waking_never_waits() {
    let (line, _emptier) = packet::pair().expect("sockets");
    let deletions = Deletions::new(line, volumes(&[]));
    for _ in 0..10_000 {
        deletions.wake(false);
    }
    let missed = || *lock(&deletions.missed);
    assert_eq!(missed(), Some(false));
    deletions.wake(true);
    deletions.wake(false);
    assert_eq!(missed(), Some(true), "once it is about something in its place, it stays so");
}

#[test]
fn what_the_emptier_reports_is_recorded_for_as_long_as_it_lives() {
    let (line, emptier) = packet::pair().expect("sockets");
    let volumes = volumes(&["a", ".deleted.1.a"]);
    let deletions = Deletions::new(line, Arc::clone(&volumes));
    let packet = bulkhead_protocol::encode(&report(Outcome::Emptied)).expect("a packet");
    packet::send(&emptier, &packet, None).expect("there is room");
    drop(emptier);
    let error = deletions.finish(&pool("fast")).expect_err("the emptier is gone");
    assert!(error.message.as_str().contains("receive a report from the emptier"), "{error}");
    assert_eq!(volumes.deleted(&fast(), |name, _| Some(name.to_owned())), ["a"], "nothing is charged to a project");
    assert_eq!(deletions.releasing_since(), None);
}

#[test]
fn what_stays_charged_is_reported_after_a_while() {
    let ago = |ago| Instant::now().checked_sub(ago).expect("a moment");
    let number = |progress| {
        let volumes = volumes(&["a"]);
        volumes.progress(&fast(), "a", progress);
        charged(&volumes, &fast()).len()
    };
    assert_eq!(number(emptied(ago(CHARGED_LIMIT), Instant::now())), 1);
    assert_eq!(number(emptied(ago(CHARGED_LIMIT / 2), Instant::now())), 0);
    assert_eq!(number(Progress::Emptying(ago(CHARGED_LIMIT))), 0);
}

#[test]
fn a_filesystem_that_does_not_answer_is_reported_after_a_while() {
    let ago = |ago| Instant::now().checked_sub(ago).expect("a moment");
    let stuck = |progress, releasing| {
        let volumes = volumes(&["a"]);
        let deletions = Deletions::new(packet::pair().expect("sockets").0, Arc::clone(&volumes));
        volumes.progress(&fast(), "a", progress);
        *lock(&deletions.releasing) = releasing;
        assert_eq!(deletions.releasing_since(), releasing);
        deletions.stuck(&fast()).is_some()
    };
    assert!(!stuck(Progress::Waiting, None));
    assert!(!stuck(Progress::Emptying(ago(STUCK_LIMIT / 2)), None));
    assert!(stuck(Progress::Emptying(ago(STUCK_LIMIT)), None));
    assert!(stuck(Progress::Waiting, Some(ago(STUCK_LIMIT))));
}
