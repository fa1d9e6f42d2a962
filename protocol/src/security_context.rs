//! The label that SELinux has for all files of one filesystem.

use crate::checked::checked_text;

checked_text!(
    /// A security context that a mount may give its files: that of containers' files (`container_file_t`, as container
    /// runtimes label what a container may write), at some level. Nothing else of it is up to whoever asks: any other
    /// type is of the host's files, or, as `container_ro_file_t`, of images that containers share. Its user is the one
    /// that kubelets name.
    ///
    /// A level is `s0`, or with categories `s0:c1,c4.c7`; two are a range. Two texts are one context only if they are
    /// equal: the kernel, too, writes categories in their order, none twice, and three or more in a row as `c4.c7`.
    SecurityContext,
    matches,
    "a security context is system_u:object_r:container_file_t:LEVEL, with a level like s0 or s0:c1,c4.c7, at most 255 bytes long"
);

/// The longest context in bytes.
const MAX_LENGTH: usize = 255;
/// What every context begins with.
const OF_CONTAINERS_FILES: &str = "system_u:object_r:container_file_t:";

fn matches(text: &str) -> bool {
    let range = text.strip_prefix(OF_CONTAINERS_FILES).filter(|_| text.len() <= MAX_LENGTH);
    range.is_some_and(|range| range.splitn(2, '-').all(is_level))
}

fn is_level(text: &str) -> bool {
    let (sensitivity, categories) = text.split_once(':').unwrap_or((text, "c0"));
    let mut categories = categories.split(',').flat_map(|some| some.splitn(2, '.'));
    is_numbered('s', sensitivity) && categories.all(|one| is_numbered('c', one))
}

fn is_numbered(letter: char, text: &str) -> bool {
    let is_number = |rest: &str| matches!(rest.len(), 1..=4) && rest.bytes().all(|byte| byte.is_ascii_digit());
    text.strip_prefix(letter).is_some_and(is_number)
}
