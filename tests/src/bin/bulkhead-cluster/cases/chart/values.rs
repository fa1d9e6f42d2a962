//! What the chart's values change.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::prometheus::RULES;
use bulkhead_tests::cluster::{Cluster, manifests};
use serde_json::{Value, json};

use super::{DISK, WITH_LABELS, WITHOUT_LABELS, accept, disk, named, objects, template, template_with};

cases! {
    on Cluster;
    its_values_take_effect: Bare + Long,
    an_image_is_pinned_by_its_digest: Bare + Long,
    labels_follow_the_server: Bare + Long,
    tokens_are_renewed_only_where_that_is_wanted: Bare + Long,
    a_pool_turns_filesystems_in_images_on: Bare + Long,
    a_pool_on_the_root_is_made_and_its_classes_have_limits: Bare + Long,
    disks_are_prepared_by_the_rule_where_they_are_named: Bare + Long,
    copies_are_taken_only_of_classes_that_have_any: Bare + Long,
    a_class_for_snapshots_is_made_where_it_can_be_used: Bare + Long,
    groups_of_nodes_differ: Bare + Long,
    a_change_is_rolled_out_as_the_values_say: Bare + Long,
    only_the_peers_of_the_network_policy_reach_the_metrics: Bare + Long,
    the_operators_objects_are_those_of_the_manifests: Bare + Long,
    changed_blocks_are_served_where_that_is_wanted: Bare + Long,
}

