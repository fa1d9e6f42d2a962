//! What the services cost: the time of calls beside few and beside many published volumes and while a large volume is
//! emptied, and the memory of both processes. Nothing here is a test; the figures depend on the machine.

use std::fs::{self, File};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use bulkhead_tests::bench::{self, percentile};
use bulkhead_tests::csi::CsiClient;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::{CreateVolumeRequest, ListVolumesRequest, ProbeRequest, VolumeCapability};
use bulkhead_tests::helper::{self, HelperClient};
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
    /// Files of a deleted volume that is being emptied while calls are timed; 0 skips this
    #[arg(long, default_value_t = 50_000)]
    emptying: usize,
    /// Directory volumes that are created in the end, for the memory they take and the time of a start beside them; 0 skips
    /// this
    #[arg(long, default_value_t = 0)]
    created: usize,
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

/// The times of one sort of call while nothing is emptied, and while something is.
struct Beside {
    call: &'static str,
    idle: Vec<Duration>,
    emptying: Vec<Duration>,
}

/// All that is measured.
struct Measured {
    timings: Vec<Timing>,
    memory: Vec<Memory>,
    beside: Vec<Beside>,
    created: Option<Created>,
}

/// What a helper takes that starts beside volumes which are not published.
struct Created {
    memory: Memory,
    start: Duration,
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
        print(&options, &measured?);
        Ok(())
    })
}

fn measure(stand: &mut Stand, options: &Options) -> Result<Measured> {
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
    let beside = if options.emptying > 0 { measure_beside(stand, &csi, options)? } else { Vec::new() };
    let created = if options.created > 0 { Some(measure_created(stand, options.created)?) } else { None };
    let pool = stand.pool().directory.clone();
    stand.stop()?;
    mounts::unmount_all(&pool)?;
    Ok(Measured { timings, memory, beside, created })
}

/// Creates so many volumes, which stay, and starts the helper anew.
fn measure_created(stand: &mut Stand, number: usize) -> Result<Created> {
    const CONNECTIONS: usize = 4;
    let clients = (0..CONNECTIONS).map(|_| stand.helper()).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let create_own = |(first, client): (usize, HelperClient)| {
            scope.spawn(move || {
                (first..number).step_by(CONNECTIONS).try_for_each(|number| {
                    let request = helper::create(&format!("created-{number}"), helper::directory_spec(64 << 10));
                    client.ask(&request).map(drop)
                })
            })
        };
        let threads: Vec<_> = clients.into_iter().enumerate().map(create_own).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    stand.kill_helper()?;
    let begun = Instant::now();
    stand.start_helper()?;
    let start = begun.elapsed();
    // The frontend connects again, and has a page of them in its hands.
    repeated(|| Ok(stand.csi()?.list_volumes(ListVolumesRequest::default()).map(drop)?))?;
    Ok(Created { memory: measure_memory(stand, number)?, start })
}

/// Times the life of one volume after the other, first alone, then while a large one is emptied.
fn measure_beside(stand: &Stand, csi: &CsiClient, options: &Options) -> Result<Vec<Beside>> {
    let wait_until_emptied = || {
        wait::until(Duration::from_secs(600), || {
            let left = stand.pool().entries()?;
            ensure!(!left.iter().any(|name| name.starts_with('.')), "volumes are still being emptied");
            Ok(())
        })
    };
    let calls = ["create", "publish", "unpublish", "delete"];
    let mut beside = calls.map(|call| Beside { call, idle: Vec::new(), emptying: Vec::new() });
    make(csi, "large", &mount())?;
    let data = stand.pool().volume("large").join("data");
    for number in 0..options.emptying {
        let directory = data.join((number / 500).to_string());
        if number % 500 == 0 {
            fs::create_dir(&directory)?;
        }
        File::create(directory.join(number.to_string()))?;
    }
    rustix::fs::syncfs(File::open(&data)?)?;
    wait_until_emptied()?;
    for _ in 0..options.calls {
        for (own, time) in beside.iter_mut().zip(time_a_life(stand, csi)?) {
            own.idle.push(time);
        }
    }
    wait_until_emptied()?;
    csi.delete_volume(delete("large"))?;
    let begun = Instant::now();
    while stand.pool().entries()?.iter().any(|name| name.ends_with(".large")) {
        for (own, time) in beside.iter_mut().zip(time_a_life(stand, csi)?) {
            own.emptying.push(time);
        }
    }
    eprintln!("{} files were removed in {:.1} s", options.emptying, begun.elapsed().as_secs_f64());
    wait_until_emptied()?;
    for own in &mut beside {
        own.idle.sort();
        own.emptying.sort();
    }
    Ok(beside.into())
}

/// The times to create, publish, unpublish and delete a volume.
fn time_a_life(stand: &Stand, csi: &CsiClient) -> Result<[Duration; 4]> {
    let (id, target) = ("measured", stand.target("measured"));
    Ok([
        timed(|| make(csi, id, &mount()))?,
        timed(|| Ok(csi.node_publish_volume(publish(id, &target, mount())).map(drop)?))?,
        timed(|| Ok(csi.node_unpublish_volume(unpublish(id, &target)).map(drop)?))?,
        timed(|| Ok(csi.delete_volume(delete(id)).map(drop)?))?,
    ])
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

fn print(options: &Options, Measured { timings, memory, beside, created }: &Measured) {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    if options.json {
        let calls: Vec<_> = timings
            .iter()
            .map(|own| {
                json!({ "call": own.call, "volumes": own.volumes, "p50_us": micros(own.p50), "p99_us": micros(own.p99) })
            })
            .collect();
        let memory: Vec<_> = memory
            .iter()
            .map(|own| json!({ "volumes": own.volumes, "helper_bytes": own.helper, "frontend_bytes": own.frontend }))
            .collect();
        let summary = |times: &[Duration]| {
            let [p50, p99] = [50, 99].map(|percent| micros(percentile(times, percent)));
            json!({ "p50_us": p50, "p99_us": p99, "calls": times.len() })
        };
        let beside: Vec<_> = beside
            .iter()
            .map(|own| json!({ "call": own.call, "idle": summary(&own.idle), "emptying": summary(&own.emptying) }))
            .collect();
        let created = created.as_ref().map(|Created { memory: own, start }| {
            let start = micros(*start);
            json!({ "volumes": own.volumes, "helper_bytes": own.helper, "frontend_bytes": own.frontend, "start_us": start })
        });
        println!(
            "{:#}",
            json!({ "calls": calls, "memory": memory, "beside_emptying": beside, "beside_created": created })
        );
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
    println!(
        "\n{:<22}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "µs: idle; emptying", "p50", "p99", "most", "p50", "p99", "most"
    );
    for own in beside {
        print!("{:<22}", own.call);
        for percent in [50, 99, 100] {
            print!("{:>10}", percentile(&own.idle, percent).as_micros());
        }
        for percent in [50, 99, 100] {
            print!("{:>10}", percentile(&own.emptying, percent).as_micros());
        }
        println!();
    }
    if let Some(Created { memory, start }) = created {
        let Memory { volumes, helper, frontend } = memory;
        println!(
            "\nbeside {volumes} volumes that are not published, the helper starts in {} ms; KiB: helper {}, frontend {}",
            start.as_millis(),
            helper / 1024,
            frontend / 1024
        );
    }
}
