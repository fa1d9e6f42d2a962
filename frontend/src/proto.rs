//! Rust types of the services in `proto/`.

/// The Container Storage Interface.
pub mod csi {
    #![allow(missing_docs, unused_qualifications, clippy::all)]
    tonic::include_proto!("csi.v1");
}

/// The kubelet's plugin registration.
pub mod registration {
    #![allow(missing_docs, unused_qualifications, clippy::all)]
    tonic::include_proto!("pluginregistration");
}

/// Kubernetes' service for backup programs.
pub mod snapshotmetadata {
    #![allow(missing_docs, unused_qualifications, clippy::all)]
    tonic::include_proto!("snapshotmetadata");
}

/// Bulkhead's own service, which `bulkheadctl` uses beside CSI.
pub mod inspection {
    #![allow(missing_docs, unused_qualifications, clippy::all)]
    tonic::include_proto!("bulkhead.v1");
}
