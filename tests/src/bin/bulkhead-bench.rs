//! What the services cost: the time of calls beside few and beside many published volumes, and the memory of both
//! processes. Nothing here is a test; the figures depend on the machine.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_tests::bench::{self, percentile};
use bulkhead_tests::csi::CsiClient;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::{CreateVolumeRequest, ProbeRequest, VolumeCapability};
use bulkhead_tests::observe::{mounts, processes};
use bulkhead_tests::setting::PoolFilesystem;
use bulkhead_tests::stand::Stand;
use bulkhead_tests::wait;
use clap::Parser;
use serde_json::json;

/// Measures calls and memory on this host.
#[derive(Debug, Parser)]
struct Options {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Calls of each sort
    #[arg(long, default_value_t = 300)]
    calls: usize,
    /// Numbers of published volumes, half of them block volumes
    #[arg(long, value_delimiter = ',', default_value = "5,1000")]
    volumes: Vec<usize>,
    /// Filesystem of the pool
    #[arg(long, default_value = "xfs")]
    pool_fs: PoolFilesystem,
}

/// The times of one sort of call.
struct Timing {
    call: &'static str,
    volumes: usize,
    p50: Duration,
    p99: Duration,
}

/// The memory of both processes, the emptier counted to the helper.
struct Memory {
    volumes: usize,
    helper: u64,
    frontend: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    bench::run(options.pool_fs, |setting, work, templates| {
        let mut stand = Stand::new(setting, work, templates)?;
        let measured = measure(&mut stand, &options);
        stand.abandon();
        let (timings, memory) = measured?;
        print(&options, &timings, &memory);
        Ok(())
    })
}

fn measure(stand: &mut Stand, options: &Options) -> Result<(Vec<Timing>, Vec<Memory>)> {
    stand.add_pool("default")?;
    stand.pools[0].options.push_str(",overcommit=100");
    stand.start()?;
    let csi = stand.csi()?;
    let (mut timings, mut memory) = (Vec::new(), vec![measure_memory(stand, 0)?]);
    let mut published = 0;
    for &volumes in &options.volumes {
        for number in published..volumes {
            let (id, capability) = volume(number);
            make(&csi, &id, &capability)?;
            csi.node_publish_volume(publish(&id, &stand.target(&id), capability))?;
        }
        published = published.max(volumes);
        measure_calls(stand, &csi, volumes, options.calls, &mut timings)?;
        memory.push(measure_memory(stand, volumes)?);
    }
    for number in 0..published {
        let (id, _) = volume(number);
        repeated(|| Ok(csi.node_unpublish_volume(unpublish(&id, &stand.target(&id))).map(drop)?))?;
        csi.delete_volume(delete(&id))?;
    }
    let pool = stand.pool().directory.clone();
    stand.stop()?;
    mounts::unmount_all(&pool)?;
    Ok((timings, memory))
}

/// Other programs look at every loop device there is, and then a device is busy for a moment.
fn repeated(mut call: impl FnMut() -> Result<()>) -> Result<()> {
    wait::until(Duration::from_secs(5), &mut call)
}

fn volume(number: usize) -> (String, VolumeCapability) {
    (format!("vol-{number}"), if number.is_multiple_of(2) { mount() } else { block() })
}

fn make(csi: &CsiClient, id: &str, capability: &VolumeCapability) -> Result<()> {
    let sparse = parameters(&[("sparse", "true")]);
    csi.create_volume(CreateVolumeRequest { parameters: sparse, ..create(id, MIB, capability.clone()) })?;
    Ok(())
}

fn measure_calls(
    stand: &Stand,
    csi: &CsiClient,
    volumes: usize,
    calls: usize,
    timings: &mut Vec<Timing>,
) -> Result<()> {
    let target = stand.target("measured");
    let mut add = |call, times: Vec<Duration>| timings.push(timing(call, volumes, times));
    let mut probes = Vec::new();
    for _ in 0..calls {
        probes.push(timed(|| Ok(csi.probe(ProbeRequest {}).map(drop)?))?);
    }
    add("Probe", probes);
    for (capability, names) in
        [(mount(), ["publish directory", "unpublish directory"]), (block(), ["publish block", "unpublish block"])]
    {
        make(csi, "measured", &capability)?;
        let (mut published, mut unpublished) = (Vec::new(), Vec::new());
        for _ in 0..calls {
            let request = publish("measured", &target, capability.clone());
            published.push(timed(|| Ok(csi.node_publish_volume(request).map(drop)?))?);
            let request = unpublish("measured", &target);
            match timed(|| Ok(csi.node_unpublish_volume(request).map(drop)?)) {
                Ok(time) => unpublished.push(time),
                Err(_) => repeated(|| Ok(csi.node_unpublish_volume(unpublish("measured", &target)).map(drop)?))?,
            }
        }
        csi.delete_volume(delete("measured"))?;
        add(names[0], published);
        add(names[1], unpublished);
    }
    Ok(())
}

fn timed(call: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    call()?;
    Ok(start.elapsed())
}

fn timing(call: &'static str, volumes: usize, mut times: Vec<Duration>) -> Timing {
    times.sort();
    Timing { call, volumes, p50: percentile(&times, 50), p99: percentile(&times, 99) }
}

fn measure_memory(stand: &mut Stand, volumes: usize) -> Result<Memory> {
    let helper = stand.running_helper()?.pid();
    let mut resident = processes::resident(helper)?;
    for process in processes::descendants(i32::try_from(helper)?)? {
        resident += processes::resident(u32::try_from(process.pid)?)?;
    }
    let frontend = processes::resident(stand.running_frontend()?.pid()).context("the frontend's memory")?;
    Ok(Memory { volumes, helper: resident, frontend })
}

fn print(options: &Options, timings: &[Timing], memory: &[Memory]) {
    if options.json {
        let calls: Vec<_> = timings
            .iter()
            .map(|own| {
                let micros = |time: Duration| time.as_secs_f64() * 1e6;
                json!({ "call": own.call, "volumes": own.volumes, "p50_us": micros(own.p50), "p99_us": micros(own.p99) })
            })
            .collect();
        let memory: Vec<_> = memory
            .iter()
            .map(|own| json!({ "volumes": own.volumes, "helper_bytes": own.helper, "frontend_bytes": own.frontend }))
            .collect();
        println!("{:#}", json!({ "calls": calls, "memory": memory }));
        return;
    }
    println!("{:<22}{:>10}{:>10}{:>10}", "call", "volumes", "p50 µs", "p99 µs");
    for own in timings {
        println!("{:<22}{:>10}{:>10}{:>10}", own.call, own.volumes, own.p50.as_micros(), own.p99.as_micros());
    }
    println!("\n{:<22}{:>10}{:>10}{:>10}", "resident memory, KiB", "volumes", "helper", "frontend");
    for own in memory {
        println!("{:<22}{:>10}{:>10}{:>10}", "", own.volumes, own.helper / 1024, own.frontend / 1024);
    }
}
