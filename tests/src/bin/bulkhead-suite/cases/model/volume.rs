//! What must be true of one volume, and what each request about it must be answered with.

use std::collections::BTreeMap;

use bulkhead_protocol::ErrorKind::{self, AlreadyExists, InUse, Invalid, NotFound, Refused, WrongKind};
use bulkhead_protocol::{MountFlags, PoolName, Request};
use bulkhead_tests::helper::{bytes, directory_spec, image_spec, target, volume};
use bulkhead_tests::random::Random;

/// The sizes that volumes have.
pub const SIZES: [u64; 3] = [4 << 20, 8 << 20, 16 << 20];
/// How many targets each volume has.
pub const TARGETS: usize = 2;

/// A volume as the model has it; all fields but the first two are those of one that does not exist by default.
#[derive(Clone, Debug)]
pub struct Model {
    pub id: String,
    pub pool: PoolName,
    pub exists: Option<Kind>,
    /// Whether it was ever published or attached.
    pub used: bool,
    pub size: u64,
    /// The flag with which it is attached: read-only.
    pub attached: Option<bool>,
    /// Its targets, by number, with the flag: read-only.
    pub published: BTreeMap<usize, bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory,
    Block,
}

/// A request in the model's terms.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Create(Kind, u64),
    Grow(u64),
    Bind { at: usize, read_only: bool, exclusive: bool },
    Unmount(usize),
    Attach { read_only: bool },
    Resize,
    Make { at: usize, exclusive: bool },
    Remove(usize),
    Detach,
    Usage,
    Delete,
    DeleteUnused,
}

impl Step {
    pub fn random(random: &mut Random) -> Self {
        let kind = if random.below(2) == 0 { Kind::Directory } else { Kind::Block };
        let size = SIZES[random.below(SIZES.len())];
        let (at, read_only, exclusive) = (random.below(TARGETS), random.below(4) == 0, random.below(4) == 0);
        match random.below(18) {
            0..=2 => Self::Create(kind, size),
            3 => Self::Grow(size),
            4 | 5 => Self::Bind { at, read_only, exclusive },
            6 | 7 => Self::Unmount(at),
            8 | 9 => Self::Attach { read_only },
            10 => Self::Resize,
            11 | 12 => Self::Make { at, exclusive },
            13 => Self::Remove(at),
            14 => Self::Detach,
            15 => Self::Usage,
            16 => Self::Delete,
            _ => Self::DeleteUnused,
        }
    }
}

impl Model {
    pub fn new(id: String, pool: PoolName) -> Self {
        Self { id, pool, exists: None, used: false, size: 0, attached: None, published: BTreeMap::new() }
    }

    /// The name of a target.
    pub fn target(&self, at: usize) -> String {
        format!("{}-{at}", self.id)
    }

    /// The request for a step.
    pub fn request(&self, step: Step) -> Request {
        let volume = volume(&self.id);
        let target = |at| target("work", &self.target(at));
        match step {
            Step::Create(kind, size) => {
                let spec = if kind == Kind::Directory { directory_spec(size) } else { image_spec(size) };
                Request::Create { volume, pool: self.pool.clone(), spec }
            }
            Step::Grow(size) => Request::GrowImage { volume, size: bytes(size) },
            Step::Bind { at, read_only, exclusive } => {
                let flags = MountFlags { read_only, ..MountFlags::default() };
                Request::BindMount { volume, target: target(at), flags, exclusive }
            }
            Step::Unmount(at) => Request::Unmount { volume, target: target(at) },
            Step::Attach { read_only } => Request::LoopAttach { volume, read_only },
            Step::Resize => Request::LoopResize { volume },
            Step::Make { at, exclusive } => Request::MakeDevice { volume, target: target(at), exclusive },
            Step::Remove(at) => Request::RemoveDevice { volume, target: target(at) },
            Step::Detach => Request::LoopDetach { volume },
            Step::Usage => Request::Usage { volume, target: None },
            Step::Delete => Request::Delete { volume },
            Step::DeleteUnused => Request::DeleteUnused { volume },
        }
    }

    /// Returns what the answer must be, and what is true after it.
    pub fn answer(&self, step: Step) -> Result<Self, ErrorKind> {
        let mut after = self.clone();
        match step {
            Step::Create(kind, size) => match self.exists {
                None => after = Self { exists: Some(kind), size, ..Self::new(self.id.clone(), self.pool.clone()) },
                Some(own) if own == kind => {}
                Some(_) => return Err(AlreadyExists),
            },
            Step::Usage => {
                self.exists.ok_or(NotFound)?;
            }
            Step::Grow(size) => {
                self.is(Kind::Block)?;
                after.size = self.size.max(size);
            }
            Step::Resize => self.is(Kind::Block)?,
            Step::Bind { at, read_only, exclusive } => {
                self.is(Kind::Directory)?;
                self.publish(at, read_only, exclusive)?;
                after.published.insert(at, read_only);
                after.used = true;
            }
            Step::Make { at, exclusive } => {
                self.is(Kind::Block)?;
                let read_only = self.attached.ok_or(Invalid)?;
                self.publish(at, read_only, exclusive)?;
                after.published.insert(at, read_only);
            }
            Step::Unmount(at) | Step::Remove(at) => {
                let kind = if matches!(step, Step::Unmount(_)) { Kind::Directory } else { Kind::Block };
                if self.exists.is_some() {
                    self.is(kind)?;
                }
                after.published.remove(&at);
            }
            Step::Attach { read_only } => {
                self.is(Kind::Block)?;
                if self.attached.is_some_and(|own| own != read_only) && !self.published.is_empty() {
                    return Err(InUse);
                }
                after.attached = Some(read_only);
                after.used = true;
            }
            Step::Detach => {
                self.is_free()?;
                after.attached = None;
            }
            Step::Delete | Step::DeleteUnused => {
                if matches!(step, Step::DeleteUnused) && self.exists.is_some() && self.used {
                    return Err(Refused);
                }
                self.is_free()?;
                after = Self::new(self.id.clone(), self.pool.clone());
            }
        }
        Ok(after)
    }

    fn is(&self, wanted: Kind) -> Result<(), ErrorKind> {
        let kind = self.exists.ok_or(NotFound)?;
        if kind == wanted { Ok(()) } else { Err(WrongKind) }
    }

    fn is_free(&self) -> Result<(), ErrorKind> {
        if self.published.is_empty() { Ok(()) } else { Err(InUse) }
    }

    fn publish(&self, at: usize, read_only: bool, exclusive: bool) -> Result<(), ErrorKind> {
        match self.published.get(&at) {
            Some(own) if *own == read_only => Ok(()),
            Some(_) => Err(AlreadyExists),
            None if exclusive && !self.published.is_empty() => Err(InUse),
            None => Ok(()),
        }
    }
}
