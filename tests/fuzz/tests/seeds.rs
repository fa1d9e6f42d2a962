//! Each target on its seeds, without libFuzzer: what was found once does not return, and seeds are of use.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use bulkhead_fuzz::TARGETS;

#[test]
fn every_target_holds_for_its_seeds() {
    for (target, run) in TARGETS {
        let mut seeds = 0;
        for entry in fs::read_dir(format!("seeds/{target}")).expect(target) {
            let path = entry.expect("an entry").path();
            println!("{}", path.display());
            run(&fs::read(&path).expect("a seed"));
            seeds += 1;
        }
        assert!(seeds > 2, "{target} has {seeds} seeds");
    }
}

#[test]
fn the_released_packets_hold() {
    let decode = TARGETS.iter().find(|(target, _)| *target == "decode").expect("a target").1;
    for line in include_str!("../../../protocol/tests/golden.txt").lines() {
        let (_, packet) = line.split_once(' ').expect("a name and a packet");
        let byte = |at| u8::from_str_radix(&packet[at..at + 2], 16).expect("hexadecimal");
        decode(&(0..packet.len()).step_by(2).map(byte).collect::<Vec<_>>());
    }
}

#[test]
fn libfuzzer_has_a_shell_for_every_target() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(target, _)| (*target).to_owned()).collect();
    let names = |directory: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(directory).expect(directory).map(|entry| entry.expect("an entry").path());
        entries.map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned()).collect()
    };
    assert_eq!(names("libfuzzer/src"), targets);
    assert_eq!(names("seeds"), targets);
    let manifest = fs::read_to_string("libfuzzer/Cargo.toml").expect("a manifest");
    for target in &targets {
        let shell = fs::read_to_string(Path::new("libfuzzer/src").join(target).with_extension("rs")).expect("a shell");
        assert!(shell.contains(&format!("bulkhead_fuzz::{target}::run(")), "{target}: {shell}");
        assert!(manifest.contains(&format!("name = \"{target}\"\npath = \"src/{target}.rs\"\n")), "{target}");
    }
}
