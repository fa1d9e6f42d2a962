//! How volumes are mounted: flags, and the label that SELinux is to have for their files.

use std::collections::BTreeSet;

use bulkhead_protocol::{MountFlags, SecurityContext};

use super::{Backing, Fault};

const MOUNT_FLAGS: [&str; 7] = ["ro", "noexec", "nosuid", "nodev", "noatime", "nodiratime", "relatime"];

/// How a volume is mounted that is no device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// What is asked of each of its mounts.
    pub flags: MountFlags,
    /// The label of all its files.
    pub context: Option<SecurityContext>,
}

impl MountOptions {
    /// What `words` name.
    ///
    /// # Errors
    /// On any word that is not accepted; the message lists those that are.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, Fault> {
        let (mut flags, mut context) = (MountFlags::default(), None);
        for word in words {
            match word {
                // As mount(8) does, the last one of a pair decides.
                "ro" | "rw" => flags.read_only = word == "ro",
                "noexec" | "exec" => flags.no_exec = word == "noexec",
                "noatime" | "atime" => flags.no_atime = word == "noatime",
                "nodiratime" | "diratime" => flags.no_diratime = word == "nodiratime",
                // The first two are always on; the others are the default, or are for fstab(5) only.
                "nosuid" | "nodev" | "relatime" | "defaults" | "async" | "auto" | "nouser" | "nofail" | "_netdev" => {}
                _ => match word.strip_prefix("context=").map(security_context).transpose()? {
                    Some(own) if context.as_ref().is_some_and(|other| *other != own) => {
                        return Err(Fault::invalid("mount flag context= is there twice, with two SELinux contexts"));
                    }
                    Some(own) => context = Some(own),
                    // The word is not repeated: mount flags may be confidential.
                    None => {
                        return Err(Fault::invalid(format!(
                            "unsupported mount flag; supported flags are {}, and context= with backing: image",
                            MOUNT_FLAGS.join(", ")
                        )));
                    }
                },
            }
        }
        Ok(Self { flags, context })
    }

    /// Checks that volumes with this backing can be mounted so: a label is a filesystem's, and the directories of a pool are
    /// parts of one.
    ///
    /// # Errors
    /// When they cannot.
    pub fn check(&self, backing: Backing) -> Result<(), Fault> {
        if self.context.is_none() || backing == Backing::Image {
            Ok(())
        } else {
            Err(no_label("a volume of this class"))
        }
    }
}

/// Why the files of a volume that is a directory of its pool cannot have a label of their own.
pub fn no_label(volume: &str) -> Fault {
    Fault::invalid(format!(
        "{volume} cannot be mounted with an SELinux context (context=): it is a directory of its pool, whose files have one mount; use a class with backing: image, or let the container runtime label the files (no seLinuxMount in the CSIDriver, or the pod's seLinuxChangePolicy: Recursive)"
    ))
}

/// The context in the value of the mount option `context=`: in quotation marks, as the kubelet writes it, or without. Categories
/// are put as the kernel does, so that equal contexts are equal texts.
///
/// # Errors
/// When it is not one that files of containers can have.
pub fn security_context(value: &str) -> Result<SecurityContext, Fault> {
    let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let context: Result<SecurityContext, _> = quoted.unwrap_or(value).parse();
    let context = context.map_err(|invalid| Fault::invalid(format!("mount flag context=: {invalid}")))?;
    let mut parts = context.as_str().splitn(4, ':');
    let front: Vec<_> = parts.by_ref().take(3).collect();
    let levels: Option<Vec<_>> = parts.next().unwrap_or_default().splitn(2, '-').map(ordered).collect();
    let reversed = || Fault::invalid("mount flag context=: a range of categories ends before it begins");
    let mut levels = levels.ok_or_else(reversed)?;
    levels.dedup();
    format!("{}:{}", front.join(":"), levels.join("-")).parse().map_err(|_| reversed())
}

