//! Root in a pod, without the seccomp profile for tenants and without a user namespace, against the limits of a filesystem
//! in an image, and against its neighbours.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::commands::Printed;
use serde_json::Value;

use crate::deployment::AGENT;
use crate::pods::{CLASSES, Class, DEVICE, TOOLS};
use crate::story::Story;
use crate::tenants::volume_of;
use crate::volumes::{POD, check_text};

const EPERM: i32 = 1;

/// Tries to change limits, each time on a file of its own in the volume, and prints a line `NAME ERRNO` for each attempt.
/// The project is that of a neighbour's directory.
const ATTEMPTS: &str = r#"
my ($own, $neighbour) = @ARGV;
sub report { my ($name, $done) = @_; printf "%s %d\n", $name, $done ? 0 : $!; }
open(my $other, '<', $neighbour) or die "open: $!";
my $attributes = "\0" x 28;
ioctl($other, 0x801c581f, $attributes) or die "FS_IOC_FSGETXATTR: $!";
my $project = unpack('x12 L', $attributes);
die 'the neighbour has no project' unless $project;
mkdir "$own/project";
for my $path ("$own/project", $own) {
    open(my $directory, '<', $path) or die "open: $!";
    my $attributes = "\0" x 28;
    ioctl($directory, 0x801c581f, $attributes) or die "FS_IOC_FSGETXATTR: $!";
    substr($attributes, 0, 4) = pack('L', unpack('L', $attributes) | 0x200);
    substr($attributes, 12, 4) = pack('L', $project);
    report("project-$path", ioctl($directory, 0x401c5820, $attributes));
}
open(my $file, '+>', "$own/file") or die "open: $!";
my $limits = pack('c c S L Q6', 1, 2, 0xf, $project, (0) x 6) . "\0" x 200;
# Q_XSETQLIM, Q_SETQUOTA, Q_XQUOTAOFF and Q_XQUOTARM for projects.
for my $command (0x5804, 0x800008, 0x5802, 0x5806) {
    report(sprintf('quotactl_fd-%#x', $command), syscall(443, fileno($file), $command << 8 | 2, $project, $limits) == 0);
}
# Growing, shutting down, freezing, trimming, a label, reserved blocks, and immutable files.
for my $command (0x4010586e, 0x8004587d, 0xc0045877, 0xc0185879, 0x41009432, 0xc0105872) {
    report(sprintf('ioctl-%#x', $command), ioctl($file, $command, my $argument = "\xff" x 256));
}
my $flags = pack('L', 0x10) . "\0" x 60;
report('immutable', ioctl($file, 0x40086602, $flags));
"#;

/// Fills the volume: with whatever can be had at once, with blocks, with small files, and with empty ones; and prints how
/// many bytes and how many files that are.
const FILL: &str = "
cd /image && mkdir fill && cd fill
fallocate -l 1024G reserved 2>/dev/null && echo it could be reserved
for size in 64 16 4 1; do for n in 1 2 3 4 5 6 7 8; do fallocate -l ${size}M kept-$size-$n 2>/dev/null; done; done
dd if=/dev/zero of=written bs=64k count=100000 2>/dev/null
i=0; while [ $i -lt 20000 ] && echo small >small-$i; do i=$((i + 1)); done 2>/dev/null
j=0; while [ $j -lt 20000 ] && true >empty-$j; do j=$((j + 1)); done 2>/dev/null
sync
[ $j -lt 20000 ] || echo there is no end
df -P -k /image | tail -n 1
df -P -i /image | tail -n 1";

