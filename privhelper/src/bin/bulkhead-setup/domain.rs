//! `run-in-domain`: runs a program in a domain of SELinux. Container runtimes run every privileged container in the one that
//! they have for such containers, whatever its pod says.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// The context of this process, and the one of the program that it runs next.
const CURRENT: &str = "/proc/thread-self/attr/current";
const NEXT: &str = "/proc/thread-self/attr/exec";

/// Becomes the program that is given, in the domain that is given. Where there is no SELinux, in none.
#[expect(
    clippy::disallowed_methods,
    reason = "files of the kernel about this process; nothing of the helper runs this"
)]
pub fn run(mut arguments: impl Iterator<Item = String>) -> Result<bool, String> {
    let (Some(domain), Some(program)) = (arguments.next(), arguments.next()) else {
        return Err("run-in-domain: expected a domain and a program; see --help".to_owned());
    };
    let refused = |what: &str, error: std::io::Error| {
        format!(
            "cannot {what} in SELinux's domain {domain}: {error}; install bulkhead.cil on this node (docs/platforms.md)"
        )
    };
    // Not to be read without SELinux.
    let current = std::fs::read_to_string(CURRENT).unwrap_or_default();
    if let Some(context) = in_domain(&current, &domain) {
        std::fs::write(NEXT, context).map_err(|error| refused("run anything", error))?;
    }
    Err(refused(&format!("run {program}"), Command::new(&program).args(arguments).exec()))
}

/// A context with this domain in place of its own; `None` for what is no context of SELinux's, as a profile's name is not.
fn in_domain(context: &str, domain: &str) -> Option<String> {
    let context = context.trim_end_matches(['\0', '\n']);
    let mut parts: Vec<&str> = context.splitn(4, ':').collect();
    *parts.get_mut(2)? = domain;
    Some(parts.join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_domain_of_a_context_changes() {
        for (context, changed) in [
            ("system_u:system_r:spc_t:s0\0", Some("system_u:system_r:a_t:s0")),
            ("system_u:system_r:spc_t:s0-s0:c0.c1023\n", Some("system_u:system_r:a_t:s0-s0:c0.c1023")),
            ("system_u:system_r:spc_t", Some("system_u:system_r:a_t")),
            ("", None),
            ("kernel\0", None),
            ("unconfined\n", None),
            ("cri-containerd.apparmor.d (enforce)\n", None),
        ] {
            assert_eq!(in_domain(context, "a_t").as_deref(), changed, "{context:?}");
        }
    }

    #[test]
    fn a_domain_and_a_program_are_needed() {
        for arguments in [&[][..], &["a_t"]] {
            let complaint = run(arguments.iter().map(|argument| (*argument).to_owned())).unwrap_err();
            assert!(complaint.contains("expected a domain and a program"), "{complaint}");
        }
    }
}