fn its_values_take_effect(cluster: &mut Cluster) -> Result<()> {
    let made = template_with(&json!({
        "namespace": "storage", "driverName": "disk.example.com", "kubeletDirectory": "/var/lib/k0s/kubelet",
        "poolsDirectory": "/pools",
        "pools": [{ "name": "default", "directory": "/pools/a", "reserve": "10Gi" },
                  { "name": "fast", "directory": "/pools/b", "quota": "none", "overcommit": 1.5,
                    "reserve": 1_u64 << 40, "optional": true }],
        "storageClasses": [{ "name": "fast", "default": true, "mountOptions": ["noatime"],
                             "parameters": { "pool": "fast", "blockSize": 4096, "inodes": 2_000_000 } }],
        "frontend": { "metricsPort": 9000, "shareOwners": true, "logFormat": "json", "logLevel": "debug",
                      "namespaceShare": "25%", "namespaceVolumes": 1_000_000 },
        "privhelper": { "flags": ["--max-volumes 10"], "resources": { "limits": { "memory": "1Gi" } } },
        "nodeSelector": { "disk": "yes" }, "labels": "never", "tolerations": [], "priorityClassName": "",
        "podLabels": { "team": "storage" }, "podAnnotations": { "example.com/a": "b" },
    }))?
    .succeeded()?;
    ensure!(!made.contains("bulkhead.csi.local"), "the driver's name is not everywhere");
    let objects = objects(cluster, &made)?;
    named(&objects, "CSIDriver", "disk.example.com")?;
    ensure!(!objects.keys().any(|(kind, _)| kind.starts_with("Mutating")), "labels were not wanted");
    let of_kind = |kind: &str| objects.iter().find(|(key, _)| key.0 == kind).map(|(_, object)| object).context("none");
    for kind in ["DaemonSet", "ServiceAccount", "Role", "RoleBinding", "ConfigMap"] {
        ensure!(of_kind(kind)?["metadata"]["namespace"] == "storage", "{kind}");
    }
    ensure!(of_kind("ClusterRoleBinding")?["subjects"][0]["namespace"] == "storage", "the account's namespace");
    let flags = of_kind("ConfigMap")?["data"]["privhelper.conf"].as_str().context("no flags")?;
    let expected = [
        "--pool default=/pools/a,reserve=10Gi",
        "--pool fast=/pools/b,quota=none,overcommit=1.5,reserve=1099511627776",
        "--driver-name disk.example.com",
        "--kubelet-dir /var/lib/k0s/kubelet",
        "--socket /run/bulkhead/privhelper.sock",
        "--allow-uid 10001",
        "--max-volumes 10",
    ];
    ensure!(flags.lines().collect::<Vec<_>>() == expected, "{flags}");
    let class = of_kind("StorageClass")?;
    ensure!(class["parameters"] == json!({ "pool": "fast", "blockSize": "4096", "inodes": "2000000" }), "{class}");
    ensure!(class["mountOptions"] == json!(["noatime"]), "{class}");
    ensure!(class["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true", "{class}");
    let template = &of_kind("DaemonSet")?["spec"]["template"];
    let (metadata, pod) = (&template["metadata"], &template["spec"]);
    ensure!(metadata["labels"]["team"] == "storage" && metadata["annotations"]["example.com/a"] == "b", "{metadata}");
    ensure!(pod["nodeSelector"] == json!({ "disk": "yes", "kubernetes.io/os": "linux" }), "{pod}");
    ensure!(pod["tolerations"].is_null() && pod["priorityClassName"].is_null(), "{pod}");
    let text = pod.to_string();
    for present in ["/var/lib/k0s/kubelet/pods", "\"/pools\"", ":9000", "BULKHEAD_LOG_FORMAT", "BULKHEAD_LOG_LEVEL"] {
        ensure!(text.contains(present), "no {present} in {pod:#}");
    }
    let optional = json!({ "name": "BULKHEAD_OPTIONAL_POOLS", "value": "fast" });
    let environment = pod["containers"][0]["env"].as_array().context("no environment")?;
    let shared = json!({ "name": "BULKHEAD_SHARE_OWNERS", "value": "true" });
    let share = json!({ "name": "BULKHEAD_NAMESPACE_SHARE", "value": "25%" });
    let volumes = json!({ "name": "BULKHEAD_NAMESPACE_VOLUMES", "value": "1000000" });
    ensure!([optional, shared, share, volumes].iter().all(|one| environment.contains(one)), "{environment:?}");
    ensure!(!text.contains("/var/lib/kubelet") && !text.contains("/srv/bulkhead"), "{pod:#}");
    ensure!(pod["containers"][1]["resources"]["limits"]["memory"] == "1Gi", "{pod:#}");
    Ok(())
}

fn an_image_is_pinned_by_its_digest(_: &mut Cluster) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let digest = format!("sha256:{}", "a".repeat(64));
    for name in ["frontend", "privhelper"] {
        let pinned = template(&[WITH_LABELS, "--set", &format!("{name}.image.digest={digest}")])?.succeeded()?;
        let reference = format!("image: bulkhead-{name}:{version}@{digest}\n");
        ensure!(pinned.contains(&reference), "no {reference} in {pinned}");
        let values = format!("{name}.image.digest={digest},{name}.image.tag=mine");
        let own = template(&[WITH_LABELS, "--set", &values])?.succeeded()?;
        ensure!(own.contains(&format!("image: bulkhead-{name}:mine\n")), "a tag that was given counts: {own}");
    }
    Ok(())
}

fn labels_follow_the_server(_: &mut Cluster) -> Result<()> {
    let older = template(&[WITHOUT_LABELS])?.succeeded()?;
    ensure!(!older.contains("MutatingAdmissionPolicy"), "an older server does not know these");
    let forced = template(&[WITHOUT_LABELS, "--set", "labels=always"])?.succeeded()?;
    ensure!(forced.contains("kind: MutatingAdmissionPolicy"), "they were wanted");
    Ok(())
}

