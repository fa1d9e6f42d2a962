//! The ledger: what the volumes and snapshots of each namespace take of this node. It is kept only where an operator has
//! limited that.
//!
//! What is going to be made is entered before it is made, so that of several that are being made at the same time none
//! goes by what was there before the others. Whose something is follows from the note on it (`holdings`), which only the
//! helper can change, and for what is being made from its claim. What has no note counts for nobody.

mod limits;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bulkhead_protocol::{PoolName, VolumeId};
use tokio::time::Instant;

pub use limits::{Amount, Limits, NoShare, OverShare, Share};

use crate::volumes::{Cost, Told};

/// How often a claim of one namespace is given back to the scheduler because the namespace has its share: the scheduler may
/// choose the same node again at once.
const GIVEN_BACK_EVERY: Duration = Duration::from_secs(20);

/// How long it is believed that a volume's snapshot is too large. Each that is taken in vain holds up those who write to the
/// volume.
const TOO_LARGE_FOR: Duration = Duration::from_secs(300);

/// The ledger of a node. Clones share it.
#[derive(Clone, Default)]
pub struct Ledger(Option<Arc<Shared>>);

struct Shared {
    limits: Limits,
    book: Mutex<Book>,
    /// When the helper was last asked what there is.
    read: tokio::sync::Mutex<Option<Instant>>,
    /// Whether it ever was.
    is_read: AtomicBool,
}

#[derive(Default)]
struct Book {
    held: HashMap<VolumeId, Entry>,
    /// What is being made, grown or changed, as it will be then.
    reserved: HashMap<VolumeId, (Arc<str>, Cost)>,
    /// What the last snapshot of a volume took that was taken in vain, and when.
    too_large: HashMap<VolumeId, (u64, Instant)>,
    /// When a claim of a namespace was last given back.
    given_back: HashMap<String, Instant>,
}

/// A volume or a snapshot that exists.
struct Entry {
    namespace: Option<Arc<str>>,
    cost: Cost,
    /// Its size as it is listed; `None` if that is to be looked at again.
    size: Option<u64>,
    entered: Instant,
}

/// What the namespaces have in each pool: by pool, and then by namespace, or by none for what has no note.
pub type Holdings = BTreeMap<PoolName, BTreeMap<Option<Arc<str>>, Amount>>;

impl Ledger {
    /// The ledger for these limits, empty until it is read.
    pub fn new(limits: Limits) -> Self {
        let is_limited = limits.share.is_some() || limits.volumes.is_some();
        let (book, read) = (Mutex::default(), tokio::sync::Mutex::default());
        Self(is_limited.then(|| Arc::new(Shared { limits, book, read, is_read: AtomicBool::default() })))
    }

    /// The limits, if there are any.
    pub fn limits(&self) -> Option<Limits> {
        Some(self.0.as_ref()?.limits)
    }

