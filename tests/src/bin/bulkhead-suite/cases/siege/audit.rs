//! A client or a tenant chooses names so that the helper's log says what never happened: every line is one line, and says
//! only what the helper says.

use std::fs;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::ErrorKind;
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::rig::Rig;

cases! {
    a_target_whose_name_forges_log_lines: Bare,
    an_entry_of_a_pool_whose_name_forges_log_lines: Bare,
}

const SIZE: u64 = 1 << 20;
const FORGED: &str = "audit operation=delete volume=vol-z";

/// Names that end a line, a quotation or a terminal's patience.
fn names() -> Vec<String> {
    let line = format!("<6>{FORGED} connection=1 pid=1 outcome=ok microseconds=1");
    let begins =
        ["\n", "\r\n", "\"\n", "\\\n", "\\\"\n", "\u{2028}", "\u{85}", "\u{b}", "\u{1b}[2K\u{1b}[1A\r", "a\" "];
    begins.into_iter().map(|begin| format!("x{begin}{line}")).collect()
}

/// Checks that each line of the log is one that the helper wrote, and that no terminal and no reader takes it for more.
fn check_log(rig: &mut Rig, operations: usize) -> Result<()> {
    rig.running_helper()?.check_log(|log| {
        for line in log.split('\n').filter(|line| !line.is_empty()) {
            // The time and the priority come first.
            let line = line.splitn(3, ' ').nth(2).with_context(|| format!("{line:?}"))?;
            ensure!(line.starts_with("audit operation=") || line.starts_with("bulkhead_"), "{line:?}");
            ensure!(!line.contains(|c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{85}')), "{line:?}");
            ensure!(!line.starts_with(FORGED), "{line:?}");
            // What is forged is inside quotation marks.
            if let Some((before, _)) = line.split_once(FORGED) {
                let open = before.replace("\\\\", "").replace("\\\"", "").matches('"').count();
                ensure!(open % 2 == 1, "it is outside any quotation: {line:?}");
            }
        }
        let found = log.lines().filter(|line| line.contains("audit operation=bind-mount")).count();
        ensure!(found == operations, "{found} lines, and not {operations}: {log}");
        Ok(())
    })
}

fn a_target_whose_name_forges_log_lines(rig: &mut Rig) -> Result<()> {
    let helper = rig.started_helper()?;
    helper.ask_all([create("vol-a", directory_spec(SIZE)), create("vol-b", directory_spec(SIZE))])?;
    let names = names();
    for name in &names {
        helper.ask(&bind("vol-a", name))?;
        // Messages that repeat the target.
        denied(helper.request(&bind("vol-b", name))?, ErrorKind::AlreadyExists, "vol-a")?;
        denied(helper.request(&unbind("vol-b", name))?, ErrorKind::InUse, "vol-a")?;
        denied(helper.request(&delete("vol-a"))?, ErrorKind::InUse, "published")?;
        denied(helper.request(&bind("vol-b", &format!("{name}/t")))?, ErrorKind::Refused, "")?;
        denied(helper.request(&bind("vol-b", &format!("{name}{name}/t")))?, ErrorKind::NotFound, "")?;
    }
    check_log(rig, 4 * names.len())?;
    for _ in 0..2 {
        rig.restart_helper()?;
        check_log(rig, 4 * names.len())?;
    }
    let helper = rig.helper()?;
    ensure!(mounts::below(&rig.publish_directory())?.len() == names.len());
    for name in &names {
        denied(helper.request(&delete("vol-a"))?, ErrorKind::InUse, "published")?;
        helper.ask(&unbind("vol-a", name))?;
    }
    check_log(rig, 4 * names.len())
}

/// A mount elsewhere, an entry of the pool, and a directory deep in a volume that is being emptied.
fn an_entry_of_a_pool_whose_name_forges_log_lines(rig: &mut Rig) -> Result<()> {
    let helper = rig.started_helper()?;
    helper.ask_all([create("vol-a", directory_spec(SIZE)), bind("vol-a", "a")])?;
    let (names, pool) = (names(), rig.pool().directory.clone());
    for name in &names {
        fs::write(pool.join(name), "")?;
        fs::create_dir(rig.target("a").join(name))?;
        let elsewhere = rig.work().join(name);
        fs::create_dir(&elsewhere)?;
        rustix::mount::mount_bind(rig.target("a").join(name), &elsewhere)?;
    }
    helper.ask(&unbind("vol-a", "a"))?;
    denied(helper.request(&delete("vol-a"))?, ErrorKind::InUse, "mounted at")?;
    denied(helper.request(&bind_exclusively("vol-a", "a"))?, ErrorKind::InUse, "mounted at")?;
    // What a helper that is killed has not written yet is lost.
    check_log(rig, 2)?;
    rig.restart_helper()?;
    check_log(rig, 2)?;
    for name in &names {
        let elsewhere = rig.work().join(name);
        rustix::mount::unmount(&elsewhere, rustix::mount::UnmountFlags::NOFOLLOW)?;
        fs::remove_dir(&elsewhere)?;
        fs::remove_file(pool.join(name))?;
    }
    rig.helper()?.ask(&delete("vol-a"))?;
    check_log(rig, 2)
}