fn tokens_are_renewed_only_where_that_is_wanted(cluster: &mut Cluster) -> Result<()> {
    ensure!(!template(&[WITH_LABELS])?.succeeded()?.contains("bulkhead-agent-renewal"), "nobody asked for it");
    for (audiences, expected) in [
        (json!([]), json!(["https://kubernetes.default.svc", "https://kubernetes.default.svc.cluster.local", "k3s"])),
        (json!(["https://api.example.com"]), json!(["https://api.example.com"])),
    ] {
        let values = json!({ "tokenRenewal": { "enabled": true, "audiences": audiences }, "namespace": "storage" });
        let made = template_with(&values)?.succeeded()?;
        let objects = objects(cluster, &made)?;
        let role = named(&objects, "Role", "bulkhead-agent-renewal")?;
        ensure!(role["metadata"]["namespace"] == "storage", "{role}");
        ensure!(role["rules"][0]["resources"] == json!(["serviceaccounts/token"]), "{role}");
        ensure!(role["rules"][1]["resources"] == expected, "{role}");
        let binding = named(&objects, "RoleBinding", "bulkhead-agent-renewal")?;
        ensure!(binding["subjects"][0]["namespace"] == "storage", "{binding}");
    }
    Ok(())
}

fn a_pool_turns_filesystems_in_images_on(cluster: &mut Cluster) -> Result<()> {
    let made = template(&[WITH_LABELS, "--set", DISK])?.succeeded()?;
    ensure!(!made.contains("mounter") && !made.contains("backing: "), "nobody asked for them: {made}");
    let pools = json!([{ "name": "default", "directory": "/srv/bulkhead/default", "reserve": 1, "filesystems": true },
                       { "name": "other", "directory": "/srv/bulkhead/other", "filesystems": 50 },
                       { "name": "plain", "directory": "/srv/bulkhead/plain", "filesystems": false }]);
    let made = template_with(&json!({ "pools": pools, "privhelper": { "mounterUid": 20_000 } }))?.succeeded()?;
    accept(cluster, &made)?;
    let objects = objects(cluster, &made)?;
    let flags = objects.iter().find(|(key, _)| key.0 == "ConfigMap").map(|(_, object)| object).context("no flags")?;
    let flags = flags["data"]["privhelper.conf"].as_str().context("no flags")?;
    let expected = [
        "--pool default=/srv/bulkhead/default,reserve=1,filesystems",
        "--pool other=/srv/bulkhead/other,filesystems=50",
        "--pool plain=/srv/bulkhead/plain",
        "--mounter-uid 20000",
    ];
    ensure!(flags.lines().take(4).eq(expected), "{flags}");
    ensure!(named(&objects, "StorageClass", "bulkhead-image")?["parameters"] == json!({ "backing": "image" }));
    let granted = named(&objects, "ClusterRole", "bulkhead-classes")?["rules"][0]["resourceNames"].clone();
    ensure!(granted == json!(["bulkhead", "bulkhead-retain", "bulkhead-image"]), "{granted}");
    // One of the values' own is left as it is.
    let own = json!([{ "name": "bulkhead-image", "reclaimPolicy": "Retain", "parameters": { "backing": "image" } }]);
    let made = template_with(&json!({ "pools": pools, "storageClasses": own }))?.succeeded()?;
    ensure!(made.matches("name: bulkhead-image\n").count() == 1 && made.contains("reclaimPolicy: Retain"), "{made}");
    Ok(())
}

