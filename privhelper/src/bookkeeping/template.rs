//! The beginnings of filesystems: constants that are written into fresh images. `cargo xtask templates` makes them; the kernel
//! makes such a filesystem as large as its image when it is first mounted.

use std::os::fd::OwnedFd;

use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, extents, file, walk};

/// Each for images of at least so many bytes. A larger filesystem has larger groups: a mount reads each of them.
const TEMPLATES: [(u64, &[u8]); 3] = [
    (64 << 30, include_bytes!("../../templates/xfs-64g")),
    (4 << 30, include_bytes!("../../templates/xfs-4g")),
    (300 << 20, include_bytes!("../../templates/xfs-300m")),
];

/// What is written at once. The runs of a template lie together in a few places.
const WINDOW: u64 = 64 << 10;

/// How much of an image may hold data: eight times what a template takes.
const MOST_WRITTEN: u64 = 8 << 20;

/// How many groups a filesystem may have: a mount reads each of them, and the kernel keeps something for it in memory.
const MOST_GROUPS: u64 = 4096;
/// The most bytes of a new one: as many of the largest groups.
pub const LARGEST: u64 = (16 << 30) * MOST_GROUPS;

/// The most bytes that the filesystem in an image may be made to take: its groups keep the length that they have in its
/// superblock (`sb_agblocks`, in blocks of 4096 bytes).
pub fn most(image: &OwnedFd) -> SysResult<u64> {
    Ok(number::<4>(image, 84)?.saturating_mul(4096 * MOST_GROUPS))
}

/// Returns how many bytes the filesystem in an image takes, as all superblocks of its groups say (`sb_dblocks`; `sb_agcount`):
/// a growth that was interrupted leaves old ones, and xfs_repair(8) makes it as small as most of them say.
pub fn size(image: &OwnedFd) -> SysResult<u64> {
    let (group, groups) = (most(image)? / MOST_GROUPS, number::<4>(image, 88)?.min(MOST_GROUPS));
    let sizes = (0..groups).map(|at| number::<8>(image, group.saturating_mul(at).saturating_add(8)));
    Ok(sizes.collect::<SysResult<Vec<_>>>()?.into_iter().min().unwrap_or(0).saturating_mul(4096))
}

/// A number in a superblock, with the most significant of its bytes first.
fn number<const BYTES: usize>(image: &OwnedFd, offset: u64) -> SysResult<u64> {
    let mut bytes = [0; BYTES];
    rustix::io::pread(image, &mut bytes[..], offset).by("pread")?;
    Ok(bytes.iter().fold(0, |number, byte| (number << 8) | u64::from(*byte)))
}

/// The beginning of a filesystem in an image of so many bytes; `None` if that is too small for one.
pub fn of(size: u64) -> Option<&'static [u8]> {
    TEMPLATES.iter().find(|(least, _)| size >= *least).map(|(_, template)| *template)
}

/// The next of the runs of bytes of which a template consists: an offset (8 bytes, little end first), a length (4 bytes) and
/// the bytes, in ascending order.
fn next_run<'a>(template: &mut &'a [u8]) -> SysResult<Option<(u64, &'a [u8])>> {
    let Some((offset, rest)) = template.split_first_chunk() else { return Ok(None) };
    let (length, rest) = rest.split_first_chunk().ok_or(SysError::of(Errno::BADMSG))?;
    let (bytes, rest) =
        rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(SysError::of(Errno::BADMSG))?;
    *template = rest;
    Ok(Some((u64::from_le_bytes(*offset), bytes)))
}

/// Writes a template to an image that reads as zeros.
pub fn write(image: &OwnedFd, mut template: &[u8]) -> SysResult<()> {
    let (mut begin, mut window) = (0, Vec::new());
    while let Some((offset, bytes)) = next_run(&mut template)? {
        if offset.saturating_sub(begin) >= WINDOW {
            walk::write_at(image, &window, begin)?;
            (begin, window) = (offset, Vec::new());
        }
        window.resize(usize::try_from(offset.saturating_sub(begin)).map_err(|_| SysError::of(Errno::BADMSG))?, 0);
        window.extend(bytes);
    }
    walk::write_at(image, &window, begin)
}

/// Returns whether an image still holds what a template has written, and nothing else. It may have grown since, so any of the
/// templates will do.
pub fn is_fresh(image: &OwnedFd) -> SysResult<bool> {
    // What is only in the kernel's memory is in no extent that holds data.
    file::sync(image)?;
    let (mut written, mut nonzero, mut next) = (0_u64, 0_usize, Some(0));
    while let Some(from) = next {
        let page = extents::page(image, from)?;
        for extent in page.extents {
            written = written.saturating_add(extent.length);
            if written > MOST_WRITTEN {
                return Ok(false);
            }
            nonzero = nonzero.saturating_add(nonzero_in(image, extent.offset, extent.length)?);
        }
        next = page.next.filter(|next| *next > from);
    }
    holds_only(image, nonzero)
}

/// Returns whether an image, in which so many bytes are not zero, holds all bytes of a template, which has as many.
fn holds_only(image: &OwnedFd, nonzero: usize) -> SysResult<bool> {
    let holds = |mut template: &[u8]| -> SysResult<bool> {
        let mut left = nonzero;
        while let Some((offset, bytes)) = next_run(&mut template)? {
            let mut found = vec![0; bytes.len()];
            rustix::io::pread(image, &mut found[..], offset).by("pread")?;
            let Some(rest) = left.checked_sub(count(bytes)).filter(|_| found == bytes) else { return Ok(false) };
            left = rest;
        }
        Ok(left == 0)
    };
    TEMPLATES.into_iter().try_fold(false, |found, (_, template)| Ok(found || holds(template)?))
}

