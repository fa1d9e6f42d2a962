//! `bulkheadctl`: speaks CSI from the command line.
fn main() {}