fn a_pool_on_the_root_is_made_and_its_classes_have_limits(cluster: &mut Cluster) -> Result<()> {
    let plain =
        json!([{ "name": "default", "directory": "/disks/default" }, { "name": "fast", "directory": "/disks/fast" }]);
    let values = json!({
        "rootPool": { "directory": "/opt/volumes", "reserve": "20%" },
        "storageClasses": [{ "name": "sized", "parameters": { "sparse": true } },
                           { "name": "directories", "parameters": { "backing": "directory" } },
                           { "name": "fast", "parameters": { "pool": "fast" } }],
        "nodeGroups": [{ "name": "small", "nodeSelector": { "disk": "no" } },
                       { "name": "large", "nodeSelector": { "disk": "yes" }, "pools": plain,
                         "poolsDirectory": "/disks" }],
    });
    let made = template_with(&values)?.succeeded()?;
    accept(cluster, &made)?;
    let objects = objects(cluster, &made)?;
    let flags = |name: &str| {
        let flags = &named(&objects, "ConfigMap", name)?["data"]["privhelper.conf"];
        anyhow::Ok(flags.as_str().context("no flags")?.lines().next().unwrap_or_default().to_owned())
    };
    let root = "--pool default=/opt/volumes/default,quota=none,reserve=20%,filesystems";
    ensure!(flags("bulkhead-privhelper-small")? == root, "{made}");
    ensure!(flags("bulkhead-privhelper-large")? == "--pool default=/disks/default", "{made}");
    let pod = &named(&objects, "DaemonSet", "bulkhead-small")?["spec"]["template"]["spec"];
    let maker = &pod["initContainers"][1];
    ensure!(maker["args"] == json!(["init-pool", "default=/opt/volumes/default"]), "{maker:#}");
    ensure!(maker["image"] == pod["containers"][1]["image"] && maker["securityContext"]["privileged"].is_null());
    let volumes = pod["volumes"].as_array().context("no volumes")?;
    for directory in ["/opt/volumes", "/opt/volumes/default"] {
        ensure!(volumes.iter().any(|volume| volume["hostPath"]["path"] == directory), "{volumes:#?}");
    }
    let large = &named(&objects, "DaemonSet", "bulkhead-large")?["spec"]["template"]["spec"];
    ensure!(!large["initContainers"].to_string().contains("init-pool"), "a disk is marked by who mounts it: {large:#}");
    let class = |name: &str| anyhow::Ok(named(&objects, "StorageClass", name)?["parameters"].clone());
    ensure!(class("sized")? == json!({ "backing": "image", "sparse": "true" }), "{made}");
    ensure!(class("directories")? == json!({ "backing": "directory" }), "what a class says counts");
    ensure!(class("fast")? == json!({ "pool": "fast" }), "it is not for that pool: {made}");
    ensure!(!made.contains("name: bulkhead-image"), "one class of it is enough");
    // A group can have it beside those that have the pools of all.
    let groups = json!([{ "name": "small", "nodeSelector": { "disk": "no" }, "pools": [], "poolsDirectory": "/srv/bulkhead" },
                        { "name": "large", "nodeSelector": { "disk": "yes" } }]);
    let values = json!({ "pools": plain, "poolsDirectory": "/disks", "nodeGroups": groups });
    let made = template_with(&values)?.succeeded()?;
    ensure!(made.matches("init-pool").count() == 1 && made.contains("default=/var/lib/bulkhead/default\n"), "{made}");
    // With disks everywhere, or none that the chart knows, classes are as they are.
    for values in [
        json!({ "nodeGroups": [{ "name": "a", "pools": plain, "poolsDirectory": "/disks" }] }),
        json!({ "form": "host-service" }),
    ] {
        let made = template_with(&values)?.succeeded()?;
        ensure!(!made.contains("backing: ") && !made.contains("init-pool"), "{values}: {made}");
    }
    Ok(())
}

