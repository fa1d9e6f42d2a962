//! Where the content of a file is on its filesystem (`FS_IOC_FIEMAP`, Linux Documentation/filesystems/fiemap.rst), and whether
//! files can share it.

use std::os::fd::OwnedFd;

use nix::libc;

use super::file::{Request, raw_fd};
use super::{Result, checked};

/// `FS_IOC_FIEMAP`.
pub const MAP: u32 = 0xc020_660b;
/// How many extents are asked for at once.
const AT_ONCE: usize = 64;
/// `FIEMAP_EXTENT_LAST`: no extent follows.
const LAST: u32 = 0x1;
/// `FIEMAP_EXTENT_UNWRITTEN`: allocated, and reads as zeros.
const UNWRITTEN: u32 = 0x800;
/// `FIEMAP_EXTENT_SHARED`: other files have these blocks, too.
const SHARED: u32 = 0x2000;

/// `XFS_IOC_FSGEOMETRY` (ioctl_xfs_fsgeometry(2), Linux 5.2): what an XFS is able to do.
pub const GEOMETRY: u32 = 0x8100_587e;
/// Where its flags are in the 64 words that it fills in.
const GEOMETRY_FLAGS: usize = 23;
/// `XFS_FSOP_GEOM_FLAGS_REFLINK`: files can share blocks.
const REFLINK: u32 = 1 << 20;

/// A part of a file that has blocks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins in the file.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
    /// Where it begins on the filesystem.
    pub place: u64,
    /// Whether other files have it, too.
    pub shared: bool,
}

/// Extents from an offset on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Those that hold data.
    pub extents: Vec<Extent>,
    /// Where to ask for more; `None` if there are none.
    pub next: Option<u64>,
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Found {
    offset: u64,
    place: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    padding: [u32; 3],
}

/// `struct fiemap`.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    padding: u32,
    extents: [Found; AT_ONCE],
}

/// The next extents of a file, those included that begin before `from` and reach beyond it.
pub fn page(file: &OwnedFd, from: u64) -> Result<Page> {
    let count = AT_ONCE as u32;
    let length = u64::MAX.saturating_sub(from);
    let extents = [Found::default(); AT_ONCE];
    let mut map = Map { start: from, length, flags: 0, mapped: 0, count, padding: 0, extents };
    // SAFETY: the kernel reads one `struct fiemap` from `map`, and writes to it and to the `count` extents after it, which are
    // in `map` as well; it outlives the call.
    checked(unsafe { libc::ioctl(raw_fd(file), MAP as Request, &raw mut map) }, "FS_IOC_FIEMAP")?;
    let found = map.extents.iter().take(map.mapped as usize);
    let last = found.clone().next_back().filter(|last| last.flags & LAST == 0);
    let next = last.map(|last| last.offset.saturating_add(last.length));
    let holds_data = found.filter(|found| found.flags & UNWRITTEN == 0);
    let extents = holds_data.map(|found| {
        let Found { offset, length, place, flags, .. } = *found;
        Extent { offset, length, place, shared: flags & SHARED != 0 }
    });
    Ok(Page { extents: extents.collect(), next })
}

/// Returns how many bytes of a file hold data.
pub fn written(file: &OwnedFd) -> Result<u64> {
    sum(file, 0, usize::MAX, |_| true).map(|(written, _)| written)
}

/// Returns how many bytes of a file, in so many pages from an offset on, are shared with other files; and where to ask
/// for more.
pub fn shared(file: &OwnedFd, from: u64, pages: usize) -> Result<(u64, Option<u64>)> {
    sum(file, from, pages, |extent| extent.shared)
}

fn sum(file: &OwnedFd, from: u64, pages: usize, counts: fn(&Extent) -> bool) -> Result<(u64, Option<u64>)> {
    let (mut sum, mut next) = (0_u64, Some(from));
    for _ in 0..pages {
        let Some(from) = next else { break };
        let page = page(file, from)?;
        let counted = page.extents.iter().filter(|extent| counts(extent));
        sum = counted.fold(sum, |sum, extent| sum.saturating_add(extent.length));
        // Where nothing is left, nothing is mapped.
        next = page.next.filter(|next| *next > from);
    }
    Ok((sum, next))
}

/// Returns whether files can share blocks on a mounted filesystem, of which a directory is open for reading.
pub fn shares_blocks(directory: &OwnedFd) -> Result<bool> {
    let mut geometry = [0_u32; 64];
    // SAFETY: the kernel writes one `struct xfs_fsop_geom`, of 256 bytes, to `geometry`, which outlives the call.
    let returned = unsafe { libc::ioctl(raw_fd(directory), GEOMETRY as Request, geometry.as_mut_ptr()) };
    checked(returned, "XFS_IOC_FSGEOMETRY")?;
    Ok(geometry.get(GEOMETRY_FLAGS).is_some_and(|flags| flags & REFLINK != 0))
}
