//! A blocking CSI client.

mod client;
pub mod requests;

pub use client::CsiClient;

/// The public CSI definitions.
#[allow(missing_docs, clippy::all, unused_qualifications, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("csi.v1");
}

/// The kubelet's plugin registration.
#[allow(missing_docs, clippy::all, unused_qualifications, reason = "generated")]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}