fn disks_are_prepared_by_the_rule_where_they_are_named(cluster: &mut Cluster) -> Result<()> {
    let disk = json!([{ "name": "fast-1", "directory": "/disks/fast-1", "optional": true }]);
    let values = json!({
        "prepare": { "enabled": true, "paths": ["/dev/disk/by-id/nvme-*"], "size": "3T..5T", "models": ["SAMSUNG *"],
                     "name": "fast-{n}" },
        "nodeGroups": [{ "name": "small", "nodeSelector": { "disk": "no" } },
                       { "name": "large", "nodeSelector": { "disk": "yes" }, "pools": disk,
                         "poolsDirectory": "/disks" }],
        "storageClasses": [{ "name": "fast", "parameters": { "pool": "fast-1" } }],
    });
    let made = template_with(&values)?.succeeded()?;
    accept(cluster, &made)?;
    let objects = objects(cluster, &made)?;
    let first = |group: &str| {
        let set = named(&objects, "DaemonSet", &format!("bulkhead-{group}"))?;
        anyhow::Ok(set["spec"]["template"]["spec"]["initContainers"].clone())
    };
    ensure!(!first("small")?.to_string().contains("prepare"), "it has a pool on the root: {made}");
    let one = &first("large")?[1];
    let rule = [
        "prepare", "--host", "/host", "--directory", "/disks", "--name", "fast-{n}", "--size", "3T..5T", "--model",
        "SAMSUNG *", "--path", "/dev/disk/by-id/nvme-*",
    ];
    ensure!(one["args"] == json!(rule), "{one:#}");
    let mounts = json!([{ "name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer" },
                        { "name": "pools", "mountPath": "/host/disks", "mountPropagation": "Bidirectional" }]);
    ensure!(one["volumeMounts"] == mounts, "{one:#}");
    let mut writes = values;
    writes["prepare"]["write"] = json!(true);
    let made = template_with(&writes)?.succeeded()?;
    ensure!(made.contains("- --yes\n"), "{made}");
    Ok(())
}

