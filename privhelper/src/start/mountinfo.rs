//! The host's mount table as it was at start (`/proc/self/mountinfo`, proc(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use bulkhead_protocol::MountFlags;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its id, as statx(2) gives it too.
    pub id: u64,
    /// Device of its filesystem, major and minor.
    pub device: (u32, u32),
    /// Which part of the filesystem it shows.
    pub root: PathBuf,
    /// Where it is.
    pub point: PathBuf,
    /// Its own options, as `ro` or `nosuid`.
    pub options: Vec<String>,
    /// Whether mounts on it are seen by its peers.
    pub shared: bool,
    /// Whether it gets mounts from a master that does not get its own.
    pub slave: bool,
    /// Type of its filesystem.
    pub filesystem: String,
}

/// Reads the table; lines that are none are left out.
pub fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

impl Mount {
    /// Whether it has an option.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|own| own == option)
    }

    /// What its options say of the flags that a request can name.
    pub fn flags(&self) -> MountFlags {
        MountFlags {
            read_only: self.has("ro"),
            no_exec: self.has("noexec"),
            no_atime: self.has("noatime"),
            no_diratime: self.has("nodiratime"),
        }
    }
}

fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let id = text(fields.next()?).parse().ok()?;
    let device = text(fields.nth(1)?);
    let (major, minor) = device.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let root = path(fields.next()?);
    let point = path(fields.next()?);
    let options = text(fields.next()?).split(',').map(str::to_owned).collect();
    let (mut shared, mut slave) = (false, false);
    loop {
        match fields.next()? {
            b"-" => break,
            field => {
                shared |= field.starts_with(b"shared:");
                slave |= field.starts_with(b"master:");
            }
        }
    }
    let filesystem = text(fields.next()?);
    Some(Mount { id, device, root, point, options, shared, slave, filesystem })
}

/// A path with white space and backslashes written as octal escapes.
fn path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let escaped = tail.get(..3).filter(|_| *first == b'\\').and_then(octal);
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { tail.get(3..).unwrap_or_default() } else { tail };
    }
    OsString::from_vec(bytes).into()
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_optional_fields_and_escapes_is_read() {
        let table = b"36 35 98:0 /mnt1 /mnt/a\\040b rw,noatime shared:1 master:2 - ext3 /dev/root rw\nnonsense\n";
        let mounts = parse(table);
        let [mount] = mounts.as_slice() else { panic!("one mount, not {mounts:?}") };
        assert_eq!(mount.point, PathBuf::from("/mnt/a b"));
        assert_eq!((mount.id, mount.device, mount.shared, mount.slave), (36, (98, 0), true, true));
        assert!(mount.has("noatime") && !mount.has("ro"));
        assert_eq!(mount.filesystem, "ext3");
    }
}
