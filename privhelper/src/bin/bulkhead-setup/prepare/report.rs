//! What `prepare` prints: a table for people, or JSON for programs.

use bulkhead_privhelper::log::shown;

use super::devices::Device;
use super::plan::{Plan, Pool, Stage};

impl Stage {
    /// What is to be done, or was.
    fn words(self) -> &'static str {
        match self {
            Self::Empty => "to be formatted",
            Self::HalfFormatted => "to be formatted again, as that was interrupted",
            Self::Formatted => "to be mounted and marked",
            Self::Ready => "is ready",
        }
    }

    /// The same for programs.
    fn word(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::HalfFormatted => "half-formatted",
            Self::Formatted => "formatted",
            Self::Ready => "ready",
        }
    }
}

/// A line for each device.
pub fn table(plan: &Plan) -> String {
    let mut rows =
        vec![["DEVICE", "TYPE", "SIZE", "MODEL", "SERIAL", "POOL, OR WHY IT IS NOT TAKEN"].map(str::to_owned)];
    for (device, outcome) in &plan.devices {
        let said = match outcome {
            Ok(place) => plan.pools.get(*place).map(|pool| format!("pool {}: {}", pool.note.name, pool.stage.words())),
            Err(why) => Some(format!("no: {why}")),
        };
        rows.push([
            shown(&device.path()).to_string(),
            device.kind.clone(),
            size(device.size),
            plain(&device.model),
            plain(&device.serial),
            said.unwrap_or_default(),
        ]);
    }
    let mut widths = [0_usize; 6];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// What the helper is to be told of the pools: its flags, and the chart's values.
pub fn configuration(pools: &[Pool]) -> String {
    let (mut flags, mut values) = (String::new(), "pools:\n".to_owned());
    for Pool { note, .. } in pools {
        let directory = note.directory.to_string_lossy();
        flags.push_str(&format!("--pool {}={directory}\n", note.name));
        values.push_str(&format!("- name: {}\n  directory: {directory}\n", note.name));
    }
    format!("\nFor the helper:\n{flags}\nFor the chart:\n{values}")
}

/// Everything, for programs.
pub fn json(plan: &Plan, changed: bool, failed: &[String]) -> String {
    let devices = plan.devices.iter().map(|(device, outcome)| {
        let (pool, why) = match outcome {
            Ok(place) => (plan.pools.get(*place).map(|pool| pool.note.name.to_string()), None),
            Err(why) => (None, Some(why.to_string())),
        };
        let Device { kind, size, model, serial, wwn, .. } = device;
        let path = device.path();
        let texts = [("type", kind), ("model", model), ("serial", serial), ("wwn", wwn)]
            .map(|(key, text)| format!("\"{key}\": {}", quoted(text)));
        let optional = |text: Option<String>| text.map_or("null".to_owned(), |text| quoted(&text));
        format!(
            "{{\"path\": {}, \"size\": {size}, {}, \"pool\": {}, \"reason\": {}}}",
            quoted(&path.to_string_lossy()),
            texts.join(", "),
            optional(pool),
            optional(why)
        )
    });
    let pools = plan.pools.iter().map(|Pool { note, device, stage }| {
        let texts = [
            ("name", note.name.to_string()),
            ("directory", note.directory.to_string_lossy().into_owned()),
            ("uuid", note.uuid.clone()),
            ("path", device.path().to_string_lossy().into_owned()),
            ("found", stage.word().to_owned()),
        ];
        let texts = texts.map(|(key, text)| format!("\"{key}\": {}", quoted(&text)));
        format!("{{{}}}", texts.join(", "))
    });
    let faults = plan.faults.iter().chain(failed).map(|fault| quoted(fault));
    let list = |items: Vec<String>| {
        if items.is_empty() { "[]".to_owned() } else { format!("[\n    {}\n  ]", items.join(",\n    ")) }
    };
    format!(
        "{{\n  \"changed\": {changed},\n  \"devices\": {},\n  \"pools\": {},\n  \"failed\": {}\n}}\n",
        list(devices.collect()),
        list(pools.collect()),
        list(faults.collect())
    )
}

/// A size in the unit that leaves a few digits.
fn size(bytes: u64) -> String {
    let units = [(50_u32, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fits = units.iter().find(|(shift, _)| bytes >> shift > 0);
    fits.map_or_else(
        || format!("{bytes} B"),
        |(shift, unit)| {
            let tenths = (bytes >> shift.saturating_sub(10)).saturating_mul(10) >> 10;
            format!("{}.{} {unit}", tenths.wrapping_div(10), tenths.wrapping_rem(10))
        },
    )
}

/// What a device says of itself, as it may be shown.
fn plain(text: &str) -> String {
    text.escape_debug().to_string()
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::super::fstab::Note;
    use super::super::why::Why;
    use super::*;

    fn plan() -> Plan {
        let device = |name: &str, model: &str| Device {
            name: name.to_owned(),
            kind: "disk".to_owned(),
            size: 1 << 40,
            model: model.to_owned(),
            ..Device::default()
        };
        let (taken, other) = (device("sdb", "Fast"), device("sda", "a\"\n"));
        let note = Note {
            name: "disk-1".parse().expect("a name"),
            uuid: "u".to_owned(),
            directory: "/srv/bulkhead/disk-1".into(),
            is_made: false,
        };
        let pools = vec![Pool { note, device: taken.clone(), stage: Stage::Empty }];
        let devices = vec![(other, Err(Why::Swap)), (taken, Ok(0))];
        Plan { devices, pools, ..Plan::default() }
    }

    #[test]
    fn each_device_has_its_line() {
        let expected = "\
DEVICE    TYPE  SIZE     MODEL  SERIAL  POOL, OR WHY IT IS NOT TAKEN
/dev/sda  disk  1.0 TiB  a\\\"\\n          no: is swap space that is in use
/dev/sdb  disk  1.0 TiB  Fast           pool disk-1: to be formatted
";
        assert_eq!(table(&plan()), expected);
        let told = configuration(&plan().pools);
        assert!(told.contains("\n--pool disk-1=/srv/bulkhead/disk-1\n"), "{told}");
        assert!(told.ends_with("pools:\n- name: disk-1\n  directory: /srv/bulkhead/disk-1\n"), "{told}");
    }

    #[test]
    fn programs_get_the_same() {
        let text = json(&plan(), false, &["a\tb".to_owned()]);
        for part in [
            "\"changed\": false",
            "\"model\": \"a\\\"\\u000a\", \"serial\": \"\", \"wwn\": \"\", \"pool\": null, \"reason\": \"is swap space that is in use\"}",
            "\"path\": \"/dev/sdb\", \"size\": 1099511627776",
            "\"pool\": \"disk-1\", \"reason\": null}",
            "\"uuid\": \"u\", \"path\": \"/dev/sdb\", \"found\": \"empty\"}",
            "\"a\\u0009b\"",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(json(&Plan::default(), true, &[]).contains("\"pools\": [],\n"));
    }

    #[test]
    fn a_size_has_few_digits() {
        assert_eq!([0, 1023, 1536, 4_000_787_030_016].map(size), ["0 B", "1023 B", "1.5 KiB", "3.6 TiB"]);
        assert_eq!(size(u64::MAX), "16383.9 PiB");
    }
}
