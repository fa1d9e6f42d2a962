//! Landlock: files, TCP ports, signals and abstract sockets.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::Needs;

/// The newest Landlock version whose rights are given up (Linux 6.12).
const NEWEST: ABI = ABI::V6;

/// Restricts the calling thread to what it needs, and sets no_new_privs.
pub(super) fn restrict(needs: &Needs) -> Result<RulesetStatus, RulesetError> {
    let mut rules = Ruleset::default().handle_access(AccessFs::from_all(NEWEST))?.scope(Scope::from_all(NEWEST))?;
    rules = rules.handle_access(match needs.ports {
        Some(_) => AccessNet::from_all(NEWEST),
        None => AccessNet::BindTcp.into(),
    })?;
    let mut rules = rules.create()?;
    for directory in &needs.read {
        rules = allow(rules, directory, AccessFs::ReadFile | AccessFs::ReadDir)?;
    }
    for directory in &needs.replace {
        let files = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile;
        rules = allow(rules, directory, files | AccessFs::MakeReg | AccessFs::RemoveFile)?;
    }
    for directory in &needs.sockets {
        rules = allow(rules, directory, AccessFs::MakeSock | AccessFs::RemoveFile)?;
    }
    for port in needs.ports.iter().flatten() {
        rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}

/// Grants `rights` below a directory. A directory that does not exist needs no rule.
fn allow(
    rules: RulesetCreated,
    directory: &std::path::Path,
    rights: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    match PathFd::new(directory) {
        Ok(opened) => rules.add_rule(PathBeneath::new(opened, rights)),
        Err(_) => Ok(rules),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use super::*;

    /// Only the thread that is restricted is subject to it.
    #[test]
    fn files_are_replaced_in_one_directory_only() {
        let [own, other] = [(), ()].map(|()| tempfile::tempdir().unwrap());
        let (own, other) = (own.path().to_owned(), other.path().to_owned());
        fs::write(other.join("file"), "kept").unwrap();
        let refused = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
        let needs = Needs { replace: vec![own.clone()], ..Needs::default() };
        let confined = std::thread::spawn(move || {
            if restrict(&needs).unwrap() == RulesetStatus::NotEnforced {
                panic!("the kernel has no Landlock");
            }
            fs::write(own.join("new"), "a").unwrap();
            fs::rename(own.join("new"), own.join("file")).unwrap();
            assert_eq!(fs::read_to_string(own.join("file")).unwrap(), "a");
            fs::remove_file(own.join("file")).unwrap();
            assert!(fs::create_dir(own.join("directory")).is_err_and(refused));
            assert!(std::os::unix::fs::symlink("/", own.join("link")).is_err_and(refused));
            assert!(fs::write(other.join("file"), "a").is_err_and(refused));
            assert!(fs::read(other.join("file")).is_err_and(refused));
            assert!(fs::remove_file(other.join("file")).is_err_and(refused));
        });
        confined.join().unwrap();
    }
}
