//! Root in a pod, without the seccomp profile for tenants and without a user namespace, against the limits of a filesystem
//! in an image, and against its neighbours.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_tests::commands::Printed;
use bulkhead_tests::node::{Kubectl, Machine};
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

/// What a pod must not change of the pool.
#[derive(Debug, PartialEq, Eq)]
struct Pool {
    /// The limits of each project on bytes and inodes.
    limits: BTreeMap<String, Vec<String>>,
    /// How many bytes are taken.
    taken: u64,
}

impl Pool {
    fn look(machine: &Machine) -> Result<Self> {
        let told = machine.run("xfs_quota -x -c 'report -p -b -i -N -n' /srv/bulkhead/default")?;
        let rows = told.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let rows = rows.filter(|row| row.len() > 9);
        let limits: BTreeMap<_, _> = rows.map(|row| (row[0].clone(), [&row[2..4], &row[7..9]].concat())).collect();
        ensure!(!limits.is_empty(), "no project has a limit: {told}");
        let taken = machine.run("df -B1 --output=used /srv/bulkhead/default | tail -n 1")?.trim().parse()?;
        Ok(Self { limits, taken })
    }
}

/// Root takes for its files the project of a neighbour's directory, has no way to change limits, and fills its volume.
pub fn limits_hold_for_root(story: &mut Story<'_>) -> Result<()> {
    let (kubectl, machine) = (&story.node.kubectl, &story.node.machine);
    let directory = CLASSES[1].directory;
    try_to_change_limits(kubectl)?;
    let (pool, neighbour) = (Pool::look(machine)?, used_by_neighbour(kubectl)?);
    let filled = fill(story).and_then(|()| the_others_go_on(story)).and_then(|()| the_room_inside_is_told(story));
    let (pool_now, neighbour_now) = (Pool::look(machine)?, used_by_neighbour(kubectl)?);
    // Whoever comes next finds room, also if something was wrong.
    kubectl.exec(POD, &format!("cd {directory} && rm -rf fill project file more*"))?;
    filled?;
    ensure!(pool_now.limits == pool.limits, "limits of projects have changed: {pool:?}, {pool_now:?}");
    ensure!(pool_now.taken < pool.taken + (4 << 20), "filling it took room of the pool: {pool:?}, {pool_now:?}");
    ensure!(neighbour_now < neighbour + 64, "the neighbour is charged with {neighbour_now} after {neighbour} KiB");
    kubectl.exec(POD, &format!("dd if=/dev/zero of={directory}/again bs=1M count=8 && sync"))?;
    check_text(kubectl)
}

/// Returns what the neighbour's directory is charged with, in KiB.
fn used_by_neighbour(kubectl: &Kubectl) -> Result<u64> {
    let told = kubectl.exec(POD, &format!("df -P -k {} | tail -n 1", CLASSES[0].directory))?;
    told.split_whitespace().nth(2).and_then(|text| text.parse().ok()).context(told)
}

fn try_to_change_limits(kubectl: &Kubectl) -> Result<()> {
    let [files, image] = CLASSES.map(|class| class.directory);
    let libraries = format!("{TOOLS}/lib/*-linux-gnu*");
    let perl = format!("{libraries}/ld-linux-*.so.* --library-path $(echo {libraries}) {TOOLS}/bin/perl");
    let script = ATTEMPTS.replace('\'', r"'\''");
    let told = kubectl.exec(POD, &format!("{perl} -e '{script}' {image} {files}/text"))?;
    let lines: Vec<(&str, &str)> = told.lines().filter_map(|line| line.split_once(' ')).collect();
    ensure!(lines.len() == 13, "{told}");
    for (name, errno) in lines {
        // Root may say whose project its own files are: nothing is counted by them in its own filesystem.
        let wanted = if name.starts_with("project-") { 0 } else { EPERM };
        ensure!(errno.parse() == Ok(wanted), "{name} ends with {errno}: {told}");
    }
    Ok(())
}

fn fill(story: &Story<'_>) -> Result<()> {
    let (kubectl, machine) = (&story.node.kubectl, &story.node.machine);
    let Class { sizes: [size, _], log, directory, .. } = CLASSES[1];
    let told = kubectl.exec(POD, FILL)?;
    let lines: Vec<Vec<&str>> = told.lines().map(|line| line.split_whitespace().collect()).collect();
    let [bytes, inodes] = &lines[..] else { bail!("{told}") };
    let number = |row: &[&str], at: usize| row.get(at).and_then(|text| text.parse::<u64>().ok()).context(told.clone());
    ensure!(number(bytes, 1)? == (size - log) << 10 && number(bytes, 3)? < 1024, "{told}");
    ensure!(number(inodes, 3)? < 256, "{told}");
    for write in ["dd if=/dev/zero of=more bs=64k count=32", "cp /bin/sh more-program"] {
        let written = kubectl.exec(POD, &format!("cd {directory} && {write} && sync"));
        ensure!(written.is_err(), "`{write}` in a full volume");
    }
    // Its image has all of its size from the beginning, and no more than that.
    let images = "/srv/bulkhead/default/*/image";
    let told = machine.run(&format!("du -B1 --apparent-size {images}; du -B1 {images}"))?;
    let sizes = told.lines().filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let sizes: Vec<u64> = sizes.filter(|bytes| *bytes > 100 << 20).collect();
    let [apparent, allocated] = sizes[..] else { bail!("not one large image: {told}") };
    ensure!(apparent == size << 20 && allocated <= (size << 20) + (1 << 20), "{told}");
    Ok(())
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
fn the_room_inside_is_told(story: &Story<'_>) -> Result<()> {
    let (kubectl, image) = (&story.node.kubectl, &CLASSES[1]);
    let mebibytes = image.sizes[0] - image.log;
    let volume: Value = kubectl.get(&["pv", &volume_of(kubectl, image.claim)?])?;
    let id = volume["spec"]["csi"]["volumeHandle"].as_str().context("no handle")?;
    let [namespace, kind, name] = AGENT;
    let agent = format!("{kind}/{name}");
    let told = kubectl
        .run(&[namespace, "exec", &agent, "--container=frontend", "--", "/bulkheadctl", "volume", "show", id])?;
    let size = Printed::row(&told, &["size"])?;
    ensure!(size.contains(&format!("of which {mebibytes} MiB are room for files")), "{told}");
    Ok(())
}
