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
