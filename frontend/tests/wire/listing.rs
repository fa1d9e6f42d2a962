//! A definition as it appears on the wire, as text: one line per method, field and value.

use std::collections::BTreeSet;
use std::fmt::Write;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto};

/// The listing of `file`, restricted to these services and the messages that they use.
pub fn listing(file: &FileDescriptorProto, services: &[&str]) -> String {
    let package = file.package();
    let mut all = Vec::new();
    for message in &file.message_type {
        collect(&format!(".{package}"), message, &mut all);
    }
    all.extend(file.enum_type.iter().map(|values| (format!(".{package}.{}", values.name()), Definition::Enum(values))));
    let mut lines = BTreeSet::new();
    let mut wanted: Vec<String> = Vec::new();
    for service in file.service.iter().filter(|service| services.contains(&service.name())) {
        for method in &service.method {
            let streams = (method.client_streaming(), method.server_streaming());
            let (input, output) = (method.input_type(), method.output_type());
            lines.insert(format!("rpc {package}.{}/{} {input} {output} {streams:?}", service.name(), method.name()));
            wanted.extend([input.to_owned(), output.to_owned()]);
        }
    }
    let mut seen = BTreeSet::new();
    while let Some(name) = wanted.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        match all.iter().find(|(known, _)| *known == name) {
            Some((_, Definition::Message(message))) => describe(&name, message, &mut lines, &mut wanted),
            Some((_, Definition::Enum(values))) => {
                for value in &values.value {
                    lines.insert(format!("value {name}.{} {}", value.name(), value.number()));
                }
            }
            // It is defined in another file.
            None => {}
        }
    }
    lines.into_iter().fold(String::new(), |mut text, line| {
        writeln!(text, "{line}").unwrap();
        text
    })
}

enum Definition<'a> {
    Message(&'a DescriptorProto),
    Enum(&'a EnumDescriptorProto),
}

fn collect<'a>(prefix: &str, message: &'a DescriptorProto, all: &mut Vec<(String, Definition<'a>)>) {
    let name = format!("{prefix}.{}", message.name());
    for nested in &message.nested_type {
        collect(&name, nested, all);
    }
    for values in &message.enum_type {
        all.push((format!("{name}.{}", values.name()), Definition::Enum(values)));
    }
    all.push((name, Definition::Message(message)));
}

fn describe(name: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>, wanted: &mut Vec<String>) {
    lines.insert(format!("message {name}"));
    for field in &message.field {
        let repeated = if field.label() == Label::Repeated { "repeated " } else { "" };
        let of = match field.r#type() {
            Type::Message | Type::Enum => field.type_name(),
            other => other.as_str_name(),
        };
        let oneof = field.oneof_index.map_or("", |index| message.oneof_decl[index as usize].name());
        let number = field.number();
        lines.insert(format!("field {name}.{} {number} {repeated}{of} {oneof}", field.name()).trim_end().to_owned());
        wanted.extend(field.type_name.clone());
    }
}
