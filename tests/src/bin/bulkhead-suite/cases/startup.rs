//! Starting the helper, and when it refuses to start.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{Condition, ErrorKind, Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::commands::{Printed, bulkheadctl, refusal};
use bulkhead_tests::csi::requests as csi;
use bulkhead_tests::csi::v1::CreateVolumeRequest;
use bulkhead_tests::daemon::Daemon;
use bulkhead_tests::expect::{denied, refused};
use bulkhead_tests::helper::{HelperClient, create, delete, directory_spec};
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::{Pool, mount_image, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{PoolFilesystem, RunOptions, program};
use bulkhead_tests::strace;
use tonic::Code;

cases! {
    doubtful_command_lines_are_refused_with_a_sentence: Bare,
    a_configuration_file_says_the_same: Bare,
    an_empty_mounted_pool_is_marked_at_the_first_start: Bare,
    a_directory_that_is_no_mount_is_no_pool: Bare,
    a_pool_of_somebody_elses_is_not_served_and_the_remedy_is_said: Bare,
    a_pool_that_is_mounted_later_is_served_within_a_minute: Bare,
    a_pool_that_is_not_mounted_is_a_condition_and_the_others_are_served: Bare,
    a_pool_of_another_name_is_not_served: Bare,
    a_pool_that_another_helper_serves_is_not_served: Bare,
    a_read_only_pool_is_not_served_until_it_can_be_written: Bare,
    a_filesystem_without_quotas_is_not_served: Bare + Filesystem,
    an_ext4_without_a_journal_is_not_served: Bare,
    a_pool_that_is_unmounted_on_the_host_says_so_until_it_is_back: Bare,
    a_pool_whose_mount_vanished_still_has_its_volumes: Bare,
    check_says_ok_and_changes_nothing: Bare + Filesystem,
    check_says_what_to_mend: Bare,
    check_notes_directories_beside_filesystems_in_images: Bare,
    check_notes_that_sizes_are_not_enforced: Bare,
    a_private_publish_directory_is_refused: Bare,
    a_stale_socket_is_replaced: Bare,
    nothing_is_accepted_before_the_helper_is_confined: Bare,
}

const SIZE: u64 = 16 << 20;

/// The helper must refuse to start, with a message that contains `part`.
fn check_refuses(rig: &Rig, part: &str) -> Result<()> {
    let text = rig.refusal()?;
    ensure!(text.contains(part), "does not say {part:?}: {text}");
    Ok(())
}

/// The helper must start, not serve a pool, and say why with `part`; and write nothing to it.
fn check_serves_without(rig: &mut Rig, pool: &str, part: &str) -> Result<()> {
    rig.start_helper()?;
    let answer = rig.helper()?.request(&Request::PoolStatus { pool: pool.parse()? })?;
    denied(answer, ErrorKind::PoolBroken, part)?;
    let counts = rig.helper()?.ask(&Request::PoolCounts { pool: pool.parse()? })?;
    ensure!(matches!(counts, Reply::Counts { inodes: 0, free_inodes: 0, .. }), "nobody has counted: {counts:?}");
    rig.running_helper()?.check_log(|log| {
        ensure!(log.contains(&format!("a pool is not served pool={pool}")) && log.contains(part), "{log}");
        Ok(())
    })
}

/// The helper must notice within a minute that a pool that it did not serve is there, and end to be started anew; and
/// then serve it.
fn check_is_mended(rig: &mut Rig) -> Result<()> {
    rig.await_end_of_helper(rig.patience(Duration::from_secs(60)))?;
    let helper = rig.started_helper()?;
    helper.ask(&create(own("vol-a"), directory_spec(SIZE)))?;
    helper.ask(&delete(own("vol-a"))).map(drop)
}

fn doubtful_command_lines_are_refused_with_a_sentence(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    let good = rig.base_flags();
    let without = |flag: &str| {
        let position = good.iter().position(|own| own == flag).expect("a flag of the rig");
        [&good[..position], &good[position + 2..]].concat()
    };
    let with = |more: &[&str]| [good.clone(), more.iter().map(|&flag| flag.to_owned()).collect()].concat();
    let uid = |uid: &str| [without("--allow-uid"), vec!["--allow-uid".to_owned(), uid.to_owned()]].concat();
    let pool = good[1].as_str();
    for (flags, part) in [
        (without("--pool"), "--pool"),
        (without("--allow-uid"), "--allow-uid"),
        (without("--socket"), "--socket"),
        (uid("0"), "root"),
        (uid("65534"), "nobody"),
        (uid("frontend"), "user id"),
        (with(&["--pool", pool]), "two pools"),
        (with(&["--pool", "x=relative"]), "absolute"),
        (with(&["--pool", "x=/a/../b"]), "absolute"),
        (with(&["--pool", "X=/a"]), "name"),
        (with(&["--pool", "x=/a,quota=some"]), "quota=none"),
        (with(&["--pool", "x=/a,overcommit=0"]), "overcommit"),
        (with(&["--pool", "x=/a,reserve=much"]), "reserve"),
        (with(&["--publish-dir", "work=/a"]), "two publish"),
        (with(&["--publish-dir", "kubelet-x=/a"]), "reserved"),
        (with(&["--project-ids", "5-1"]), "FIRST-LAST"),
        (with(&["--project-ids", "0-9"]), "FIRST-LAST"),
        (with(&["--seccomp=off"]), "kill or log"),
        (with(&["--driver-name", "Not A Name"]), "name"),
        (with(&["--no-such-flag", "1"]), "--no-such-flag"),
        (with(&["--socket", "/again"]), "twice"),
        (with(&["--check"]), "bulkhead-setup"),
        (with(&["--init-pool", "/a"]), "bulkhead-setup"),
    ] {
        let text = refusal(Command::new(program("bulkhead-privhelper")?).args(&flags))?;
        ensure!(text.contains(part), "{flags:?} does not say {part:?}: {text}");
        ensure!(text.trim().lines().count() == 1, "{flags:?} says more than one sentence: {text}");
    }
    ensure!(!rig.helper_socket().exists(), "a socket is left");
    Ok(())
}

fn a_configuration_file_says_the_same(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    fs::create_dir_all(rig.kubelet.root().join("plugins/bulkhead.csi.local"))?;
    let lines: Vec<String> = rig.base_flags().chunks(2).map(|pair| pair.join(" ")).collect();
    let file = rig.work().join("helper.conf");
    fs::write(&file, format!("# flags\n\n{}\n", lines.join("\n")))?;
    let text =
        refusal(Command::new(program("bulkhead-privhelper")?).args(["--config"]).arg(&file).args(["--socket", "/x"]))?;
    ensure!(text.contains("twice"), "{text}");
    run(Command::new(program("bulkhead-setup")?).args(["check", "--config"]).arg(&file))
}

fn an_empty_mounted_pool_is_marked_at_the_first_start(rig: &mut Rig) -> Result<()> {
    let directory = rig.work().join("pools/default");
    let pool = Pool::make_unmarked(&rig.run_options, rig.templates(), &directory, "default")?;
    rig.pools.push(pool);
    rig.start()?;
    ensure!(directory.join(".bulkhead").exists());
    let csi = rig.csi()?;
    csi.create_volume(csi::create(own("vol-a"), 1 << 20, csi::mount()))?;
    rig.restart_helper()?;
    csi.delete_volume(csi::delete(own("vol-a")))?;
    Ok(())
}

fn a_directory_that_is_no_mount_is_no_pool(rig: &mut Rig) -> Result<()> {
    let directory = rig.work().join("pools/default");
    fs::create_dir_all(&directory)?;
    rig.pools.push(Pool { options: ",quota=none".to_owned(), ..Pool::existing(&directory, "default") });
    check_serves_without(rig, "default", "bulkhead-setup init-pool")?;
    ensure!(fs::read_dir(&directory)?.count() == 0, "the directory was marked");
    rig.kill_helper()?;
    // Nor is a filesystem with other contents.
    let other = rig.work().join("pools/other");
    rig.pools = vec![Pool::make_unmarked(&rig.run_options, rig.templates(), &other, "default")?];
    fs::write(other.join("precious"), "content")?;
    check_serves_without(rig, "default", "not empty")?;
    rig.kill_helper()?;
    fs::remove_file(other.join("precious"))?;
    Ok(())
}

/// Whoever owns it can close it to a child of the start that looks at it, which has no capability by then.
fn a_pool_of_somebody_elses_is_not_served_and_the_remedy_is_said(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    let directory = rig.pool().directory.clone();
    let remedy = format!("run: chown root {0}; chmod go-w {0}", directory.display());
    for mode in [0o755, 0o700] {
        chown(&directory, Some(1000), None)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode))?;
        check_serves_without(rig, "default", &remedy).with_context(|| format!("with mode {mode:o}"))?;
        rig.kill_helper()?;
        chown(&directory, Some(0), None)?;
    }
    rig.start_helper()
}

