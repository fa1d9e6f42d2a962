//! Names in the Kubernetes API that Bulkhead reads or writes.

/// On a claim: which provisioner is to serve it (Kubernetes 1.23 and newer).
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// The same under its older key, which is written beside it.
pub const PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";

/// On a claim: the class, from before it had a field.
pub const CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";

/// On a claim: the node on which its first pod is to run, as the scheduler has chosen it.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// On a claim: that it is bound for good.
pub const BOUND: &str = "pv.kubernetes.io/bind-completed";

/// On a claim: that its last growth needed nothing of the kubelet.
pub const NO_NODE_EXPANSION: &str = "volume.kubernetes.io/node-expansion-not-required";

/// On a volume: which driver made it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// On a volume: the secret needed to delete it. Present and empty means that none is.
pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";

/// The namespace of that secret.
pub const DELETION_SECRET_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";

/// Among a volume's attributes: who made it.
pub const PROVISIONER_IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";

/// On a volume: keeps the object until what it stands for is deleted. The name is that of the common provisioner, so
/// that every tool knows what it waits for.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// On capacity objects: the driver.
pub const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";

/// On capacity objects: who writes them.
pub const MANAGED_BY_LABEL: &str = "csi.storage.k8s.io/managed-by";

/// The value of [`MANAGED_BY_LABEL`] on ours.
pub const MANAGED_BY: &str = "bulkhead";

/// The admission policy, and its binding, that copies a claim's selected node into a label.
pub const CLAIM_POLICY: &str = "bulkhead-claims";

/// In a token's extra fields: the node it is bound to, directly or by its pod (Kubernetes 1.32).
pub const TOKEN_NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// The uid of that node.
pub const TOKEN_NODE_UID: &str = "authentication.kubernetes.io/node-uid";