/// A level as the kernel writes it; `None` if a range in it ends before it begins.
fn ordered(level: &str) -> Option<String> {
    let number = |text: &str| text.get(1..)?.parse::<u16>().ok();
    let (sensitivity, listed) = level.split_once(':').unwrap_or((level, ""));
    let mut categories = BTreeSet::new();
    for some in listed.split(',').filter(|some| !some.is_empty()) {
        let (first, last) = some.split_once('.').unwrap_or((some, some));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return None;
        }
        categories.extend(first..=last);
    }
    let mut runs = Vec::<(u16, u16)>::new();
    for category in categories {
        match runs.last_mut() {
            Some((_, last)) if last.saturating_add(1) == category => *last = category,
            _ => runs.push((category, category)),
        }
    }
    let run = |(first, last): &(u16, u16)| match last.saturating_sub(*first) {
        0 => format!("c{first}"),
        1 => format!("c{first},c{last}"),
        _ => format!("c{first}.c{last}"),
    };
    let runs: Vec<_> = runs.iter().map(run).collect();
    let end = if runs.is_empty() { String::new() } else { format!(":{}", runs.join(",")) };
    Some(format!("s{}{end}", number(sensitivity)?))
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::ErrorKind;

    use super::*;

    fn of(level: &str) -> String {
        format!("system_u:object_r:container_file_t:{level}")
    }

    fn flags<'a>(words: impl IntoIterator<Item = &'a str>) -> MountFlags {
        MountOptions::parse(words).unwrap().flags
    }

    #[test]
    fn accepted_flags_are_understood() {
        let all = MountFlags { read_only: true, no_exec: true, no_atime: true, no_diratime: true };
        assert_eq!(flags(MOUNT_FLAGS), all);
        assert_eq!(flags(["nosuid", "nodev", "relatime"]), MountFlags::default());
        let usual = ["defaults", "rw", "exec", "atime", "diratime", "async", "auto", "nouser", "nofail", "_netdev"];
        assert_eq!(flags(usual), MountFlags::default());
        assert_eq!(flags(["ro", "rw"]), MountFlags::default(), "the last one decides");
        assert!(flags(["rw", "ro"]).read_only);
    }

    #[test]
    fn other_flags_are_refused_with_the_list_and_without_their_text() {
        for word in ["suid", "dev", "sync", "", "RO", "rw,ro", "secret=hunter2", "fscontext=hunter2", "context"] {
            let fault = MountOptions::parse([word]).unwrap_err();
            assert!(fault.is(ErrorKind::Invalid));
            assert!(fault.to_string().contains("ro, noexec, nosuid"));
            assert!(!fault.to_string().contains("hunter2"));
        }
    }

    #[test]
    fn a_context_is_among_the_flags_once_or_several_times_the_same() {
        let option = |level: &str| format!("context={:?}", of(level));
        let [one, same, other] = ["s0:c1,c2", "s0:c2,c1", "s0"].map(option);
        let options = MountOptions::parse(["noatime", &one, "ro", &same]).unwrap();
        assert!(options.flags.read_only && options.flags.no_atime);
        assert_eq!(options.context.unwrap().as_str(), of("s0:c1,c2"));
        let fault = MountOptions::parse([one.as_str(), &other]).unwrap_err();
        assert!(fault.to_string().contains("twice"), "{fault}");
        assert_eq!(MountOptions::parse(["ro"]).unwrap().context, None);
    }

    #[test]
    fn a_context_is_the_same_in_quotation_marks_and_however_its_categories_are_put() {
        for (given, level) in [
            ("s0", "s0"),
            ("s0:c1", "s0:c1"),
            ("s0:c2,c1", "s0:c1,c2"),
            ("s0:c7,c7", "s0:c7"),
            ("s0:c1.c2", "s0:c1,c2"),
            ("s0:c1,c2,c3", "s0:c1.c3"),
            ("s0:c9,c0.c4,c3.c6", "s0:c0.c6,c9"),
            ("s0:c0.c1023", "s0:c0.c1023"),
            ("s0-s0", "s0"),
            ("s0:c2,c1-s0:c1,c2", "s0:c1,c2"),
            ("s0-s15:c0.c3", "s0-s15:c0.c3"),
            ("s00:c01", "s0:c1"),
        ] {
            for text in [of(given), format!("{:?}", of(given))] {
                assert_eq!(security_context(&text).unwrap().as_str(), of(level), "{text}");
            }
        }
    }

    #[test]
    fn other_contexts_are_refused_with_the_form_of_those_that_are_not() {
        let bad = ["", "\"\"", "s0", "system_u:object_r:etc_t:s0", "system_u:object_r:container_file_t:s0,nouuid"];
        let half = [format!("\"{}", of("s0")), format!("{}\"", of("s0")), format!("'{}'", of("s0"))];
        for text in bad.into_iter().chain(half.iter().map(String::as_str)) {
            let fault = security_context(text).unwrap_err();
            assert!(
                fault.is(ErrorKind::Invalid) && fault.to_string().contains("container_file_t:LEVEL"),
                "{text}: {fault}"
            );
        }
        assert!(security_context(&of("s0:c3.c1")).unwrap_err().to_string().contains("ends before it begins"));
    }

    #[test]
    fn only_what_has_a_filesystem_of_its_own_has_a_label() {
        let labelled = MountOptions { context: Some(of("s0").parse().unwrap()), ..MountOptions::default() };
        labelled.check(Backing::Image).unwrap();
        assert!(labelled.check(Backing::Directory).unwrap_err().to_string().contains("backing: image"));
        MountOptions::default().check(Backing::Directory).unwrap();
    }
}