fn a_pool_that_is_not_mounted_is_a_condition_and_the_others_are_served(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "fast"])?;
    let fast = rig.pools[1].directory.clone();
    mounts::unmount_all(&fast)?;
    let csi = rig.started_csi()?;
    csi.create_volume(csi::create(own("vol-a"), 1 << 20, csi::mount()))?;
    let pairs = csi::parameters(&[("pool", "fast")]);
    let request = CreateVolumeRequest { parameters: pairs, ..csi::create(own("vol-b"), 1 << 20, csi::mount()) };
    refused(csi.create_volume(request), Code::ResourceExhausted, "fast")?;
    let helper = rig.helper()?;
    denied(helper.request(&Request::PoolStatus { pool: "fast".parse()? })?, ErrorKind::PoolBroken, "")?;
    ensure!(fs::read_dir(&fast)?.count() == 0, "something was written below the mount point");
    rig.pools.truncate(1);
    Ok(())
}

fn a_pool_of_another_name_is_not_served(rig: &mut Rig) -> Result<()> {
    let directory = rig.work().join("pools/default");
    let pool = Pool::make_unmarked(&rig.run_options, rig.templates(), &directory, "default")?;
    let named = format!("fast={}", directory.display());
    run(Command::new(program("bulkhead-setup")?).args(["init-pool", &named]))?;
    rig.pools.push(pool);
    check_serves_without(rig, "default", "fast")
}

