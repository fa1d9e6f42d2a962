//! What is measured, for Prometheus. A call site is one line: `METRICS.events_dropped.with([]).inc()`.

pub mod page;
pub mod process;
mod table;
mod text;

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

pub use table::{Counter, Gauge, Labelled, Raised, Row};
use table::{Kind, table};
pub use text::CONTENT_TYPE as TEXT;

/// The metrics of this process.
pub static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

table! {
    build_info: Gauge "bulkhead_build_info" [version]
        "Always 1, with the release as its label.";
    ready: Gauge "bulkhead_ready" [part]
        "Whether this part of the frontend is ready; /readyz says why one is not.";

    csi_calls: Histogram "bulkhead_csi_call_duration_seconds" [method, code]
        "How long CSI calls took, by their gRPC code.";
    helper_requests: Histogram "bulkhead_helper_request_duration_seconds" [request, outcome]
        "How long requests to the privileged helper took, with the wait for a connection; the outcome is ok, away, or the kind of the error.";
    helper_requests_in_progress: Gauge "bulkhead_helper_requests_in_progress" []
        "Requests to the privileged helper without an answer yet, those that wait for a connection included.";
    helper_connected: Counter "bulkhead_helper_connections_total" []
        "How often the link to the privileged helper came up.";

    pool_size: Gauge "bulkhead_pool_size_bytes" [pool]
        "Size of the pool's filesystem.";
    pool_available: Gauge "bulkhead_pool_available_bytes" [pool]
        "How much may still be promised to new volumes.";
    pool_largest_volume: Gauge "bulkhead_pool_largest_volume_bytes" [pool]
        "Size of the largest volume that can be created, with the default number of inodes.";
    pool_promised: Gauge "bulkhead_pool_promised_bytes" [pool]
        "How much has been promised to existing volumes.";
    pool_overpromised: Gauge "bulkhead_pool_overpromised_bytes" [pool]
        "How much more has been promised than may be.";
    pool_used: Gauge "bulkhead_pool_used_bytes" [pool]
        "How much the volumes in use have used when last measured for the kubelet.";
    pool_volumes: Gauge "bulkhead_pool_volumes" [pool]
        "Volumes that exist in the pool.";
    pool_emptying: Gauge "bulkhead_pool_emptying_volumes" [pool]
        "Deleted volumes that are still being emptied.";
    pool_filesystem_limit: Gauge "bulkhead_pool_filesystem_limit" [pool]
        "Filesystems in images that the pool may have; missing if it is not configured for any.";
    pool_filesystems: Gauge "bulkhead_pool_filesystem_volumes" [pool]
        "Filesystems in images that the pool has.";
    pool_snapshots: Gauge "bulkhead_pool_snapshots" [pool]
        "Snapshots of the pool's volumes; missing if the pool cannot take any and has none.";
    pool_snapshot_bytes: Gauge "bulkhead_pool_snapshot_bytes" [pool]
        "How much these refer to, shared with others or not; missing with them.";
    pool_inodes: Gauge "bulkhead_pool_inodes" [pool]
        "Inodes of the pool's filesystem, with those that XFS could still make from free space.";
    pool_free_inodes: Gauge "bulkhead_pool_free_inodes" [pool]
        "How many of these no file has, in volumes or beside them.";
    pool_abnormal: Gauge "bulkhead_pool_abnormal_volumes" [pool]
        "Volumes that need attention, by themselves or with their whole pool.";
    pool_cordoned: Gauge "bulkhead_pool_cordoned" [pool]
        "1 while an operator has the pool take no new volumes (kubectl bulkhead cordon); missing otherwise.";
    pool_condition: Gauge "bulkhead_pool_condition" [pool, condition]
        "Whether the pool has this condition; docs/metrics.md lists them.";
    missing_volumes: Gauge "bulkhead_missing_volumes" []
        "Volumes that PersistentVolumes of this node name, but that do not exist.";
    class_obstructed: Gauge "bulkhead_class_obstructed" [class]
        "Whether the node can make no volume of the storage class, however much room there is.";
    unserved_volumes: Gauge "bulkhead_unserved_volumes" []
        "Volumes that PersistentVolumes of this node name, and that are not served, by themselves or with their pool.";
    orphaned_volumes: Gauge "bulkhead_orphaned_volumes" []
        "Volumes of this node that no PersistentVolume names.";
    inspections: Histogram "bulkhead_inspection_duration_seconds" []
        "How long it took to look at all pools, every 30 seconds.";

    namespace_promised: Gauge "bulkhead_namespace_promised_bytes" [pool, namespace]
        "How much of the pool is promised to a namespace's volumes and snapshots, where an operator has limited that: of the 20 that are nearest to their share, and of (others) and what belongs to (nobody) known.";
    namespace_volumes: Gauge "bulkhead_namespace_volumes" [pool, namespace]
        "How many volumes and snapshots these have in the pool.";
    namespace_ratio: Gauge "bulkhead_namespace_share_used_ratio" [pool, namespace]
        "How much of its share a namespace has, by what is scarcest: room, volumes and snapshots, or filesystems in images; 1 is all of it.";
    namespace_refusals: Counter "bulkhead_namespace_refusals_total" [kind]
        "Attempts to make a volume or a snapshot, or to let a volume grow, that failed because the namespace has its share.";

    provisioning: Histogram "bulkhead_provisioning_duration_seconds" [stage]
        "Time since a claim was first seen to need a volume of this node, until that is made, and until the API server has its PersistentVolume.";
    provisioning_failures: Counter "bulkhead_provisioning_failures_total" [cause]
        "Attempts to make a volume for a claim that failed.";
    expansion_failures: Counter "bulkhead_expansion_failures_total" [cause]
        "Attempts to expand a claim's volume that failed: infeasible if its owner asks for too much, else failed.";
    reconciliations: Histogram "bulkhead_reconciliation_duration_seconds" [kind]
        "How long it took to look at an object and do what it needs.";
    reconciliations_in_progress: Gauge "bulkhead_reconciliations_in_progress" [kind]
        "Objects that are being looked at; 16 of a kind at most.";
    failing_objects: Gauge "bulkhead_failing_objects" []
        "Claims and PersistentVolumes whose latest attempt failed for a reason that may pass.";
    retries: Counter "bulkhead_reconciliation_retries_total" [kind, cause]
        "Objects that are looked at again later because the attempt failed.";

    api_requests: Histogram "bulkhead_api_request_duration_seconds" [verb, resource, code]
        "How long the API server took to answer, or a watch to begin, by HTTP status; code 0 is no answer.";
    watch_up: Gauge "bulkhead_watch_up" [resource]
        "Whether the watch of these objects is established.";
    watch_contact: Gauge "bulkhead_watch_last_contact_timestamp_seconds" [resource]
        "When something was last received on this watch; more than three minutes ago means trouble.";
    watch_interruptions: Counter "bulkhead_watch_interruptions_total" [resource]
        "How often the watch of these objects failed.";
    events_waiting: Gauge "bulkhead_events_waiting" []
        "Kubernetes events that wait to be written.";
    events_dropped: Counter "bulkhead_events_dropped_total" []
        "Kubernetes events that were dropped because too many waited.";
    log_lines_dropped: Counter "bulkhead_log_lines_dropped_total" []
        "Log lines that were dropped because nobody read them.";
    token_expiry: Gauge "bulkhead_token_expiry_timestamp_seconds" []
        "When the token for the API server expires, unless the kubelet replaces it.";
    token_renewing: Gauge "bulkhead_token_renewing" []
        "Whether the agent itself renews its token for the API server, and did not fail last.";

    process_cpu: Counter "process_cpu_seconds_total" []
        "CPU time used by the frontend.";
    process_memory: Gauge "process_resident_memory_bytes" []
        "Resident memory of the frontend.";
    process_virtual_memory: Gauge "process_virtual_memory_bytes" []
        "Size of the frontend's address space.";
    process_descriptors: Gauge "process_open_fds" []
        "Open file descriptors of the frontend.";
    process_most_descriptors: Gauge "process_max_fds" []
        "How many file descriptors the frontend may have open.";
    process_start: Gauge "process_start_time_seconds" []
        "When the frontend started.";
}

