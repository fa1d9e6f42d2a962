//! What a request's path says.

/// The objects that a request to `path` is about, as they are called in the API, and whether it is passed on to what
/// one of them stands for: a pod, or a node's kubelet. A path is `/api/VERSION/` or `/apis/GROUP/VERSION/`, then
/// `namespaces/NAME/` if they are in one, then their name, and then that of one of them.
pub fn subject(path: &str) -> (Option<&str>, bool) {
    let mut parts = path.split('/').skip(if path.starts_with("/apis/") { 4 } else { 3 });
    let named = match parts.next() {
        Some("namespaces") => parts.nth(1),
        other => other,
    };
    (named.filter(|named| !named.is_empty()), parts.nth(1) == Some("proxy"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_on_is_told_apart() {
        for (path, named) in [
            ("/api/v1/persistentvolumes", Some("persistentvolumes")),
            ("/api/v1/namespaces/shop/persistentvolumeclaims/data/status", Some("persistentvolumeclaims")),
            ("/apis/storage.k8s.io/v1/csinodes/node-1", Some("csinodes")),
            ("/api/v1/namespaces/events/persistentvolumeclaims/persistentvolumes", Some("persistentvolumeclaims")),
            ("/api/v1/namespaces/shop/pods/proxy", Some("pods")),
            ("/api/v1/namespaces/events", None),
            ("/version", None),
            ("", None),
        ] {
            assert_eq!(subject(path), (named, false), "{path}");
        }
        assert_eq!(subject("/api/v1/namespaces/a/pods/b:metrics/proxy/volumes"), (Some("pods"), true));
        assert_eq!(subject("/api/v1/nodes/a/proxy/stats/summary"), (Some("nodes"), true));
    }
}