fn a_pool_that_is_mounted_later_is_served_within_a_minute(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    let directory = rig.pool().directory.clone();
    mounts::unmount_all(&directory)?;
    check_serves_without(rig, "default", "bulkhead-setup init-pool")?;
    mount_image(&rig.run_options, &directory.with_extension("disk"), &directory)?;
    check_is_mended(rig)
}

fn a_pool_that_another_helper_serves_is_not_served(rig: &mut Rig) -> Result<()> {
    rig.start()?;
    let other = rig.work().join("run/other.sock");
    let mut command = Command::new(program("bulkhead-privhelper")?);
    command.args(["--pool", &rig.pool().flag(), "--allow-uid", "901", "--socket"]).arg(&other);
    command.arg("--publish-dir").arg(format!("work={}", rig.publish_directory().display()));
    let mut second = Daemon::start("second", &mut command, &rig.logs())?;
    let answer = second.wait_until(rig.patience(Duration::from_secs(20)), || {
        let helper = HelperClient::welcomed(&other)?;
        denied(
            helper.request(&Request::PoolStatus { pool: "default".parse()? })?,
            ErrorKind::PoolBroken,
            "another helper",
        )
    });
    second.kill()?;
    rig.running_helper()?.check_alive()?;
    fs::remove_file(&other)?;
    answer
}

