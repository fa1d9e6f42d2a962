//! Compiles the service definitions in `proto/`, without needing protoc on the build machine.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    println!("cargo:rerun-if-changed={}", definitions.display());
    let files = ["csi.proto", "pluginregistration.proto", "snapshotmetadata.proto", "bulkhead.proto"];
    let descriptors = protox::compile(files, [&definitions])?;
    tonic_prost_build::configure().btree_map(".").compile_fds(descriptors)?;
    Ok(())
}
