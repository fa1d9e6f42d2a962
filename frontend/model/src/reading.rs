//! How much is read of a list that comes a page at a time. Whoever sends it decides how long it is, and may never end it.

use std::time::{Duration, Instant};

/// The most that is read of a list.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling {
    /// In pages.
    pub pages: usize,
    /// In bytes, of what is kept of an answer.
    pub bytes: usize,
    /// Until its end has come.
    pub time: Duration,
}

/// Why a list was not read to its end. Nothing follows from a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unended {
    /// There are more pages than are read.
    #[error("the list has more than {0} pages")]
    Pages(usize),
    /// It is larger than what is read.
    #[error("the list has more than {} MiB", .0 >> 20)]
    Bytes(usize),
    /// Its end did not come in time.
    #[error("the list has not ended within {} seconds", .0.as_secs())]
    Time(Duration),
    /// The next page is one that was there before.
    #[error("the list goes in a circle: a page of it leads to an earlier one")]
    Circle,
}

/// A list, as far as it has been read.
#[derive(Debug)]
pub struct Reading {
    ceiling: Ceiling,
    begun: Instant,
    pages: usize,
    bytes: usize,
    next: String,
}

impl Reading {
    /// A list of which nothing has been read yet.
    pub fn begin(ceiling: Ceiling) -> Self {
        Self { ceiling, begun: Instant::now(), pages: 0, bytes: 0, next: String::new() }
    }

    /// How long its next page may take.
    pub fn time_left(&self) -> Duration {
        self.ceiling.time.saturating_sub(self.begun.elapsed())
    }

    /// What is said of a page that took longer.
    pub fn late(&self) -> Unended {
        Unended::Time(self.ceiling.time)
    }

    /// Notes a page of so many bytes. `next` leads to the page after it, and is empty on the last one.
    ///
    /// # Errors
    /// See [`Unended`].
    pub fn page(&mut self, bytes: usize, next: &str) -> Result<(), Unended> {
        self.pages += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        match next {
            _ if self.bytes > self.ceiling.bytes => Err(Unended::Bytes(self.ceiling.bytes)),
            _ if self.pages > self.ceiling.pages => Err(Unended::Pages(self.ceiling.pages)),
            "" => Ok(()),
            next if next == self.next => Err(Unended::Circle),
            _ if self.time_left().is_zero() => Err(self.late()),
            next => {
                next.clone_into(&mut self.next);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CEILING: Ceiling = Ceiling { pages: 3, bytes: 2 << 20, time: Duration::from_secs(3600) };

    fn read(ceiling: Ceiling, pages: &[(usize, &str)]) -> Result<(), Unended> {
        let mut reading = Reading::begin(ceiling);
        pages.iter().try_for_each(|(bytes, next)| reading.page(*bytes, next))
    }

    #[test]
    fn a_list_that_ends_is_read() {
        assert_eq!(read(CEILING, &[(0, "")]), Ok(()));
        assert_eq!(
            read(CEILING, &[(1 << 20, "a"), (1 << 19, "b"), (1 << 19, "")]),
            Ok(()),
            "it is as large as it may be"
        );
    }

    #[test]
    fn every_list_is_given_up_that_does_not() {
        assert_eq!(read(CEILING, &[(0, "a"), (0, "b"), (0, "c"), (0, "")]), Err(Unended::Pages(3)));
        assert_eq!(read(CEILING, &[(1, "a"), (2 << 20, "")]), Err(Unended::Bytes(2 << 20)), "its last page counts");
        assert_eq!(read(CEILING, &[(0, "a"), (0, "a")]), Err(Unended::Circle));
        let hurried = Ceiling { time: Duration::ZERO, ..CEILING };
        assert_eq!(read(hurried, &[(0, "a")]), Err(Unended::Time(Duration::ZERO)));
        assert_eq!(read(hurried, &[(0, "")]), Ok(()), "it has ended");
    }
}