pub fn limits_hold_for_root(story: &mut Story<'_>) -> Result<()> {
    let (kubectl, machine) = (&story.node.kubectl, &story.node.machine);
    let [files, image] = CLASSES;
    let projects = || machine.run("xfs_quota -x -c 'report -p -b -i -N -n' /srv/bulkhead/default");
    let limits = || -> Result<BTreeMap<String, Vec<String>>> {
        let told = projects()?;
        let rows = told.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        // The project, and its limits on bytes and inodes: what is used changes.
        let wanted = rows.filter(|row| row.len() > 9);
        Ok(wanted.map(|row| (row[0].clone(), [&row[2..4], &row[7..9]].concat())).collect())
    };
    let before = limits()?;
    ensure!(!before.is_empty(), "{}", projects()?);
    let taken = || -> Result<u64> {
        Ok(machine.run("df -B1 --output=used /srv/bulkhead/default | tail -n 1")?.trim().parse()?)
    };

    // What it takes for projects is its own filesystem's, in which nothing is counted by them.
    let perl = format!(
        "{TOOLS}/lib/*-linux-gnu*/ld-linux-*.so.* --library-path $(echo {TOOLS}/lib/*-linux-gnu*) {TOOLS}/bin/perl"
    );
    let attempts =
        format!("{perl} -e '{}' {} {}/text", ATTEMPTS.replace('\'', r"'\''"), image.directory, files.directory);
    let told = kubectl.exec(POD, &attempts)?;
    let results: BTreeMap<&str, i32> = told
        .lines()
        .map(|line| {
            line.split_once(' ').and_then(|(name, errno)| Some((name, errno.parse().ok()?))).context(line.to_owned())
        })
        .collect::<Result<_>>()?;
    ensure!(results.len() == 13, "{told}");
    for (name, errno) in &results {
        // Of its own files root may say whose project they are.
        let wanted = if name.starts_with("project-") { 0 } else { EPERM };
        ensure!(*errno == wanted, "{name} ends with {errno}: {told}");
    }
    let used = |directory: &str| kubectl.exec(POD, &format!("du -s -k {directory} | cut -f 1"));
    let neighbour = used(files.directory)?;
    let pool = taken()?;

    let told = kubectl.exec(POD, FILL)?;
    let Class { sizes: [size, _], log, directory, .. } = image;
    let lines: Vec<Vec<&str>> = told.lines().map(|line| line.split_whitespace().collect()).collect();
    let [bytes, inodes] = &lines[..] else { anyhow::bail!("{told}") };
    let number = |row: &[&str], at: usize| row.get(at).and_then(|text| text.parse::<u64>().ok()).context(told.clone());
    ensure!(number(bytes, 1)? == (size - log) << 10 && number(bytes, 3)? < 1024, "{told}");
    ensure!(number(inodes, 3)? < 256, "{told}");
    for write in ["dd if=/dev/zero of=more bs=64k count=32", "cp /bin/sh more-program"] {
        ensure!(
            kubectl.exec(POD, &format!("cd {directory} && {write} && sync")).is_err(),
            "`{write}` in a full volume"
        );
    }
    // Its image has all of its size from the beginning, and no more than that.
    let images =
        machine.run("du -B1 --apparent-size /srv/bulkhead/default/*/image; du -B1 /srv/bulkhead/default/*/image")?;
    let mine: Vec<u64> = images
        .lines()
        .filter_map(|line| line.split_whitespace().next()?.parse().ok())
        .filter(|bytes| *bytes > 100 << 20)
        .collect();
    let [apparent, allocated] = mine[..] else { anyhow::bail!("not one large image: {images}") };
    ensure!(apparent == size << 20 && allocated <= (size << 20) + (1 << 20), "{images}");
    let grown = taken()?.saturating_sub(pool);
    ensure!(grown < 4 << 20, "filling it took {grown} bytes more of the pool");
    ensure!(limits()? == before, "limits of projects have changed: {before:?}, {:?}", limits()?);

    the_others_go_on(story)?;
    ensure!(used(files.directory)?.trim().parse::<u64>()? < neighbour.trim().parse::<u64>()? + 64, "{neighbour}");
    the_room_inside_is_told(story, image, size - log)?;
    kubectl.exec(POD, &format!("rm -rf {directory}/fill {directory}/project {directory}/file {directory}/more*"))?;
    kubectl.exec(POD, &format!("dd if=/dev/zero of={directory}/again bs=1M count=8 && sync"))?;
    check_text(kubectl)
}

/// While a volume is full, so does a directory of the same pool, a device, the node, and what is told of the pool.
fn the_others_go_on(story: &Story<'_>) -> Result<()> {
    let (kubectl, machine) = (&story.node.kubectl, &story.node.machine);
    let files = CLASSES[0].directory;
    kubectl.exec(POD, &format!("dd if=/dev/zero of={files}/other bs=1M count=8 conv=fsync && rm {files}/other"))?;
    kubectl.exec(POD, &format!("dd if=/dev/zero of={DEVICE} bs=1M seek=50 count=4 conv=fsync"))?;
    machine.run("dd if=/dev/zero of=/var/tmp/node bs=1M count=4 conv=fsync && rm /var/tmp/node")?;
    crate::operator::the_pool_is_healthy(story)
}

/// `bulkheadctl volume show` says how much room there is inside.
fn the_room_inside_is_told(story: &Story<'_>, image: Class, mebibytes: u64) -> Result<()> {
    let kubectl = &story.node.kubectl;
    let volume: Value = kubectl.get(&["pv", &volume_of(kubectl, &image)?])?;
    let id = volume["spec"]["csi"]["volumeHandle"].as_str().context("no handle")?;
    let [namespace, kind, name] = AGENT;
    let agent = format!("{kind}/{name}");
    let told = kubectl
        .run(&[namespace, "exec", &agent, "--container=frontend", "--", "/bulkheadctl", "volume", "show", id])?;
    let size = Printed::row(&told, &["size"])?;
    ensure!(size.contains(&format!("of which {mebibytes} MiB are room for files")), "{told}");
    Ok(())
}
