//! Values that the chart refuses: wrong ones, and those that would take away what SECURITY.md relies on.

use anyhow::{Context, Result, ensure};
use bulkhead_model::objects::names::AGENT_POLICIES;
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use serde_json::{Value, json};

use super::{Objects, WITH_LABELS, named, objects, template, template_with};

cases! {
    on Cluster;
    a_value_that_is_wrong_is_refused: Bare + Long,
    what_no_node_could_serve_is_refused: Bare + Long,
    a_value_that_would_take_safety_away_is_refused: Bare + Long,
    no_value_takes_safety_away: Bare + Long,
}

fn a_value_that_is_wrong_is_refused(_: &mut Cluster) -> Result<()> {
    for (value, named) in [
        ("form=both", "form"),
        ("kubeletDirectory=relative", "kubeletDirectory"),
        ("kubletDirectory=/var/lib/kubelet", "kubletDirectory"),
        ("pools=null", "pools"),
        ("pools[0].name=default", "directory"),
        ("pools[0].name=a,pools[0].directory=/srv/bulkhead/a,pools[0].filesystems=0", "filesystems"),
        ("storageClasses[0].name=a,storageClasses[0].parameters.backing=tape", "backing"),
        ("pools[0].name=a,pools[0].directory=/elsewhere/a", "poolsDirectory"),
        ("nodeGroups[0].name=a,nodeGroups[0].labels.a=b", "labels"),
        ("nodeGroups[0].name=a,nodeGroups[0].poolsDirectory=/elsewhere", "poolsDirectory"),
        ("poolsDirectory=/elsewhere", "poolsDirectory: no pools are named that /elsewhere could hold"),
        ("rootPool.enabled=true", "enabled"),
        ("prepare.enabled=true", "prepare.paths"),
        ("prepare.enabled=true,prepare.paths[0]=/dev/sd?", "name the pools of the disks in pools"),
        ("prepare.enabled=true,form=host-service", "run bulkhead-setup prepare on the nodes"),
        ("prepare.paths[0]=sdb", "paths"),
        ("prepare.size=3T", "size"),
        ("storageClasses[0].name=a,storageClasses[0].parameters.poool=a", "poool"),
        ("storageClasses[0].name=a,storageClasses[0].mountOptions[0]=suid", "mountOptions"),
        ("labels=perhaps", "labels"),
        ("frontend.image.digest=sha256:1", "digest"),
        ("frontend.logLevel=loud", "logLevel"),
        ("frontend.metricsPort=10250", "metricsPort"),
        ("updateStrategy.type=Recreate", "updateStrategy"),
        ("updateStrategy.maxUnavailable=0", "maxUnavailable"),
        ("updateStrategy.maxSurge=1", "maxSurge"),
        ("networkPolicy.from[0].namespace=monitoring", "namespace"),
        ("nodeSelector.disk=true", "nodeSelector"),
    ] {
        let told = template(&[WITH_LABELS, "--set", value])?.failed().with_context(|| value)?;
        ensure!(told.contains(named), "{value}: {told}");
    }
    Ok(())
}

fn what_no_node_could_serve_is_refused(_: &mut Cluster) -> Result<()> {
    let pools = |pools: &[(&str, &str)]| -> Value {
        pools.iter().map(|(name, directory)| json!({ "name": name, "directory": directory })).collect()
    };
    let class = |parameters: Value| json!([{ "name": "own", "parameters": parameters }]);
    let (a, b) = (("a", "/srv/bulkhead/a"), ("b", "/srv/bulkhead/b"));
    let own = json!([{ "name": "own", "default": true }, { "name": "other", "default": true }]);
    let twice = json!([{ "name": "own" }, { "name": "own" }]);
    let image = json!({ "backing": "image" });
    for (values, named) in [
        (json!({ "pools": pools(&[a, ("b", "/srv/bulkhead/a")]) }), "overlap"),
        (json!({ "pools": pools(&[a, ("b", "/srv/bulkhead/a/b")]) }), "a (/srv/bulkhead/a) and b (/srv/bulkhead/a/b)"),
        (json!({ "pools": pools(&[("b", "/srv/bulkhead/a/b"), a]) }), "overlap"),
        (json!({ "pools": pools(&[a, ("a", "/srv/bulkhead/b")]) }), "two pools are called a"),
        (json!({ "nodeGroups": [{ "name": "g", "pools": pools(&[a, ("b", "/srv/bulkhead/a")]) }] }), "overlap"),
        (json!({ "storageClasses": class(json!({ "pool": "fast" })) }), "no node has the pool fast of the class own"),
        (json!({ "pools": pools(&[a, b]), "storageClasses": class(json!({})) }), "own names no pool"),
        (json!({ "pools": pools(&[a]), "storageClasses": class(image.clone()) }), "filesystems: true"),
        (
            json!({ "pools": pools(&[a]), "selinux": { "mount": true }, "storageClasses": class(json!({ "pool": "a" })) }),
            "selinux.mount: volumes of the class own are directories of a pool",
        ),
        (json!({ "storageClasses": own }), "own and other both have default: true"),
        (json!({ "storageClasses": twice }), "two classes are called own"),
    ] {
        let told = template_with(&values)?.failed().with_context(|| values.to_string())?;
        ensure!(told.contains(named), "{values}: {told}");
    }
    let filesystems = json!([{ "name": "a", "directory": "/srv/bulkhead/a", "filesystems": true }]);
    for values in [
        // Directories of which one's name begins with the other's.
        json!({ "pools": pools(&[("default", "/srv/bulkhead/a"), ("b", "/srv/bulkhead/ab")]) }),
        json!({ "pools": filesystems, "storageClasses": class(image.clone()) }),
        json!({ "pools": filesystems, "storageClasses": class(image.clone()), "selinux": { "mount": true } }),
        // The pool on the root has them.
        json!({ "storageClasses": class(image) }),
        json!({ "selinux": { "mount": true } }),
        json!({ "nodeGroups": [{ "name": "g", "pools": pools(&[a, b]) }], "storageClasses": class(json!({ "pool": "b" })) }),
        // The nodes' own configuration says which pools there are.
        json!({ "form": "host-service", "storageClasses": class(json!({ "pool": "fast" })) }),
    ] {
        template_with(&values)?.succeeded().with_context(|| values.to_string())?;
    }
    Ok(())
}

