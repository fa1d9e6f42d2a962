//! Compiles clients for the services in `proto/`: the suites talk to the frontend as any CSI client would, only over
//! its public protocol.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    println!("cargo:rerun-if-changed={}", definitions.display());
    let files = ["csi.proto", "pluginregistration.proto", "snapshotmetadata.proto"];
    let descriptors = protox::compile(files, [&definitions])?;
    tonic_prost_build::configure().build_server(false).btree_map(".").compile_fds(descriptors)?;
    Ok(())
}