fn copies_are_taken_only_of_classes_that_have_any(cluster: &mut Cluster) -> Result<()> {
    let granted = |made: &str| {
        let objects = objects(cluster, made)?;
        let rules = named(&objects, "ClusterRole", "bulkhead-classes")?["rules"].clone();
        let all = rules.as_array().context("no rules")?.iter();
        let of_restore =
            all.filter(|rule| rule["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("restore"))));
        anyhow::Ok(of_restore.map(|rule| rule["resourceNames"].clone()).collect::<Vec<_>>())
    };
    let made = granted(&template(&[WITH_LABELS, "--set", DISK])?.succeeded()?)?;
    ensure!(made.is_empty(), "directories cannot be copied: {made:?}");
    let image = json!({ "backing": "image" });
    let classes = json!([
        { "name": "directories", "parameters": { "backing": "directory" } },
        { "name": "images", "parameters": image },
        { "name": "devices", "restore": true, "volumeBindingMode": "Immediate" },
        { "name": "placed-by-pods", "restore": false, "parameters": image },
    ]);
    let pools = json!([{ "name": "default", "directory": "/srv/bulkhead/default", "filesystems": true }]);
    let made = template_with(&json!({ "pools": pools, "storageClasses": classes }))?.succeeded()?;
    accept(cluster, &made)?;
    let made = granted(&made)?;
    ensure!(made == [json!(["images", "devices", "bulkhead-image"])], "{made:?}");
    Ok(())
}

fn a_class_for_snapshots_is_made_where_it_can_be_used(_: &mut Cluster) -> Result<()> {
    let made = |arguments: &[&str]| template(&[&[WITH_LABELS][..], arguments].concat())?.succeeded();
    let kinds = [
        ("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass"),
        ("groupsnapshot.storage.k8s.io/v1", "VolumeGroupSnapshotClass"),
    ];
    for (version, kind) in kinds {
        let (known, line) = (format!("--api-versions={version}/{kind}"), format!("kind: {kind}\n"));
        let of_images = made(&[&known, "--set", "driverName=disk.example.com"])?;
        let class = of_images.split("---\n").find(|object| object.contains(&line)).context("no class for snapshots")?;
        let version = format!("apiVersion: {version}\n");
        for line in [&version, "  name: bulkhead\n", "driver: disk.example.com\n", "deletionPolicy: Delete\n"] {
            ensure!(class.contains(line), "no {line:?} in {class}");
        }
        for (without, arguments) in [
            ("the cluster knows none", &[][..]),
            ("directories cannot be copied", &["--set", DISK, &known][..]),
            ("none is wanted", &["--set", "snapshotClass=", &known][..]),
        ] {
            ensure!(!made(arguments)?.contains(&line), "{without}");
        }
    }
    Ok(())
}

fn groups_of_nodes_differ(cluster: &mut Cluster) -> Result<()> {
    let ssd = json!({ "name": "ssd", "nodeSelector": { "disk": "ssd" }, "tolerations": [], "poolsDirectory": "/mnt/ssd",
                      "pools": [{ "name": "fast", "directory": "/mnt/ssd/fast" }] });
    let hdd = json!({ "name": "hdd", "nodeSelector": { "disk": "hdd" } });
    let groups = |groups: &[&Value]| template_with(&json!({ "pools": disk(), "nodeGroups": groups }));
    let made = groups(&[&ssd, &hdd])?.succeeded()?;
    accept(cluster, &made)?;
    let objects = objects(cluster, &made)?;
    ensure!(!objects.contains_key(&("DaemonSet".to_owned(), "bulkhead".to_owned())), "a third group");
    for (group, disk, directory, pool) in [
        ("ssd", "ssd", "/mnt/ssd", "fast=/mnt/ssd/fast"),
        ("hdd", "hdd", "/srv/bulkhead", "default=/srv/bulkhead/default"),
    ] {
        let set = &named(&objects, "DaemonSet", &format!("bulkhead-{group}"))?["spec"];
        let selector = json!({ "app.kubernetes.io/name": "bulkhead", "app.kubernetes.io/component": group });
        ensure!(set["selector"]["matchLabels"] == selector, "{set:#}");
        let labels = &set["template"]["metadata"]["labels"];
        let selected = |(name, value): (&String, &Value)| labels[name] == *value;
        ensure!(selector.as_object().is_some_and(|selector| selector.iter().all(selected)), "{labels}");
        let pod = &set["template"]["spec"];
        ensure!(pod["nodeSelector"]["disk"] == disk, "{pod:#}");
        ensure!(pod["tolerations"].is_null() == (group == "ssd"), "{pod:#}");
        let config = format!("bulkhead-privhelper-{group}");
        ensure!(pod.to_string().contains(&format!("\"configMap\":{{\"name\":\"{config}\"}}")), "{pod:#}");
        ensure!(pod.to_string().contains(&format!("\"path\":\"{directory}\"")), "{pod:#}");
        let flags = named(&objects, "ConfigMap", &config)?["data"]["privhelper.conf"].to_string();
        ensure!(flags.matches("--pool ").count() == 1 && flags.contains(&format!("--pool {pool}\\n")), "{flags}");
    }

    let told = groups(&[&hdd, &hdd])?.failed()?;
    ensure!(told.contains("two groups are called hdd"), "{told}");
    let anywhere = json!({ "name": "any", "nodeSelector": { "zone": "a" } });
    let told = groups(&[&hdd, &anywhere])?.failed()?;
    ensure!(told.contains("a node may be in both hdd and any"), "{told}");
    // The chart cannot tell what an affinity selects.
    let affine = json!({ "name": "any", "affinity": { "nodeAffinity": {} } });
    groups(&[&hdd, &affine])?.succeeded()?;
    Ok(())
}

fn a_change_is_rolled_out_as_the_values_say(cluster: &mut Cluster) -> Result<()> {
    for (given, expected) in [
        (json!({}), json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%", "maxSurge": 0 } })),
        (
            json!({ "maxUnavailable": 1 }),
            json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1, "maxSurge": 0 } }),
        ),
        (json!({ "type": "OnDelete" }), json!({ "type": "OnDelete" })),
    ] {
        let made = template_with(&json!({ "updateStrategy": given, "pools": disk() }))?.succeeded()?;
        accept(cluster, &made)?;
        let objects = objects(cluster, &made)?;
        let strategy = &named(&objects, "DaemonSet", "bulkhead")?["spec"]["updateStrategy"];
        ensure!(*strategy == expected, "{given}: {strategy}");
    }
    Ok(())
}

