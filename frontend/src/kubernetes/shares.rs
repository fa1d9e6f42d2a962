//! What waits, shared out by whose it is: each in turn has one of its own taken, however many others have.

use std::collections::{HashMap, VecDeque};

/// What waits. Each owner's things stay in their order.
#[derive(Debug)]
pub struct Shares<T> {
    waiting: HashMap<String, VecDeque<T>>,
    /// The owners of something, the next one first.
    turns: VecDeque<String>,
    len: usize,
}

impl<T> Default for Shares<T> {
    fn default() -> Self {
        Self { waiting: HashMap::new(), turns: VecDeque::new(), len: 0 }
    }
}

impl<T> Shares<T> {
    /// Returns how many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds `thing` of `owner`.
    pub fn push(&mut self, owner: String, thing: T) {
        self.len += 1;
        let waiting = self.waiting.entry(owner.clone()).or_default();
        if waiting.is_empty() {
            self.turns.push_back(owner);
        }
        waiting.push_back(thing);
    }

    /// Takes the next thing, of an owner that may have one taken now.
    pub fn next(&mut self, may: impl Fn(&str) -> bool) -> Option<(String, T)> {
        let at = self.turns.iter().position(|owner| may(owner))?;
        let owner = self.turns.remove(at)?;
        let waiting = self.waiting.get_mut(&owner)?;
        let thing = waiting.pop_front()?;
        self.len -= 1;
        if waiting.is_empty() {
            self.waiting.remove(&owner);
        } else {
            self.turns.push_back(owner.clone());
        }
        Some((owner, thing))
    }

    /// Drops the last thing of whoever has the most.
    pub fn drop_last_of_most(&mut self) {
        let most = self.waiting.iter().max_by_key(|(_, waiting)| waiting.len()).map(|(owner, _)| owner.clone());
        let Some(owner) = most else { return };
        let Some(waiting) = self.waiting.get_mut(&owner) else { return };
        self.len -= usize::from(waiting.pop_back().is_some());
        if waiting.is_empty() {
            self.waiting.remove(&owner);
            self.turns.retain(|other| *other != owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_has_its_turn_whatever_others_have() {
        let mut shares = Shares::default();
        (0..1000).for_each(|number| shares.push("many".to_owned(), number));
        shares.push("one".to_owned(), 1);
        let taken: Vec<_> = std::iter::from_fn(|| shares.next(|_| true)).take(3).collect();
        assert_eq!(taken, [("many".to_owned(), 0), ("one".to_owned(), 1), ("many".to_owned(), 1)]);
        assert_eq!(shares.len(), 998);
        shares.push("one".to_owned(), 2);
        assert_eq!(shares.next(|owner| owner != "many"), Some(("one".to_owned(), 2)));
        assert_eq!(shares.next(|owner| owner != "many"), None);
    }

    #[test]
    fn who_has_the_most_loses_first() {
        let mut shares = Shares::default();
        (0..3).for_each(|number| shares.push("many".to_owned(), number));
        shares.push("one".to_owned(), 1);
        (0..3).for_each(|_| shares.drop_last_of_most());
        let left: Vec<_> = std::iter::from_fn(|| shares.next(|_| true)).collect();
        assert_eq!((left.len(), shares.len()), (1, 0));
        (0..3).for_each(|_| shares.drop_last_of_most());
        assert_eq!(shares.next(|_| true), None);
    }
}