/// How many bytes are not zero in a part of an image.
fn nonzero_in(image: &OwnedFd, offset: u64, length: u64) -> SysResult<usize> {
    let (mut nonzero, mut at, mut window) = (0_usize, 0_u64, vec![0; WINDOW as usize]);
    while at < length {
        let read = rustix::io::pread(image, &mut window[..], offset.saturating_add(at)).by("pread")?;
        if read == 0 {
            break;
        }
        let part = usize::try_from(length.saturating_sub(at)).unwrap_or(read).min(read);
        nonzero = nonzero.saturating_add(window.get(..part).map_or(0, count));
        at = at.saturating_add(read as u64);
    }
    Ok(nonzero)
}

fn count(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte != 0).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_template_that_fits_is_taken() {
        let length = |size| of(size).map(<[u8]>::len);
        assert_eq!(length((300 << 20) - 1), None);
        for (at, (least, template)) in TEMPLATES.iter().enumerate() {
            assert_eq!(length(*least), Some(template.len()));
            assert_eq!(length(least - 1), TEMPLATES.get(at + 1).map(|(_, smaller)| smaller.len()));
        }
    }

    #[test]
    fn a_filesystem_grows_by_the_groups_that_it_was_made_with() {
        let image = rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        for ((_, template), group) in TEMPLATES.into_iter().zip([16 << 30, 1 << 30, 75 << 20]) {
            write(&image, template).expect("written");
            assert_eq!(most(&image), Ok(4096 * group));
        }
    }

    #[test]
    fn a_filesystem_takes_what_all_its_superblocks_say() {
        let image = rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        assert_eq!(size(&image), Ok(0), "nothing is there");
        write(&image, of(300 << 20).expect("a template")).expect("written");
        assert_eq!(size(&image), Ok(300 << 20));
        for (group, blocks, expected) in
            [(0, 100_000_u64, 300 << 20), (1, 100_000, 300 << 20), (3, 7, 7 << 12), (2, 6, 6 << 12)]
        {
            rustix::io::pwrite(&image, &blocks.to_be_bytes(), group * (75 << 20) + 8).expect("written");
            assert_eq!(size(&image), Ok(expected), "group {group}");
        }
        rustix::io::pwrite(&image, &[0xff; 8], 84).expect("written");
        assert_eq!(size(&image), Ok(0), "the groups are beyond the end");
    }

    #[test]
    fn what_is_written_is_what_the_runs_say() {
        let image = rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        for (least, template) in TEMPLATES {
            rustix::fs::ftruncate(&image, 0).expect("emptied");
            rustix::fs::ftruncate(&image, least).expect("long enough");
            write(&image, template).expect("written");
            let (mut rest, mut bytes_in_runs) = (template, 0);
            while let Some((offset, after)) = rest.split_first_chunk() {
                let (length, after) = after.split_first_chunk().expect("a length");
                let (bytes, after) = after.split_at(u32::from_le_bytes(*length) as usize);
                let mut found = vec![0; bytes.len()];
                rustix::io::pread(&image, &mut found[..], u64::from_le_bytes(*offset)).expect("read");
                assert_eq!(found, bytes);
                bytes_in_runs += bytes.iter().filter(|byte| **byte != 0).count();
                rest = after;
            }
            assert!(bytes_in_runs > 1000);
            let status = file::status(&image).expect("a status");
            assert_eq!(status.size, least);
            assert!(status.allocated < 1 << 20, "{} bytes", status.allocated);
        }
    }

    #[test]
    fn only_what_a_template_has_written_is_fresh() {
        for (_, template) in TEMPLATES {
            let image = rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
            let mut rest = template;
            let runs: Vec<_> = std::iter::from_fn(|| next_run(&mut rest).expect("a run")).collect();
            let (last, bytes) = runs.last().expect("a run");
            let end = last + bytes.len() as u64;
            let parts = || runs.iter().map(|(offset, bytes)| (*offset, bytes.len() as u64));
            let is_fresh = |further| {
                let nonzero =
                    parts().chain([(end, further)]).map(|(offset, length)| nonzero_in(&image, offset, length));
                holds_only(&image, nonzero.map(|nonzero| nonzero.expect("read")).sum())
            };
            assert_eq!(is_fresh(0), Ok(false), "nothing was written yet");
            write(&image, template).expect("written");
            assert_eq!(is_fresh(0), Ok(true));
            rustix::fs::ftruncate(&image, end + 9).expect("longer");
            assert_eq!(is_fresh(9), Ok(true), "it has grown");
            for offset in [0, *last, end - 1, end, end + 8] {
                let mut before = [0; 1];
                rustix::io::pread(&image, &mut before[..], offset).expect("read");
                walk::write_at(&image, &[before[0] ^ 0x55], offset).expect("written");
                assert_eq!(is_fresh(9), Ok(false), "another byte at {offset}");
                walk::write_at(&image, &before, offset).expect("written");
                assert_eq!(is_fresh(9), Ok(true), "as before");
            }
            // To the byte.
            walk::write_at(&image, &[1], end + 8).expect("written");
            assert_eq!((is_fresh(8), is_fresh(9)), (Ok(true), Ok(false)));
        }
    }

    #[test]
    fn a_template_that_is_cut_off_is_refused() {
        let image = rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        let run = [&9_u64.to_le_bytes()[..], &2_u32.to_le_bytes(), b"ab"].concat();
        assert_eq!(write(&image, &run), Ok(()));
        for length in [9, 12, 13] {
            assert_eq!(write(&image, &run[..length]), Err(SysError::of(Errno::BADMSG)), "{length}");
        }
    }
}