fn a_read_only_pool_is_not_served_until_it_can_be_written(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    run(Command::new("mount").args(["-o", "remount,ro"]).arg(&rig.pool().directory))?;
    check_serves_without(rig, "default", "read-only")?;
    run(Command::new("mount").args(["-o", "remount,rw"]).arg(&rig.pool().directory))?;
    check_is_mended(rig)
}

fn a_filesystem_without_quotas_is_not_served(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    if rig.run_options.enforces_sizes() {
        let directory = rig.pool().directory.clone();
        mounts::unmount_all(&directory)?;
        let mut mount = Command::new("mount");
        match rig.run_options.pool_fs.name() {
            "xfs" => mount.args(["-t", "xfs", "-o", "loop,nouuid,noquota"]),
            _ => mount.args(["-t", "ext4", "-o", "loop,noquota"]),
        };
        run(mount.arg(directory.with_extension("disk")).arg(&directory))?;
    }
    rig.pools[0].options.clear();
    // An ext4 made with quotas still counts without the option.
    let counts = rig.run_options.enforces_sizes() && rig.run_options.pool_fs == PoolFilesystem::Ext4;
    check_serves_without(rig, "default", if counts { "does not enforce them" } else { "quota=none" })
}

fn an_ext4_without_a_journal_is_not_served(rig: &mut Rig) -> Result<()> {
    let run_options = RunOptions { pool_fs: PoolFilesystem::Ext4, ..rig.run_options.clone() };
    let directory = rig.work().join("pools/default");
    let pool = Pool::make(&run_options, rig.templates(), &directory, "default")?;
    rig.pools.push(pool);
    mounts::unmount_all(&directory)?;
    let image = directory.with_extension("disk");
    run(Command::new("tune2fs").args(["-O", "^has_journal"]).arg(&image))?;
    mount_image(&run_options, &image, &directory)?;
    check_serves_without(rig, "default", "without a journal")?;
    mounts::unmount_all(&directory)?;
    run(Command::new("tune2fs").args(["-O", "has_journal"]).arg(&image))?;
    // The id of a mount is used again: the helper tells two apart by having seen that there was none between them.
    std::thread::sleep(Duration::from_millis(300));
    mount_image(&run_options, &image, &directory)?;
    check_is_mended(rig)
}

/// The helper must know within seconds whether its pool is mounted on the host.
fn is_unmounted(rig: &Rig, wanted: bool) -> Result<()> {
    rig.eventually(15, || {
        let Reply::Pool(status) = rig.helper()?.ask(&Request::PoolStatus { pool: rig.pool().name.parse()? })? else {
            bail!("no status")
        };
        let conditions = status.conditions.as_slice();
        ensure!(conditions.contains(&Condition::Unmounted) == wanted, "{conditions:?}");
        Ok(())
    })
}

fn a_pool_that_is_unmounted_on_the_host_says_so_until_it_is_back(rig: &mut Rig) -> Result<()> {
    rig.start()?;
    let (pool, kept) = (rig.pool().directory.clone(), rig.pool().directory.with_extension("kept"));
    fs::create_dir(&kept)?;
    run(Command::new("mount").arg("--bind").args([&pool, &kept]))?;
    is_unmounted(rig, false)?;
    mounts::unmount_all(&pool)?;
    is_unmounted(rig, true)?;
    let told = Printed::by(bulkheadctl(&rig.kubelet.csi_socket())?.arg("doctor"))?.text;
    ensure!(told.contains("not mounted at its directory on the host any more"), "{told}");
    // What an older client does not know has another name there.
    let older = HelperClient::connect(&rig.helper_socket())?;
    older.hello(3)?;
    let Reply::Pool(status) = older.ask(&Request::PoolStatus { pool: rig.pool().name.parse()? })? else {
        bail!("no status")
    };
    ensure!(status.conditions.as_slice().contains(&Condition::Other), "{status:?}");
    // Another filesystem in its place is not the pool.
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&pool))?;
    is_unmounted(rig, true)?;
    mounts::unmount_all(&pool)?;
    run(Command::new("mount").arg("--bind").args([&kept, &pool]))?;
    is_unmounted(rig, false)?;
    run(Command::new("umount").arg(&kept))
}