    /// The turn to read what there is, with the time when that was last done.
    pub async fn reading(&self) -> Option<tokio::sync::MutexGuard<'_, Option<Instant>>> {
        Some(self.0.as_ref()?.read.lock().await)
    }

    /// Returns whether it has been read, so that nobody needs to wait for a turn.
    pub fn is_read(&self) -> bool {
        self.0.as_ref().is_none_or(|shared| shared.is_read.load(Relaxed))
    }

    /// Records that it has been read.
    pub fn was_read(&self) {
        self.0.iter().for_each(|shared| shared.is_read.store(true, Relaxed));
    }

    /// Reserves `cost` for `volume` of `namespace`, in a pool of which `told` is told. What exists already may stay as it is.
    ///
    /// # Errors
    /// When the namespace would have more than its share.
    pub fn reserve(
        &self,
        namespace: &str,
        volume: &VolumeId,
        cost: Cost,
        told: Told,
    ) -> Result<Reservation, OverShare> {
        if let Some(mut book) = self.book() {
            book.check(namespace, volume, &cost, told, self.limits())?;
            book.reserved.insert(volume.clone(), (namespace.into(), cost));
        }
        Ok(Reservation { ledger: self.clone(), volume: volume.clone() })
    }

    /// Reserves what a snapshot of `source` may take: `cost` at most, or where that is too much, all that `namespace` may still
    /// have, if the last one that was too large would fit. Returns how many bytes that are.
    ///
    /// # Errors
    /// When the namespace would have more than its share in any case.
    pub fn reserve_snapshot(
        &self,
        namespace: &str,
        (source, snapshot): (&VolumeId, &VolumeId),
        cost: Cost,
        told: Told,
    ) -> Result<(Reservation, u64), OverShare> {
        let mut bytes = cost.bytes;
        if let Some(mut book) = self.book() {
            let limits = self.limits();
            if book.check(namespace, snapshot, &cost, told, limits).is_err() {
                let least = book.least(source, cost.bytes);
                book.check(namespace, snapshot, &Cost { bytes: least, ..cost.clone() }, told, limits)?;
                let (held, _) = book.beside(namespace, snapshot, &cost.pool);
                bytes = limits.map_or(bytes, |limits| limits.most(told).bytes.saturating_sub(held.bytes));
            }
            book.reserved.insert(snapshot.clone(), (namespace.into(), Cost { bytes, ..cost }));
        }
        Ok((Reservation { ledger: self.clone(), volume: snapshot.clone() }, bytes))
    }

    /// Enters that a snapshot of `source` took so many bytes, which was too much.
    pub fn was_too_large(&self, source: &VolumeId, bytes: u64) {
        if let Some(mut book) = self.book() {
            let now = Instant::now();
            book.too_large.retain(|_, (_, seen)| now.duration_since(*seen) < TOO_LARGE_FOR);
            book.too_large.insert(source.clone(), (bytes, now));
        }
    }

    /// Checks what [`Self::reserve`] does, and reserves nothing.
    ///
    /// # Errors
    /// When the namespace would have more than its share.
    pub fn check(&self, namespace: &str, volume: &VolumeId, cost: &Cost, told: Told) -> Result<(), OverShare> {
        self.book().map_or(Ok(()), |book| book.check(namespace, volume, cost, told, self.limits()))
    }

    /// Returns whose `volume` is, if it is known.
    pub fn namespace_of(&self, volume: &VolumeId) -> Option<Arc<str>> {
        self.book()?.held.get(volume)?.namespace.clone()
    }

    /// Enters that `volume` is noted to be of `namespace`.
    pub fn note(&self, volume: &VolumeId, namespace: &str) {
        if let Some(mut book) = self.book()
            && let Some(entry) = book.held.get_mut(volume)
            && entry.namespace.as_deref() != Some(namespace)
        {
            entry.namespace = Some(namespace.into());
        }
    }

    /// Enters that `volume` is gone.
    pub fn forget(&self, volume: &VolumeId) {
        if let Some(mut book) = self.book() {
            book.held.remove(volume);
        }
    }

    /// Returns whether a claim of `namespace` may be given back now, and enters that it is.
    pub fn may_give_back(&self, namespace: &str) -> bool {
        let Some(mut book) = self.book() else { return true };
        let now = Instant::now();
        book.given_back.retain(|_, last| now.duration_since(*last) < GIVEN_BACK_EVERY);
        let is_first = !book.given_back.contains_key(namespace);
        if is_first {
            book.given_back.insert(namespace.to_owned(), now);
        }
        is_first
    }

    /// Returns how many volumes and snapshots of `pool` are known.
    pub fn number_in(&self, pool: &PoolName) -> usize {
        self.book().map_or(0, |book| book.all().filter(|(_, _, cost)| cost.pool == *pool).count())
    }

    /// Returns whether `volume` is entered with this size; a snapshot has none.
    pub fn has(&self, volume: &VolumeId, size: Option<u64>) -> bool {
        let is_same = |entry: &Entry| size.is_none() || entry.size == size;
        self.book().is_some_and(|book| book.held.get(volume).is_some_and(is_same))
    }

    /// Enters what was found of `volume`. What is known of its namespace stays.
    pub fn enter(&self, volume: VolumeId, namespace: Option<&str>, cost: Cost, size: Option<u64>) {
        if let Some(mut book) = self.book() {
            let known = book.held.get(&volume).and_then(|entry| entry.namespace.clone());
            let namespace = known.or_else(|| namespace.map(Arc::from));
            book.held.insert(volume, Entry { namespace, cost, size, entered: Instant::now() });
        }
    }

    /// Forgets what is not among `existing`, as it was listed at `then`, in pools that are `working`. Of others nothing
    /// may be listed.
    pub fn keep_only(&self, existing: &HashSet<VolumeId>, working: &HashSet<PoolName>, then: Instant) {
        if let Some(mut book) = self.book() {
            book.held.retain(|volume, entry| {
                existing.contains(volume) || entry.entered >= then || !working.contains(&entry.cost.pool)
            });
        }
    }

    /// Returns what each namespace has.
    pub fn holdings(&self) -> Holdings {
        let mut holdings = Holdings::new();
        let Some(book) = self.book() else { return holdings };
        for (_, namespace, cost) in book.all() {
            let of_pool = holdings.entry(cost.pool.clone()).or_default();
            of_pool.entry(namespace.cloned()).or_default().add(cost);
        }
        holdings
    }

    fn book(&self) -> Option<MutexGuard<'_, Book>> {
        Some(self.0.as_ref()?.book.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Book {
    /// Everything, as it is or will be.
    fn all(&self) -> impl Iterator<Item = (&VolumeId, Option<&Arc<str>>, &Cost)> {
        let held = self.held.iter().filter(|(volume, _)| !self.reserved.contains_key(*volume));
        let held = held.map(|(volume, entry)| (volume, entry.namespace.as_ref(), &entry.cost));
        held.chain(self.reserved.iter().map(|(volume, (namespace, cost))| (volume, Some(namespace), cost)))
    }

    /// Returns what `namespace` has beside `volume`, and what that takes now.
    fn beside(&self, namespace: &str, volume: &VolumeId, pool: &PoolName) -> (Amount, Option<&Cost>) {
        let (mut held, mut own) = (Amount::default(), None);
        for (id, whose, taken) in self.all() {
            if id == volume {
                own = Some(taken);
            } else if whose.is_some_and(|whose| **whose == *namespace) {
                held.add_in(taken, pool);
            }
        }
        (held, own)
    }

    /// Returns what a snapshot of `source` takes at least, as far as is known, and no more than `most`.
    fn least(&self, source: &VolumeId, most: u64) -> u64 {
        let recent = self.too_large.get(source).filter(|(_, seen)| seen.elapsed() < TOO_LARGE_FOR);
        recent.map_or(1, |(bytes, _)| *bytes).min(most)
    }

    fn check(
        &self,
        namespace: &str,
        volume: &VolumeId,
        cost: &Cost,
        told: Told,
        limits: Option<Limits>,
    ) -> Result<(), OverShare> {
        let Some(limits) = limits else { return Ok(()) };
        let (held, own) = self.beside(namespace, volume, &cost.pool);
        // It takes no more than it has, whatever others do.
        if own.is_some_and(|own| cost.bytes <= own.bytes) {
            return Ok(());
        }
        let mut wanted = Amount::default();
        wanted.add(cost);
        OverShare::judge(namespace, &cost.pool, &held, &wanted, &limits.most(told)).map_or(Ok(()), Err)
    }
}

impl Amount {
    fn add(&mut self, cost: &Cost) {
        self.add_in(cost, &cost.pool);
    }

    /// Adds another sum.
    pub fn join(&mut self, other: &Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.filesystems += other.filesystems;
        self.volumes += other.volumes;
    }

    /// Adds what counts where a share of `pool` is judged.
    fn add_in(&mut self, cost: &Cost, pool: &PoolName) {
        self.volumes += 1;
        if cost.pool == *pool {
            self.bytes = self.bytes.saturating_add(cost.bytes);
            self.filesystems += u64::from(cost.is_filesystem);
        }
    }
}

/// Room that is kept for a volume or a snapshot while it is made, grown or changed.
#[must_use]
pub struct Reservation {
    ledger: Ledger,
    volume: VolumeId,
}

impl Reservation {
    /// It has been made, or may have been; `cost` is what it really takes, where that is known by now.
    pub fn keep(self, cost: Option<Cost>) {
        let reserved = self.ledger.book().and_then(|mut book| book.reserved.remove(&self.volume));
        if let Some((namespace, reserved)) = reserved {
            self.ledger.enter(self.volume.clone(), Some(&namespace), cost.unwrap_or(reserved), None);
            self.ledger.note(&self.volume, &namespace);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(mut book) = self.ledger.book() {
            book.reserved.remove(&self.volume);
        }
    }
}

#[cfg(test)]
mod tests;
