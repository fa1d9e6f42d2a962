//! The recipes that prepare nodes are what the programs that read them expect.

use serde_json::{Value, json};

use super::read;

fn recipe(name: &str) -> Value {
    serde_saphyr::from_str(&read(format!("deploy/prepare/{name}"))).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn recipes_that_run_the_program_name_it_by_its_path() {
    let program = "/usr/local/bin/bulkhead-setup";
    assert_eq!(recipe("cloud-init.yaml")["runcmd"][0][0], program);
    let playbook = recipe("ansible.yaml");
    assert_eq!(playbook[0]["tasks"][0]["vars"]["prepare"][0], program);
    let unit = recipe("butane.yaml")["systemd"]["units"][0]["contents"].to_string();
    assert!(unit.contains(&format!("ExecStart={program} prepare ")), "{unit}");
}

/// Talos refuses a document with a field that it does not know.
#[test]
fn the_volume_of_talos_has_quotas_and_is_where_the_page_says() {
    let volume = recipe("talos.yaml");
    assert_eq!(
        volume,
        json!({
            "apiVersion": "v1alpha1", "kind": "UserVolumeConfig", "name": "bulkhead",
            "provisioning": { "diskSelector": { "match": "!system_disk" }, "minSize": "10GiB" },
            "filesystem": { "type": "xfs", "projectQuotaSupport": true },
        })
    );
    let page = read("docs/platforms.md");
    let directory = format!("pools[0].directory=/var/mnt/{}", volume["name"].as_str().expect("a name"));
    assert!(page.contains("--patch @deploy/prepare/talos.yaml") && page.contains(&directory), "{directory}");
}