fn a_pool_whose_mount_vanished_still_has_its_volumes(rig: &mut Rig) -> Result<()> {
    let csi = rig.started_csi()?;
    let target = rig.target("a");
    csi.create_volume(csi::create(own("vol-a"), 1 << 20, csi::mount()))?;
    csi.node_publish_volume(csi::publish(own("vol-a"), &target, csi::mount()))?;
    fs::write(target.join("file"), "content")?;
    // The host unmounts the pool, but the helper and the volume's users keep the filesystem in use.
    let directory = rig.pool().directory.clone();
    mounts::unmount_all(&directory)?;
    ensure!(fs::read(target.join("file"))? == b"content");
    csi.node_publish_volume(csi::publish(own("vol-a"), &target, csi::mount()))?;
    csi.create_volume(csi::create(own("vol-b"), 1 << 20, csi::mount()))?;
    csi.delete_volume(csi::delete(own("vol-b")))?;
    ensure!(fs::read_dir(&directory)?.count() == 0, "something was written below the mount point");
    csi.node_unpublish_volume(csi::unpublish(own("vol-a"), &target))?;
    csi.delete_volume(csi::delete(own("vol-a")))?;
    // The helper was the last user: once it ends, the disk can be mounted again.
    rig.stop()?;
    rig.eventually(10, || mount_image(&rig.run_options, &directory.with_extension("disk"), &directory))?;
    rig.start()
}

/// The check of the configuration that the rig's helper would serve.
fn check_command(rig: &Rig) -> Result<Command> {
    let mut command = Command::new(program("bulkhead-setup")?);
    command.arg("check").args(rig.base_flags()).args(&rig.helper_flags).current_dir("/");
    Ok(command)
}

/// Everything a check could have changed: the pool, the publish directories, the mounts.
fn traces(rig: &Rig) -> Result<(Vec<String>, Vec<String>, Vec<mounts::Mount>)> {
    let mut names = Vec::new();
    walk(rig.kubelet.root(), &mut names)?;
    walk(&rig.publish_directory(), &mut names)?;
    walk(&rig.work().join("run"), &mut names)?;
    let pool = fs::read_dir(&rig.pool().directory)?.map(|entry| Ok(format!("{:?}", entry?.file_name())));
    Ok((names, pool.collect::<Result<_>>()?, mounts::all()?))
}

fn walk(directory: &std::path::Path, names: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        names.push(path.display().to_string());
        if path.is_dir() {
            walk(&path, names)?;
        }
    }
    names.sort();
    Ok(())
}

fn check_says_ok_and_changes_nothing(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    let before = traces(rig)?;
    let output = check_command(rig)?.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for part in ["kernel", "pool default", "capabilities", "loop"] {
        ensure!(text.contains(part), "says nothing of {part}: {text}");
    }
    ensure!(text.lines().all(|line| line.starts_with("ok") || line.starts_with("note")), "{text}");
    // The disk of the rig's pool is an image.
    let disk = rig.pool().directory.with_extension("disk");
    ensure!(text.contains(&format!("note    pool default: below it: the file {disk:?}\n")), "{text}");
    ensure!(traces(rig)? == before, "something has changed");
    Ok(())
}

fn check_says_what_to_mend(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "fast"])?;
    fs::create_dir_all(rig.kubelet.root().join("plugins/bulkhead.csi.local"))?;
    let fast = rig.pools[1].directory.clone();
    mounts::unmount_all(&fast)?;
    let before = traces(rig)?;
    let text = Printed::by(&mut check_command(rig)?)?.failed()?;
    let line = text.lines().find(|line| line.starts_with("FAILED")).context(text.clone())?;
    ensure!(line.contains("fast") && line.contains("bulkhead-setup init-pool"), "{line}");
    ensure!(traces(rig)? == before, "something has changed");
    rig.pools.truncate(1);
    Ok(())
}