fn a_value_that_would_take_safety_away_is_refused(_: &mut Cluster) -> Result<()> {
    let pool = |directory: &str| json!([{ "name": "a", "directory": directory }]);
    let privileged = json!({ "privileged": true });
    let line = "x\n      hostPID: true";
    for (values, named) in [
        // What a pod may have besides.
        (json!({ "hostPID": true }), "hostPID"),
        (json!({ "hostNetwork": true }), "hostNetwork"),
        (json!({ "serviceAccountName": "admin" }), "serviceAccountName"),
        (json!({ "frontend": { "securityContext": privileged } }), "securityContext"),
        (json!({ "privhelper": { "securityContext": privileged } }), "securityContext"),
        (json!({ "frontend": { "env": [] } }), "env"),
        (json!({ "frontend": { "flags": ["--sandbox=off"] } }), "flags"),
        (json!({ "policies": { "enabled": false } }), "policies"),
        // What confines the helper, and whom it obeys.
        (json!({ "privhelper": { "flags": ["--seccomp=log"] } }), "flags"),
        (json!({ "privhelper": { "flags": ["--allow-uid 1000"] } }), "flags"),
        (json!({ "privhelper": { "flags": ["--publish-dir a=/a"] } }), "flags"),
        (json!({ "privhelper": { "flags": ["--max-volumes 1\n--seccomp=log"] } }), "flags"),
        (json!({ "privhelper": { "mounterUid": 0 } }), "mounterUid"),
        (json!({ "privhelper": { "mounterUid": 10001 } }), "mounterUid"),
        (json!({ "privhelper": { "mounterUid": 65534 } }), "mounterUid"),
        // What its container sees of the node.
        (json!({ "poolsDirectory": "/etc" }), "poolsDirectory"),
        (json!({ "udevRule": { "directory": "/etc" } }), "directory"),
        (json!({ "rootPool": { "directory": "/etc/volumes" } }), "directory"),
        (json!({ "rootPool": { "reserve": "10%,quota=none\n--seccomp=log" } }), "reserve"),
        (json!({ "rootPool": { "directory": "/var/lib/kubelet/volumes" } }), "must be apart"),
        (json!({ "poolsDirectory": "/proc/1/root" }), "poolsDirectory"),
        (json!({ "poolsDirectory": "/srv/../etc" }), "poolsDirectory"),
        (json!({ "poolsDirectory": "/var/lib" }), "poolsDirectory"),
        (
            json!({ "pools": pool("/opt/a"), "poolsDirectory": "/opt", "kubeletDirectory": "/opt/kubelet" }),
            "must be apart",
        ),
        (
            json!({ "pools": pool("/var/lib/kubelet/pools/a"), "poolsDirectory": "/var/lib/kubelet/pools" }),
            "must be apart",
        ),
        (json!({ "pools": pool("/srv/bulkhead/a\n--seccomp=log") }), "directory"),
        (json!({ "nodeGroups": [{ "name": "a", "poolsDirectory": "/dev" }] }), "poolsDirectory"),
        // What would become a line of a manifest of its own.
        (json!({ "priorityClassName": line }), "priorityClassName"),
        (json!({ "frontend": { "image": { "repository": line } } }), "repository"),
        (json!({ "frontend": { "image": { "tag": line } } }), "tag"),
        (json!({ "storageClasses": [{ "name": line }] }), "name"),
        // What finds the agents' pods, and what another runtime takes for a profile.
        (json!({ "podLabels": { "app.kubernetes.io/name": "other" } }), "app.kubernetes.io/name"),
        (
            json!({ "podAnnotations": { "container.apparmor.security.beta.kubernetes.io/frontend": "unconfined" } }),
            "container.apparmor",
        ),
    ] {
        let told = template_with(&values)?.failed().with_context(|| values.to_string())?;
        ensure!(told.contains(named), "{values}: {told}");
    }
    Ok(())
}

