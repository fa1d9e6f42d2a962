//! Where a volume is published, as this process's mount table shows it. The helper knows only how often: no path of the
//! host is told to anybody.

use std::fs;

/// The mount table of this process.
const MOUNTS: &str = "/proc/self/mountinfo";

/// The end of the name of the filesystem that the nodes of block volumes are on: `bulkhead-devices/DRIVER`.
const DEVICES: &str = "bulkhead-devices/";

/// The mount points of volume `id` that can be seen from here. In a container these are few or none.
pub fn seen(id: &str) -> Vec<String> {
    let table = fs::read_to_string(MOUNTS).unwrap_or_default();
    in_table(&table, id, &backing_file)
}

/// A number of targets, and those of them that can be seen.
pub fn described(number: u32, seen: &[String]) -> String {
    match (number, seen) {
        (0, []) => "0".to_owned(),
        (_, []) => format!("{number} (their paths cannot be seen from here)"),
        (number, seen) => format!("{number}: {}", seen.join(", ")),
    }
}

/// The file behind a loop device.
fn backing_file(device: &str) -> Option<String> {
    fs::read_to_string(format!("/sys/block/{device}/loop/backing_file")).ok().map(|path| path.trim_end().to_owned())
}

fn in_table(table: &str, id: &str, backing_file: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let (directory, image) = (format!("/{id}/data"), format!("/{id}/image"));
    let is_image = |device: &str| backing_file(device).is_some_and(|file| file.ends_with(&image));
    let mut points = Vec::new();
    for line in table.lines() {
        // proc(5): id, parent, device, root, mount point, options, optional fields, a dash, type, source, options.
        let mut fields = line.split(' ').skip(3);
        let (Some(root), Some(point)) = (fields.next(), fields.next()) else { continue };
        let source = fields.skip_while(|field| *field != "-").nth(2).unwrap_or_default();
        let is_target = if source.starts_with(DEVICES) {
            root.strip_prefix('/').is_some_and(is_image)
        } else {
            root.ends_with(&directory)
        };
        if is_target {
            points.push(unescaped(point));
        }
    }
    points
}

/// A path of the mount table, in which a space is `\040`.
fn unescaped(path: &str) -> String {
    let mut parts = path.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.split_at_checked(3).and_then(|(code, rest)| Some((u8::from_str_radix(code, 8).ok()?, rest))) {
            Some((byte, rest)) => {
                bytes.push(byte);
                bytes.extend(rest.as_bytes());
            }
            None => bytes.extend([b"\\", part.as_bytes()].concat()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_found_by_what_is_mounted() {
        let table = "\
            41 28 8:17 / /srv/bulkhead/default rw,relatime shared:1 - xfs /dev/sdb1 rw,prjquota\n\
            88 28 8:17 /data/data /var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/data/mount rw shared:7 - xfs /dev/sdb1 rw\n\
            89 28 8:17 /pool/data/data /mnt/with\\040space rw - xfs /dev/sdb1 rw\n\
            90 28 8:17 /data/data/sub /var/lib/kubelet/pods/1/volume-subpaths/x rw - xfs /dev/sdb1 rw\n\
            91 28 8:17 /more-data/data /other rw - xfs /dev/sdb1 rw\n\
            92 28 0:50 /loop524289 /dev/disk rw - tmpfs bulkhead-devices/bulkhead.csi.local rw\n\
            93 28 0:50 /loop524290 /dev/other rw - tmpfs bulkhead-devices/bulkhead.csi.local rw\n\
            short\n";
        let backing_file = |device: &str| match device {
            "loop524289" => Some("/bulkhead-pools/default/disk/image".to_owned()),
            "loop524290" => Some("/default/other-disk/image".to_owned()),
            _ => None,
        };
        let targets = |id: &str| in_table(table, id, &backing_file);
        let of_directory = ["/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/data/mount", "/mnt/with space"];
        assert_eq!(targets("data"), of_directory);
        assert_eq!(targets("disk"), ["/dev/disk"]);
        assert_eq!(targets("a"), [""; 0]);
        assert_eq!(described(2, &targets("disk")), "2: /dev/disk");
        assert_eq!(described(1, &[]), "1 (their paths cannot be seen from here)");
    }
}