fn check_notes_directories_beside_filesystems_in_images(rig: &mut Rig) -> Result<()> {
    rig.add_pool_for_filesystems("default")?;
    rig.start_helper()?;
    let is_noted = |rig: &Rig| -> Result<bool> {
        let output = check_command(rig)?.output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        Ok(text
            .contains("\nnote    pool default: directory volumes are on the same filesystem as filesystems in images"))
    };
    ensure!(!is_noted(rig)?, "there is none yet");
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", directory_spec(SIZE)))?;
    ensure!(is_noted(rig)?, "there is one now");
    helper.ask(&delete("vol-a"))?;
    Ok(())
}

fn check_notes_that_sizes_are_not_enforced(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    let told = "\nnote    pool default: sizes are not enforced";
    rig.pools[0].options = ",quota=none".to_owned();
    let text = Printed::by(&mut check_command(rig)?)?.succeeded()?;
    ensure!(text.contains(told) && text.contains("\nok      pool default"), "{text}");
    Ok(())
}

fn a_private_publish_directory_is_refused(rig: &mut Rig) -> Result<()> {
    use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
    rig.add_pool("default")?;
    let publish = rig.publish_directory();
    mount_bind(&publish, &publish)?;
    mount_change(&publish, MountPropagationFlags::PRIVATE)?;
    check_refuses(rig, "not shared")?;
    let checked = Printed::by(&mut check_command(rig)?)?.failed()?;
    ensure!(checked.contains("\nskipped pool default in "), "{checked}");
    ensure!(checked.contains("\nskipped jail, and mounts that reach the host: "), "{checked}");
    // A slave mount receives the host's mounts, but the host does not receive the slave's.
    mount_change(&publish, MountPropagationFlags::SHARED)?;
    let inner = publish.join("inner");
    fs::create_dir(&inner)?;
    mount_bind(&inner, &inner)?;
    mount_change(&inner, MountPropagationFlags::DOWNSTREAM)?;
    mount_change(&inner, MountPropagationFlags::SHARED)?;
    rig.helper_flags = vec!["--publish-dir".to_owned(), format!("slave={}", inner.display())];
    check_refuses(rig, "slave")?;
    unmount(&inner, UnmountFlags::NOFOLLOW)?;
    fs::remove_dir(&inner)?;
    unmount(&publish, UnmountFlags::NOFOLLOW)?;
    Ok(())
}

fn a_stale_socket_is_replaced(rig: &mut Rig) -> Result<()> {
    drop(std::os::unix::net::UnixListener::bind(rig.helper_socket())?);
    fs::create_dir_all(rig.kubelet.root().join("plugins/bulkhead.csi.local"))?;
    drop(std::os::unix::net::UnixListener::bind(rig.kubelet.csi_socket())?);
    drop(std::os::unix::net::UnixListener::bind(rig.kubelet.registration_socket())?);
    rig.start()?;
    let helper = rig.helper()?;
    helper.ask(&create(own("vol-a"), directory_spec(SIZE)))?;
    Ok(())
}

fn nothing_is_accepted_before_the_helper_is_confined(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    let trace = rig.work().join("trace");
    let mut helper = Daemon::start("helper", &mut strace::started(&rig.helper_command()?, &trace, None), &rig.logs())?;
    helper
        .wait_until(rig.patience(Duration::from_secs(20)), || HelperClient::welcomed(&rig.helper_socket()).map(drop))?;
    let own = format!("{} ", helper.pid());
    helper.kill()?;
    let written = fs::read_to_string(&trace)?;
    let filter = |line: &str| line.starts_with(&own) && line.contains("seccomp(SECCOMP_SET_MODE_FILTER");
    let confined = written.lines().position(filter).context("it has no filter")?;
    let accepting = written.lines().position(|line| line.contains("accept4(")).context("it accepts nothing")?;
    ensure!(confined < accepting, "a thread accepts in line {accepting}, the filter is installed in line {confined}");
    Ok(())
}