/// With values as different as possible.
fn no_value_takes_safety_away(cluster: &mut Cluster) -> Result<()> {
    let elsewhere = json!({
        "namespace": "storage", "driverName": "disk.example.com", "kubeletDirectory": "/var/lib/k0s/kubelet",
        "poolsDirectory": "/pools", "pools": [{ "name": "a", "directory": "/pools/a" }], "labels": "never",
        "podLabels": { "a": "b" }, "podAnnotations": { "a": "b" }, "affinity": { "nodeAffinity": {} },
        "frontend": { "resources": {}, "metricsPort": 9000 }, "privhelper": { "resources": {} },
    });
    let groups = json!({ "nodeGroups": [{ "name": "a", "nodeSelector": { "a": "1" } }] });
    let disk = json!({ "pools": [{ "name": "a", "directory": "/srv/bulkhead/a" }] });
    let without = json!({ "udevRule": { "enabled": false } });
    let in_domains = json!({ "selinux": { "enabled": true } });
    let prepared = json!({ "pools": disk["pools"], "prepare": { "enabled": true, "paths": ["/dev/sd?"] } });
    let on_host = json!({ "form": "host-service" });
    for values in [json!({}), elsewhere, groups, disk, prepared, without, in_domains, on_host] {
        let made = objects(cluster, &template_with(&values)?.succeeded()?)?;
        confined(&made, &values).with_context(|| values.to_string())?;
    }
    Ok(())
}

/// The policies are all there, and the pods have what SECURITY.md says and nothing else.
fn confined(objects: &Objects, values: &Value) -> Result<()> {
    let container = values["form"] != "host-service";
    let root_pool = container && values["pools"].is_null();
    let prepares = values["prepare"]["enabled"] == true;
    let udev_rule = container && values["udevRule"]["enabled"] != false;
    // Each has a container of its own that comes first, and sees one directory of the host.
    let more: usize = [root_pool, udev_rule, prepares].into_iter().map(usize::from).sum();
    for name in AGENT_POLICIES {
        let policy = named(objects, "ValidatingAdmissionPolicy", name)?;
        ensure!(policy["spec"]["failurePolicy"] == "Fail", "{policy:#}");
        let binding = named(objects, "ValidatingAdmissionPolicyBinding", name)?;
        ensure!(binding["spec"]["validationActions"] == json!(["Deny"]), "{binding:#}");
    }
    let sets: Vec<&Value> = objects.iter().filter(|(key, _)| key.0 == "DaemonSet").map(|(_, set)| set).collect();
    ensure!(sets.len() == 1, "{} DaemonSets", sets.len());
    let pod = &sets[0]["spec"]["template"]["spec"];
    for field in ["hostPID", "hostIPC", "hostNetwork", "securityContext"] {
        ensure!(pod[field].is_null(), "{field}: {pod:#}");
    }
    let first = pod["initContainers"].as_array().map(Vec::as_slice).unwrap_or_default();
    ensure!(first.len() == more, "{first:#?}");
    let unprivileged = json!({
        "runAsUser": 0, "runAsGroup": 0, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
        "seLinuxOptions": { "type": "spc_t" },
    });
    // What has disks is called by its name.
    for one in first.iter().filter(|one| one["name"] != "prepare") {
        let seen = match one["name"].as_str() {
            Some("udev-rule") => json!([{ "name": "udev-rules", "mountPath": "/run/udev/rules.d" }]),
            _ => json!([{ "name": "pool", "mountPath": "/var/lib/bulkhead/default" }]),
        };
        ensure!(one["volumeMounts"] == seen && one["securityContext"] == unprivileged, "{one:#}");
    }
    ensure!(pod["automountServiceAccountToken"] == false, "{pod:#}");
    let containers = pod["containers"].as_array().context("no containers")?;
    ensure!(containers.len() == 1 + usize::from(container), "{} containers", containers.len());
    let frontend = &containers[0]["securityContext"];
    let mut unprivileged = json!({
        "runAsUser": 10001, "runAsGroup": 10001, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    if values["selinux"]["enabled"] == true {
        unprivileged["seLinuxOptions"] = json!({ "type": "bulkhead_frontend_t", "level": "s0" });
    }
    ensure!(*frontend == unprivileged, "{frontend:#}");
    if container {
        let helper = containers[1]["volumeMounts"].as_array().context("no mounts")?;
        ensure!(helper.iter().all(|mount| mount["name"] != "token"), "the helper has the token: {helper:?}");
    }
    let volumes = pod["volumes"].as_array().context("no volumes")?;
    let on_host = volumes.iter().filter(|volume| !volume["hostPath"].is_null()).count();
    let expected = if container { 4 + more } else { 1 };
    ensure!(on_host == expected, "{volumes:#?}");
    Ok(())
}