fn only_the_peers_of_the_network_policy_reach_the_metrics(cluster: &mut Cluster) -> Result<()> {
    let from = json!([
        { "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "monitoring" } },
          "podSelector": { "matchLabels": { "app": "prometheus" } } },
        { "ipBlock": { "cidr": "192.0.2.0/24" } },
    ]);
    for (from, rules) in [
        (from.clone(), json!([{ "from": from, "ports": [{ "port": "metrics", "protocol": "TCP" }] }])),
        // A rule with no peers would let everybody in.
        (json!([]), json!([])),
    ] {
        let values = json!({ "networkPolicy": { "enabled": true, "from": from }, "pools": disk() });
        let made = template_with(&values)?.succeeded()?;
        accept(cluster, &made)?;
        let objects = objects(cluster, &made)?;
        let policy = &named(&objects, "NetworkPolicy", "bulkhead")?["spec"];
        ensure!(policy["podSelector"]["matchLabels"] == json!({ "app.kubernetes.io/name": "bulkhead" }), "{policy}");
        ensure!(policy["policyTypes"] == json!(["Ingress"]) && policy["ingress"] == rules, "{policy}");
    }
    let usual = template(&[WITH_LABELS])?.succeeded()?;
    ensure!(!usual.contains("kind: NetworkPolicy"), "nobody asked for it");
    Ok(())
}

