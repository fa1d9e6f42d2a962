//! What holds for every input that Bulkhead reads from others: from a frontend that was taken over, from a tenant's disk,
//! from whoever may create objects in a cluster.
//!
//! Each target is a function that takes any bytes and panics if something does not hold. `cargo xtask test --fuzz` has
//! libFuzzer look for such bytes, beginning with the files in `seeds/`; the shells for it are in `libfuzzer/`, a workspace
//! of its own. The unit tests run each target on its seeds.

/// What a target is called, and what it does.
pub type Target = (&'static str, fn(&[u8]));

macro_rules! targets {
    ($($target:ident)*) => {
        $(pub mod $target;)*

        /// All of them.
        pub const TARGETS: &[Target] = &[$((stringify!($target), $target::run)),*];
    };
}

targets! {
    api_answers
    api_objects
    configuration
    csi_arguments
    decode
    kubelet_record
    mountinfo
    owner_record
    pool_marker
    quantities
    shown
    targets
}

/// A file in memory with this content, for what reads from a descriptor.
fn file(content: &[u8]) -> std::os::fd::OwnedFd {
    use std::io::Write as _;

    let file = rustix::fs::memfd_create("input", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory");
    let mut file = std::fs::File::from(file);
    file.write_all(content).expect("it takes the input");
    file.into()
}
