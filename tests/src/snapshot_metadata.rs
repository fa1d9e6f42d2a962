//! Kubernetes' service for backup programs.
#![allow(missing_docs, clippy::all, unused_qualifications, reason = "generated")]

tonic::include_proto!("snapshotmetadata");