/// Without tests of it, no API server knows the SnapshotMetadataService.
fn changed_blocks_are_served_where_that_is_wanted(cluster: &mut Cluster) -> Result<()> {
    let authority = "-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n";
    let service = json!({ "enabled": true, "caCert": authority, "port": 9900,
                          "from": [{ "ipBlock": { "cidr": "192.0.2.0/24" } }] });
    let made = template_with(&json!({
        "snapshotMetadata": service, "networkPolicy": { "enabled": true },
        "pools": [{ "name": "default", "directory": "/srv/bulkhead/default" }],
    }))?
    .succeeded()?;
    let (known, unknown): (Vec<_>, Vec<_>) =
        made.split("\n---\n").partition(|object| !object.contains("kind: SnapshotMetadataService"));
    let known = known.join("\n---\n");
    accept(cluster, &known)?;
    let service = unknown.first().context("no SnapshotMetadataService")?;
    for line in [
        "  name: bulkhead.csi.local\n",
        "  address: bulkhead-snapshot-metadata.bulkhead-system.svc:6443\n",
        "  audience: \"bulkhead.csi.local\"\n",
        "  caCert: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCllXSmoKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=",
    ] {
        ensure!(service.contains(line), "no {line:?} in {service}");
    }
    let objects = objects(cluster, &known)?;
    let name = "bulkhead-agent-snapshot-metadata";
    let rules = &named(&objects, "ClusterRole", name)?["rules"];
    ensure!(rules[2]["resourceNames"] == json!(["bulkhead.csi.local"]), "{rules}");
    named(&objects, "Role", name)?;
    let service = named(&objects, "Service", "bulkhead-snapshot-metadata")?;
    let pod = &named(&objects, "DaemonSet", "bulkhead")?["spec"]["template"]["spec"];
    let frontend = &pod["containers"][0];
    let port = json!({ "name": "changed-blocks", "containerPort": 9900, "protocol": "TCP" });
    ensure!(frontend["ports"].as_array().is_some_and(|ports| ports.contains(&port)), "{frontend:#}");
    ensure!(service["spec"]["ports"][0]["targetPort"] == port["name"], "{service}");
    let text = frontend.to_string();
    for part in
        [r#"{"name":"BULKHEAD_SNAPSHOT_METADATA_ADDRESS","value":":9900"}"#, "/run/secrets/bulkhead/snapshot-metadata"]
    {
        ensure!(text.contains(part), "no {part} in {frontend:#}");
    }
    // The agent starts without it, too.
    let secret = r#""optional":true,"secretName":"bulkhead-snapshot-metadata""#;
    ensure!(pod["volumes"].to_string().contains(secret), "{pod:#}");
    let policy = &named(&objects, "NetworkPolicy", "bulkhead")?["spec"]["ingress"];
    let agents = json!({ "podSelector": { "matchLabels": { "app.kubernetes.io/name": "bulkhead" } } });
    let from = json!([agents, { "ipBlock": { "cidr": "192.0.2.0/24" } }]);
    ensure!(policy[0]["from"] == from && policy[0]["ports"][0]["port"] == "changed-blocks", "{policy}");
    let told = template(&[WITH_LABELS, "--set", "snapshotMetadata.enabled=true"])?.failed()?;
    ensure!(told.contains("caCert is missing"), "{told}");
    let same = json!({ "snapshotMetadata": { "enabled": true, "caCert": authority, "port": 9808 } });
    let told = template_with(&same)?.failed()?;
    ensure!(told.contains("port is that of frontend.metricsPort"), "{told}");
    let wanted = json!({ "enabled": true, "caCert": authority });
    let other = template_with(&json!({ "driverName": "disk.example.com", "snapshotMetadata": wanted }))?.succeeded()?;
    let named = ["  name: disk.example.com\n", "  - disk.example.com\n", "audience: \"disk.example.com\"\n"];
    ensure!(named.iter().all(|line| other.contains(line)) && !other.contains("bulkhead.csi.local"), "{other}");
    let usual = template(&[WITH_LABELS])?.succeeded()?;
    ensure!(!usual.contains("snapshot-metadata") && !usual.contains("tokenreviews"), "nobody asked for it");
    Ok(())
}

/// No API server of the tests knows these kinds, but kubectl can read them.
fn the_operators_objects_are_those_of_the_manifests(cluster: &mut Cluster) -> Result<()> {
    let read = |file: &str| -> Result<Value> {
        let arguments = ["label", "--local", "--output", "json", "--filename", file, "test=yes"];
        Ok(serde_json::from_str(&manifests::kubectl(&cluster.access.kubeconfig(), &arguments)?)?)
    };
    let usual = template(&[WITH_LABELS])?.succeeded()?;
    for (name, kind) in [("podMonitor", "PodMonitor"), ("prometheusRule", "PrometheusRule")] {
        ensure!(!usual.contains(&format!("kind: {kind}")), "not every cluster knows {kind}");
        let file = kind.to_lowercase();
        let only = format!("templates/{file}.yaml");
        let values = format!("{name}.enabled=true,{name}.labels.release=monitoring");
        let made = template(&[WITH_LABELS, "--show-only", &only, "--set", &values])?.succeeded()?;
        let scratch = tempfile::NamedTempFile::with_suffix(".yaml")?;
        std::fs::write(scratch.path(), made)?;
        let made = read(&scratch.path().to_string_lossy())?;
        let expected = read(&RULES.replace("rules.yaml", &format!("{file}.yaml")))?;
        ensure!(made["spec"] == expected["spec"], "{made:#}\ninstead of\n{expected:#}");
        ensure!(made["metadata"]["labels"]["release"] == "monitoring", "{made:#}");
        let values =
            format!("{values},prometheusRule.runbooks=https://wiki.example.com/storage,driverName=disk.example.com");
        let elsewhere = template(&[WITH_LABELS, "--show-only", &only, "--set", &values])?.succeeded()?;
        let address = "runbook_url: https://wiki.example.com/storage#bulkheadagentdown\n";
        ensure!(elsewhere.contains(address) == (kind == "PrometheusRule"), "{elsewhere}");
        ensure!(!elsewhere.contains("docs/alerts.md") && !elsewhere.contains("bulkhead.csi.local"), "{elsewhere}");
        ensure!(made["metadata"]["namespace"] == expected["metadata"]["namespace"], "{made:#}");
    }
    Ok(())
}