impl Metrics {
    /// All metrics in Prometheus' text format.
    pub fn text(&self) -> String {
        text::encode(&self.registry)
    }
}

/// The current time as metrics express it, in seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use bulkhead_model::exposition::{Sample, samples};

    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        for Row { name, kind, labels, help } in ROWS {
            assert!(name.starts_with("bulkhead_") || name.starts_with("process_"), "{name}");
            assert_eq!(*kind == "counter", name.ends_with("_total"), "{name}");
            assert!(*kind != "histogram" || name.ends_with("_seconds"), "{name}");
            assert!(help.ends_with('.') && help.len() > 20, "{name}");
            // None per volume, claim or object: their number is unbounded.
            let bounded = [
                "version", "part", "method", "code", "request", "outcome", "stage", "cause", "kind", "verb",
                "resource", "pool", "condition", "class",
                // The few that are nearest to their share, and the others together.
                "namespace",
            ];
            assert!(labels.iter().all(|label| bounded.contains(label)), "{name}");
        }
    }

    #[test]
    fn a_counter_without_labels_is_there_from_the_start_and_an_unknown_value_is_not() {
        let metrics = Metrics::new();
        let text = metrics.text();
        assert!(
            text.contains("\nbulkhead_events_dropped_total 0\n")
                || text.contains("\nbulkhead_events_dropped_total 0.0\n"),
            "{text}"
        );
        assert!(!text.contains("\nbulkhead_token_expiry_timestamp_seconds "), "{text}");
        metrics.retries.with(["PersistentVolumeClaim", "api"]).inc();
        let raised = metrics.helper_requests_in_progress.during([]);
        let text = metrics.text();
        assert!(
            text.contains("bulkhead_reconciliation_retries_total{kind=\"PersistentVolumeClaim\",cause=\"api\"} 1"),
            "{text}"
        );
        assert!(text.contains("bulkhead_helper_requests_in_progress 1"), "{text}");
        drop(raised);
        assert!(metrics.text().contains("bulkhead_helper_requests_in_progress 0"));
    }

    #[test]
    fn what_is_written_is_read() {
        METRICS.pool_condition.with(["read-back", "shut_down"]).set(1.0);
        METRICS.pool_size.with(["read-back"]).set(958_246_912.0);
        let text = METRICS.text();
        let of_pool = |name: &str| {
            let is_it = |sample: &Sample<'_>| sample.name == name && sample.label("pool") == Some("read-back");
            samples(&text).find(is_it).unwrap()
        };
        assert_eq!(of_pool("bulkhead_pool_size_bytes").value, 958_246_912.0);
        let condition = of_pool("bulkhead_pool_condition");
        assert_eq!(
            (condition.label("condition"), condition.label("cond"), condition.value),
            (Some("shut_down"), None, 1.0)
        );
        assert!(samples(&text).any(|sample| sample.name == "bulkhead_events_dropped_total"), "one without labels");
    }
}
