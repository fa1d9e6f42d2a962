//! When each object is looked at: what has changed at once, what failed later, and none twice at a time. Whoever looks
//! holds a place, and places are shared out by namespace.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::Hash;

use tokio::time::Instant;

use super::shares::Shares;

/// How many objects of a kind are looked at at a time. A namespace has at most half of them, and leaves others as many as
/// it has itself. More would only wait for the helper.
const PLACES: usize = 32;

/// How many at most, once there are so many namespaces that some would have no place: each has one then, up to this.
const MOST: usize = 4 * PLACES;

/// How many become due in one go. Whose each is has to be looked up, and others want their turn.
const AT_ONCE: usize = 256;

/// The agenda of one kind of object, each known by a `T`.
#[derive(Debug)]
pub struct Agenda<T> {
    known: HashMap<T, State>,
    later: BTreeMap<Time, T>,
    due: Shares<T>,
    /// How many places each namespace has.
    taken: HashMap<String, usize>,
    count: u64,
}

/// A moment, and a number, since there may be several things at one.
type Time = (Instant, u64);

/// Where an object stands.
#[derive(Debug)]
enum State {
    /// It is looked at then.
    Later(Time),
    /// It is looked at as soon as there is a place for it.
    Due,
    /// It is being looked at, and is to be again then.
    Looking(Option<Instant>),
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        let (later, due, taken) = (BTreeMap::new(), Shares::default(), HashMap::new());
        Self { known: HashMap::new(), later, due, taken, count: 0 }
    }
}

impl<T: Clone + Debug + Eq + Hash> Agenda<T> {
    /// Has `object` looked at `at` that moment, unless it will be before.
    pub fn schedule(&mut self, object: T, at: Instant) {
        self.count += 1;
        let time = (at, self.count);
        match self.known.entry(object.clone()) {
            Entry::Vacant(unknown) => {
                unknown.insert(State::Later(time));
                self.later.insert(time, object);
            }
            Entry::Occupied(mut known) => match known.get_mut() {
                State::Later(before) if at < before.0 => {
                    self.later.remove(before);
                    *before = time;
                    self.later.insert(time, object);
                }
                State::Later(_) | State::Due => {}
                State::Looking(again) => *again = Some(again.map_or(at, |again| again.min(at))),
            },
        }
    }

    /// Returns when the next object is due.
    pub fn next(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((at, _), _)| *at)
    }

    /// Returns the next object that is due by `now` if its namespace is not known: nothing is left to look at. Of very many
    /// it leaves some for the next time.
    pub fn advance(&mut self, now: Instant, namespace: impl Fn(&T) -> Option<String>) -> Option<T> {
        for _ in 0..AT_ONCE {
            let first = self.later.first_entry().filter(|first| first.key().0 <= now)?;
            let object = first.remove();
            let Some(namespace) = namespace(&object) else {
                self.known.remove(&object);
                return Some(object);
            };
            self.known.insert(object.clone(), State::Due);
            self.due.push(namespace, object);
        }
        None
    }

    /// Returns the next object to look at, if there is a place for it, and its namespace.
    pub fn begin(&mut self) -> Option<(String, T)> {
        let (taken, all) = (&self.taken, self.taken.values().sum::<usize>());
        let has_place = |namespace: &str| {
            let own = taken.get(namespace).copied().unwrap_or_default();
            own < PLACES.saturating_sub(all) || own == 0 && all < MOST
        };
        let (namespace, object) = self.due.next(has_place)?;
        *self.taken.entry(namespace.clone()).or_default() += 1;
        self.known.insert(object.clone(), State::Looking(None));
        Some((namespace, object))
    }

    /// Records that `object` of `namespace` was looked at, and is to be again `at` that moment, if at all.
    pub fn end(&mut self, namespace: &str, object: T, at: Option<Instant>) {
        if let Some(places) = self.taken.get_mut(namespace) {
            *places -= 1;
            if *places == 0 {
                self.taken.remove(namespace);
            }
        }
        let again = match self.known.remove(&object) {
            Some(State::Looking(again)) => again,
            _ => None,
        };
        if let Some(at) = again.into_iter().chain(at).min() {
            self.schedule(object, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn namespace_of(object: &&str) -> Option<String> {
        object.split_once('/').map(|(namespace, _)| namespace.to_owned())
    }

    /// An agenda for which all of these are due.
    fn due(objects: &[&'static str], now: Instant) -> Agenda<&'static str> {
        let mut agenda = Agenda::default();
        objects.iter().for_each(|object| agenda.schedule(*object, now));
        assert_eq!(agenda.advance(now, namespace_of), None);
        agenda
    }

    #[test]
    fn whatever_others_have_there_is_a_place_for_one_that_asks_for_nothing_else() {
        let now = Instant::now();
        let namespace = |object: &String| object.split_once('/').map(|(namespace, _)| namespace.to_owned());
        for floods in [1, 4, 20, 96] {
            let mut agenda = Agenda::default();
            for (flood, number) in (0..floods).flat_map(|flood| (0..250).map(move |number| (flood, number))) {
                agenda.schedule(format!("flood-{flood}/{number}"), now);
                agenda.advance(now, namespace);
                // The looks of one namespace begin before another's are known, and none of them ends.
                while agenda.begin().is_some() {}
            }
            assert_eq!(agenda.taken["flood-0"], PLACES / 2);
            agenda.schedule("quiet/data".to_owned(), now);
            agenda.advance(now, namespace);
            assert_eq!(agenda.begin(), Some(("quiet".to_owned(), "quiet/data".to_owned())), "{floods} floods");
            assert!(agenda.taken.values().sum::<usize>() <= MOST);
        }
    }

    #[test]
    fn an_object_is_looked_at_once_at_a_time_and_again_if_it_has_changed_meanwhile() {
        let now = Instant::now();
        let (soon, later) = (now + Duration::from_secs(1), now + Duration::from_secs(60));
        let mut agenda = due(&["a/1"], now);
        let (namespace, object) = agenda.begin().unwrap();
        agenda.schedule("a/1", now);
        assert_eq!((agenda.advance(now, namespace_of), agenda.begin()), (None, None));
        agenda.end(&namespace, object, Some(later));
        assert_eq!(agenda.next(), Some(now), "the change");
        agenda.advance(now, namespace_of);
        let (namespace, object) = agenda.begin().unwrap();
        agenda.end(&namespace, object, Some(later));
        agenda.schedule("a/1", soon);
        assert_eq!(agenda.next(), Some(soon), "the earlier one counts");
        agenda.schedule("a/1", later);
        assert_eq!((agenda.next(), agenda.later.len()), (Some(soon), 1));
        assert!(agenda.taken.is_empty());
    }

    #[test]
    fn one_that_is_gone_takes_no_place_and_is_forgotten() {
        let now = Instant::now();
        let mut agenda = Agenda::default();
        agenda.schedule("gone", now);
        assert_eq!(agenda.advance(now, namespace_of), Some("gone"));
        assert!(agenda.known.is_empty() && agenda.later.is_empty() && agenda.begin().is_none());
    }
}
