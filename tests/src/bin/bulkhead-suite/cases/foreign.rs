//! A client that shares no code with ours: gRPC's own library, of which those of C++, C#, PHP, Python and Ruby are made.

use std::process::Command;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::commands::Printed;
use bulkhead_tests::rig::Rig;

cases! {
    a_client_of_grpcs_own_library_is_served: Host,
}

/// Makes calls of each kind, with the host's name that the library makes of the socket's path, and with others.
const CLIENT: &str = "
import grpc, sys
from urllib.parse import quote
socket = sys.argv[1]
def refused(call, code):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code, error
    else:
        raise AssertionError('a call without arguments succeeds')
names = [None, 'localhost', socket, quote(socket, safe='')]
for name in names:
    options = [('grpc.default_authority', name)] if name else []
    with grpc.insecure_channel('unix:' + socket, options) as channel:
        for _ in range(3):
            info = channel.unary_unary('/csi.v1.Identity/GetPluginInfo')(b'', timeout=60)
            assert b'bulkhead.csi.local' in info, info
        delete = channel.unary_unary('/csi.v1.Controller/DeleteVolume')
        refused(lambda: delete(b'', timeout=60), grpc.StatusCode.INVALID_ARGUMENT)
        blocks = channel.unary_stream('/csi.v1.SnapshotMetadata/GetMetadataAllocated')
        refused(lambda: list(blocks(b'', timeout=60)), grpc.StatusCode.INVALID_ARGUMENT)
print(grpc.__version__, 'is served under', len(names), 'names')
";

fn a_client_of_grpcs_own_library_is_served(rig: &mut Rig) -> Result<()> {
    let socket = rig.kubelet.csi_socket();
    // Debian's own package is of Debian's own interpreter.
    let mut client = Command::new("/usr/bin/python3");
    let told = Printed::by(client.args(["-c", CLIENT]).arg(&socket))?.succeeded()?;
    ensure!(told.trim_end().ends_with("is served under 4 names"), "{told}");
    println!("gRPC {told}");
    Ok(())
}
