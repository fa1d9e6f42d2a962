//! Reading a VolumeAttributesClass (Kubernetes 1.34). The API server keeps its parameters and its driver from being changed.

use bulkhead_protocol::DriverName;
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::ResourceExt;

use crate::volumes::{Attributes, Fault};

/// The attributes that a volume of `driver` has with `class`.
///
/// # Errors
/// When it is another driver's, and when an attribute is unknown or invalid; the message names the class.
pub fn attributes(class: &VolumeAttributesClass, driver: &DriverName) -> Result<Attributes, Fault> {
    let named = |fault: &dyn std::fmt::Display| format!("volume attributes class {}: {fault}", class.name_any());
    if class.driver_name != driver.as_str() {
        return Err(Fault::invalid(named(&format_args!(
            "it is of the driver {}, and the volume is of {driver}: name a class of that driver",
            class.driver_name
        ))));
    }
    let pairs = class.parameters.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
    Attributes::parse(pairs).map_err(|fault| Fault::new(fault.kind, named(&fault)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn faults_name_the_class() {
        let driver = "bulkhead.csi.local".parse().unwrap();
        let of = |name: &str, parameters: serde_json::Value| {
            let class = json!({ "metadata": { "name": "gold" }, "driverName": name, "parameters": parameters });
            attributes(&serde_json::from_value(class).unwrap(), &driver)
        };
        assert_eq!(of(driver.as_str(), json!(null)).unwrap(), Attributes::default());
        assert!(of(driver.as_str(), json!({ "inodes": "7" })).unwrap().inodes.is_some());
        for (name, parameters, word) in
            [("x.example.com", json!({}), "x.example.com"), (driver.as_str(), json!({ "iops": "1" }), "iops")]
        {
            let fault = of(name, parameters).unwrap_err().to_string();
            assert!(fault.starts_with("volume attributes class gold: ") && fault.contains(word), "{fault}");
        }
    }
}
