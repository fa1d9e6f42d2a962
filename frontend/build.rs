//! Compiles the service definitions in `proto/`, without needing protoc on the build machine.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    println!("cargo:rerun-if-changed={}", definitions.display());
    let descriptors = protox::compile(["csi.proto", "pluginregistration.proto", "bulkhead.proto"], [&definitions])?;
    tonic_prost_build::configure().btree_map(".").compile_fds(descriptors)?;
    Ok(())
}
